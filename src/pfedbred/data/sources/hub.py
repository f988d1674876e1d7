"""Where named datasets come from: files in a folder of one's own or in the cache, or the public hub.

A dataset NAME is looked for as ``FOLDER/NAME/train-*.parquet`` (and ``test-*``), in the layout in which the hub serves
it, or as LEAF's JSON files, with FOLDER in turn ``--data-dir``, the environment variable PFEDBRED_DATA, and the cache.
If it is in none of them, it is downloaded with the ``datasets`` library, which shows its progress.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pfedbred.data.pool import Pool, by_one_number, by_pixel, to_plus_minus_one, to_unit_interval
from pfedbred.data.sources.leaf import leaf_files, read_leaf
from pfedbred.data.sources.tables import Table, read_parquet
from pfedbred.errors import SettingError


class Hub(NamedTuple):
    """A dataset on the public hub, the folder its files are kept in, and the columns it must have."""

    address: str
    folder: str
    columns: tuple[str, ...]
    revision: str | None = None


_HUB = {
    "mnist": Hub("ylecun/mnist", "mnist", ("image", "label")),
    "fashion-mnist": Hub("zalando-datasets/fashion_mnist", "fashion_mnist", ("image", "label")),
    "cifar10": Hub("uoft-cs/cifar10", "cifar10", ("img", "label")),
    "femnist": Hub("flwrlabs/femnist", "femnist", ("image", "writer_id", "character")),
    "sent140": Hub("stanfordnlp/sentiment140", "sent140", ("text", "user", "sentiment"), "refs/convert/parquet"),
}


def cache_folder() -> Path:
    """Where data may be kept for all projects."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pfedbred"


def find(name: str, data_dir: str | None, has: Callable[[Path], Any]) -> Path | None:
    """The first of the folders to look in that has the dataset; None if it has to be downloaded."""
    hub = _HUB[name]
    if data_dir and not Path(data_dir).is_dir():  # a slip of the pen: other data would be taken for it
        raise SettingError(_absent(name, Path(data_dir)))
    folders = [Path(folder) for folder in (data_dir, os.environ.get("PFEDBRED_DATA"), cache_folder()) if folder]
    for folder in folders:
        if has(folder / hub.folder):
            return folder / hub.folder
    if data_dir:  # named by the user: do not go looking elsewhere
        raise SettingError(_absent(name, Path(data_dir)))
    return None


def _parts(folder: Path) -> list[Path]:
    """The parquet files of a dataset, training samples first."""
    return [path for part in ("train", "test") for path in sorted(folder.glob(f"{part}-*.parquet"))]


def table(name: str, data_dir: str | None = None) -> Table:
    """All samples of the dataset of that name, training samples first."""
    folder = find(name, data_dir, _parts)
    return read_parquet(_parts(folder), _HUB[name].columns) if folder else _download(name)


def image_pool(name: str, data_dir: str | None, normalise: Any, called: str | None = None) -> Pool:
    """The images of that dataset, official training and test set together, as bytes."""
    samples = table(name, data_dir)
    image, label = _HUB[name].columns
    y = samples.whole_numbers(label)
    return Pool(
        called or name,
        samples.images(image),
        y,
        classes=10,
        normalise=normalise,
        origin=samples.origin,
    )


def mnist_pool(data_dir: str | None, called: str) -> Pool:
    """MNIST."""
    return image_pool("mnist", data_dir, by_pixel, called)


def fashion_mnist_pool(data_dir: str | None) -> Pool:
    """Fashion-MNIST."""
    return image_pool("fashion-mnist", data_dir, by_one_number)


def cifar10_pool(data_dir: str | None) -> Pool:
    """CIFAR-10."""
    return image_pool("cifar10", data_dir, to_plus_minus_one)


class _Owned(NamedTuple):
    """Samples with their owners, whichever way they were stored."""

    x: np.ndarray
    y: np.ndarray
    owner: np.ndarray
    owners: tuple[str, ...]
    is_test: np.ndarray | None
    origin: Callable[[int], str]
    raw: bool  # what LEAF has written, it has sampled


