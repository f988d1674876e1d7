"""Hyper-parameters as data of a compiled program: they differ between the runs of a sweep, or from round to round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.algorithms.base import Algorithm
from pfedbred.errors import SettingError
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
        with as_inputs(settings, self.schedules):
            return self.build(own) if own else usual


@contextmanager
def as_inputs(swept: Mapping[str, Any], scheduled: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turns the failure of a trace that needs the value of a setting that varies into one line."""
    try:
        yield
    except jax.errors.ConcretizationTypeError:
        names, what = (swept, "be swept") if swept else (scheduled, "have a schedule")
        if not names:
            raise
        raise SettingError(f"{' or '.join(names)} cannot {what}: it changes the compiled program") from None
