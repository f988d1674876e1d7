"""pFedBayes and pFedVEM in plain NumPy and float64, from their papers' equations and the order of public code.

As in ``numpy_stateful``, everything is a loop over rounds, clients, local steps and draws, and every gradient is
written by hand. The normal numbers are given: ``noise(i, read, step)`` are those, one row a draw, of a local step in
the round before which client i has read so many minibatches. Nothing else comes from the library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from support.numpy_reference import Vector, gradient
from support.numpy_stateful import Network, World, body_gradient, head_gradient

Noise = Callable[[int, int, int], np.ndarray]


class Gaussian(NamedTuple):
    """A mean and a rho for each weight; the deviation is ln(1 + e^rho)."""

    mean: Vector
    rho: Vector


def deviation(rho: Vector) -> Vector:
    return np.log1p(np.exp(rho))


def deviation_slope(rho: Vector) -> Vector:
    """Its derivative, the logistic function."""
    return 1 / (1 + np.exp(-rho))


def with_deviation(mean: Vector, sigma: float) -> Gaussian:
    return Gaussian(mean, np.full_like(mean, np.log(np.exp(sigma) - 1)))


def kl(q: Gaussian, mean: Vector, sigma: Vector | float) -> float:
    """KL(q || N(mean, sigma^2)), weight by weight."""
    s = deviation(q.rho)
    return float(np.sum(np.log(sigma / s) + (s**2 + (q.mean - mean) ** 2) / (2 * sigma**2) - 0.5))


def kl_gradient(q: Gaussian, mean: Vector, sigma: Vector | float) -> Gaussian:
    """In q."""
    s = deviation(q.rho)
    return Gaussian((q.mean - mean) / sigma**2, (s / sigma**2 - 1 / s) * deviation_slope(q.rho))


def kl_gradient_of_prior(q: Gaussian, w: Gaussian) -> Gaussian:
    """Of KL(q || w) in w."""
    s, sigma, away = deviation(q.rho), deviation(w.rho), w.mean - q.mean
    in_sigma = 1 / sigma - (s**2 + away**2) / sigma**3
    return Gaussian(away / sigma**2, in_sigma * deviation_slope(w.rho))


def drawn_gradient(slope: Callable[[Vector], Vector], q: Gaussian, draws: np.ndarray) -> Gaussian:
    """Of the mean loss over the drawn weights mean + deviation * e; ``slope`` is the loss's gradient."""
    in_mean, in_rho = np.zeros_like(q.mean), np.zeros_like(q.rho)
    for e in draws:
        g = slope(q.mean + deviation(q.rho) * e)
        in_mean = in_mean + g / len(draws)
        in_rho = in_rho + g * e * deviation_slope(q.rho) / len(draws)
    return Gaussian(in_mean, in_rho)


def step(q: Gaussian, size: float, *gradients: Gaussian) -> Gaussian:
    return Gaussian(q.mean - size * sum(g.mean for g in gradients), q.rho - size * sum(g.rho for g in gradients))


def times(factor: float, g: Gaussian) -> Gaussian:
    return Gaussian(factor * g.mean, factor * g.rho)


def pfedbayes(
    world: World,
    start: Vector,
    noise: Noise,
    *,
    zeta: float,
    sigma: float,
    alpha: float,
    alpha_m: float,
    R: int,
    beta: float,
) -> tuple[Gaussian, list[Gaussian]]:
    """Zhang et al. 2022, Algorithm 1, on a softmax regression: w, and the q_i (w for a client that never trained)."""
    w = with_deviation(start, sigma)
    q: dict[int, Gaussian] = {}
    for chosen in world.chosen_by_round:
        local: dict[int, Gaussian] = {}
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            read, w_i, weight = client.read, w, zeta / client.size
            q.setdefault(i, w)
            for r, batch in enumerate(client.next(R)):
                fit = drawn_gradient(functools.partial(gradient, batch=batch), q[i], noise(i, read, r))
                q[i] = step(q[i], alpha, fit, times(weight, kl_gradient(q[i], w_i.mean, deviation(w_i.rho))))
                w_i = step(w_i, alpha_m, times(weight, kl_gradient_of_prior(q[i], w_i)))
            local[i] = w_i
        mean = world.average({i: each.mean for i, each in local.items()}, chosen)
        rho = world.average({i: each.rho for i, each in local.items()}, chosen)
        w = Gaussian((1 - beta) * w.mean + beta * mean, (1 - beta) * w.rho + beta * rho)
    return w, [q.get(i, w) for i in range(len(world.clients))]


def pfedvem(
    world: World,
    body: Vector,
    w: Vector,
    noise: Noise,
    *,
    sigma: float,
    alpha_head: float,
    alpha: float,
    R_head: int,
    R: int,
) -> tuple[Network, list[Network], list[Gaussian]]:
    """Zhu et al. 2023 with a shared base network: (base, w), every (base, mu_j), and the q_j."""
    q: dict[int, Gaussian] = {}
    for chosen in world.chosen_by_round:
        bodies, confidence = {}, {}
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            read = client.read
            q.setdefault(i, with_deviation(w, sigma))
            rho = np.sqrt((np.sum(deviation(q[i].rho) ** 2) + np.sum((q[i].mean - w) ** 2)) / len(w))
            for r, batch in enumerate(client.next(R_head)):
                slope = functools.partial(head_gradient, body, batch=batch)
                fit = drawn_gradient(slope, q[i], noise(i, read, r))
                q[i] = step(q[i], alpha_head, fit, times(1 / client.size, kl_gradient(q[i], w, rho)))
            b = body
            for r, batch in enumerate(client.next(R)):
                total = np.zeros_like(b)
                draws = noise(i, read, R_head + r)
                for e in draws:
                    total = total + body_gradient(b, q[i].mean + deviation(q[i].rho) * e, batch) / len(draws)
                b = b - alpha * total
            bodies[i], confidence[i] = b, 1 / rho**2
        body = world.average(bodies, chosen)
        w = sum(confidence[i] * q[i].mean for i in chosen) / sum(confidence[i] for i in chosen)
    kept = [q.get(i, with_deviation(w, sigma)) for i in range(len(world.clients))]
    return (body, w), [(body, each.mean) for each in kept], kept
