"""shifted-prior: a learned Sigma, and personal models that move along with the global one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import pfedbred
from pfedbred.algorithms.strength import Learned, parse_learning
from pfedbred.bregman import priors
from pfedbred.settings.values import Count, Epochs, Positive


@method(paper="This library, on Algorithm 1 of Shi et al.", year=None, G="w", P="theta_i")
def shifted_prior(
    task: Task,
    *,
    prior: str | priors.Prior | Callable[..., priors.Prior] = "gaussian",
    sigma: Any = "learned",
    lam: Learned = "learned",
    temper: Positive = 0.3,
    alpha: Positive = 0.01,
    alpha_m: Positive = 0.05,
    R: Count = 20,
    epochs: Epochs = None,
) -> Algorithm:
    r"""learned-prior in the coordinates d_i = theta_i - w, with a learned diagonal Sigma: theta_i ~ N(w, Sigma).

    A round of client i starts from what distinguishes it from the others, so that theta_i follows what all clients
    have learnt since its last round:

        theta_i <- w + d_i
        theta_i <- R steps on f_i(theta_i) + temper / (2 n_i) ||theta_i - w||^2_{Sigma^-1}, implicit in the prior
        d_i     <- theta_i - w,      w <- E_I theta_i

    In hierarchical models these are the non-centred coordinates, in which inference converges faster where a group's
    own samples say little. The evidence assumes theta_i to be at the minimum. After few steps it is still near w, so
    that the prior appears stronger than it is: ``temper`` makes up for that. G is w, P is theta_i.

    Args:
      task: model and loss f.
      prior: g, as in :func:`~pfedbred.algorithms.pfedbred.pfedbred`; a learned sigma needs the Gaussian.
      sigma: Sigma; ``learned`` is a diagonal one, None a strength by ``lam`` alone.
      lam: how the strength is learned.
      temper: factor on the learned strength.
      alpha: step size of theta_i.
      alpha_m: step size of the local model, which goes alpha_m lam of the way to theta_i in each step, with the
        initial lam.
      R: local steps, each on one minibatch.
      epochs: passes over the client's samples, instead of R.

    References: Papaspiliopoulos, Roberts and Skold, "A General Framework for the Parametrization of Hierarchical
    Models", 2007, for the coordinates; :mod:`pfedbred.algorithms.learned_strength` for what is learned.
    """
    learning: Any = parse_learning(lam)._replace(temper=temper)
    return pfedbred(
        task,
        mean="identity",
        prior=prior,
        sigma=sigma,
        lam=learning,
        alpha=alpha,
        alpha_m=alpha_m,
        K=1,
        R=R,
        epochs=epochs,
        theta_init="shifted",
        prox_start="theta",
    )
