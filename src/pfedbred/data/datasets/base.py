"""What a named dataset is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pfedbred.data.partition import SplitFunction
from pfedbred.data.pool import Pool
from pfedbred.data.population import Population


class Dataset(NamedTuple):
    """A named dataset.

    Attributes:
      pool: ``pool(data_dir, clients, seed, ...)`` reads or generates its samples. Further keyword arguments may follow
        the name in parentheses, as in ``synthetic(1, 1)``.
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
    clients: int | None = None
    labels_per_client: int | None = None
    seed: int = 0
    models: tuple[str, ...] = ()
    task: str = "classification"
    population: Callable[..., Population] | None = None
