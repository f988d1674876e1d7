"""Programs of the resident backend: a function of one seed for all seeds, compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from pfedbred.engine import executors, programs
from pfedbred.engine.round import Shards
from pfedbred.engine.simulation import Simulation
from pfedbred.engine.varying import as_inputs

if TYPE_CHECKING:
    from pfedbred.engine.resident import ResidentState


class SeedProgram:
    """A function of all seeds: traced, then compiled, once per number of seeds; a Python loop for the executor loop."""

    def __init__(
        self,
        backend: Simulation[ResidentState],
        function: Callable[[Shards, Any, ResidentState], Any],
        shardings: Callable[[ResidentState], ResidentState | None],
        *,
        in_place: bool = False,
        at_once: int | None = None,
    ) -> None:
        """A program of ``function``.

        Args:
          backend: whose program it is.
          function: of the clients' samples, anything else that all seeds share, and the state of one seed.
          shardings: where states live.
          in_place: whether the result is the next state, in the memory of the one before. Other results go to every
            device.
          at_once: how many seeds run side by side; by default all.
        """
        self._backend, self._one, self._shardings, self._in_place = backend, function, shardings, in_place
        every_seed = executors.every(
            lambda shared, state: function(shared[0], shared[1], state), backend.executor, at_once
        )

        def seeds(shards: Shards, extra: Any, states: ResidentState) -> Any:
            if len(states.round) > 1:
                return every_seed((shards, extra), states)
            # A single seed is not vmapped: vmap would compute both sides of its conditions, which a CPU can branch on.
            alone = function(shards, extra, jax.tree.map(itemgetter(0), states))
            return jax.tree.map(lambda leaf: leaf[None], alone)

        self._seeds = seeds
        self._traced: dict[int, programs.Traced] = {}
        self._programs: dict[int, Any] = {}

    def trace(self, shards: Shards, extra: Any, states: ResidentState) -> None:
        """Traces the program for the seeds of ``states``, which may be shapes only."""
        count = states.round.shape[0]
        if count not in self._traced:
            backend = self._backend
            with as_inputs(states.settings):
                self._traced[count] = programs.trace(
                    self._seeds,
                    shards,
                    extra,
                    states,
                    everywhere=backend.everywhere,
                    in_place=2 if self._in_place else None,
                    out_shardings=self._shardings(states) if self._in_place else backend.everywhere,
                )

    def compile(self, shards: Shards, extra: Any, states: ResidentState) -> None:
        """Compiles the program for the seeds of ``states``, which may be shapes only, unless it is compiled already."""
        backend, count = self._backend, states.round.shape[0]
        if count in self._programs:
            return
        started = time.perf_counter()

        def traced() -> programs.Traced:
            self.trace(shards, extra, states)
            return self._traced.pop(count)

        self._programs[count] = programs.fitted(traced, backend.run_fewer)
        backend.compile_seconds += time.perf_counter() - started

    def forget_traces(self) -> None:
        """Discards the traces that are not compiled; they are made again when needed."""
        self._traced.clear()

    def __call__(self, shards: Shards, extra: Any, states: ResidentState) -> Any:
        """The results for all seeds; the program is compiled first if that is necessary."""
        backend = self._backend
        if backend.executor == "loop":
            return self._loop(shards, extra, states)
        if backend.mesh and jax.process_count() == 1:
            states = jax.device_put(states, self._shardings(states))  # a caller may have put them elsewhere
        self.compile(shards, extra, states)
        return self._programs[len(states.round)](shards, extra, states)

    def _loop(self, shards: Shards, extra: Any, states: ResidentState) -> Any:
        """The reference for several seeds: one after another in Python."""
        results = [self._one(shards, extra, jax.tree.map(itemgetter(i), states)) for i in range(len(states.round))]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
