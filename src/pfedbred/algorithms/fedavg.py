"""FedAvg: local SGD, averaged."""

from __future__ import annotations

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import pfedbred
from pfedbred.settings.values import Count, Positive


@method(
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data",
    year=2017,
    G="w",
    P="w",
)
def fedavg(task: Task, *, alpha: Positive = 0.01, R: Count = 20, beta: Positive = 1.0) -> Algorithm:
    r"""FedAvg: min_w E_i f_i(w), by R local steps w <- w - alpha grad f_i(w) and averaging.

    It is Algorithm 1 with mu = w, a single proximal step and alpha_m lam = 1: the proximal step from mu gives
    theta = w - alpha grad f(w), and w - alpha_m lam (mu - theta) = theta. There is no personal model:
    G and P are both the global model, and evaluated on the same test samples they agree.

    Args:
      task: model and loss f.
      alpha: local step size.
      R: local steps, each on one minibatch.
      beta: coefficient of the new average; 2 is the paper's aggregation momentum.

    References: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.
    """
    return pfedbred(
        task,
        mean="identity",
        K=1,
        lam=1.0,
        alpha_m=1.0,
        alpha=alpha,
        R=R,
        beta=beta,
        theta_init="global",
        personal="global",
    )
