"""mg-meta: the paper's "mg" as run in its experiments."""

from __future__ import annotations

from typing import Any

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import PAPER, pfedbred
from pfedbred.settings.signatures import same_settings


@method(paper=PAPER, year=2022, G="w", P="theta_i")
@same_settings(pfedbred, without=("mean", "personal"))
def mg_meta(task: Task, **settings: Any) -> Algorithm:
    r"""Algorithm 1 with a meta-gradient step, as used for the "mg" rows of the paper's table.

    w' = w - eta_a grad f(w - eta_a grad f(w)), the gradients on two minibatches; mu = w' - eta (memory - theta); the
    proximal steps start at w' and use the second minibatch; then w <- w' - alpha_m lam (mu - theta). G is w, P is
    theta_i. Settings as in :func:`~pfedbred.algorithms.pfedbred.pfedbred`.

    References: Shi et al., Eq. (appdx_equ_v_mg); that w itself moves to w' is only in the experiments.
    """
    return pfedbred(task, mean="mg-meta", **settings)


@method(paper=PAPER, year=2022, G="w", P="theta_i")
@same_settings(pfedbred, without=("mean", "personal"))
def mg_meta_literal(task: Task, **settings: Any) -> Algorithm:
    r"""mg-meta exactly as in Eq. (appdx_equ_v_mg): the meta step moves the mean, but not the local model.

    G is w, P is theta_i. Settings as in :func:`~pfedbred.algorithms.pfedbred.pfedbred`.

    References: Shi et al., Eq. (appdx_equ_v_mg).
    """
    return pfedbred(task, mean="mg-meta-literal", **settings)
