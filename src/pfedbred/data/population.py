"""A population: clients whose samples are generated on demand, because together they would be too large."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pfedbred.data.federation import Arrays, Federation, Split, check, offsets_of
from pfedbred.data.labels import kind_of
from pfedbred.errors import SettingError


@dataclass(frozen=True)
class Population:
    """The description of a federation, and any of its clients on demand.

    Attributes:
      name: name of the data.
      clients: number of clients.
      shape: shape of one sample.
      classes: number of labels.
      client: ``client(k)`` generates the training and the test samples of client k, the same ones every time.
      client_bytes: approximate size of one client's samples.
      seed: seed of the data.
      held: fraction of a client's training samples held out for validation, and the seed that draws them; None for
        none.
    """

    name: str
    clients: int
    shape: tuple[int, ...]
    classes: int
    client: Callable[[int], tuple[Arrays, Arrays]]
    client_bytes: int
    seed: int
    held: tuple[float, int] | None = None

    # Samples are numbers and need no normalisation; clients have no names.
    names: ClassVar[None] = None
    labels: ClassVar[None] = None
    features: ClassVar[None] = None
    text: ClassVar[None] = None
    words: ClassVar[None] = None
    shift: ClassVar[None] = None
    scale: ClassVar[None] = None
    task: ClassVar[str] = "classification"
    target: ClassVar[None] = None
    encoding: ClassVar[None] = None

    @property
    def bytes(self) -> int:
        """Approximate size of all samples."""
        return self.clients * self.client_bytes

    @property
    def facts(self) -> dict[str, Any]:
        """Its size in a few numbers, and where it comes from."""
        return {"name": self.name, "clients": self.clients, "classes": self.classes, **self.about}

    @property
    def about(self) -> Mapping[str, Any]:
        """Where the data comes from, for display."""
        held = {} if self.held is None else {"validation": self.held[0]}
        return {"split": "made on demand", "seed": self.seed, **held}

    def with_validation(self, fraction: float, seed: int) -> Population:
        """The same clients with a fraction of their training samples as validation samples, drawn by the seed."""
        return dataclasses.replace(self, held=(fraction, seed))

    def for_task(self, task: str) -> Population:
        """The same population, if the task is for classes."""
        if kind_of(task) != "classes":
            raise SettingError(f"the task {task} is not for classes, but the labels of {self.name} are")
        return self

    def take(self, clients: np.ndarray) -> Federation:
        """The federation of these clients only."""
        made = [self.client(int(k)) for k in clients]
        for k, each in zip(clients, made, strict=True):
            for x, y in each:
                if x.shape != (len(y), *self.shape):
                    raise SettingError(
                        f"{self.name}: client {k} has samples of shape {x.shape}, not {(len(y), *self.shape)}"
                    )
        train, test = (_joined([each[part] for each in made]) for part in (0, 1))
        names = tuple(str(k) for k in clients)
        federation = Federation(self.name, train, test, self.classes, names=names, about=self.about)
        check(federation, f"{self.name}: ")
        return federation if self.held is None else federation.with_validation(*self.held, numbers=clients.tolist())


def _joined(clients: list[Arrays]) -> Split:
    x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    return Split(x, y, offsets_of([len(y) for _, y in clients]))
