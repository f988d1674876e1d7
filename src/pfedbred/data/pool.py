"""A pool: the samples of a dataset before they are split over clients; and how a pool becomes a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.data import columns as columns_
from pfedbred.data.columns import DataColumn, Fill, Standardise
from pfedbred.data.federation import (
    Federation,
    Fitted,
    Split,
    check,
    check_classes,
    first_nonfinite_row,
    offsets_of,
)
from pfedbred.data.labels import first_wrong, kind_of, stored
from pfedbred.data.scaling import FitScaling, standardise
from pfedbred.data.text import Text, WordVectors, learned_vocabulary
from pfedbred.errors import SettingError

TEST_FRACTION = 0.25
"""Fraction of a client's samples that are for testing, unless the split decides it."""


@dataclass(frozen=True)
class Pool:
    """Samples, with their natural clients if any.

    Attributes:
      name: name of the data.
      x: one sample per row, which may be a text, or ids of its words or characters.
      y: labels: whole numbers from 0, numbers to predict, or a row of zeros and ones for each sample.
      classes: number of labels; 1 if they are numbers to predict.
      owner: number of the natural client of each sample.
      owners: names of these clients.
      is_test: which samples are for testing, if the source decides it.
      labels: names of the labels, if any.
      features: names of the columns, if samples come from a table.
      normalise: how samples become inputs.
      origin: ``origin(row)`` says where a row was read, for errors.
      raw: whether users are still to be sampled as LEAF does.
      text: the vocabulary, if samples are already ids.
      vectors: for texts, the default word vectors; None to learn them.
      task: the default task for the labels.
      columns: for a table with gaps or texts, the columns of ``x``; see :mod:`pfedbred.data.columns`.
      agreed: whether the columns are shared with others, so that training samples must not change them.
      source: which of several sources the samples are from, in words.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    classes: int
    owner: np.ndarray | None = None
    owners: tuple[str, ...] | None = None
    is_test: np.ndarray | None = None
    labels: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    normalise: FitScaling | None = None
    origin: Callable[[int], str] | None = None
    raw: bool = True
    text: Text | None = None
    vectors: WordVectors | None = None
    task: str = "classification"
    columns: tuple[DataColumn, ...] | None = None
    agreed: bool = False
    source: str | None = None

    def __post_init__(self) -> None:
        where = self.origin or (lambda row: f"{self.name}, row {row}")
        if len(self.x) != len(self.y) or len(self.y) == 0:
            raise SettingError(f"{self.name} has {len(self.x)} samples and {len(self.y)} labels")
        wrong = first_wrong(self.y, self.classes, kind_of(self.task))
        if wrong:
            raise SettingError(f"{where(wrong[0])}: {wrong[1]}")
        check_classes(self.classes, f"{self.name}: ")
        bad = first_nonfinite_row(self.x if self.columns is None else np.where(np.isnan(self.x), 0, self.x))
        if bad is not None:
            raise SettingError(f"{where(bad)}: a feature is not a finite number")

    @property
    def is_text(self) -> bool:
        """Whether the samples are texts."""
        return self.x.dtype == object


class Assignment(NamedTuple):
    """The rows of a pool that each client is trained and tested on, and new labels and names if the split makes any."""

    train: list[np.ndarray]
    test: list[np.ndarray]
    y: np.ndarray | None = None
    names: tuple[str, ...] | None = None


def divide(
    clients: Sequence[np.ndarray], test_fraction: float, rng: np.random.Generator, is_test: np.ndarray | None = None
) -> Assignment:
    """Divides each client's rows into training and test: as the source has marked them, if it has; else at random.

    At random, each client keeps at least one for training.
    """
    if is_test is not None:
        return Assignment([rows[~is_test[rows]] for rows in clients], [rows[is_test[rows]] for rows in clients])
    train, test = [], []
    for rows in clients:
        mixed = rng.permutation(rows)
        held = min(len(rows) - 1, round(test_fraction * len(rows)))
        test.append(mixed[:held])
        train.append(mixed[held:])
    return Assignment(train, test)


def federate(
    pool: Pool,
    assignment: Assignment,
    *,
    glove: str | None = None,
    missing: Fill | None = None,
    standardised: Standardise | None = None,
    about: Mapping[str, Any],
) -> Federation:
    """The federation of a pool under an assignment."""
    trains, tests = _checked(pool, assignment)
    for i, rows in enumerate(trains):
        if not len(rows):
            name = f" ({assignment.names[i]!r})" if assignment.names else ""
            raise SettingError(f"{pool.name}: client {i}{name} has no training samples")
    y = stored(np.asarray(pool.y if assignment.y is None else assignment.y), kind_of(pool.task))
    fit = partial(_fit, pool, glove=glove, missing=missing, standardised=standardised)
    fitted = fit([trains, tests])
    rows = np.concatenate(trains)
    decided = pool.is_text or pool.columns is not None or pool.normalise is standardise  # by the training samples

    federation = Federation(
        name=pool.name,
        train=Split(fitted.x[0], y[rows], offsets_of([len(each) for each in trains])),
        test=Split(fitted.x[1], y[np.concatenate(tests)], offsets_of([len(each) for each in tests])),
        classes=pool.classes,
        names=assignment.names,
        labels=pool.labels,
        about={**about, **fitted.about},
        task=pool.task,
        refit=_RefitPool(fit, trains, tests) if decided else None,
        **fitted.fields,
    )
    check(federation, f"{pool.name}: ")
    return federation


@dataclass(frozen=True)
class _RefitPool:
    """Repeats the fit; the clients' samples are given as rows of the pool."""

    fit: Callable[..., Fitted]
    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    validation: Sequence[np.ndarray] | None = None

    def divided(self, kept: Sequence[np.ndarray], held: Sequence[np.ndarray]) -> _RefitPool:
        """``kept`` and ``held`` are places among the training samples."""
        rows = np.concatenate(self.train)
        train, validation = ([rows[each] for each in part] for part in (kept, held))
        return replace(self, train=train, validation=validation)

    def __call__(self, deciding: Sequence[int] | None = None) -> Fitted:
        validation = [] if self.validation is None else [self.validation]
        return self.fit([self.train, *validation, self.test], deciding=deciding)


