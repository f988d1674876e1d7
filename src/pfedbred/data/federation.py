"""A federation: every client's samples in flat arrays with offsets, so that no client is padded to the largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred.data.batches import Inputs
from pfedbred.errors import SettingError


class Split(NamedTuple):
    """Samples of all clients: client i owns rows offsets[i] to offsets[i + 1]."""

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


@dataclass(frozen=True)
class Federation:
    """Clients with their own training and test samples.

    Attributes:
      name: of the data.
      train: training samples.
      test: test samples; no sample is in both.
      classes: number of labels.
      shift: with ``scale``, how stored samples become inputs on the device: (x - shift) * scale.
      scale: likewise.
    """

    name: str
    train: Split
    test: Split
    classes: int
    shift: np.ndarray | None = None
    scale: np.ndarray | None = None

    def inputs(self, split: Split) -> Inputs:
        """The samples of a split, on the device."""
        if self.shift is None or self.scale is None:
            return Inputs(jnp.asarray(split.x))
        return Inputs(jnp.asarray(split.x), jnp.asarray(self.shift), jnp.asarray(self.scale))

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.train.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train.x.shape[1:])


Samples = tuple[np.ndarray, np.ndarray]


def from_clients(train: Sequence[Samples], test: Sequence[Samples], *, name: str = "custom") -> Federation:
    """A federation from one (x, y) pair of training samples and one of test samples for each client."""
    if len(train) != len(test) or not train:
        raise SettingError(f"need training and test samples of the same clients, got {len(train)} and {len(test)}")
    for i, (x, y) in enumerate(train):
        if len(x) == 0 or len(x) != len(y):
            raise SettingError(
                f"client {i} has {len(x)} training inputs and {len(y)} labels; it needs at least one of each"
            )
    for i, (x, y) in enumerate(test):
        if len(x) != len(y):
            raise SettingError(f"client {i} has {len(x)} test inputs and {len(y)} labels")
    shape = np.shape(train[0][0])[1:]
    for i, (x, _) in enumerate([*train, *test]):
        if np.shape(x)[1:] != shape:
            raise SettingError(f"client {i % len(train)} has samples of shape {np.shape(x)[1:]}, client 0 of {shape}")
    splits = [_flatten(train), _flatten(test)]
    labels = np.concatenate([split.y for split in splits])
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise SettingError("labels must be whole numbers from 0")
    return Federation(name, splits[0], splits[1], int(labels.max()) + 1)


def _flatten(clients: Sequence[Samples]) -> Split:
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in clients])]).astype(np.int32)
    x = np.concatenate([np.asarray(x) for x, _ in clients])
    y = np.concatenate([np.asarray(y) for _, y in clients])
    return Split(x, y, offsets)
