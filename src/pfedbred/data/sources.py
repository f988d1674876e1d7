"""Where the images come from: parquet files in a folder of one's own or in the cache, or the public hub.

A dataset NAME is looked for as ``FOLDER/NAME/train-*.parquet`` and ``test-*.parquet``, in the layout in which the hub
serves it, with FOLDER in turn ``--data-dir``, the environment variable PFEDBRED_DATA, and the cache. If it is in none
of them, it is downloaded with the ``datasets`` library, which shows its progress.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.errors import SettingError


class Images(NamedTuple):
    """All images of a dataset, official training and test set together, as bytes; and their labels."""

    x: np.ndarray
    y: np.ndarray


class _Hub(NamedTuple):
    address: str
    folder: str
    image_column: str


_HUB = {
    "mnist": _Hub("ylecun/mnist", "mnist", "image"),
    "fashion-mnist": _Hub("zalando-datasets/fashion_mnist", "fashion_mnist", "image"),
    "cifar10": _Hub("uoft-cs/cifar10", "cifar10", "img"),
}


def cache_folder() -> Path:
    """Where downloads are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfedbred"


def images(name: str, data_dir: str | None = None) -> Images:
    """The dataset of that name, training samples first."""
    where = _HUB[name]
    folders = [Path(folder) for folder in (data_dir, os.environ.get("PFEDBRED_DATA"), cache_folder()) if folder]
    for folder in folders:
        if _parts(folder / where.folder, "train"):
            return _read(folder / where.folder, where.image_column)
    if data_dir:  # named by the user: do not go looking elsewhere
        raise SettingError(_absent(name, where, Path(data_dir)))
    return _download(name, where, folders[0])


def _parts(folder: Path, part: str) -> list[Path]:
    return sorted(folder.glob(f"{part}-*.parquet"))


def _read(folder: Path, image_column: str) -> Images:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SettingError(f"reading {folder} needs pyarrow and pillow: pip install 'pfedbred[data]'") from None
    x: list[np.ndarray] = []
    y: list[int] = []
    for part in ("train", "test"):
        for path in _parts(folder, part):
            try:
                table = pyarrow.parquet.read_table(path)
            except (OSError, pyarrow.ArrowException) as problem:
                raise SettingError(f"cannot read {path}: {str(problem).splitlines()[0]}") from None
            for column in (image_column, "label"):
                if column not in table.column_names:
                    raise SettingError(f"{path} has no column {column!r}, only {', '.join(table.column_names)}")
            x.extend(_decode(path, table.column(image_column).to_pylist()))
            y.extend(table.column("label").to_pylist())
    return Images(np.stack(x), np.asarray(y, np.int32))


def _decode(path: Path, cells: list[Any]) -> Iterator[np.ndarray]:
    from PIL import Image, UnidentifiedImageError

    for row, cell in enumerate(cells):
        try:
            yield np.asarray(Image.open(io.BytesIO(cell["bytes"])))
        except (UnidentifiedImageError, OSError, TypeError, KeyError):
            raise SettingError(f"{path}: row {row} does not hold an image") from None


def _download(name: str, where: _Hub, folder: Path) -> Images:
    try:
        import datasets
    except ImportError:
        raise SettingError(_absent(name, where, folder)) from None
    try:
        loaded = datasets.load_dataset(where.address)
    except Exception as problem:  # whatever the network or the hub says, the user needs one line
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise SettingError(f"{_absent(name, where, folder)}; downloading failed: {reason}") from None
    parts = [loaded[part] for part in ("train", "test")]
    x = np.stack([np.asarray(image) for part in parts for image in part[where.image_column]])
    return Images(x, np.concatenate([np.asarray(part["label"], np.int32) for part in parts]))


def _absent(name: str, where: _Hub, folder: Path) -> str:
    """What to put where."""
    target = folder / where.folder
    return f"{name} is not here: put the hub's {where.address} as {target}/train-*.parquet and {target}/test-*.parquet"
