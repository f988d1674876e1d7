"""What a dataset is that is still to be split: by name, or as an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pfedbred.data.partition import SplitFunction
from pfedbred.data.pool import Pool
from pfedbred.data.population import Population
from pfedbred.settings.values import Count, Seed


class Dataset(NamedTuple):
    """How samples are read, and how they are split by default: what a name in ``DATASETS`` stands for, or an object.

    Attributes:
      pool: ``pool(data_dir, clients, seed, ...)`` reads or generates its samples. Further keyword arguments may follow
        a name in parentheses, as in ``synthetic(1, 1)``; an object takes their defaults.
      paper: the split named ``paper``, used by default.
      clients: default number of clients; None if the data decides it.
      labels_per_client: default number of labels per client, for splits by label.
      seed: default seed of the split.
      models: the models it is usually trained with, by name.
      task: the kind of task that its labels are for.
      population: ``population(clients, seed, ...)`` generates the clients of the default split one at a time, on
        demand.
    """

    pool: Callable[..., Pool]
    paper: SplitFunction
    clients: Count | None = None
    labels_per_client: Count | None = None
    seed: Seed = 0
    models: tuple[str, ...] = ()
    task: str = "classification"
    population: Callable[..., Population] | None = None

    @property
    def name(self) -> str:
        """What to call it where it is given as an object: the name of the function that reads its samples."""
        return getattr(self.pool, "__name__", "custom").strip("<>").replace("_", "-")
