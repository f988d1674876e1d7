"""The data of a column under another seed of its split."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pfedbred import data
from pfedbred.data.federation import Federation
from pfedbred.errors import SettingError
from pfedbred.paper.columns import Column, Federations
from pfedbred.paper.rows import SplitSeed


def federation_of(federations: Federations, column: Column, split: SplitSeed) -> Federation:
    """The federation of a column on a split.

    For a split other than the dataset's own, a prepared federation is named by the seed, as in mnist-paper-split2.fed.
    """
    if split is None:
        return federations.of(column)
    if column.partition:
        raise SettingError(f"{column.title} has no other splits")
    file = federations.prepared and federations.prepared / f"{column.dataset}-split{split}{data.prepared.SUFFIX}"
    return _load(column.dataset, split, federations.data_dir, file if file and file.exists() else None)


@lru_cache(maxsize=1)  # a table runs its methods one after another on the same split
def _load(dataset: str, split: int, data_dir: str | None, file: Path | None) -> Federation:
    return data.load(str(file)) if file else data.load(dataset, seed=split, data_dir=data_dir)
