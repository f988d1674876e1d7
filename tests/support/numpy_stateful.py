"""Six published methods that keep more than a model, in plain NumPy and float64, from their papers' pseudo-code.

SCAFFOLD, Mime, FedEM, FedPer, FedRep and FedBABU: what the library is compared with. As in ``numpy_reference``,
everything is a loop over rounds, clients and local steps, weights are flat vectors and gradients are written by
hand. Nothing here comes from the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from support.numpy_reference import Batch, Vector, gradient, loss, pack, unpack

SLOPE = 0.1  # of the leaky ReLU


@dataclass
class Client:
    """A client's samples, the rows of each minibatch it will read, and how many it has read."""

    data: Batch
    rows: Sequence[np.ndarray]
    read: int = 0

    @property
    def size(self) -> int:
        return len(self.data[1])

    def batch(self, rows: np.ndarray) -> Batch:
        x, y = self.data
        return x[rows], y[rows]

    def next_rows(self, count: int) -> list[np.ndarray]:
        """Reads ``count`` minibatches."""
        rows = self.peek_rows(count)
        self.read += count
        return rows

    def peek_rows(self, count: int) -> list[np.ndarray]:
        """What ``next_rows`` would give, without reading it."""
        assert self.read + count <= len(self.rows)
        return list(self.rows[self.read : self.read + count])

    def next(self, count: int) -> list[Batch]:
        return [self.batch(rows) for rows in self.next_rows(count)]

    def peek(self, count: int) -> list[Batch]:
        return [self.batch(rows) for rows in self.peek_rows(count)]


@dataclass
class World:
    """The clients, whom each round selects, who trains (``all`` or the ``sample``), and how uploads are weighted."""

    clients: list[Client]
    chosen_by_round: Sequence[Sequence[int]]
    participation: str
    weights: str = "data"

    def trains(self, i: int, chosen: Sequence[int]) -> bool:
        return self.participation == "all" or i in chosen

    def average(self, uploads: dict[int, Vector], chosen: Sequence[int]) -> Vector:
        """Of the selected alone: by training samples, or as SCAFFOLD, Mime and FedRep print it, 1/|S| of the sum."""
        amounts = [self.clients[i].size if self.weights != "uniform" else 1 for i in chosen]
        total = np.zeros_like(uploads[chosen[0]])
        for i, amount in zip(chosen, amounts, strict=True):
            total = total + amount / sum(amounts) * uploads[i]
        return total


# One model for everyone ------------------------------------------------------------------------------------


def fedavg(world: World, w: Vector, *, alpha: float, R: int) -> Vector:
    """McMahan et al. 2017; what several of the others become in special cases."""
    for chosen in world.chosen_by_round:
        local = {}
        for i, client in enumerate(world.clients):
            if world.trains(i, chosen):
                y = w
                for batch in client.next(R):
                    y = y - alpha * gradient(y, batch)
                local[i] = y
        w = world.average(local, chosen)
    return w


def scaffold(world: World, x: Vector, *, alpha: float, alpha_server: float, R: int) -> tuple[Vector, list[Vector]]:
    """Karimireddy et al. 2020, Algorithm 1 with option II: x and c at the server, c_i at the clients, all from 0."""
    N = len(world.clients)
    c = np.zeros_like(x)
    c_i = [np.zeros_like(x) for _ in range(N)]
    for chosen in world.chosen_by_round:
        dy, dc = {}, {}
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            y = x
            for batch in client.next(R):
                y = y - alpha * (gradient(y, batch) - c_i[i] + c)
            c_plus = c_i[i] - c + (x - y) / (R * alpha)
            dy[i], dc[i] = y - x, c_plus - c_i[i]
            if i in chosen:  # c is the mean of all c_i only if a change that the server never sees is not kept
                c_i[i] = c_plus
        x = x + alpha_server * world.average(dy, chosen)
        c = c + len(chosen) / N * sum(dc[i] for i in chosen) / len(chosen)
    np.testing.assert_allclose(c, sum(c_i) / N, rtol=0, atol=1e-12)  # what the paper says c is
    return x, [x for _ in range(N)]


def mime(world: World, x: Vector, *, alpha: float, momentum: float, R: int) -> tuple[Vector, list[Vector]]:
    """Karimireddy et al. 2021, Algorithm 1 with U(g, m) = V(g, m) = (1 - beta) g + beta m."""
    m = np.zeros_like(x)
    for chosen in world.chosen_by_round:
        c = world.average({i: gradient(x, world.clients[i].data) for i in chosen}, chosen)
        local = {}
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            y = x
            for batch in client.next(R):
                g = gradient(y, batch) - gradient(x, batch) + c
                y = y - alpha * ((1 - momentum) * g + momentum * m)  # m does not move during the round
            local[i] = y
        x = world.average(local, chosen)
        m = (1 - momentum) * c + momentum * m
    return x, [x for _ in world.clients]


# A mixture of softmax regressions --------------------------------------------------------------------------


def probabilities(v: Vector, x: np.ndarray) -> np.ndarray:
    """p(y | x, v), from the loss of every label in turn."""
    classes = len(v) // (x.shape[1] + 1)
    result = np.zeros((len(x), classes))
    for s in range(len(x)):
        for label in range(classes):
            result[s, label] = np.exp(-loss(v, (x[s : s + 1], np.array([label]))))
    return result


def mixture_prediction(components: np.ndarray, pi: np.ndarray, x: np.ndarray) -> np.ndarray:
    """sum_m pi_m p(y | x, theta_m)."""
    return sum(pi[m] * probabilities(components[m], x) for m in range(len(pi)))


