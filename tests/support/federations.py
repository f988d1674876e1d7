"""Small federations of images and of words."""

import dataclasses

import numpy as np

from pfedbred.data.federation import Federation, Split
from pfedbred.data.text import Text


def images():
    rng = np.random.default_rng(0)
    sizes = ((4, 1, 3), (2, 0, 1))
    splits = [
        Split(
            rng.integers(0, 256, (sum(size), 5, 5), dtype=np.uint8),
            rng.integers(0, 3, sum(size)).astype(np.int32),
            np.concatenate([[0], np.cumsum(size)]).astype(np.int32),
        )
        for size in sizes
    ]
    return Federation(
        "images",
        *splits,
        classes=3,
        shift=np.float32(3.0) * np.ones((5, 5), np.float32),
        scale=np.asarray(0.5, np.float32),
        names=("a", "b", "ü"),
        labels=("x", "y", "z"),
        about={"split": "by hand", "seed": 0},
    )


def words():
    federation = images()
    encode = lambda split: split._replace(x=np.ones((len(split.y), 4), np.int32))  # noqa: E731
    return dataclasses.replace(
        federation,
        train=encode(federation.train),
        test=encode(federation.test),
        shift=None,
        scale=None,
        text=Text(("it", "is"), np.arange(12, dtype=np.float32).reshape(4, 3)),
    )
