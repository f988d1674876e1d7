"""Algorithm 1 in plain NumPy and float64, from the paper's equations: what the library is compared with.

Everything is a loop over rounds, clients, local steps r = 1..R and proximal steps k = 1..K, and every
gradient is written by hand. The model is multinomial logistic regression; its weights and biases are one flat
vector, so that the equations read as in the paper. Nothing here comes from the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Vector = np.ndarray
Batch = tuple[np.ndarray, np.ndarray]

NAMES = ("fedavg", "pfedme", "fo", "mfo", "mg", "mg-meta", "mg-meta-literal")
META = ("mg-meta", "mg-meta-literal")


@dataclass(frozen=True)
class Settings:
    """The paper's hyper-parameters. ``sigma`` is the diagonal of Sigma, for the Gaussian prior."""

    lam: float
    alpha: float
    alpha_m: float
    eta_a: float
    eta: float
    K: int
    R: int
    beta: float = 1.0
    prior: str = "gaussian"
    sigma: float | Vector = 1.0


@dataclass
class Client:
    """What stays on a client from round to round; ``read`` counts the minibatches it has used."""

    theta: Vector
    memory: Vector
    read: int = 0


# The local loss f_i: mean softmax cross-entropy of multinomial logistic regression -------------------------


def pack(weight: np.ndarray, bias: np.ndarray) -> Vector:
    """Weights (classes, features) and biases (classes,) as one vector."""
    return np.concatenate([np.ravel(weight), bias]).astype(np.float64)


