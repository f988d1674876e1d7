"""mfo: the prior's mean from memory."""

from __future__ import annotations

from typing import Any

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import PAPER, pfedbred
from pfedbred.settings.signatures import same_settings


@method(paper=PAPER, year=2022, G="w", P="theta_i")
@same_settings(pfedbred, without=("mean", "eta_a", "personal"))
def mfo(task: Task, **settings: Any) -> Algorithm:
    r"""Algorithm 1 with mu = w - eta (memory - theta), memorised first order.

    G is w, P is theta_i. Settings as in :func:`~pfedbred.algorithms.pfedbred.pfedbred`.

    References: Shi et al., Eq. (equ_ime_ms), line 2.
    """
    return pfedbred(task, mean="mfo", **settings)
