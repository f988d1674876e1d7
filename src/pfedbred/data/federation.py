"""A federation: all clients' samples in flat arrays with offsets, so that no client is padded to the largest."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from pfedbred.data import labels as labels_
from pfedbred.data.columns import Encoding
from pfedbred.data.minibatches import Inputs
from pfedbred.data.scaling import moments
from pfedbred.data.text import Text
from pfedbred.errors import SettingError, nearest
from pfedbred.tasks import TASKS, Labels, Target
from pfedbred.types import Words

Part = Literal["train", "validation", "test"]
"""A part of a federation's samples."""


class Split(NamedTuple):
    """Samples of all clients: client i has the rows from offsets[i] up to, but not including, offsets[i + 1]."""

    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client."""
        return np.diff(self.offsets)

    def client(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of client i."""
        rows = slice(self.offsets[i], self.offsets[i + 1])
        return self.x[rows], self.y[rows]

    def label_counts(self, classes: int) -> np.ndarray:
        """Each client's number of samples by label: clients x classes."""
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        counts = np.zeros((len(self.sizes), classes), np.int64)
        np.add.at(counts, (owner, self.y), 1)
        return counts

    def take(self, clients: np.ndarray) -> Split:
        """The samples of these clients only."""
        return gathered(self.x, self.y, [np.arange(self.offsets[i], self.offsets[i + 1]) for i in clients])


class Fitted(NamedTuple):
    """The part of a federation that its training samples decide.

    Attributes:
      x: the stored samples of each part.
      fields: fields of the federation: shift, scale, text, features, encoding.
      about: a description of them for people.
    """

    x: list[np.ndarray]
    fields: dict[str, Any]
    about: dict[str, Any]


class Refit(Protocol):
    """Recomputes the encoding of the inputs from fewer training samples."""

    def __call__(self, deciding: Sequence[int] | None = None) -> Fitted:
        """From the training samples of these clients; by default of all."""

    def divided(self, kept: Sequence[np.ndarray], held: Sequence[np.ndarray]) -> Refit:
        """The same with only the ``kept`` training samples of each client, and the ``held`` ones for validation."""


