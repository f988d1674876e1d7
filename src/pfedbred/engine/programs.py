"""Compiled programs that fit into memory, and whose large constants are arguments.

JAX (0.10 and 0.12) writes the arrays that a function closes over into its program as literals. A network's frozen
params would be part of its text, of the compilation cache and of the program's key there, and the compiler would spend
time on transposing and converting them. Passed as arguments, they are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding

from pfedbred.engine import devices

_LARGE = 2**20  # bytes of a constant


class Traced(NamedTuple):
    """A program that is traced; ``constants`` are its first argument, if there are any."""

    stage: Any
    constants: list[Any]

    def compiled(self) -> Callable[..., Any]:
        """Compiled, as a function of the other arguments; rejected if it needs more memory than a device has."""
        program = devices.compiled(self.stage)
        return (lambda *arguments: program(self.constants, *arguments)) if self.constants else program


def trace(
    function: Callable[..., Any],
    *arguments: Any,
    everywhere: NamedSharding | None,
    in_place: int | None = None,
    out_shardings: Any = None,
) -> Traced:
    """Traces a function of these arguments, which may be shapes.

    Args:
      function: of arrays.
      *arguments: its arguments.
      everywhere: where its constants are.
      in_place: the argument whose memory is given to the result.
      out_shardings: where the results are.
    """

    def traced(function: Callable[..., Any], *arguments: Any, before: int = 0) -> Any:
        donated = () if in_place is None else (in_place + before,)
        # A new function: for the same one, JAX would return the trace that it made with another chunk.
        function = functools.wraps(function)(functools.partial(function))
        return jax.jit(function, donate_argnums=donated, out_shardings=out_shardings).trace(*arguments)

    stage = traced(function, *arguments)
    program = stage.jaxpr
    large = [isinstance(each, jax.Array | np.ndarray) and each.nbytes > _LARGE for each in program.consts]
    if not any(large):
        return Traced(stage, [])
    structure = jax.tree.structure(stage.out_info)

    def hoisted(constants: list[Any], *arguments: Any) -> Any:
        given = iter(constants)
        consts = [next(given) if is_large else each for each, is_large in zip(program.consts, large, strict=True)]
        leaves = core.jaxpr_as_fun(program.replace(consts=consts))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(structure, leaves)

    found = [each for each, is_large in zip(program.consts, large, strict=True) if is_large]
    constants = devices.place(found, everywhere)
    return Traced(traced(hoisted, constants, *arguments, before=1), constants)


def fitted(traced: Callable[[], Traced], run_fewer: Callable[[devices.TooLarge], bool]) -> Callable[..., Any]:
    """The program compiled; where it needs too much memory, again with fewer clients at a time.

    ``run_fewer(problem)`` makes ``traced()`` run fewer at a time, and returns False if it cannot. It also gives up if
    fewer clients do not need less memory.
    """
    needed = None
    while True:
        try:
            return traced().compiled()
        except devices.TooLarge as problem:
            if (needed is not None and problem.needed > 0.99 * needed) or not run_fewer(problem):
                raise
            needed = problem.needed


def fewer(clients: int, chunk: int | None, problem: devices.TooLarge) -> int | None:
    """How many of a device's clients to run at a time if ``chunk`` of them need too much memory; None if none fit.

    At most half, and no more than would fit if the program's own memory grew with them. A number that divides the
    clients is preferred: a remainder is a second copy of the program.
    """
    before = min(chunk or clients, clients)
    room = problem.room - (problem.needed - problem.temporary)
    if before == 1 or room <= 0:
        return None
    most = max(1, min(before // 2, int(before * room / problem.temporary)))
    return next((each for each in range(most, most // 2, -1) if clients % each == 0), most)
