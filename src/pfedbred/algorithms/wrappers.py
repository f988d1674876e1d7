"""Wrappers of any algorithm, named by suffix as in the paper's table: ``mg-meta+am``, ``per-fedavg+ft``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax

from pfedbred.algorithms.base import Algorithm, ServerState, Task, Uploads, towards
from pfedbred.algorithms.local_steps import drawn, more
from pfedbred.algorithms.server_optimizers import server
from pfedbred.data.minibatches import ClientData
from pfedbred.errors import SettingError
from pfedbred.settings.values import NonNegative
from pfedbred.types import Tree


def ft(algorithm: Algorithm, task: Task, *, ft_alpha: NonNegative = 0.01) -> Algorithm:
    r"""Fine-tuning: P takes one more SGD step, of size ``ft_alpha``, on one minibatch of local training data.

    Training is unchanged. The step updates all params of P, on the loss of its predictions.

    Args:
      algorithm: the one to wrap.
      task: model and loss f.
      ft_alpha: size of the step.

    References: Shi et al., Section "Tricks".
    """
    client, trains = algorithm.client, task.model.train is not None
    if trains and algorithm.networks.several:
        raise SettingError("+ft does not train mixtures of networks with batch norm or dropout: leave +ft out")

    def model(message: Tree, state: Tree, data: ClientData) -> Tree:
        personal = client.model(message, state, data)
        batch = data.batch(drawn(client.model_draws, data.passes.minibatches if data.passes else 0))

        def loss(model: Tree) -> jax.Array:
            if trains:
                return task.loss(model, batch)
            return batch.mean(task.losses(algorithm.predict(model, batch.x), batch.y))

        return optax.tree.add_scale(personal, -ft_alpha, jax.grad(loss)(personal))

    return algorithm._replace(client=client._replace(model=model, model_draws=more(client.model_draws, 1)))


def am(algorithm: Algorithm, task: Task, *, am_beta: NonNegative = 2.0) -> Algorithm:
    r"""Aggregation momentum: the server's model moves ``am_beta`` times as far, w <- (1 - beta) w + beta w_new.

    It applies to what the server learns (``ServerState.model``): the global model, FedEM's components, FedPer's body,
    FedAMP's u_i and FedU's w_i. Control variates and momenta are unaffected.

    Args:
      algorithm: the one to wrap.
      task: model and loss f.
      am_beta: beta, the factor on the server's move.

    References: Shi et al., line 14 of Algorithm 1 and Section "Tricks".
    """
    server = algorithm.server

    def aggregate(state: ServerState, uploads: Uploads) -> ServerState:
        new = server.aggregate(state, uploads)
        return new._replace(model=towards(state.model, new.model, am_beta))

    return algorithm._replace(server=server._replace(aggregate=aggregate))


WRAPPERS: dict[str, Callable[..., Algorithm]] = {"am": am, "ft": ft, "server": server}
"""Every wrapper. To add one, write a function ``(algorithm, task, *, settings...) -> Algorithm`` and a line here."""
