"""Seven published methods in plain NumPy and float64, each from its own paper's pseudo-code.

Local training, FedProx (Li et al. 2020, Algorithm 2), Ditto (Li et al. 2021, Algorithm 1), APFL (Deng et al.
2020, Algorithm 1 and Eq. 10), Per-FedAvg (Fallah et al. 2020, Algorithm 1 and Section 5), Reptile (Nichol et
al. 2018, Algorithm 2) and MR-MTL (Liu et al. 2022). The loss and its gradient are those of ``numpy_reference``;
nothing comes from the library. What a paper leaves open follows the library's documentation: clients average by
training samples, P of APFL mixes with the global model, and Per-FedAvg adapts by one step of size alpha and further
ones of size alpha_m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.numpy_reference import Batch, Vector, _logits, gradient, pack, unpack

Settings = dict[str, Any]


@dataclass
class Client:
    """What stays on a client: its own model, its mixing weight (APFL), the minibatches it has used."""

    v: Vector
    share: float
    read: int = 0


def hessian_times(w: Vector, direction: Vector, batch: Batch) -> Vector:
    """The Hessian of the loss at w, times a direction.

    The gradient is sum_n (p_n - onehot(y_n)) x_n^T / N with p = softmax(z), z = W x + b. Along the direction (U, c)
    the logits change by d = U x + c and the softmax by (diag(p) - p p^T) d; labels do not enter.
    """
    x, _ = batch
    z = _logits(w, x)
    along_weight, along_bias = unpack(direction, x.shape[1])
    in_weight, in_bias = np.zeros_like(along_weight), np.zeros_like(along_bias)
    for n in range(len(x)):
        p = np.exp(z[n] - z[n].max())
        p = p / p.sum()
        d = along_weight @ x[n] + along_bias
        change = (np.diag(p) - np.outer(p, p)) @ d / len(x)
        in_weight = in_weight + np.outer(change, x[n])
        in_bias = in_bias + change
    return pack(in_weight, in_bias)


def sgd(w: Vector, batches: Sequence[Batch], alpha: float) -> Vector:
    """One step on each minibatch."""
    for batch in batches:
        w = w - alpha * gradient(w, batch)
    return w


# One client's round: what it uploads; what it keeps is changed in place ------------------------------------


def local(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> None:
    """No federation: the client's own model goes on where it was, and nothing is uploaded."""
    client.v = sgd(client.v, batches, s["alpha"])


