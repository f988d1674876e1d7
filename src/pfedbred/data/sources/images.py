"""Image datasets of the public hub."""

from __future__ import annotations

from pfedbred.data.pool import Normalise, Pool
from pfedbred.data.sources.hub import Source, find_files, read_table
from pfedbred.data.sources.pool_cache import cached


def image_pool(source: Source, data_dir: str | None, *, classes: int, normalise: Normalise) -> Pool:
    """The images of a dataset with an image and a label column, its training and test set together, as bytes."""
    paths = find_files(source, data_dir).paths

    def read() -> Pool:
        table = read_table(source, paths)
        image, label = source.columns
        x, y = table.images(image), table.whole_numbers(label)
        return Pool(source.name, x, y, classes, normalise=normalise, origin=table.origin)

    return cached(source, paths, read)
