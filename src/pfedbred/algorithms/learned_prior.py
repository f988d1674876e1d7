"""learned-prior: personal models under a prior whose strength is learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import PAPER, ProxStart, pfedbred
from pfedbred.algorithms.strength import Strength
from pfedbred.bregman import means
from pfedbred.settings.signatures import same_settings
from pfedbred.settings.values import Count


@method(paper=PAPER, year=2022, G="w", P="theta_i")
@same_settings(pfedbred, without=("personal",))
def learned_prior(
    task: Task,
    *,
    mean: str | means.Mean | Callable[..., means.Mean] = "identity",
    lam: Strength = "learned(layer)",
    K: Count = 1,
    prox_start: ProxStart = "theta",
    **settings: Any,
) -> Algorithm:
    r"""Algorithm 1 read as expectation-maximisation, with the strength of the prior learned by empirical Bayes.

    theta_i continues from its last value, with one implicit step per local step, so that it converges to the minimum of
    f_i + lam_i D_{g*}(., mu); lam_i = tau / n_i, with one tau per layer
    (:mod:`pfedbred.algorithms.learned_strength`). By default mu = w, and w tends to the mean of all theta_i: the
    hierarchical model theta_i ~ N(w, 1 / tau). G is w, P is theta_i. Settings as in
    :func:`~pfedbred.algorithms.pfedbred.pfedbred`.

    References: Shi et al., Algorithm 1 and its E-M reading; MacKay, "Bayesian Interpolation", 1992.
    """
    return pfedbred(task, mean=mean, lam=lam, K=K, prox_start=prox_start, **settings)
