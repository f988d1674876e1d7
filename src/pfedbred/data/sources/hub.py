"""Datasets of the public hub: files in a local folder or in the cache, or a download.

A dataset is looked up as ``FOLDER/NAME/train-*.parquet`` (and ``test-*``), the hub's own layout, or as LEAF's JSON
files, where FOLDER is in turn ``--data-dir``, the environment variable PFEDBRED_DATA, and the cache. If it is in none
of them and the hub has it, the ``datasets`` library downloads it and shows its progress.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pfedbred.data.sources.leaf import LeafFile, leaf_files
from pfedbred.data.sources.tables import TableRows, first_line, read_parquet
from pfedbred.errors import SettingError


class HubDataset(NamedTuple):
    """Where a dataset is published.

    Attributes:
      name: name of the dataset.
      address: its address on the public hub; None if the hub does not have it in this form.
      folder: name of the local folder that holds its files.
      columns: the columns it must have.
      revision: the revision to download, if not the hub's default.
      leaf: whether it can also be read from LEAF's JSON files.
      other_folder: name of another local folder that may hold it, or a part of it.
      parts: the parts to read, in this order.
      configuration: the hub's configuration of the dataset, if there are several.
      preferred: names of files in another layout, read instead of tables if all of them are present.
    """

    name: str
    address: str | None
    folder: str
    columns: tuple[str, ...]
    revision: str | None = None
    leaf: bool = False
    other_folder: str | None = None
    parts: tuple[str, ...] = ("train", "test")
    configuration: str | None = None
    preferred: tuple[str, ...] = ()


class Files(NamedTuple):
    """The local files of a dataset, in one layout or several; none if it has to be downloaded."""

    leaf: list[LeafFile]
    parquet: list[Path]
    preferred: Sequence[Path] = ()

    @property
    def paths(self) -> list[Path]:
        """The files to read."""
        return list(self.preferred) or [path for path, _ in self.leaf] or self.parquet


def cache_folder() -> Path:
    """The user's cache folder for this library."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfedbred"


def folders(data_dir: str | None) -> list[Path]:
    """The folders to search, in this order."""
    return [Path(each) for each in (data_dir, os.environ.get("PFEDBRED_DATA"), cache_folder()) if each]


def find_files(source: HubDataset, data_dir: str | None) -> Files:
    """The files in the first of the folders that has the dataset."""
    if data_dir and not Path(data_dir).is_dir():  # most likely a typo: do not use data from elsewhere instead
        raise SettingError(_absent(source, Path(data_dir)))
    for parent in folders(data_dir):
        for folder in (parent / name for name in (source.folder, source.other_folder) if name):
            leaf = leaf_files(folder) if source.leaf else []
            parquet = _parquet_files(folder, source)
            preferred = [folder / name for name in source.preferred]
            found = Files(leaf, parquet, preferred if all(path.exists() for path in preferred) else ())
            if found.paths:
                return found
    if data_dir:  # chosen by the user: do not use data from elsewhere instead
        raise SettingError(_absent(source, Path(data_dir)))
    return Files([], [])


def _parquet_files(folder: Path, source: HubDataset) -> list[Path]:
    """The .parquet files of a folder: in the folder itself, in ``data``, or in a configuration's folder."""
    if source.configuration:
        return _in_order(folder / source.configuration, source.parts)
    found = _in_order(folder, source.parts) or _in_order(folder / "data", source.parts)
    if found:
        return found
    inner = {each.name: _in_order(each, source.parts) for each in sorted(folder.glob("*/"))}
    filled = {name: files for name, files in inner.items() if files}
    if len(filled) > 1 and "default" not in filled:
        names = ", ".join(filled)
        raise SettingError(
            f"{folder} holds several configurations ({names}): choose one, as in hub:{source.address}/{min(filled)}"
        )
    return filled.get("default") or next(iter(filled.values()), [])


def _in_order(folder: Path, parts: Sequence[str]) -> list[Path]:
    """The files of these parts, named after them or in a folder of that name; if there are none, all files."""
    found = sorted(folder.glob("*.parquet"))
    named = [[path for path in found if re.match(rf"{part}[-.]", path.name)] for part in parts]
    inside = [sorted((folder / part).glob("*.parquet")) for part in parts]
    return [path for each in zip(named, inside, strict=True) for files in each for path in files] or found


def read_table(source: HubDataset, paths: list[Path]) -> TableRows:
    """All samples of the dataset, training samples first: from these files, or downloaded if there are none."""
    return read_parquet(paths, source.columns) if paths else _download(source)


def _download(source: HubDataset) -> TableRows:
    if source.address is None:
        raise SettingError(_absent(source, cache_folder()))
    try:
        import datasets
    except ImportError:
        raise SettingError(
            f"{_absent(source, cache_folder())}; or download it with pip install 'pfedbred[data]'"
        ) from None
    try:
        which = (source.configuration,) if source.configuration else ()
        with _quiet("huggingface_hub"):  # each attempt would log two lines
            loaded = datasets.load_dataset(source.address, *which, revision=source.revision)
    except Exception as problem:  # whatever fails in the network or on the hub, the user needs one line
        raise SettingError(f"{_absent(source, cache_folder())}; downloading failed: {first_line(problem)}") from None
    parts = [part for part in source.parts if part in loaded] or list(loaded)
    tables = [loaded[part].data.table for part in parts]
    return TableRows.of(tables, [f"{source.address}, {part}" for part in parts], source.columns)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """While open, a library logs errors only."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _absent(source: HubDataset, folder: Path) -> str:
    """An error that says which files to put where."""
    target = folder / source.folder
    if source.address is None:
        columns = ", ".join(source.columns)
        return f"{source.name} was not found: put a table with the columns {columns} as {target}/train-*.parquet"
    leaf = f", or LEAF's files as {target}/train/*.json and {target}/test/*.json" if source.leaf else ""
    return f"{source.name} was not found: put the hub's {source.address} as {target}/train-*.parquet (and test-*){leaf}"
