"""Shakespeare: the next character of what a role says.

Source: the 37 plays by role, ``shakespeare/shakespeare_roles.parquet``, with the columns client and text, one row for
each speech in the order of the play; or the hub's ``flwrlabs/shakespeare``, already cut by LEAF.

Natural clients: 1,378 roles. What a role says is one text, cut as LEAF does: 80 characters and the one after them, at
every position. Characters outside LEAF's alphabet of 80 are left out. By default, roles are drawn as LEAF does until
they hold 20 % of the samples, and the first four fifths of each role are for training; ``--clients 100`` draws that
many roles instead.

Usual model: charlstm. Published figures to compare with: none at hand with these roles.

References: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018; McMahan et al., "Communication-Efficient
Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.leaf import by_role
from pfedbred.data.pool import Pool
from pfedbred.data.sources.hub import HubDataset, find_files, read_table
from pfedbred.data.sources.tables import TableRows
from pfedbred.data.text import Text
from pfedbred.errors import SettingError

SOURCE = HubDataset("shakespeare", "flwrlabs/shakespeare", "shakespeare", ())
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters."""

_LENGTH = 80
_TEXT = Text(tuple(ALPHABET))
_FIRST = _TEXT.count - len(ALPHABET)
_IDS = np.zeros(128, np.uint8)  # ids of all ASCII characters; 0 for those not in the alphabet
_IDS[[ord(each) for each in ALPHABET]] = _FIRST + np.arange(len(ALPHABET))


def shakespeare(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """The character that follows 80 others in what a role of Shakespeare's says, roles as clients."""
    table = read_table(SOURCE, find_files(SOURCE, data_dir).parquet)
    windows, owner, owners = _cut_by_leaf(table) if "character_id" in table.columns else _cut(table)
    x, y = windows[:, :-1], windows[:, -1].astype(np.int32) - _FIRST
    return Pool("shakespeare", x, y, len(ALPHABET), owner=owner, owners=owners, labels=tuple(ALPHABET), text=_TEXT)


def _cut(table: TableRows) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Every window of 81 characters in what each role says, as ids, and its role."""
    role, roles = table.names("client")
    speeches: dict[int, list[str]] = defaultdict(list)
    for number, speech in zip(role.tolist(), table.texts("text"), strict=True):
        speeches[number].append(speech)
    whole = {number: _ids(" ".join(" ".join(said).split())) for number, said in sorted(speeches.items())}
    texts = {number: ids[ids > 0] for number, ids in whole.items()}
    long = [number for number, ids in texts.items() if len(ids) > _LENGTH]
    if not long:
        raise SettingError(f"{table.origin(0)}: no role says more than {_LENGTH} characters")
    windows = [np.lib.stride_tricks.sliding_window_view(texts[number], _LENGTH + 1) for number in long]
    owner = np.repeat(np.arange(len(long)), [len(each) for each in windows])
    return np.concatenate(windows), owner, tuple(roles[number] for number in long)


def _cut_by_leaf(table: TableRows) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The windows cut by LEAF, without those that have a character outside its alphabet."""
    owner, owners = table.names("character_id")
    joined = [x + y for x, y in zip(table.texts("x"), table.texts("y"), strict=True)]
    for row, each in enumerate(joined):
        if len(each) != _LENGTH + 1:
            raise SettingError(f"{table.origin(row)}: expected {_LENGTH} characters in 'x' and one in 'y'")
    ids = _ids("".join(joined)).reshape(-1, _LENGTH + 1)
    known = (ids > 0).all(axis=1)
    return ids[known], owner[known], owners


def _ids(text: str) -> np.ndarray:
    """The id of each character, 0 for those that are not in the alphabet."""
    return _IDS[np.frombuffer(re.sub(r"[^\x00-\x7f]", "\0", text).encode("ascii"), np.uint8)]


DATASET = Dataset(shakespeare, by_role, models=("charlstm",))
