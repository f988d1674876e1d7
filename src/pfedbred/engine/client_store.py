"""Client records that are not on the device: in memory, or in a file.

Only clients that have taken part have a record. All records have the same size, so each client has a slot: a row in
memory or a range of the file. Slots are assigned when clients first take part; all others cost nothing.

``np.memmap`` and LMDB (``map_size``) need the maximum size when the file is opened, and a write to a ``np.memmap``
 on a full disk ends the process. A plain file grows as clients arrive, and a full disk is an error.
"""

from __future__ import annotations

import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

import jax
import numpy as np

from pfedbred.errors import SettingError
from pfedbred.types import Tree

STORES = ("device", "memory", "file")
_ROOM = 0.5  # fraction of the memory that a run may use
_PIECE = 2**24  # bytes of records read at a time


def choose(store: str, *, sampled: bool, samples: int, states: int, device: int, host: int) -> str:
    """Where to keep the clients: as requested, or the first place with room for them.

    Args:
      store: one of STORES, or ``auto``.
      sampled: whether only a sample of the clients trains in a round; otherwise all of them must be on the device.
      samples: bytes of all clients' samples.
      states: bytes of all clients' states.
      device: bytes of device memory.
      host: bytes of host memory.
    """
    if store != "auto":
        if store != "device" and not sampled:
            raise SettingError(
                f"store {store!r} keeps clients off the device between rounds: it needs participation 'sample'"
            )
        return store
    if not sampled or samples + states <= _ROOM * device:
        return "device"
    return "memory" if states <= _ROOM * host else "file"


class Slots(Protocol):
    """Rows of bytes by number."""

    def read(self, slot: int, into: np.ndarray) -> None:
        """Fills ``into`` with a row that has been written."""

    def write(self, slot: int, row: np.ndarray) -> None:
        """Writes a row; the slot is an old one or the next."""


class MemorySlots:
    """Each row is a separate array."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []

    def read(self, slot: int, into: np.ndarray) -> None:
        """See Slots."""
        into[:] = self._rows[slot]

    def write(self, slot: int, row: np.ndarray) -> None:
        """See Slots."""
        if slot < len(self._rows):
            self._rows[slot][:] = row
        else:
            self._rows.append(row.copy())


class FileSlots:
    """A temporary file that is deleted when the run ends."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder or tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  (as long as this lives)
        except OSError as problem:
            raise SettingError(f"cannot keep client states in {self._folder}: {problem.strerror}") from None
        weakref.finalize(self, self._file.close)

    def read(self, slot: int, into: np.ndarray) -> None:
        """See Slots."""
        self._file.seek(slot * into.nbytes)
        view, done = memoryview(into.data), 0
        while done < into.nbytes:
            got = self._file.readinto(view[done:])
            if not got:
                raise OSError(f"the file of client states in {self._folder} was truncated")
            done += got

    def write(self, slot: int, row: np.ndarray) -> None:
        """See Slots."""
        view, done = memoryview(row.data), 0
        try:
            self._file.seek(slot * row.nbytes)
            while done < row.nbytes:
                done += self._file.write(view[done:])
        except OSError as problem:
            raise SettingError(
                f"cannot keep client states in {self._folder}: {problem.strerror}; choose another with store_dir"
            ) from None


class ClientStore:
    """Client records by client number; ``example`` has the shapes and types of one."""

    def __init__(self, example: Tree, slots: Slots) -> None:
        leaves, self._structure = jax.tree.flatten(example)
        self._leaves = [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves]
        ends = np.cumsum([np.prod(shape, dtype=int) * dtype.itemsize for shape, dtype in self._leaves])
        self._pieces = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        self.record_bytes = int(ends[-1])
        self._slots = slots
        self._slot_of: dict[int, int] = {}
        self.rejected: Counter[int] = Counter()  # rounds by client, separate so that not all records must be read

    def __contains__(self, client: int) -> bool:
        """Whether that client has a record."""
        return client in self._slot_of

    def __len__(self) -> int:
        """How many clients have a record."""
        return len(self._slot_of)

    @property
    def clients(self) -> np.ndarray:
        """The clients that have a record, in the order of their slots."""
        return np.fromiter(self._slot_of, np.int64, len(self))

    def rows(self) -> Iterator[np.ndarray]:
        """All records as bytes, in pieces, in the order of ``clients``."""
        step = max(1, _PIECE // self.record_bytes)
        for begin in range(0, len(self), step):
            rows = np.empty((min(step, len(self) - begin), self.record_bytes), np.uint8)
            for place, row in enumerate(rows, begin):
                self._slots.read(place, row)
            yield rows

    def fill(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Fills an empty store with the ``clients`` and ``rows`` of another."""
        assert not self._slot_of
        if rows.shape != (len(clients), self.record_bytes) or rows.dtype != np.uint8:
            raise SettingError(
                f"the checkpoint does not fit: it holds {rows.dtype} of shape {rows.shape}, not the records of "
                f"{len(clients)} clients of {self.record_bytes} bytes"
            )
        for slot, (client, row) in enumerate(zip(clients.tolist(), rows, strict=True)):
            self._slots.write(slot, np.array(row))
            self._slot_of[client] = slot

    def restore(self, clients: np.ndarray, rows: np.ndarray, rejected: np.ndarray, everyone: int) -> None:
        """Fills an empty store from a checkpoint; ``everyone`` is the number of clients of the run."""
        known = clients.ndim == 1 and clients.dtype == np.int64 and len(np.unique(clients)) == len(clients)
        known = known and bool(np.all((clients >= 0) & (clients < everyone)))
        counted = rejected.ndim == 2 and rejected.shape[1] == 2 and rejected.dtype == np.int64
        if not known or not counted or not np.isin(rejected[:, 0], np.arange(everyone)).all():
            raise SettingError(f"the checkpoint does not fit: it is not of {everyone} clients")
        self.fill(clients, rows)
        self.rejected.update(dict(rejected.tolist()))

    def read(self, clients: Iterable[int]) -> Tree:
        """The records of these clients along the first axis; zeros for a client that has none."""
        numbers = list(clients)
        rows = np.zeros((len(numbers), self.record_bytes), np.uint8)
        for row, number in zip(rows, numbers, strict=True):
            slot = self._slot_of.get(number)
            if slot is not None:
                self._slots.read(slot, row)
        leaves = [
            np.ascontiguousarray(rows[:, piece]).view(dtype).reshape(len(numbers), *shape)
            for piece, (shape, dtype) in zip(self._pieces, self._leaves, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def write(self, clients: Iterable[int], records: Tree) -> None:
        """Stores the records, given along the first axis."""
        numbers = list(clients)
        parts = [
            np.ascontiguousarray(leaf, dtype).view(np.uint8).reshape(len(numbers), piece.stop - piece.start)
            for leaf, (_, dtype), piece in zip(jax.tree.leaves(records), self._leaves, self._pieces, strict=True)
        ]
        for row, number in zip(np.concatenate(parts, axis=1), numbers, strict=True):
            slot = self._slot_of.get(number, len(self._slot_of))
            self._slots.write(slot, row)
            self._slot_of[number] = slot  # only now, so that a record whose writing failed does not exist
