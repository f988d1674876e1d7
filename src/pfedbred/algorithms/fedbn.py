"""FedBN: FedAvg whose clients keep their normalisation layers."""

from __future__ import annotations

from typing import Any

import jax

from pfedbred.algorithms.base import Algorithm, Client, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Work, descend, draws
from pfedbred.data.minibatches import ClientData
from pfedbred.errors import SettingError
from pfedbred.settings.values import Count, Epochs, NonNegative
from pfedbred.types import Tree


@method(
    paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    year=2021,
    G="w, average normalisation",
    P="w, own normalisation",
)
def fedbn(task: Task, *, alpha: NonNegative = 0.01, R: Count = 20, epochs: Epochs = None) -> Algorithm:
    r"""FedBN: min over shared params w and normalisation layers n_i of E_i f_i(w, n_i).

        (w_i, n_i) <- (w_i, n_i) - alpha grad f_i(w_i, n_i),  R steps from (w, n_i);     w <- E_I w_i

    n_i, the scales and shifts of the layers that ``Model.norms`` names, stay on their client; so do its batch
    statistics, unless ``batch_norm`` is ``average``. P is (w, n_i). For evaluation only, the server also averages the
    n_i, which the paper leaves open: G is (w, E_I n_i), and a client that joins starts from it. If the normalisation
    layers have no params, it is FedAvg.

    Args:
      task: model and loss f.
      alpha: local step size.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Li, Jiang, Zhang, Kamp and Dou, ICLR 2021, Algorithm 1.
    """
    work, model = Work(R, epochs), task.model
    if not model.norms:
        raise SettingError("fedbn needs a model that names its normalisation layers: Model(norms=...)")

    def part(params: Tree, norms: bool) -> Tree:
        """The params of the normalisation layers, or all other params, with None instead of the rest."""

        def choose(path: Any, leaf: Any) -> Any:
            named = model.is_norm(jax.tree_util.keystr(path, simple=True, separator="."))
            return leaf if named == norms else None

        return jax.tree_util.tree_map_with_path(choose, params)

    def join(params: Tree, norms: Tree) -> Tree:
        return jax.tree.map(
            lambda old, own: old if own is None else own, params, norms, is_leaf=lambda leaf: leaf is None
        )

    def train(w: Tree, norms: Tree, data: ClientData) -> tuple[Tree, Tree]:
        trained = descend(jax.grad(task.loss), join(w, norms), data, alpha=alpha, steps=work)
        return trained, part(trained, norms=True)

    client = Client(
        init=lambda w: part(w, norms=True),
        train=train,
        model=lambda w, norms, data: join(w, norms),
        draws=draws(work),
        unchanged=lambda w: part(w, norms=False),
        screened=lambda upload: part(upload, norms=False),
    )
    return Algorithm(client, averaging_server(task), model.apply)
