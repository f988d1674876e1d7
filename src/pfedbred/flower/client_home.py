"""What a client keeps on its own disk: its state in each federation it takes part in, and its personal model.

Flower keeps a client's state in memory, in a process that lives for one message. Here it is kept in files with
checksums, in the client's home:

    client.json                 its identity, drawn at random once
    <run>/record.safetensors    theta_i, the memory and whatever else the algorithm keeps
    <run>/personal.safetensors  P, ready for use: pfedbred predict
    <run>/latest.safetensors    with validation samples: P of the latest evaluation, until the server has compared it

The folder of a run is named by the run's id, so that one client can take part in several.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pfedbred.engine.round import ClientRecord, current_names
from pfedbred.errors import SettingError
from pfedbred.io import tensors
from pfedbred.io.atomic import write_json
from pfedbred.io.folders import ensure_folder
from pfedbred.io.shapes import COUNT, expect
from pfedbred.io.strict import read_json
from pfedbred.runs import locks, saved_models
from pfedbred.runs.prediction import PERSONAL
from pfedbred.types import Tree

_KIND = tensors.Kind("pfedbred record 1", "client's record", "without it, the client starts from scratch")
_TIMEOUT = 30.0  # seconds
LATEST = "latest.safetensors"


class HomeState(NamedTuple):
    """A client between two rounds.

    The server may have to repeat the last round, or may have rejected the update, so both records are kept.

    Attributes:
      round: the last round it trained in.
      before: its record before that round.
      after: its record after that round.
    """

    round: int
    before: ClientRecord
    after: ClientRecord

    def start(self, round_: int, verdict: tuple[int, bool] | None, synced: bool) -> ClientRecord:
        """The record with which it starts a round.

        ``verdict`` is a round, and whether the client's work in it was accepted. Without a verdict on its last round,
        the work is kept unless the client's state must be ``synced`` with what the server knows.
        """
        if self.round == round_:
            return self.before  # the server was killed in that round: repeat it with the same minibatches
        stands = verdict[1] if verdict and verdict[0] == self.round else not synced
        return self.after if stands else self.before._replace(drawn=self.after.drawn)


class Home:
    """A client's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = _private(folder)

    def identity(self) -> str:
        """The client's identity, which outlasts its node."""
        path = self.folder / "client.json"
        if not path.exists():
            with locks.locked(self.folder, _TIMEOUT):  # two servers may ask at the same time
                if not path.exists():
                    write_json(path, {"client": secrets.token_hex(16)})
        with suppress(OSError):
            path.chmod(0o600)
        said = read_json(path)
        expect(said, {"client": str}, path)
        return said["client"]

    @contextmanager
    def holding(self, run: str, patience: float) -> Iterator[Path]:
        """The folder of a run, locked; waits up to ``patience`` seconds for another process that holds it."""
        if not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise SettingError(f"{run!r} is not the id of a run")
        folder = _private(self.folder / run)
        with locks.locked(folder, patience):
            yield folder


def _private(folder: Path) -> Path:
    """The folder, created if needed, and closed to other users: its content was learned from the samples."""
    ensure_folder(folder)
    with suppress(OSError):  # another user may own it
        folder.chmod(0o700)
    return folder


def keep_chosen(folder: Path, round_: int | None) -> None:
    """Makes the latest personal model the current one, if it is of the chosen round."""
    latest = folder / LATEST
    if latest.exists() and saved_models.facts(latest)["round"] == round_:
        latest.replace(folder / PERSONAL)


def save(folder: Path, kept: HomeState) -> None:
    """Writes what a client keeps, atomically."""
    arrays = {name: np.asarray(leaf) for name, leaf in tensors.named((kept.before, kept.after)).items()}
    tensors.save(_KIND, folder / "record.safetensors", {"round": kept.round}, arrays)


def load(folder: Path, like: Tree) -> HomeState | None:
    """What a client has kept for a run, if anything; ``like`` gives a record's shapes and types."""
    path = folder / "record.safetensors"
    if not path.exists():
        return None
    facts, arrays = tensors.load(_KIND, path)
    expect(facts, {"round": COUNT}, path)
    before, after = tensors.refill((like, like), current_names(arrays), str(path))
    return HomeState(facts["round"], before, after)