def weighted_gradient(v: Vector, batch: Batch, q: np.ndarray) -> Vector:
    """Of the mean over the samples of q_s loss_s."""
    x, y = batch
    total = np.zeros_like(v)
    for s in range(len(y)):
        total = total + q[s] * gradient(v, (x[s : s + 1], y[s : s + 1]))
    return total / len(y)


def fedem(world: World, components: np.ndarray, *, alpha: float, R: int) -> tuple[np.ndarray, np.ndarray]:
    """Marfoq et al. 2021, Algorithm 1: the components (M, ...) and every client's mixture weights (clients, M)."""
    M, N = len(components), len(world.clients)
    pi = np.full((N, M), 1 / M)
    for chosen in world.chosen_by_round:
        local: list[dict[int, Vector]] = [{} for _ in range(M)]
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            x, y = client.data
            q = np.zeros((client.size, M))
            for s in range(client.size):  # E-step, with the components received and the weights of last time
                for m in range(M):
                    q[s, m] = pi[i, m] * np.exp(-loss(components[m], (x[s : s + 1], y[s : s + 1])))
                q[s] /= q[s].sum()
            for m in range(M):  # M-step in closed form
                pi[i, m] = q[:, m].sum() / client.size
            rows = client.next_rows(R)
            for m in range(M):  # M-step by SGD: every component on the same minibatches, q as it was
                theta = components[m]
                for each in rows:
                    theta = theta - alpha * weighted_gradient(theta, client.batch(each), q[each, m])
                local[m][i] = theta
        components = np.stack([world.average(local[m], chosen) for m in range(M)])
    return components, pi


# A body and a head: a two-layer network --------------------------------------------------------------------
#
#   a = x W1^T + b1    h = max(a, SLOPE a)    z = h W2^T + b2    body = (W1, b1), head = (W2, b2)


def mlp_features(body: Vector, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden layer before and after its leaky ReLU."""
    weight, bias = unpack(body, x.shape[1])
    a = x @ weight.T + bias
    return a, np.where(a > 0, a, SLOPE * a)


def mlp_loss(body: Vector, head: Vector, batch: Batch) -> float:
    """The head is a softmax regression on the hidden layer."""
    x, y = batch
    return loss(head, (mlp_features(body, x)[1], y))


def head_gradient(body: Vector, head: Vector, batch: Batch) -> Vector:
    x, y = batch
    return gradient(head, (mlp_features(body, x)[1], y))


def body_gradient(body: Vector, head: Vector, batch: Batch) -> Vector:
    """Backwards through the head: with e = (softmax(z) - onehot(y)) / n, dL/da = (e W2) * relu'(a)."""
    x, y = batch
    a, h = mlp_features(body, x)
    weight, bias = unpack(head, h.shape[1])
    z = h @ weight.T + bias
    e = np.exp(z - z.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    e[np.arange(len(y)), y] -= 1.0
    e /= len(y)
    da = (e @ weight) * np.where(a > 0, 1.0, SLOPE)
    return pack(da.T @ x, da.sum(axis=0))


Network = tuple[Vector, Vector]


def fedper(world: World, body: Vector, head: Vector, *, alpha: float, R: int) -> tuple[Network, list[Network]]:
    """Arivazhagan et al. 2019, Algorithms 1 and 2: SGD on both parts, the server averages base layers alone."""
    heads = [head for _ in world.clients]
    for chosen in world.chosen_by_round:
        bodies = {}
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            b, h = body, heads[i]
            for batch in client.next(R):
                b, h = b - alpha * body_gradient(b, h, batch), h - alpha * head_gradient(b, h, batch)
            bodies[i], heads[i] = b, h
        body = world.average(bodies, chosen)
    return (body, head), [(body, each) for each in heads]


def fedrep(
    world: World, body: Vector, head: Vector, *, alpha: float, R_head: int, R: int
) -> tuple[Network, list[Network]]:
    """Collins et al. 2021, Algorithm 1: tau_h head steps under the body received, then the body under that head."""
    heads = [head for _ in world.clients]
    for chosen in world.chosen_by_round:
        bodies = {}
        for i, client in enumerate(world.clients):
            if not world.trains(i, chosen):
                continue
            for batch in client.next(R_head):
                heads[i] = heads[i] - alpha * head_gradient(body, heads[i], batch)
            b = body
            for batch in client.next(R):
                b = b - alpha * body_gradient(b, heads[i], batch)
            bodies[i] = b
        body = world.average(bodies, chosen)
    return (body, head), [(body, each) for each in heads]


def fedbabu(
    world: World, body: Vector, head: Vector, *, alpha: float, R: int, tune_steps: int
) -> tuple[Network, list[Network]]:
    """Oh et al. 2022, Algorithm 1, then fine-tuning of the whole network from the global one."""
    for chosen in world.chosen_by_round:
        bodies = {}
        for i, client in enumerate(world.clients):
            if world.trains(i, chosen):
                b = body
                for batch in client.next(R):
                    b = b - alpha * body_gradient(b, head, batch)
                bodies[i] = b
        body = world.average(bodies, chosen)
    tuned = []
    for client in world.clients:
        b, h = body, head
        for batch in client.peek(tune_steps):
            b, h = b - alpha * body_gradient(b, h, batch), h - alpha * head_gradient(b, h, batch)
        tuned.append((b, h))
    return (body, head), tuned
