"""Sensible values of settings, and what happens beyond them: shown in help pages and the documentation.

What a setting does is in the docstring of the method that uses it. Where a setting means something else in one method,
it has a separate entry, ``method.setting``.
"""

from __future__ import annotations

GUIDANCE: dict[str, str] = {
    "alpha": "0.001 to 0.3. Too large: the loss jumps or becomes infinite. Too small: little is learned in a round.",
    "alpha_m": ("0.003 to 0.06. In a local step, w goes alpha_m lam of the way to theta; above 2 it diverges."),
    "alpha_head": "as alpha.",
    "alpha_k": "the smaller, the less clients learn from each other.",
    "alpha_server": "1 takes the average itself. Above 1 the global model overshoots.",
    "eta_a": "0.003 to 0.1, like an SGD step on w. Too large: G gets worse before P does.",
    "eta": "0 to 0.5; 0 is the method without memory. Too large: the mean chases the last round's personal models.",
    "lam": (
        "0.1 to 30. The larger, the nearer P is to G: helps clients with few samples. Too large: P cannot adapt, and "
        "beyond 2 / alpha the steps diverge."
    ),
    "ditto.lam": "0.01 to 10; 0 is local training. Beyond 2 / alpha the steps diverge.",
    "fedamp.lam": "0.01 to 10, the weight of the clients' attraction. Too large: all P become alike.",
    "heurfedamp.lam": "0.01 to 10, the weight of the clients' attraction. Too large: all P become alike.",
    "fedu.lam": (
        "0.01 to 10, the weight of the clients' attraction. Too large: all P become alike, and beyond 2 / (alpha R) "
        "they diverge."
    ),
    "learned-prior.lam": "learned(layer) needs no tuning; a number fixes it, and a larger one keeps P nearer to G.",
    "shifted-prior.lam": "learned needs no tuning; with sigma none, learned(layer) or learned(client) may fit better.",
    "shifted-prior.alpha_m": "0.003 to 0.06. In a local step, w goes 15 alpha_m of the way to theta.",
    "temper": (
        "0.1 to 1: lower for networks that are far from trained, 1 for linear models. Too small: P is trained alone. "
        "Too large: P stays near G."
    ),
    "mu": "0.001 to 1. Too large: a round hardly moves the model.",
    "K": "1 to 10. More solve the proximal problem better; time grows in proportion, accuracy soon does not.",
    "R": "5 to 50. More: fewer rounds, but clients that differ drift apart within one.",
    "epochs": "1 to 5; as R, but in proportion to the client's samples.",
    "R_head": "as R, for the head alone.",
    "R_personal": "as R, for the personal model.",
    "epochs_head": "as epochs, for the head alone.",
    "epochs_personal": "as epochs, for the personal model.",
    "beta": "1 is the average, 2 the paper's aggregation momentum. Above 2 it diverges; below 1 it is slower.",
    "am_beta": "1 is the method without it, 2 the paper's. Above 2 it diverges.",
    "ft_alpha": "as alpha. Too large: P forgets G in one step.",
    "adapt_steps": "1 to 10. More: P fits the client's samples better, but overfits if they are few.",
    "tune_steps": "as R, after training.",
    "adapt_epochs": "as adapt_steps, in passes over the client's samples.",
    "tune_epochs": "as epochs, after training.",
    "M": "2 to 5. Time and memory grow in proportion; components without clients stay unused.",
    "mixing": "0 to 1: the personal model's share at the start.",
    "eta_mixing": "0.001 to 0.1. Too large: the share jumps between 0 and 1.",
    "momentum": "0.5 to 0.95.",
    "beta_1": "0.5 to 0.95.",
    "beta_2": "0.9 to 0.999.",
    "server_alpha": "0.001 to 0.1. Too large: G jumps from round to round.",
    "tau": "1e-4 to 0.1. The larger, the less the server adapts to each parameter.",
    "sigma": (
        "positive. The larger an entry, the less that parameter is held near the mean. With a long-tailed prior, lower "
        "lam in proportion: the smaller both, the longer the tails."
    ),
    "prox_solver": "implicit if alpha lam / sigma is above 1; gradient steps diverge above 2, unless implicit too.",
    "fedamp.sigma": "positive. The larger, the less the clients' attraction depends on their distance.",
    "heurfedamp.sigma": "positive. The larger, the more the most similar clients count.",
    "pfedvem.sigma": "0.05 to 1. Too large: the first rounds train heads that are mostly noise.",
    "self_weight": "0 to 1: a client's own share in its average.",
    "zeta": "0.03 to 3, the weight of the prior. The larger, the nearer P is to G.",
    "samples": "1 to 10. More: steadier gradients, and time in proportion.",
    "delta": "1e-4 to 0.01, the difference quotient's step. Too small: rounding; too large: a poor derivative.",
    "epsilon": "0.1 to 1. Below 1 the global model moves part of the way.",
}
"""By setting, or by method.setting where its meaning differs."""


def guidance(method: str, setting: str) -> str:
    """The advice for a setting of a method; empty where any value is as good as another, such as a name."""
    return GUIDANCE.get(f"{method}.{setting}", GUIDANCE.get(setting, ""))
