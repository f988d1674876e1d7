"""FEMNIST, from LEAF's files or the hub's."""

from __future__ import annotations

import numpy as np

from pfedbred.data.datasets.base import Dataset
from pfedbred.data.partition.leaf import by_writer
from pfedbred.data.pool import Pool
from pfedbred.data.scaling import to_unit_interval
from pfedbred.data.sources.hub import Files, HubDataset, find_files, read_table
from pfedbred.data.sources.leaf import UserSamples, read_leaf
from pfedbred.data.sources.pool_cache import cached
from pfedbred.errors import SettingError

SOURCE = HubDataset("femnist", "flwrlabs/femnist", "femnist", ("image", "writer_id", "character"), leaf=True)


def femnist(data_dir: str | None, clients: int | None, seed: int) -> Pool:
    """FEMNIST: handwritten characters, every writer a client."""
    files = find_files(SOURCE, data_dir)
    return cached(SOURCE, files.paths, lambda: read(files))


def read(files: Files) -> Pool:
    """The samples of these files, or of the download if there are none, bypassing the cache."""
    if files.leaf:
        found = read_leaf(files.leaf)
        found = found._replace(x=_pixels(found))
    else:
        table = read_table(SOURCE, files.parquet)
        x, y = table.images("image"), table.whole_numbers("character")
        found = UserSamples(x, y, *table.names("writer_id"), None, table.origin)
    raw = not files.leaf  # LEAF's files hold users already sampled
    return Pool("femnist", classes=int(found.y.max()) + 1, normalise=to_unit_interval, raw=raw, **found._asdict())


def _pixels(samples: UserSamples) -> np.ndarray:
    """LEAF's 784 numbers from 0 to 1, turned back into the bytes they came from."""
    for row, pixels in enumerate(samples.x):
        if not isinstance(pixels, list) or len(pixels) != 784:
            raise SettingError(f"{samples.origin(row)}: expected 784 pixels")
    try:
        values = np.asarray(samples.x, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{samples.origin(0)} or a later one: pixels must be numbers") from None
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1)).all(axis=1))
    if len(wrong):
        raise SettingError(f"{samples.origin(int(wrong[0]))}: pixels must be from 0 to 1")
    return np.round(values * 255).astype(np.uint8).reshape(-1, 28, 28)


DATASET = Dataset(femnist, by_writer, models=("mclr", "dnn"))
