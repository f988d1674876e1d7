"""pFedMe: Moreau envelopes around the global model."""

from __future__ import annotations

from typing import Any

from pfedbred.algorithms.base import Algorithm, Task, method
from pfedbred.algorithms.pfedbred import pfedbred
from pfedbred.settings.signatures import same_settings


@method(paper="T. Dinh et al., Personalized Federated Learning with Moreau Envelopes", year=2020, G="w", P="theta_i")
@same_settings(pfedbred, without=("mean", "eta", "eta_a", "prior", "sigma", "jacobian", "envelope", "personal"))
def pfedme(task: Task, **settings: Any) -> Algorithm:
    r"""pFedMe: min_w E_i min_theta f_i(theta) + lam/2 ||theta - w||^2.

    It is Algorithm 1 with mu = w and the spherical Gaussian. G is w, P is theta_i. Settings as in
    :func:`~pfedbred.algorithms.pfedbred.pfedbred`.

    References: T. Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020.
    """
    return pfedbred(task, mean="identity", prior="gaussian", **settings)
