"""pFedBayes: a distribution over params for every client, with the global distribution as its prior."""

from __future__ import annotations

import jax
import optax

from pfedbred.algorithms.base import Algorithm, Client, ServerState, Task, averaging_server, method
from pfedbred.algorithms.local_steps import Step, Work, draws, local_steps
from pfedbred.algorithms.mean_field import MeanField, around, divergence, expected
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.settings.values import Count, Epochs, Few, NonNegative, Positive
from pfedbred.types import Array


@method(
    paper="Zhang et al., Personalized Federated Learning via Variational Bayesian Inference",
    year=2022,
    G="mean of w",
    P="mean of q_i",
)
def pfedbayes(
    task: Task,
    *,
    zeta: NonNegative = 1.0,
    sigma: Positive = 0.08,
    samples: Few = 1,
    alpha: NonNegative = 0.01,
    alpha_m: NonNegative = 0.01,
    R: Count = 20,
    epochs: Epochs = None,
    beta: Positive = 1.0,
) -> Algorithm:
    r"""pFedBayes: min_w E_i F_i(w), F_i(w) = min_q n_i E_q f_i + zeta KL(q || w), over mean-field Gaussians q and w.

    Both are (mean, rho) with deviations softplus(rho). In a local step, on one minibatch of a client with n_i samples:

        q_i <- q_i - alpha grad_q (1/K sum_k f_i(mean_q + sigma_q e_k) + zeta/n_i KL(q_i || w_i)),  e_k ~ N(0, 1)
        w_i <- w_i - alpha_m grad_w zeta/n_i KL(q_i || w_i),  with the new q_i;  R steps from w and its own q_i

    and the server: w <- (1 - beta) w + beta E_I w_i, means and rhos alike. Here the paper's objective is divided by
    n_i, so that step sizes compare with other methods'; for Adam it makes no difference. Plain steps are stable while
    alpha zeta and alpha_m zeta are below 2 n_i sigma^2. q_i takes the steps of the chosen local optimizer; those of
    w_i, which sees no data, are always plain.

    Predictions are made with means: G is the mean of w, P is the mean of q_i. With zeta = 0 every client trains alone,
    and w never changes.

    Args:
      task: model and loss f; exp(-f) must be a likelihood, as it is for every named task.
      zeta: the weight of the KL divergence. Published results use 10, with Adam's bounded steps.
      sigma: the initial deviations; 0.08 is rho = -2.5.
      samples: K, how many models are drawn for one gradient.
      alpha: step size of q_i.
      alpha_m: step size of w_i.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.
      beta: coefficient of the new average.

    References: Zhang, Li, Li, Guo and Shao, ICML 2022, Algorithm 1.
    """
    work = Work(R, epochs)

    def train(w: MeanField, q: MeanField, data: ClientData) -> tuple[MeanField, MeanField]:
        def held(q: MeanField, w: MeanField) -> Array:
            found = divergence(q, w.mean, w.sigma)
            return zeta * found / data.size.astype(found.dtype)

        def objective(q: MeanField, w: MeanField, batch: Batch) -> Array:
            return expected(lambda params: task.loss(params, batch), q, batch, samples) + held(q, w)

        def step(q: MeanField, w: MeanField, batches: list[Batch]) -> Step:
            def follow(q: MeanField) -> MeanField:
                return optax.tree.add_scale(w, -alpha_m, jax.grad(held, 1)(q, w))

            return Step(jax.grad(objective)(q, w, batches[0]), after=follow)

        q, w, _ = local_steps(step, q, data, alpha=alpha, work=work, carry=w)
        return w, q

    client = Client(
        init=lambda w: w,
        train=train,
        model=lambda w, q, data: q.mean,
        draws=draws(work),
        comparable=False,  # q_i stays on one side of w, and pulls w_i there in every round
        unchanged=lambda w: w.mean,
        screened=lambda w: w.mean,
        uploaded=lambda message, w: w.mean,
        random=True,
    )
    server = averaging_server(task, beta)._replace(
        init=lambda key, clients: ServerState(around(task.model.init(key), sigma)),
        adopt=lambda state, model: ServerState(around(model, sigma)),
        model=lambda state: state.model.mean,
    )
    return Algorithm(client, server, task.model.apply)
