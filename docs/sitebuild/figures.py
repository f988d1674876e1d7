"""Draws the figures of docs/concepts.md: `PYTHONPATH=docs python -m sitebuild.figures`."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from pfedbred import priors

DOCS = Path(__file__).resolve().parents[1]
STRENGTHS = (0.1, 0.5, 2.0, 10.0)


def loss(v: jax.Array) -> jax.Array:
    """A client's loss in one dimension: a valley with two bends."""
    return 0.5 * (v - 1.6) ** 2 + 0.2 * jnp.sin(3 * v)


def personal(mean: float, lam: float) -> float:
    """The proximal point, on a fine grid."""
    grid = np.linspace(-4, 4, 8001)
    return float(grid[np.argmin(np.asarray(jax.vmap(loss)(grid)) + lam / 2 * (grid - mean) ** 2)])


def proximal() -> plt.Figure:
    """Loss plus penalty for several strengths, and where the personal model is."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    grid, mean = np.linspace(-1.6, 3.4, 400), -0.6
    axes.plot(grid, jax.vmap(loss)(grid), color="black", label="loss of the client")
    axes.axvline(mean, color="grey", linestyle="--", label="mean of the prior")
    for lam, colour in zip(STRENGTHS, mpl.colormaps["viridis"](np.linspace(0, 0.85, 4)), strict=True):
        total = jax.vmap(loss)(grid) + lam / 2 * (grid - mean) ** 2
        axes.plot(grid, total, color=colour, label=f"λ = {lam:g}")
        best = personal(mean, lam)
        axes.plot(best, loss(best) + lam / 2 * (best - mean) ** 2, "o", color=colour)
    axes.set(ylim=(-0.6, 6), xlabel="parameter", ylabel="loss + penalty")
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def divergences() -> plt.Figure:
    """The penalties of the named families around three means."""
    figure, all_axes = plt.subplots(1, 4, figsize=(9.6, 2.7), sharey=True, layout="constrained")
    grid = jnp.linspace(-3, 3, 301)
    for axes, (name, build) in zip(all_axes, priors.PRIORS.items(), strict=True):
        family = build()
        for mean in (-1.0, 0.0, 1.0):
            penalty = jax.vmap(lambda v, mean=mean, family=family: family.regulariser(v, jnp.asarray(mean)))(grid)
            axes.plot(grid, penalty, label=f"mean {mean:g}")
        axes.set(title=name, xlabel="parameter v", ylim=(0, 3))
    all_axes[0].set_ylabel("penalty")
    all_axes[1].legend(fontsize=8)
    return figure


def envelopes() -> plt.Figure:
    """The loss and its Moreau envelopes: at each mean, the smallest sum of loss and penalty."""
    figure, axes = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    grid, wide = np.linspace(-1.6, 3.4, 300), np.linspace(-6, 8, 4001)
    values = np.asarray(jax.vmap(loss)(wide))
    axes.plot(grid, jax.vmap(loss)(grid), color="black", label="loss of the client")
    for lam, colour in zip((0.3, 1.0, 5.0), mpl.colormaps["viridis"]((0.0, 0.45, 0.85)), strict=True):
        envelope = (values[None] + lam / 2 * (wide[None] - grid[:, None]) ** 2).min(axis=1)
        axes.plot(grid, envelope, color=colour, label=f"envelope, λ = {lam:g}")
    axes.set(ylim=(-0.6, 4), xlabel="mean of the prior", ylabel="value")
    axes.legend(fontsize=8)
    return figure


FIGURES = {"proximal": proximal, "divergences": divergences, "envelope": envelopes}


def main() -> None:
    """Draws them all."""
    mpl.use("agg")
    for name, draw in FIGURES.items():
        draw().savefig(DOCS / f"concepts-{name}.png", dpi=130)


if __name__ == "__main__":
    main()