def fedprox(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> Vector:
    """w_k^{t+1} ~ argmin_v h_k(v; w^t) = F_k(v) + mu/2 ||v - w^t||^2, by gradient steps from w^t."""
    v = w
    for r in range(s["R"]):
        v = v - s["alpha"] * (gradient(v, batches[r]) + s["mu"] * (v - w))
    return v


def ditto(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> Vector:
    """UPDATE_GLOBAL from w^t, then s steps of v_k on F_k(v_k) + lambda/2 ||v_k - w^t||^2, with the w^t received."""
    upload = w
    for r in range(s["R"]):
        upload = upload - s["alpha"] * gradient(upload, batches[r])
    for r in range(s["R_personal"]):
        batch = batches[s["R"] + r]
        client.v = client.v - s["alpha"] * (gradient(client.v, batch) + s["lam"] * (client.v - w))
    return upload


def apfl(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> Vector:
    """Eq. (10) once a round; then w_i and v_i together, the gradient of v_i through vbar_i hence times a_i."""
    w_i = w
    mixture = client.share * client.v + (1.0 - client.share) * w_i
    slope = float(np.dot(client.v - w_i, gradient(mixture, batches[0])))
    client.share = min(max(client.share - s["eta_mixing"] * slope, 0.0), 1.0)
    for r in range(s["R"]):
        mixture = client.share * client.v + (1.0 - client.share) * w_i
        next_w = w_i - s["alpha"] * gradient(w_i, batches[r])
        client.v = client.v - s["alpha"] * client.share * gradient(mixture, batches[r])
        w_i = next_w
    return w_i


def per_fedavg(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> Vector:
    """w_t = w_{t-1} - beta (I - alpha Hess f(w_{t-1}; D'')) grad f(w~_t; D'), w~_t one step ahead on D."""
    each = 2 if s["order"] == "first" else 3
    for t in range(s["R"]):
        ahead = w - s["alpha"] * gradient(w, batches[each * t])
        meta = gradient(ahead, batches[each * t + 1])
        if s["order"] == "exact":
            curved = hessian_times(w, meta, batches[each * t + 2])
        elif s["order"] == "hessian-free":
            plus = gradient(w + s["delta"] * meta, batches[each * t + 2])
            minus = gradient(w - s["delta"] * meta, batches[each * t + 2])
            curved = (plus - minus) / (2.0 * s["delta"])
        else:
            curved = np.zeros_like(w)
        w = w - s["alpha_m"] * (meta - s["alpha"] * curved)
    return w


def reptile(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> Vector:
    """k steps of SGD from the shared start."""
    return sgd(w, batches, s["alpha"])


def mr_mtl(w: Vector, client: Client, batches: Sequence[Batch], s: Settings) -> Vector:
    """SGD on F_k(v_k) + lambda/2 ||v_k - w||^2 from the client's own v_k, which is also what the server averages."""
    for batch in batches:
        client.v = client.v - s["alpha"] * gradient(client.v, batch) - s["alpha"] * s["lam"] * (client.v - w)
    return client.v


ROUNDS: dict[str, Callable[..., Vector | None]] = {
    "local": local,
    "fedprox": fedprox,
    "ditto": ditto,
    "apfl": apfl,
    "per-fedavg": per_fedavg,
    "reptile": reptile,
    "mr-mtl": mr_mtl,
}


def minibatches_per_round(name: str, s: Settings) -> int:
    """How many minibatches a client's round reads."""
    if name == "ditto":
        return s["R"] + s["R_personal"]
    if name == "per-fedavg":
        return s["R"] * (2 if s["order"] == "first" else 3)
    return s["R"]


# The server, the personal models, and all rounds -----------------------------------------------------------


def server(name: str, w: Vector, uploads: Sequence[Vector], sizes: Sequence[int], s: Settings) -> Vector:
    """The average by training samples, or Reptile's step along the average way."""
    average = np.zeros_like(w)
    for upload, size in zip(uploads, sizes, strict=True):
        average = average + size / sum(sizes) * upload
    if name == "reptile":
        return w + s["epsilon"] * (average - w)
    return average


def personal(name: str, w: Vector, client: Client, unread: Sequence[Batch], s: Settings) -> Vector:
    """The model a client is evaluated with; ``unread`` begins with the first minibatch not yet trained on."""
    if name in ("local", "ditto", "mr-mtl"):
        return client.v
    if name == "apfl":
        return client.share * client.v + (1.0 - client.share) * w
    if name == "per-fedavg":
        ahead = w - s["alpha"] * gradient(w, unread[0])
        return sgd(ahead, unread[1 : s.get("adapt_steps", 1)], s["alpha_m"])
    if name == "reptile":
        return sgd(w, unread[: s["adapt_steps"]], s["alpha"])
    return w


def run(
    name: str,
    s: Settings,
    w: Vector,
    sequences: Sequence[Sequence[Batch]],
    sizes: Sequence[int],
    chosen_by_round: Sequence[Sequence[int]],
    participation: str,
) -> tuple[Vector, list[Vector], list[Client]]:
    """The global model, every personal model and what the clients hold after all rounds.

    Args:
      name: of ROUNDS.
      s: the method's settings by the library's names.
      w: w^(0).
      sequences: of each client, the minibatches it reads, in order; a client that does not train reads none.
      sizes: of each client, its number of training samples.
      chosen_by_round: of each round, whose uploads are averaged.
      participation: ``all`` clients train in every round, or the ``sample`` of the chosen.
    """
    clients = [Client(v=w, share=s.get("mixing", 0.0)) for _ in sizes]
    count = minibatches_per_round(name, s)
    for chosen in chosen_by_round:
        uploads = {}
        for i, client in enumerate(clients):
            if client.read == 0:
                client.v = w  # it begins with the first message it trains on
            if participation == "all" or i in chosen:
                batches = sequences[i][client.read : client.read + count]
                assert len(batches) == count
                client.read += count
                uploads[i] = ROUNDS[name](w, client, batches, s)
        if name != "local":
            w = server(name, w, [uploads[i] for i in chosen], [sizes[i] for i in chosen], s)
    for client in clients:
        if client.read == 0:
            client.v = w
    models = [personal(name, w, client, sequences[i][client.read :], s) for i, client in enumerate(clients)]
    return w, models, clients