def unpack(v: Vector, features: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights and biases that ``pack`` joined."""
    classes = len(v) // (features + 1)
    return v[: classes * features].reshape(classes, features), v[classes * features :]


def _logits(v: Vector, x: np.ndarray) -> np.ndarray:
    weight, bias = unpack(v, x.shape[1])
    return x @ weight.T + bias


def loss(v: Vector, batch: Batch) -> float:
    """Mean over the samples of ln(sum_c exp z_c) - z_y."""
    x, y = batch
    z = _logits(v, x)
    top = z.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(z - top).sum(axis=1)) + top[:, 0]
    return float(np.mean(log_sum - z[np.arange(len(y)), y]))


def gradient(v: Vector, batch: Batch) -> Vector:
    """With e = (softmax(z) - onehot(y)) / n, one row a sample: dL/dW = e^T x, dL/db sums the rows of e."""
    x, y = batch
    z = _logits(v, x)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1.0
    p /= len(y)
    return pack(p.T @ x, p.sum(axis=0))


# The regulariser: D_g(m, v) = g(m) - g(v) - <grad g(v), m - v>, personal weights v, mean m (erratum 3) -----
#
#   grad_v D_g(m, v) = Hess g(v) (v - m)          since the two terms in grad g(v) cancel
#   grad_m D_g(m, v) = grad g(m) - grad g(v)
#
# so only the first two derivatives of g are needed, and for every prior here g is a sum over coordinates:
#
#   gaussian     g(s) = s^2 / (2 sigma)    g' = s / sigma                  g'' = 1 / sigma
#   bernoulli    g(s) = ln(1 + e^s)        g' = p := 1 / (1 + e^-s)        g'' = p (1 - p)
#   poisson      g(s) = e^s                g' = e^s                        g'' = e^s
#
# The exponential family, g(s) = -ln(-s), needs s < 0. Its weight is u = ln(mean) = -ln(-s), so s = -e^-u and
#
#   D_g(s_m, s_v) = u_m - u_v + s_m / s_v - 1 = e^d - d - 1,  d = u_v - u_m
#   in u_v: e^d - 1,    in u_m: 1 - e^d


def regulariser(settings: Settings, v: Vector, m: Vector) -> float:
    """D_g(m, v) from its definition, with g itself; the two gradients below are tested against it."""
    if settings.prior == "exponential":
        s_v, s_m = -np.exp(-v), -np.exp(-m)
        return float(np.sum(-np.log(-s_m) + np.log(-s_v) + (s_m - s_v) / s_v))
    g = {
        "gaussian": lambda s: s**2 / (2 * settings.sigma),
        "bernoulli": lambda s: np.logaddexp(0.0, s),
        "poisson": np.exp,
    }[settings.prior]
    return float(np.sum(g(m) - g(v) - _first(settings, v) * (m - v)))


def regulariser_in_personal(settings: Settings, v: Vector, m: Vector) -> Vector:
    """Its gradient in v, for the proximal steps."""
    if settings.prior == "exponential":
        return np.exp(v - m) - 1.0
    return _second(settings, v) * (v - m)


def regulariser_in_mean(settings: Settings, v: Vector, m: Vector) -> Vector:
    """Its gradient in m, for the envelope: with the spherical Gaussian, m - v (erratum 1: not w - v)."""
    if settings.prior == "exponential":
        return 1.0 - np.exp(v - m)
    return _first(settings, m) - _first(settings, v)


def _first(settings: Settings, s: Vector) -> Vector:
    if settings.prior == "gaussian":
        return s / settings.sigma
    if settings.prior == "bernoulli":
        return 1.0 / (1.0 + np.exp(-s))
    if settings.prior == "poisson":
        return np.exp(s)
    raise ValueError(settings.prior)


def _second(settings: Settings, s: Vector) -> Vector:
    if settings.prior == "gaussian":
        return np.ones_like(s) / settings.sigma
    if settings.prior == "bernoulli":
        p = _first(settings, s)
        return p * (1.0 - p)
    if settings.prior == "poisson":
        return np.exp(s)
    raise ValueError(settings.prior)


# One client's round ----------------------------------------------------------------------------------------


def minibatches_per_round(name: str, settings: Settings) -> int:
    """One for each local step, or two where the mean has a meta-gradient."""
    return settings.R * (2 if name in META else 1)


def client_round(name: str, settings: Settings, w: Vector, client: Client, batches: Sequence[Batch]) -> Vector:
    """Lines 5 to 11 of Algorithm 1: returns w_{i,R} and updates what the client keeps."""
    for r in range(settings.R):
        if name == "fedavg":  # plain SGD: no mean, no proximal map
            w = w - settings.alpha * gradient(w, batches[r])
        else:
            w, client.theta = _local_step(name, settings, w, client, batches, r)
    client.memory = w  # w_{i,R}^{(t-1)} of the next round; fixed during this one
    return w


def _local_step(
    name: str, settings: Settings, w: Vector, client: Client, batches: Sequence[Batch], r: int
) -> tuple[Vector, Vector]:
    """One r of Algorithm 1: the mean, the proximal map, the step of the local model."""
    away_from_memory = settings.eta * (client.memory - client.theta)
    if name in META:
        first, batch = batches[2 * r], batches[2 * r + 1]
        ahead = w - settings.eta_a * gradient(w, first)
        meta_step = settings.eta_a * gradient(ahead, batch)
        if name == "mg-meta":
            w = w - meta_step  # w', which then stands for the local model in the rest of the step
            mu = w - away_from_memory
        else:
            mu = w - meta_step - away_from_memory
    else:
        batch = batches[r]
        if name == "pfedme":
            mu = w
        elif name == "fo":
            mu = w - settings.eta_a * gradient(w, batch)
        elif name == "mfo":
            mu = w - away_from_memory
        elif name == "mg":
            mu = w - settings.eta_a * gradient(w, batch) - away_from_memory
        else:
            raise ValueError(name)

    theta = mu if name == "fo" else w  # in the authors' code, fo's step to the mean moves the model in place
    for _ in range(settings.K):
        pull = settings.lam * regulariser_in_personal(settings, theta, mu)
        theta = theta - settings.alpha * (gradient(theta, batch) + pull)

    w = w - settings.alpha_m * settings.lam * regulariser_in_mean(settings, theta, mu)
    return w, theta


# The server, and all rounds --------------------------------------------------------------------------------


def server_step(settings: Settings, w: Vector, uploads: Sequence[Vector], sizes: Sequence[int]) -> Vector:
    """Line 14 of Algorithm 1, with the expectation over I weighted by training samples."""
    average = np.zeros_like(w)
    for upload, size in zip(uploads, sizes, strict=True):
        average = average + size / sum(sizes) * upload
    return (1.0 - settings.beta) * w + settings.beta * average


def run(
    name: str,
    settings: Settings,
    w: Vector,
    sequences: Sequence[Sequence[Batch]],
    sizes: Sequence[int],
    chosen_by_round: Sequence[Sequence[int]],
    participation: str,
) -> tuple[Vector, list[Vector]]:
    """The global model and every personal model after all rounds, from w = w^(0).

    Args:
      name: one of NAMES.
      settings: the hyper-parameters.
      w: w^(0).
      sequences: of each client, the minibatches it reads, in order; a client that does not train reads none.
      sizes: of each client, its number of training samples.
      chosen_by_round: of each round, whose uploads are averaged.
      participation: ``all`` clients train in every round, or the ``sample`` of the chosen.
    """
    clients: list[Client | None] = [None for _ in sizes]  # until the first message, of which each makes its state
    count = minibatches_per_round(name, settings)
    for chosen in chosen_by_round:
        local = {}
        for i, client in enumerate(clients):
            if participation == "all" or i in chosen:
                client = client or Client(theta=w, memory=w)
                clients[i] = client
                batches = sequences[i][client.read : client.read + count]
                client.read += count
                local[i] = client_round(name, settings, w, client, batches)
        w = server_step(settings, w, [local[i] for i in chosen], [sizes[i] for i in chosen])
    if name == "fedavg":  # it has one model only: the paper's table lists it under G alone
        return w, [w for _ in clients]
    return w, [client.theta if client else w for client in clients]