@dataclass(frozen=True, repr=False)
class Federation:
    """Clients with their own training and test samples, and optionally samples for choosing rounds and settings.

    Attributes:
      name: name of the data.
      train: training samples.
      test: test samples; no sample is in two parts.
      classes: number of labels; 1 if they are numbers to predict.
      shift: stored samples become inputs on the device as (x - shift) * scale.
      scale: see ``shift``.
      text: the vocabulary, if samples are word ids.
      names: names of the clients, if any.
      labels: names of the labels, if any.
      features: names of the columns, if samples come from a table: one per number, or a single one for images or texts.
      about: where the data comes from (source, split, seed), for display.
      task: the default task for its labels.
      encoding: for a table with gaps or texts, how cells became the stored inputs.
      validation: validation samples, if some are held out of training; see :meth:`with_validation`.
      refit: for a table or texts, recomputes their encoding from fewer training samples; see :class:`Refit`.
    """

    name: str
    train: Split
    test: Split
    classes: int
    shift: np.ndarray | None = None
    scale: np.ndarray | None = None
    text: Text | None = None
    names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    task: str = "classification"
    encoding: Encoding | None = None
    validation: Split | None = None
    refit: Refit | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line."""
        counts = [f"{len(split.y):,} {part}" for part, split in self.parts.items()]
        labels = labels_.in_words(self.task, self.classes)
        return f"Federation({self.name}: {self.clients:,} clients, {' + '.join(counts)} samples, {labels})"

    @property
    def parts(self) -> dict[Part, Split]:
        """The existing splits, by name."""
        validation: dict[Part, Split] = {} if self.validation is None else {"validation": self.validation}
        return {"train": self.train, **validation, "test": self.test}

    def each_part(self, change: Callable[[Split], Split], **more: Any) -> Federation:
        """The same federation with every split changed, and with other fields replaced by ``more``."""
        changed: dict[str, Any] = {part: change(split) for part, split in self.parts.items()}
        return dataclasses.replace(self, **changed, **more)

    def inputs(self, split: Split) -> Inputs:
        """The samples of a split, with their normalisation."""
        if self.shift is None or self.scale is None:
            return Inputs(split.x)
        return Inputs(split.x, self.shift, self.scale)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])

    @property
    def bytes(self) -> int:
        """Size of the samples in bytes."""
        return sum(split.x.nbytes for split in self.parts.values())

    @property
    def facts(self) -> dict[str, Any]:
        """Its size in a few numbers, and where it comes from."""
        counted = {
            "name": self.name,
            "clients": self.clients,
            **{f"{part}_samples": len(split.y) for part, split in self.parts.items()},
            "classes": self.classes,
        }
        return {**counted, **self.about, **counted}  # counts override whatever a file says about itself

    @property
    def words(self) -> Words | None:
        """What a model needs to know about word ids; None if the samples are numbers."""
        return None if self.text is None else Words(self.text.count, self.text.vectors)

    @property
    def label_kind(self) -> Labels:
        """What its labels are."""
        return labels_.kind_of(self.task)

    @property
    def target(self) -> Target | None:
        """Mean and standard deviation of the training labels, if they are numbers."""
        if self.label_kind != "numbers":
            return None
        return Target(*map(float, moments(self.train.y)))

    def for_task(self, task: str) -> Federation:
        """The same federation for this task, if its labels fit it; classes without names can become numbers."""
        wanted, have = labels_.kind_of(task), self.label_kind
        if wanted == have:
            return self if task == self.task else dataclasses.replace(self, task=task)
        if (wanted, have) != ("numbers", "classes") or self.labels is not None:
            words = labels_.WORDS
            raise SettingError(
                f"the task {task} is for {words[wanted]}, but the labels of {self.name} are {words[have]}"
            )
        return self.each_part(lambda split: split._replace(y=labels_.stored(split.y, wanted)), classes=1, task=task)

    def hold_out(self, who: float | Sequence[str], seed: int) -> tuple[Federation, Federation]:
        """Two federations: the clients that train, and the newcomers, by name or as a fraction drawn by the seed.

        Inputs are encoded by the former alone; see :meth:`with_validation`.
        """
        if isinstance(who, float | int):
            count = round(who * self.clients)
            order = np.random.default_rng([seed, 1]).permutation(self.clients)
        else:
            names = self.names or tuple(map(str, range(self.clients)))
            chosen = dict.fromkeys(client_number(each, names) for each in who)
            if len(chosen) != len(who):
                raise SettingError(f"a client is named twice in held_out_clients: {', '.join(who)}")
            count, order = len(chosen), np.array([*chosen, *(i for i in range(self.clients) if i not in chosen)])
        if not 1 <= count < self.clients:
            raise SettingError(
                f"held_out_clients = {who} of {self.clients} clients holds out {count}; "
                "at least one must be held out and one must train"
            )
        training, new = np.sort(order[count:]), np.sort(order[:count])
        fitted = self if self.refit is None else self._refitted(self.refit, training.tolist())
        return fitted.take(training), fitted.take(new)

    def with_validation(self, fraction: float, seed: int, numbers: Sequence[int] | None = None) -> Federation:
        """The same clients with a fraction of their training samples as validation samples, drawn by the seed.

        Every client keeps at least one training sample. ``numbers`` are the clients' numbers, if they differ from their
        places here. If the samples were read from their source, the encoding of inputs (means, categories, words) is
        recomputed from the remaining training samples; a prepared file no longer has what that needs, and keeps its
        encoding.
        """
        if self.validation is not None:
            raise SettingError(f"{self.name} already has validation samples: leave validation out")
        kept: list[np.ndarray] = []
        held: list[np.ndarray] = []
        for i, (begin, end) in enumerate(itertools.pairwise(self.train.offsets.tolist())):
            number = i if numbers is None else int(numbers[i])
            rows = np.random.default_rng([seed, number]).permutation(np.arange(begin, end))
            count = min(len(rows) - 1, round(fraction * len(rows)))
            held.append(rows[:count])
            kept.append(rows[count:])
        train, validation = (gathered(self.train.x, self.train.y, rows) for rows in (kept, held))
        about = {**self.about, "validation": fraction}
        divided = dataclasses.replace(self, train=train, validation=validation, about=about)
        return divided if self.refit is None else divided._refitted(self.refit.divided(kept, held))

    def _refitted(self, refit: Refit, deciding: Sequence[int] | None = None) -> Federation:
        """The federation with inputs encoded from these clients' training samples."""
        fitted = refit(deciding)
        xs = dict(zip(self.parts, fitted.x, strict=True))
        changed: dict[str, Any] = {name: split._replace(x=xs[name]) for name, split in self.parts.items()}
        about = {**self.about, **fitted.about}
        return dataclasses.replace(self, **changed, **fitted.fields, about=about, refit=refit)

    @property
    def fitted(self) -> bool:
        """Whether the encoding of inputs was computed from training samples, as for tables and texts."""
        standardised = self.features is not None and self.shift is not None and self.shift.ndim > 0
        return self.encoding is not None or self.text is not None or standardised

    def take(self, clients: np.ndarray) -> Federation:
        """The federation of these clients only; clients without a name are named by their number here."""
        names = tuple(self.names[i] if self.names else str(i) for i in clients)
        encoding = None if self.encoding is None else self.encoding.take(clients)
        return self.each_part(lambda split: split.take(clients), names=names, encoding=encoding, refit=None)

    def ordered(self, features: Sequence[str], where: str) -> Federation:
        """The same federation with these columns only, in this order; ``where`` starts the error message."""
        places = columns_at(self.features, features, where)
        if places is None:
            return self
        if self.encoding is not None:
            raise SettingError(f"{where} has gaps or texts: its columns can no longer be chosen")
        shift, scale = (
            None if each is None else np.broadcast_to(each, self.shape)[places] for each in (self.shift, self.scale)
        )
        named = {"shift": shift, "scale": scale, "features": tuple(features), "refit": None}
        return self.each_part(lambda split: split._replace(x=split.x[:, places]), **named)

    def client_name(self, i: int) -> str:
        """The client's number, and its name if it has one, for messages."""
        return f"client {i} ({self.names[i]!r})" if self.names else f"client {i}"