def _owned(
    name: str,
    data_dir: str | None,
    from_leaf: Callable[[list[Any], Callable[[int], str]], np.ndarray],
    from_hub: Callable[[Table], tuple[np.ndarray, np.ndarray]],
    owner_column: str,
) -> _Owned:
    """A dataset from LEAF's files, or else from the hub's."""
    folder = find(name, data_dir, lambda folder: leaf_files(folder) or _parts(folder))
    if folder and leaf_files(folder):
        found = read_leaf(leaf_files(folder))
        x, y = from_leaf(found.x, found.origin), _labels(found.y, found.origin)
        return _Owned(x, y, found.owner, found.owners, found.is_test, found.origin, raw=False)
    samples = table(name, data_dir)
    x, y = from_hub(samples)
    return _Owned(x, y, *samples.names(owner_column), None, samples.origin, raw=True)


def femnist_pool(data_dir: str | None) -> Pool:
    """FEMNIST with its writers."""

    def from_hub(samples: Table) -> tuple[np.ndarray, np.ndarray]:
        return samples.images("image"), samples.whole_numbers("character")

    found = _owned("femnist", data_dir, _leaf_images, from_hub, "writer_id")
    return Pool("femnist", classes=int(found.y.max()) + 1, normalise=to_unit_interval, **found._asdict())


def sent140_pool(data_dir: str | None) -> Pool:
    """Sent140's tweets with their authors."""

    def from_hub(samples: Table) -> tuple[np.ndarray, np.ndarray]:
        positive = samples.whole_numbers("sentiment") == 4  # the hub's numbers are 0 and 4
        return samples.texts("text"), positive.astype(np.int32)

    found = _owned("sent140", data_dir, _tweets, from_hub, "user")
    return Pool("sent140", classes=2, labels=("negative", "positive"), **found._asdict())


def _leaf_images(x: list[Any], origin: Callable[[int], str]) -> np.ndarray:
    """LEAF's 784 numbers from 0 to 1, back to the bytes they were."""
    for row, pixels in enumerate(x):
        if not isinstance(pixels, list) or len(pixels) != 784:
            raise SettingError(f"{origin(row)}: expected 784 pixels")
    try:
        pixels = np.asarray(x, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{origin(0)} or a later one: pixels must be numbers") from None
    wrong = np.flatnonzero(~((pixels >= 0) & (pixels <= 1)).all(axis=1))
    if len(wrong):
        raise SettingError(f"{origin(int(wrong[0]))}: pixels must be from 0 to 1")
    return np.round(pixels * 255).astype(np.uint8).reshape(-1, 28, 28)


def _tweets(x: list[Any], origin: Callable[[int], str]) -> np.ndarray:
    """LEAF's rows [id, date, query, user, text, ...]: the texts."""
    for row, fields in enumerate(x):
        if not isinstance(fields, list) or len(fields) < 5 or not isinstance(fields[4], str):
            raise SettingError(f"{origin(row)}: expected the fields id, date, query, user, text")
    return np.array([fields[4] for fields in x], object)


def _labels(y: list[Any], origin: Callable[[int], str]) -> np.ndarray:
    for row, label in enumerate(y):
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < 2**31:
            raise SettingError(f"{origin(row)}: label {label!r} is not a whole number from 0")
    return np.asarray(y, np.int32)


def _download(name: str) -> Table:
    hub = _HUB[name]
    try:
        import datasets
    except ImportError:
        raise SettingError(
            f"{_absent(name, cache_folder())}; or let it be downloaded: pip install 'pfedbred[data]'"
        ) from None
    try:
        loaded = datasets.load_dataset(hub.address, revision=hub.revision)
    except Exception as problem:  # whatever the network or the hub says, the user needs one line
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise SettingError(f"{_absent(name, cache_folder())}; downloading failed: {reason}") from None
    parts = [loaded[part].data.table for part in ("train", "test") if part in loaded]
    return Table.of(parts, [f"{hub.address}, {part}" for part in loaded], hub.columns)


def _absent(name: str, folder: Path) -> str:
    """What to put where."""
    hub = _HUB[name]
    target = folder / hub.folder
    leaf = f", or LEAF's files as {target}/train/*.json and {target}/test/*.json" if "label" not in hub.columns else ""
    return f"{name} is not here: put the hub's {hub.address} as {target}/train-*.parquet (and test-*){leaf}"
