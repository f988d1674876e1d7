"""The strength of the personal prior: a number, or learned while the models are trained."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol

import jax

from pfedbred.algorithms.base import Client, Info, Server
from pfedbred.bregman.priors import Prior
from pfedbred.bregman.proximal import Problem, Solver, envelope_gradient, solver
from pfedbred.data.minibatches import ClientData
from pfedbred.errors import SettingError
from pfedbred.settings.signatures import parse_call
from pfedbred.settings.values import LARGEST_FLOAT, Constraint, Positive, parse_number
from pfedbred.types import Tree

_STRENGTH = "strength"  # in records

SCOPES = ("global", "client", "layer", "client x layer")
START = 15.0


class Learning(NamedTuple):
    """How a strength is learned: per client, per layer, both, or one for all; its initial value; and its temper.

    The prior holds theta with ``temper`` times what the evidence says.
    """

    scope: str = "global"
    start: float = START
    temper: Any = 1.0


def parse_learning(text: str) -> Learning:
    """Parses a text such as ``learned``, ``learned(layer)`` or ``learned(layer, 5)``."""
    name, values = parse_call("lam", text)
    found = dict(zip(Learning._fields, values, strict=False))
    start = parse_number(found.get("start", str(START)))
    scope = " ".join(found.get("scope", "global").split())
    if name != "learned" or len(values) > 2 or scope not in SCOPES or start is None or not 0 < start <= LARGEST_FLOAT:
        raise SettingError(f"lam must be a number > 0, or {_WORDS}, not {text!r}")
    return Learning(scope, float(start))


def _is_learning(text: str) -> bool:
    try:
        parse_learning(text)
    except SettingError:
        return False
    return True


_WORDS = f"learned, or learned(SCOPE) with SCOPE one of {', '.join(SCOPES)}"

Learned = Annotated[str, Constraint(_WORDS, _is_learning)]
"""A setting: how lambda is learned."""

Strength = Positive | Learned
"""A setting: lambda, or how it is learned."""


class Held(NamedTuple):
    """The prior that holds one client's personal model in a round.

    Attributes:
      prior: the prior, weighted where parts of the params differ in strength.
      lam: its strength, a number.
      by_part: the learned strength of each part; None if it is not learned.
    """

    prior: Prior
    lam: Any
    by_part: Tree = None


def strength_name(part: str) -> str:
    """What the learned strength of a part of the params is called in records; of all params, if the part is "all"."""
    return _STRENGTH if part == "all" else f"{_STRENGTH}_{part}"


def is_strength(name: str) -> bool:
    """Whether a number with this name in a record is the strength of a prior: lambda, which is positive."""
    return name == _STRENGTH or name.startswith(f"{_STRENGTH}_")


class Ended(NamedTuple):
    """The end of a client's round: the local model, the personal one, and the mean of its prior."""

    w: Tree
    theta: Tree
    mean: Tree


class PriorStrength(Protocol):
    """How strongly the prior holds a client's personal model, and how that is learned, if it is.

    Attributes:
      learns: whether the strength is learned, from the end of each client's round.
    """

    learns: bool

    def fresh(self, w: Tree) -> Tree:
        """What a client knows about the strength before its first round; None for nothing."""

    def received(self, message: Tree, kept: Tree, data: ClientData) -> tuple[Tree, Held]:
        """The model in the server's message, and the prior of this round."""

    def solver(self, given: Any, alpha: Any, steps: int, tol: float) -> Solver:
        """The solver of proximal problems."""

    def main_gradient(self, problem: Problem, theta: Tree, exact: bool) -> Tree:
        """The gradient of the main problem in the prior's mean."""

    def reply(self, ended: Ended, held: Held, kept: Tree, data: ClientData) -> tuple[Tree, Tree, Info]:
        """A client's upload, what it keeps about the strength, and diagnostics."""

    def described(self, held: Held) -> Info:
        """Numbers by name for a record of each client: the strengths, if they are learned and few."""

    def of_client(self, client: Client) -> Client:
        """The client half of Algorithm 1, adapted to the messages that learning the strength needs."""

    def of_server(self, server: Server) -> Server:
        """The server half of Algorithm 1, extended to learn the strength."""


def prior_precision(held: Held, theta: Tree, w: Tree, data: ClientData) -> Tree:
    """n_i lam times the precision with which the prior holds theta around w.

    The server's model stands for the mean mu_i, which is near it and depends on the minibatch.
    """
    if not held.prior.separable:
        raise SettingError(f"a posterior needs a prior that is a sum over params, not {held.prior.name}")
    curved = held.prior.precision(theta, w)
    return jax.tree.map(lambda c: data.size.astype(c.dtype) * held.lam * c, curved)


class FixedStrength:
    """A strength given by the user."""

    learns = False

    def __init__(self, prior: Prior, lam: Any) -> None:
        """The prior's strength is ``lam``."""
        self._held = Held(prior, lam)

    def fresh(self, w: Tree) -> Tree:
        """Nothing."""
        return None

    def received(self, message: Tree, kept: Tree, data: ClientData) -> tuple[Tree, Held]:
        """The message is the model."""
        return message, self._held

    def solver(self, given: Any, alpha: Any, steps: int, tol: float) -> Solver:
        """The given solver; gradient steps are taken as the prior needs them."""
        return solver(self._held.prior.gradient_solver if given == "gradient" else given, alpha, steps, tol)

    def main_gradient(self, problem: Problem, theta: Tree, exact: bool) -> Tree:
        """The envelope's gradient."""
        return envelope_gradient(problem, theta, exact=exact)

    def reply(self, ended: Ended, held: Held, kept: Tree, data: ClientData) -> tuple[Tree, Tree, Info]:
        """The upload is the local model."""
        return ended.w, None, {}

    def described(self, held: Held) -> Info:
        """Nothing."""
        return {}

    def of_client(self, client: Client) -> Client:
        """Unchanged."""
        return client

    def of_server(self, server: Server) -> Server:
        """Unchanged."""
        return server
