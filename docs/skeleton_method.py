"""NAME: one line on what it does.

Copy this file to src/pfedbred/algorithms/NAME.py, replace what is in capitals, and add a line to the table in
src/pfedbred/algorithms/registry.py; in a file of your own, import the same names from pfedbred. As it stands it is
FedAvg with a personal model that is one local step away.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax

from pfedbred.algorithms.base import Algorithm, Client, Info, Task, averaging_server, method
from pfedbred.algorithms.local_steps import descend
from pfedbred.data.minibatches import ClientData
from pfedbred.settings import Count, Positive
from pfedbred.types import Tree


class PersonalState(NamedTuple):
    """What a client keeps from round to round. Any pytree will do; () if it keeps nothing.

    Attributes:
      theta: the personal model.
    """

    theta: Tree


@method(paper="AUTHORS, TITLE", year=2024, G="w", P="theta_i")  # what `pfedbred list algorithms` shows
def skeleton(task: Task, *, alpha: Positive = 0.01, R: Count = 20) -> Algorithm:
    r"""NAME: min_w OBJECTIVE, with its label in the paper.

        w_i     <- R steps of w_i - alpha grad f_i(w_i), from w                    line N of Algorithm N
        theta_i <- w_i - alpha grad f_i(w_i)
        w       <- E_I w_i

    G is w, P is theta_i. Say here what differs from the paper, if anything does.

    Args:
      task: model and loss f.
      alpha: local step size. Every setting has a type that says which values are allowed, and a default.
      R: local steps, each on one minibatch.

    References: AUTHORS, "TITLE", VENUE YEAR, Algorithm N.
    """

    def train(w: Tree, state: PersonalState, data: ClientData) -> tuple[Tree, PersonalState, Info]:
        """One round of local work: the upload, the client's next state, and diagnostics if there are any."""
        gradient = jax.grad(task.loss)
        local = descend(gradient, w, data, alpha=alpha, steps=R)
        theta = descend(gradient, local, data, alpha=alpha, steps=1, first=R)
        info = {"distance_to_global": optax.tree.norm(optax.tree.sub(theta, w))}
        return local, PersonalState(theta), info

    client = Client(
        init=PersonalState,  # the state before the first round, from the first message
        train=train,
        model=lambda w, state, data: state.theta,  # P
        draws=R + 1,  # minibatches that train uses
    )
    # A server of your own: Server(init, send, aggregate, model); uploads.average() applies the run's aggregation rule.
    return Algorithm(client, averaging_server(task), task.model.apply)
