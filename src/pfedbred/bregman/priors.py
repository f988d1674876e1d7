r"""Exponential families as priors of a model's parameters: the table of families, and the coordinates they use.

A family is given by its log-partition function ``g`` (Eq. equ_def_ef of the paper). With the conjugate
``g*(x) = sup_s <x, s> - g(s)``, the gradients ``grad g`` and ``grad g*`` are inverses of each other; they map the
natural parameter s to the mean parameter mu and back. The prior of a personal model theta with mean mu is
exp(-lam D_{g*}(theta, mu)), up to a factor that does not depend on mu (Eq. equ_def_sef).

**Coordinates.** A Bernoulli mean lies in (0, 1) and a Poisson mean is positive, but a network's params can be any real
numbers. So the params are *not* mean parameters. They are **natural parameters**: with theta = grad g(v) and
mu = grad g(m),

    D_{g*}(theta, mu) = D_g(m, v),

and g is finite on all of R^d for the Gaussian, Bernoulli and Poisson families, so v and m are unconstrained. The
exponential family has s < 0; there an entry u of the params is the logarithm of the mean, s = -exp(-u). Every family
provides this map as ``to_natural`` (the identity for the others), and ``regulariser(v, m)`` is
D_g(to_natural(m), to_natural(v)). For the spherical Gaussian all these coordinates coincide, which is why the paper
does not need to choose.

All functions take and return pytrees, and sum over every entry.

References: Shi et al., "Personalized Federated Learning with Hidden Information on Personalized Prior", Table
tbl_bd_ef (which mixes mean and natural arguments; here each entry is derived from g); Banerjee et al., "Clustering
with Bregman Divergences", JMLR 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pfedbred.bregman.families.base import Domain, Family, Prior
from pfedbred.bregman.families.bernoulli import bernoulli
from pfedbred.bregman.families.exponential import exponential
from pfedbred.bregman.families.from_log_partition import from_log_partition
from pfedbred.bregman.families.gaussian import gaussian
from pfedbred.bregman.families.long_tailed import huber, student_t
from pfedbred.bregman.families.poisson import poisson
from pfedbred.bregman.families.weighted import weighted
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import build_part, parameters, parse_call, resolve_call

__all__ = [
    "LONG_TAILED",
    "PRIORS",
    "Domain",
    "Family",
    "Prior",
    "bernoulli",
    "exponential",
    "from_log_partition",
    "gaussian",
    "get",
    "huber",
    "poisson",
    "student_t",
    "weighted",
]

PRIORS: dict[str, Callable[..., Family]] = {
    "gaussian": gaussian,
    "bernoulli": bernoulli,
    "poisson": poisson,
    "exponential": exponential,
}
"""Every named family. To add one, write a function that returns a Family and add a line here."""


LONG_TAILED: dict[str, Callable[..., Prior]] = {"student-t": student_t, "huber": huber}
"""Every named prior that is not an exponential family; its settings can be given in parentheses, as in
``student-t(3)``.
"""


def get(prior: str | Prior | Callable[..., Prior], sigma: Any = None) -> Prior:
    """The prior of that name, or the one that a function builds.

    ``sigma`` (a number or an array) is passed on to functions that take it, such as the Gaussian.
    """
    if isinstance(prior, Prior):
        return prior
    more: dict[str, Any] = {}
    if callable(prior):
        build = prior
    else:
        name, values = parse_call("prior", prior)
        if name not in PRIORS and name not in LONG_TAILED:
            raise SettingError(f"unknown prior {prior!r}{nearest(name, [*PRIORS, *LONG_TAILED])}")
        build = PRIORS[name] if name in PRIORS else LONG_TAILED[name]
        more = resolve_call(name, build, values)
    if sigma is not None and all(each.name != "sigma" for each in parameters(build)):
        name = prior if isinstance(prior, str) else getattr(prior, "__name__", "this one")
        raise SettingError(f"sigma belongs to the gaussian prior, not to {name}")
    made = build_part("prior", build, more if sigma is None else {**more, "sigma": sigma})
    if not isinstance(made, Prior):
        raise SettingError(f"a function given as prior must return a Prior, not a {type(made).__name__}")
    return made