def _fit(
    pool: Pool,
    parts: Sequence[Sequence[np.ndarray]],
    *,
    glove: str | None,
    missing: Fill | None,
    standardised: Standardise | None,
    deciding: Sequence[int] | None = None,
) -> Fitted:
    """The inputs of each part's clients, given as rows of the pool, encoded by the rows of the first part.

    Only the ``deciding`` clients' rows of it count; by default all.
    """
    trains = parts[0]
    train = np.concatenate(trains if deciding is None else [trains[i] for i in deciding])
    about = {"source": pool.source} if pool.source else {}
    x, text, encoding, features = pool.x, pool.text, None, pool.features
    if pool.is_text:
        everything = np.concatenate([np.concatenate(rows).astype(np.int64) for rows in parts])
        text, about["embedding"] = _vocabulary(pool, glove, train, everything)
        x = text.encode(pool.x)
    elif glove:
        raise SettingError(f"glove is for texts, but {pool.name} has {'characters' if text else 'numbers'}")
    elif text:
        about["embedding"] = "learned"
    columns = _columns(pool, standardised)
    normalise = pool.normalise if columns is None else None
    shift, scale = normalise(x, train) if normalise else (None, None)
    if columns is None:
        xs = [x[np.concatenate(rows).astype(np.int64)] for rows in parts]
    else:
        fill, how = missing or "mean", standardised or "all"
        encoding, numbers = columns_.fit(x.astype(np.float64), columns, trains, fill, how, pool.agreed, deciding)
        xs = [np.concatenate([encoding.encode(numbers[own], i) for i, own in enumerate(rows)]) for rows in parts]
        features = encoding.names
        about["columns"] = columns_.in_words(encoding, fill, how)
    fields = {
        "shift": None if shift is None else np.asarray(shift, np.float32),
        "scale": None if scale is None else np.asarray(scale, np.float32),
        "text": text,
        "features": features,
        "encoding": encoding,
    }
    return Fitted(xs, fields, about)


def _vocabulary(pool: Pool, glove: str | None, train: np.ndarray, everything: np.ndarray) -> tuple[Text, str]:
    """The vocabulary of a pool of texts, and where its word vectors come from, in words.

    A learned vocabulary has the words of the training samples; one with published vectors has those of all samples, but
    only training words decide the principal components.
    """
    vectors = WordVectors(Path(glove)) if glove else pool.vectors
    if vectors is None:
        return learned_vocabulary(map(str, pool.x[train])), "learned"
    text, reduced = vectors.vocabulary(map(str, pool.x[train]), map(str, pool.x[everything]))
    name = glove or vectors.path.name
    return text, f"from {name}, {vectors.dimensions} principal components" if reduced else f"from {name}"


def _columns(pool: Pool, standardised: Standardise | None) -> tuple[DataColumn, ...] | None:
    """The columns to encode: if a table has gaps or texts, or a standardisation other than the default."""
    if pool.columns is not None or standardised in (None, "all"):
        return pool.columns
    if pool.normalise is not standardise:
        raise SettingError(f"standardise is for tables of numbers, and {pool.name} is not one")
    return tuple(map(DataColumn, pool.features or map(str, range(pool.x.shape[1]))))


def _checked(pool: Pool, assignment: Assignment) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each client's training and test rows, if they are rows of the pool and none is used for both."""
    where = f"{pool.name}: the split"
    train, test = ([np.asarray(rows) for rows in part] for part in (assignment.train, assignment.test))
    if len(train) != len(test) or not train:
        raise SettingError(f"{where} has {len(train)} clients for training and {len(test)} for testing")
    if assignment.y is not None and np.shape(assignment.y) != pool.y.shape:
        raise SettingError(f"{where} has labels of shape {np.shape(assignment.y)}, not {pool.y.shape}")
    for rows in [*train, *test]:
        if len(rows) and (rows.ndim != 1 or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= len(pool.y)):
            raise SettingError(f"{where} must give row numbers from 0 to {len(pool.y) - 1}")
    train, test = ([rows.astype(np.int64) for rows in part] for part in (train, test))
    trained = np.zeros(len(pool.y), bool)
    trained[np.concatenate(train)] = True
    tested = np.concatenate(test)
    if trained[tested].any():
        raise SettingError(f"{where} has row {tested[trained[tested]][0]} both for training and for testing")
    return train, test
