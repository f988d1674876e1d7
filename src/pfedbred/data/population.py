"""A population: clients by number, whose samples are made when they are asked for, because all of them are too many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pfedbred.data.federation import Federation, Samples, Split, check, offsets_of
from pfedbred.errors import SettingError


@dataclass(frozen=True)
class Population:
    """What a federation says of itself, and any of its clients on demand.

    Attributes:
      name: of the data.
      clients: how many there are.
      shape: of one sample.
      classes: number of labels.
      client: ``client(k)`` makes the training and the test samples of client k, the same ones every time.
      client_bytes: about what one client's samples take.
      seed: of the data.
    """

    name: str
    clients: int
    shape: tuple[int, ...]
    classes: int
    client: Callable[[int], tuple[Samples, Samples]]
    client_bytes: int
    seed: int

    # It holds numbers, as they are, of clients without names.
    names: ClassVar[None] = None
    labels: ClassVar[None] = None
    features: ClassVar[None] = None
    text: ClassVar[None] = None
    words: ClassVar[None] = None
    shift: ClassVar[None] = None
    scale: ClassVar[None] = None

    @property
    def bytes(self) -> int:
        """About what all samples would take."""
        return self.clients * self.client_bytes

    @property
    def facts(self) -> dict[str, Any]:
        """What it holds, in a few numbers."""
        return {"name": self.name, "clients": self.clients, "classes": self.classes, **self.about}

    @property
    def about(self) -> Mapping[str, Any]:
        """Where it comes from, for people to read."""
        return {"split": "made on demand", "seed": self.seed}

    def take(self, clients: np.ndarray) -> Federation:
        """The federation of these clients alone."""
        made = [self.client(int(k)) for k in clients]
        for k, each in zip(clients, made, strict=True):
            for x, y in each:
                if x.shape != (len(y), *self.shape):
                    raise SettingError(f"{self.name}: client {k} has samples of shape {x.shape}, not {self.shape} each")
        train, test = (_joined([each[part] for each in made]) for part in (0, 1))
        names = tuple(str(k) for k in clients)
        federation = Federation(self.name, train, test, self.classes, names=names, about=self.about)
        check(federation, f"{self.name}: ")
        return federation


def _joined(clients: list[Samples]) -> Split:
    x, y = (np.concatenate(part) for part in zip(*clients, strict=True))
    return Split(x, y, offsets_of([len(y) for _, y in clients]))
