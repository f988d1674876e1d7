"""Named datasets: files in a local folder or in the cache, or a download from the public hub.

A dataset is looked for as ``FOLDER/NAME/train-*.parquet`` (and ``test-*``), the layout in which the hub serves it, or
as LEAF's JSON files, where FOLDER is in turn ``--data-dir``, the environment variable PFEDBRED_DATA, and the cache. If
it is in none of them, the ``datasets`` library downloads it and shows its progress, if the hub has it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from pfedbred.data.sources.leaf import LeafFile, leaf_files
from pfedbred.data.sources.tables import Table, first_line, read_parquet
from pfedbred.errors import SettingError


class Source(NamedTuple):
    """Where a named dataset is published.

    Attributes:
      name: name of the dataset.
      address: its address on the public hub; None if the hub does not have it in this form.
      folder: name of the local folder that holds its files.
      columns: the columns it must have.
      revision: the revision to download, if not the hub's default.
      leaf: whether it can be read from LEAF's JSON files as well.
      part_folder: name of a local folder that may hold a part of it.
    """

    name: str
    address: str | None
    folder: str
    columns: tuple[str, ...]
    revision: str | None = None
    leaf: bool = False
    part_folder: str | None = None


class Files(NamedTuple):
    """The local files of a dataset, in LEAF's layout or in the hub's; none if it has to be downloaded."""

    leaf: list[LeafFile]
    parquet: list[Path]

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [path for path, _ in self.leaf] or self.parquet


def cache_folder() -> Path:
    """The user's cache folder for this library."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfedbred"


def find_files(source: Source, data_dir: str | None) -> Files:
    """The files in the first of the folders that has the dataset."""
    if data_dir and not Path(data_dir).is_dir():  # most likely a typing error: do not use data from elsewhere instead
        raise SettingError(_absent(source, Path(data_dir)))
    for parent in (data_dir, os.environ.get("PFEDBRED_DATA"), cache_folder()):
        for name in (source.folder, source.part_folder):
            if not parent or not name:
                continue
            folder = Path(parent) / name
            leaf = leaf_files(folder) if source.leaf else []
            parquet = parquet_files(folder)
            if leaf or parquet:
                return Files(leaf, parquet)
    if data_dir:  # chosen by the user: do not use data from elsewhere instead
        raise SettingError(_absent(source, Path(data_dir)))
    return Files([], [])


def parquet_files(folder: Path) -> list[Path]:
    """The .parquet files of a folder: those of the training set, then those of the test set; if there are none, all."""
    found = sorted(folder.glob("*.parquet"))
    parts = [path for part in ("train", "test") for path in found if re.match(rf"{part}[-.]", path.name)]
    return parts or found


def read_table(source: Source, paths: list[Path]) -> Table:
    """All samples of the dataset, training samples first: from these files, or downloaded if there are none."""
    return read_parquet(paths, source.columns) if paths else _download(source)


def _download(source: Source) -> Table:
    if source.address is None:
        raise SettingError(_absent(source, cache_folder()))
    try:
        import datasets
    except ImportError:
        raise SettingError(
            f"{_absent(source, cache_folder())}; or download it with pip install 'pfedbred[data]'"
        ) from None
    try:
        loaded = datasets.load_dataset(source.address, revision=source.revision)
    except Exception as problem:  # whatever goes wrong in the network or on the hub, the user needs one line
        raise SettingError(f"{_absent(source, cache_folder())}; downloading failed: {first_line(problem)}") from None
    parts = [part for part in ("train", "test") if part in loaded]
    tables = [loaded[part].data.table for part in parts]
    return Table.of(tables, [f"{source.address}, {part}" for part in parts], source.columns)


def _absent(source: Source, folder: Path) -> str:
    """Which files to put where."""
    target = folder / source.folder
    if source.address is None:
        columns = ", ".join(source.columns)
        return f"{source.name} is not here: put a table with the columns {columns} as {target}/train-*.parquet"
    leaf = f", or LEAF's files as {target}/train/*.json and {target}/test/*.json" if source.leaf else ""
    return f"{source.name} is not here: put the hub's {source.address} as {target}/train-*.parquet (and test-*){leaf}"
