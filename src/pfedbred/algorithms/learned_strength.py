r"""The strength and the shape of the personal prior, learned by empirical Bayes.

The paper reads its algorithm as expectation-maximisation. With ``lam: learned`` both steps are carried out in full:

    E step   theta_i, and how well its data determine it: a Laplace approximation of p(theta | data_i, w)
    M step   w, by the gradient steps of Algorithm 1; and in closed form the prior's strength and, with
             ``sigma: learned``, its diagonal Sigma (:mod:`pfedbred.bregman.evidence`)

Client i holds its personal model with lam_i = tau / n_i for its n_i samples. After training it measures the effective
number of parameters gamma_i and the divergence D_i = D_{g*}(theta_i, mu_i), and tau = sum_i gamma_i / sum_i 2 D_i over
recent rounds. Clients upload gamma_i and D_i beside their model, or keep them if each client learns its own tau.

Three things differ from a fixed lam. Throughout a round, theta_i is held at mu_i of the global model w, although the
local model moves towards theta_i: a mean that follows theta_i would hardly hold it, yet make the prior appear strong.
The main problem's gradient uses the initial strength, lam_0 (mu - theta): a natural gradient, since the mean's Fisher
information is proportional to tau, so that the step size of w does not depend on what is learned. Gradient steps of the
proximal solver are implicit in the prior (:func:`~pfedbred.bregman.proximal.implicit_steps`), which is stable for every
strength.

theta_i must come near the minimum of its objective, or the prior appears stronger than it is: ``prox_start=theta`` lets
it continue from its last value. With one client, or clients that do not differ, divergences go to zero and tau to
infinity; lam stays within a factor of 10,000 of its initial value.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from pfedbred.algorithms.base import Client, Info, Server, ServerState, Task, Uploads
from pfedbred.algorithms.curvature import block_keys, curvature
from pfedbred.algorithms.strength import (
    Ended,
    FixedStrength,
    Held,
    Learning,
    PriorStrength,
    parse_learning,
    strength_name,
)
from pfedbred.bregman import priors
from pfedbred.bregman.evidence import Curvature, Evidence, blended, effective_in_block, effective_numbers, strength
from pfedbred.bregman.families.weighted import weighted
from pfedbred.bregman.proximal import Problem, Solver, solver
from pfedbred.data.minibatches import ClientData
from pfedbred.errors import SettingError
from pfedbred.types import Array, Key, Tree

Granularity = Literal["all", "layer", "entry"]
"""Which params share one strength: all, those of a layer, or none (one for each entry)."""

_MAX_FACTOR = 1e4  # how far lam may move from its initial value, as a factor
_EVIDENCE_WEIGHT = 0.3  # weight of a round's evidence in the moving average
_BLOCK = 256  # params of the largest head whose curvature is computed in full


def get(task: Task, prior: Any, lam: Any, sigma: Any) -> PriorStrength:
    """The strength of a prior, from an algorithm's settings."""
    by_entry = isinstance(sigma, str) and sigma == "learned"
    family = priors.get(prior, None if by_entry else sigma)
    if not by_entry and not isinstance(lam, str | Learning):
        return FixedStrength(family, lam)
    if not isinstance(lam, Learning):
        lam = parse_learning(lam) if isinstance(lam, str) else Learning(start=lam)
    if not (isinstance(family, priors.Family) and family.separable):
        raise SettingError(
            f"a learned strength needs an exponential family that is separable over params, not {family.name}"
        )
    if by_entry and not family.spherical:
        raise SettingError(f"a learned sigma needs the gaussian prior, not {family.name}")
    if by_entry and "client" in lam.scope:
        raise SettingError(
            "a learned sigma is the same for all clients: lam must be learned, learned(layer) or a number, "
            f"not learned({lam.scope})"
        )
    granularity: Granularity = "entry" if by_entry else "layer" if "layer" in lam.scope else "all"
    return LearnedStrength(task, family, granularity, lam)


class Message(NamedTuple):
    """The server's message: the model, and n_i lam of each part, 0 if it is not known yet."""

    model: Tree
    strength: Tree


class Upload(NamedTuple):
    """A client's upload: its model, and what it knows about the strength."""

    model: Tree
    evidence: Evidence