def client_number(client: str, names: Sequence[str]) -> int:
    """The number of the client with that name or, failing that, that number."""
    if client in names:
        return names.index(client)
    if re.fullmatch(r"-?\d{1,9}", client):
        if 0 <= int(client) < len(names):
            return int(client)
        raise SettingError(f"there is no client {client}; clients are 0 to {len(names) - 1}")
    known = nearest(client, names) if len(names) <= 50 else f"; clients are {names[0]!r} to {names[-1]!r}"
    raise SettingError(f"there is no client called {client!r}{known}")


Arrays = tuple[np.ndarray, np.ndarray]
"""Inputs and labels of one client."""


def gathered(x: np.ndarray, y: np.ndarray, clients: Sequence[np.ndarray]) -> Split:
    """The split in which each client has these rows of the samples."""
    rows = np.concatenate(clients).astype(np.int64)
    return Split(x[rows], y[rows], offsets_of([len(each) for each in clients]))


def offsets_of(sizes: Sequence[int]) -> np.ndarray:
    """The row where each client's samples begin, and the end of the last client's."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def check(federation: Federation, where: str = "") -> None:
    """Rejects a federation that cannot be trained on, naming client and sample; ``where`` starts the message."""
    classes, clients, text = federation.classes, federation.clients, federation.text
    check_classes(classes, where)
    if federation.task not in TASKS:
        raise SettingError(f"{where}unknown task {federation.task!r}{nearest(federation.task, TASKS)}")
    for what, texts, count in (("clients", federation.names, clients), ("labels", federation.labels, classes)):
        if texts is not None and len(texts) != count:
            raise SettingError(f"{where}there are {count} {what}, but names for {len(texts)}")
    if not names_fit(federation.features, federation.shape):
        raise SettingError(f"{where}samples of shape {federation.shape} do not match the columns {federation.features}")
    if not federation.shape or 0 in federation.shape:
        raise SettingError(f"{where}samples of shape {federation.shape} are empty")
    for name, split in federation.parts.items():
        part = "training" if name == "train" else name
        offsets, rows = split.offsets, len(split.y)
        if len(offsets) != clients + 1 or offsets[0] != 0 or offsets[-1] != rows or len(split.x) != rows:
            raise SettingError(f"{where}the {part} samples do not match the clients' offsets")
        if np.any(split.sizes < (1 if part == "training" else 0)):
            empty = int(np.argmin(split.sizes))
            raise SettingError(f"{where}{federation.client_name(empty)} has no {part} samples")
        wrong = labels_.first_wrong(split.y, classes, federation.label_kind)
        if wrong:
            raise SettingError(f"{where}{_place(federation, split, wrong[0])} of the {part} set: {wrong[1]}")
        bad = first_nonfinite_row(split.x)
        if bad is not None:
            place = _place(federation, split, bad)
            raise SettingError(f"{where}{place} of the {part} set has a feature that is not a finite number")
        if text is not None:
            odd = np.flatnonzero(((split.x < 0) | (split.x >= text.count)).any(axis=tuple(range(1, split.x.ndim))))
            if len(odd):
                place = _place(federation, split, int(odd[0]))
                raise SettingError(f"{where}{place} of the {part} set has a word id that is not 0 to {text.count - 1}")


def names_fit(features: Sequence[str] | None, shape: Sequence[int]) -> bool:
    """Whether samples of this shape can come from these columns."""
    return features is None or len(features) == 1 or tuple(shape) == (len(features),)


def columns_at(have: Sequence[str] | None, wanted: Sequence[str] | None, where: object) -> list[int] | None:
    """Positions of the wanted columns among ``have``; None if they are the same, or have no names."""
    if have is None or wanted is None or list(have) == list(wanted) or len(have) == len(wanted) == 1:
        return None
    places = {name: place for place, name in reversed(list(enumerate(have)))}
    for name in wanted:
        if name not in places:
            raise SettingError(f"{where} has no column {name!r}, only {', '.join(map(repr, have))}")
    return [places[name] for name in wanted]


MOST_CLASSES = 100_000


def check_classes(classes: int, where: str = "") -> None:
    """Rejects a number of labels too large for any model, such as postcodes or times used as labels."""
    if not 1 <= classes <= MOST_CLASSES:
        raise SettingError(
            f"{where}labels from 0 to {classes - 1:,}, but at most {MOST_CLASSES:,} labels are supported; "
            "give labels that are arbitrary numbers as texts"
        )


def _place(federation: Federation, split: Split, row: int) -> str:
    client = int(np.searchsorted(split.offsets, row, side="right")) - 1
    return f"{federation.client_name(client)}, sample {row - int(split.offsets[client])}"


def first_nonfinite_row(x: np.ndarray) -> int | None:
    """The first row with a NaN or an infinity; x is read in blocks because it may be larger than memory."""
    if not np.issubdtype(x.dtype, np.floating):
        return None
    for begin in range(0, len(x), 4096):
        piece = np.isfinite(x[begin : begin + 4096]).reshape(len(x[begin : begin + 4096]), -1).all(axis=1)
        if not piece.all():
            return begin + int(np.argmin(piece))
    return None
