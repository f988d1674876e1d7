"""Small backends for tests of the engine. The same arguments give the same backend, compiled once for all tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from conftest import small_federation

import pfedbred
from pfedbred.engine import ResidentBackend, StreamedBackend, selection

federation = functools.cache(small_federation)


def task_for(data, model="mclr", dtype=jnp.float64):
    return pfedbred.Task(pfedbred.MODELS[model](data.shape, data.classes, dtype=dtype))


MADE = {}
DEFAULTS = {"executor": "in-turn", "batch_size": 4}


def backend(algorithm="mg-meta", data=None, *, select=2, **options):
    """``select`` is how many clients are chosen at random, or a tuple of those chosen always."""
    data, options = data or federation(), {**DEFAULTS, **options}
    key = (algorithm, id(data), select, *sorted(options.items(), key=lambda item: item[0]))
    if key not in MADE:
        MADE[key] = _backend(algorithm, data, select, **options)
    return MADE[key]


def _backend(algorithm, data, select, *, streamed=False, store="memory", dtype=jnp.float64, R=2, **plan):
    task = task_for(data, dtype=dtype)
    if isinstance(select, int | tuple):
        select = selection.get("uniform" if isinstance(select, int) else select, select)
    plan = pfedbred.Plan(select, **plan)
    if isinstance(algorithm, str):
        algorithm = pfedbred.make(algorithm, task, {"R": R})
    if streamed:
        return StreamedBackend(algorithm, task, data, plan, store)
    return ResidentBackend(algorithm, task, data, plan)


def trained(algorithm="mg-meta", data=None, *, seeds=(0,), rounds=3, **options):
    """A backend, and its state after some rounds."""
    found = backend(algorithm, data, **options)
    state = found.init(list(seeds))
    return found, found.advance(state, rounds) if rounds else state


def arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def content(state):
    """Everything that a resident run holds, without its key."""
    return arrays((state.round, state.server, state.clients))


def assert_close(left, right, rtol=1e-10, atol=1e-12):
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def same(left, right):
    """To the bit."""
    return all(np.array_equal(a, b) for a, b in zip(arrays(left), arrays(right), strict=True))


def numbers(evaluation):
    """Everything in an evaluation, as arrays."""
    return [(scores.values, scores.clients) for model in evaluation for scores in model.parts.values()]
