"""Hyper-parameters as data of a compiled program: they differ between the runs of a sweep, or from round to round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Algorithm
from pfedbred.types import Array


class Varying(NamedTuple):
    """An algorithm whose hyper-parameters vary.

    Attributes:
      build: ``build(settings)`` is the algorithm with these hyper-parameters.
      schedules: hyper-parameters that change from round to round, each with its value in every round.
    """

    build: Callable[[Mapping[str, Array]], Algorithm]
    schedules: Mapping[str, np.ndarray] = {}

    def at(self, usual: Algorithm, settings: Mapping[str, Array], round_: Array | int) -> Algorithm:
        """The algorithm in a round of a run that has these settings; ``usual`` if nothing varies."""
        own = {name: jnp.asarray(each)[jnp.minimum(round_, len(each) - 1)] for name, each in self.schedules.items()}
        own |= settings
        return self.build(own) if own else usual