class LearnedStrength:
    """A strength that is learned: see the module."""

    learns = True

    def __init__(self, task: Task, prior: priors.Family, granularity: Granularity, learning: Learning) -> None:
        """One strength per part: each client's own, or shared by all clients."""
        self._task, self._prior, self._granularity = task, prior, granularity
        self._own, self._start, self._temper = "client" in learning.scope, learning.start, learning.temper
        self._dispersed = task.kind.labels == "numbers"

    def fresh(self, w: Tree) -> Tree:
        """No evidence yet, if each client learns its own strength."""
        return self._no_evidence(w) if self._own else None

    def received(self, message: Tree, kept: Tree, data: ClientData) -> tuple[Tree, Held]:
        """lam = temper tau / n_i within its limits; the initial lam before anything is known."""
        w, known = (message, self._strength(kept)) if self._own else message
        size = data.size.astype(jnp.result_type(*jax.tree.leaves(known)))

        def lam(total: Array) -> Array:
            each = jnp.where(total > 0, self._temper * total / size, self._start)
            return jnp.clip(each, self._start / _MAX_FACTOR, self._start * _MAX_FACTOR)

        by_part = jax.tree.map(lam, known)
        if self._granularity == "all":
            return w, Held(self._prior, by_part["all"], by_part)
        return w, Held(weighted(self._prior, self._expand(by_part, w)), 1.0, by_part)

    def solver(self, given: Any, alpha: Any, steps: int, tol: float) -> Solver:
        """Gradient steps are implicit in the prior."""
        return solver("implicit" if given == "gradient" else given, alpha, steps, tol)

    def main_gradient(self, problem: Problem, theta: Tree, exact: bool) -> Tree:
        """The natural gradient, scaled by the initial strength."""
        return optax.tree.scale(self._start, optax.tree.sub(problem.mean, theta))

    def reply(self, ended: Ended, held: Held, kept: Tree, data: ClientData) -> tuple[Tree, Tree, Info]:
        """The local model with evidence; or the model alone, if evidence stays with the client."""
        evidence = self._evidence(ended.theta, ended.mean, held, data)
        info = self.described(held)
        if self._own:
            return ended.w, blended(kept, evidence, _EVIDENCE_WEIGHT), info
        return Upload(ended.w, evidence), None, info

    def described(self, held: Held) -> Info:
        """lam_i of each part; nothing if every single param has its own."""
        if self._granularity == "entry":
            return {}
        return {strength_name(part): lam for part, lam in held.by_part.items()}

    def of_client(self, client: Client) -> Client:
        """The client draws signs for the curvature, and uploads evidence beside its model."""
        client = client._replace(random=True)
        if self._own:
            return client
        return client._replace(
            init=lambda message: client.init(message.model),
            unchanged=lambda message: message.model,
            screened=lambda upload: upload.model,
            uploaded=lambda message, upload: upload.model,
        )

    def of_server(self, server: Server) -> Server:
        """The server keeps the clients' evidence of recent rounds, and sends the strength that follows from it."""
        if self._own:
            return server

        def init(key: Key, clients: int) -> ServerState:
            state = server.init(key, clients)
            return ServerState(state.model, self._no_evidence(state.model))

        def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
            after = server.aggregate(ServerState(state.model), uploads._replace(upload=uploads.upload.model))
            evidence = uploads.average(lambda upload: upload.evidence, around=state.extra, weighted=False, draw=1)
            return ServerState(after.model, blended(state.extra, evidence, _EVIDENCE_WEIGHT))

        return server._replace(
            init=init,
            send=lambda state, client: Message(state.model, self._strength(state.extra)),
            aggregate=aggregate,
        )

    def _evidence(self, theta: Tree, mean: Tree, held: Held, data: ClientData) -> Evidence:
        """What the client's posterior says about the strength."""
        size = data.size.astype(jnp.result_type(*jax.tree.leaves(theta)))
        keys = block_keys(self._task, theta, _BLOCK)
        found, loss = curvature(self._task, theta, data, keys)
        lams, curved = self._expand(held.by_part, theta), self._prior.curvature(mean)
        effective = _effective(found, jax.tree.map(lambda c, lam: size * lam * c, curved, lams), keys)
        free = jnp.maximum(size - optax.tree.sum(effective), 1)
        if self._granularity == "entry":
            spread = jax.tree.map(lambda v, m, c: c * (v - m) ** 2, theta, mean, curved)
        else:
            spread = jax.tree.map(lambda v, m: 2 * self._prior.regulariser(v, m), theta, mean)
        return Evidence(self._pool(effective), self._pool(spread), loss, free)

    def _strength(self, evidence: Evidence) -> Tree:
        """n_i lam of each part; 0 if it is not known."""
        return strength(evidence, dispersed=self._dispersed)

    def _no_evidence(self, params: Tree) -> Evidence:
        zeros = self._pool(optax.tree.zeros_like(params))
        zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(params)))
        return Evidence(zeros, zeros, zero, zero)

    def _pool(self, tree: Tree) -> Tree:
        """Sums over each part, of a tree shaped like the params or with one number per array."""
        if self._granularity == "entry":
            return tree
        if self._granularity == "all":
            return {"all": optax.tree.sum(tree)}
        found: dict[str, Any] = {}
        for path, leaf in jax.tree.leaves_with_path(tree):
            found[_layer(path)] = found.get(_layer(path), 0) + jnp.sum(leaf)
        return found

    def _expand(self, by_part: Tree, params: Tree) -> Tree:
        """The strength for each array of the params: a number, or an array of the same shape."""
        if self._granularity == "entry":
            return by_part
        if self._granularity == "all":
            return jax.tree.map(lambda leaf: by_part["all"], params)
        return jax.tree.map_with_path(lambda path, leaf: by_part[_layer(path)], params)


def _effective(found: Curvature, precision: Tree, keys: list[str] | None) -> Tree:
    """gamma of each param."""
    numbers = effective_numbers(found.diagonal, precision)
    if keys is None or found.block is None:
        return numbers
    flat, unravel = ravel_pytree({key: precision[key] for key in keys})
    return {**numbers, **unravel(effective_in_block(found.block, flat))}


def _layer(path: tuple[Any, ...]) -> str:
    """The layer of an array of the params, by its path; a weight and its bias belong to one layer."""
    names = jax.tree_util.keystr(path, simple=True, separator=".")
    return names.rpartition(".")[0] or names
