"""The ensembles of a run when it has ended."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from pfedbred.algorithms.ensemble import Members
from pfedbred.engine.backend import Backend
from pfedbred.engine.scores import ModelScores
from pfedbred.errors import SettingError
from pfedbred.runs.chosen import ChosenRounds
from pfedbred.types import Tree

S = TypeVar("S")


def final_models(backend: Backend[S], state: S, chosen: ChosenRounds | None) -> tuple[Tree, Tree]:
    """G by seed, and P by seed and client: of the chosen rounds if there are any, else of the last.

    All processes must call it.
    """
    if chosen is not None:
        like = backend.global_model(state), backend.personal_model(state, 0)
        return chosen.tree("global", (), like[0]), chosen.tree("personal", (), like[1])
    last = backend.models(state)
    if last is None:
        raise SettingError("the personal models stay with their clients: an ensemble cannot be made of them here")
    return last


def as_ensembles(personal: Tree) -> Members:
    """P by seed and client as the ensemble of each client, with a first axis of one entry instead of the seeds."""
    return Members(jax.tree.map(lambda leaf: jnp.swapaxes(jnp.asarray(leaf), 0, 1)[None], personal))


def first_seed(global_: Tree) -> Tree:
    """G of the first seed, with an axis of one entry."""
    return jax.tree.map(lambda leaf: leaf[:1], global_)


def evaluate_ensembles(backend: Backend[S], models: tuple[Tree, Tree]) -> ModelScores:
    """The metrics of the clients' ensembles, as if they were those of a single seed."""
    global_, personal = models
    return backend.scores(first_seed(global_), as_ensembles(personal)).personal
