"""fo: the prior's mean by one gradient step."""

from __future__ import annotations

from typing import Any

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import PAPER, ProxStart, pfedbred
from pfedbred.settings.signatures import same_settings


@method(paper=PAPER, year=2022, G="w", P="theta_i")
@same_settings(pfedbred, without=("mean", "eta", "personal"))
def fo(task: Task, *, prox_start: ProxStart = "mean", **settings: Any) -> Algorithm:
    r"""Algorithm 1 with mu = w - eta_a grad f(w), first order.

    The proximal steps start at mu, as in the paper's experiments; with ``prox_start=local`` they start at w, as those
    of mfo and mg do. G is w, P is theta_i. Settings as in :func:`~pfedbred.algorithms.pfedbred.pfedbred`.

    References: Shi et al., Eq. (equ_ime_ms), line 1; where the proximal steps start is only in the experiments.
    """
    return pfedbred(task, mean="fo", prox_start=prox_start, **settings)
