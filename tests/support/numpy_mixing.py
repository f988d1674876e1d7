"""FedAMP, HeurFedAMP, FedU and what ``+ft`` and ``+am`` do, in plain NumPy and float64, from the original papers.

    FedAMP, HeurFedAMP   Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021
    FedU                 Dinh et al., "... Federated Multi-Task Learning with Laplacian Regularization", 2022
    SCAFFOLD             Karimireddy et al., ICML 2020, Algorithm 1 with option II
    Per-FedAvg           Fallah et al., NeurIPS 2020, first order
    FedEM                Marfoq et al., NeurIPS 2021, Algorithm 1

The last three are here because the wrappers are tested over them: a server with a second state, personal models that
read minibatches themselves, and a personal model that is not one vector. Everything is a loop, pairs of clients
included, and every gradient is written by hand. Nothing here comes from the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from support.numpy_reference import Batch, Vector, gradient, minibatches_per_round, unpack
from support.numpy_reference import Settings as Algorithm1
from support.numpy_reference import run as run_algorithm_1

NAMES = ("fedamp", "heurfedamp", "fedu", "scaffold", "per-fedavg", "fedem")


@dataclass(frozen=True)
class Settings:
    """The papers' hyper-parameters under the library's names, and aggregation momentum's beta."""

    alpha: float
    R: int
    lam: float = 0.0  # FedAMP's lambda, FedU's eta
    sigma: float = 1.0
    alpha_k: float = 1.0
    self_weight: float = 0.5  # HeurFedAMP's xi_ii
    alpha_m: float = 0.0  # Per-FedAvg's beta
    alpha_server: float = 1.0  # SCAFFOLD's eta_g
    am_beta: float = 1.0


@dataclass
class Run:
    """What every method is given, and how far each client has read."""

    settings: Settings
    sequences: Sequence[Sequence[Batch]]
    samples: Sequence[Batch]
    chosen_by_round: Sequence[Sequence[int]]
    participation: str
    read: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = [0 for _ in self.sequences]

    @property
    def clients(self) -> range:
        return range(len(self.sequences))

    def trains(self, i: int, chosen: Sequence[int]) -> bool:
        return self.participation == "all" or i in chosen

    def next(self, i: int, count: int) -> Sequence[Batch]:
        """The client's next minibatches, which are then used up."""
        self.read[i] += count
        return self.sequences[i][self.read[i] - count : self.read[i]]

    def ahead(self, i: int, number: int) -> Batch:
        """A minibatch after all that training has used, left where it is."""
        return self.sequences[i][self.read[i] + number]

    def average(self, values: dict[int, Vector], chosen: Sequence[int]) -> Vector:
        """E_I, by training samples."""
        total = sum(len(self.samples[i][1]) for i in chosen)
        result = np.zeros_like(values[chosen[0]])
        for i in chosen:
            result = result + len(self.samples[i][1]) / total * values[i]
        return result

    def momentum(self, old: Vector, new: Vector) -> Vector:
        """Aggregation momentum: (1 - beta) w + beta w_new."""
        return (1.0 - self.settings.am_beta) * old + self.settings.am_beta * new


# FedAMP and HeurFedAMP: the message passing on the server --------------------------------------------------


def squared_distance(a: Vector, b: Vector) -> float:
    total = 0.0
    for one, other in zip(a, b, strict=True):
        total += (one - other) ** 2
    return total


def cosine(a: Vector, b: Vector) -> float:
    product = norm_a = norm_b = 0.0
    for one, other in zip(a, b, strict=True):
        product += one * other
        norm_a += one * one
        norm_b += other * other
    return product / (np.sqrt(norm_a) * np.sqrt(norm_b))


def attention_derivative(x: float, sigma: float) -> float:
    """A'(x) of A(x) = 1 - exp(-x / sigma); the paper evaluates it at x = ||w_i - w_j||^2."""
    return float(np.exp(-x / sigma)) / sigma


def attention(models: Sequence[Vector], settings: Settings) -> np.ndarray:
    """FedAMP's xi, entry by entry: xi_ij = alpha_k A'(||w_i - w_j||^2), and xi_ii is what is left of one."""
    count = len(models)
    xi = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            if j != i:
                xi[i, j] = settings.alpha_k * attention_derivative(
                    squared_distance(models[i], models[j]), settings.sigma
                )
        xi[i, i] = 1.0 - sum(xi[i, j] for j in range(count) if j != i)
    return xi


def heuristic_attention(models: Sequence[Vector], settings: Settings) -> np.ndarray:
    """HeurFedAMP's xi: xi_ii is set, and the others share the rest by e^{sigma cos(w_i, w_j)}."""
    count = len(models)
    xi = np.zeros((count, count))
    for i in range(count):
        total = sum(np.exp(settings.sigma * cosine(models[i], models[h])) for h in range(count) if h != i)
        for j in range(count):
            if j == i:
                xi[i, j] = settings.self_weight
            else:
                own = np.exp(settings.sigma * cosine(models[i], models[j]))
                xi[i, j] = own / total * (1.0 - settings.self_weight)
    return xi


def mixed_models(models: Sequence[Vector], xi: np.ndarray) -> list[Vector]:
    """u_i = sum_j xi_ij w_j."""
    mixtures = []
    for i in range(len(models)):
        u = np.zeros_like(models[i])
        for j in range(len(models)):
            u = u + xi[i, j] * models[j]
        mixtures.append(u)
    return mixtures


def message_passing(
    run: Run, start: Vector, weights: Callable[[Sequence[Vector], Settings], np.ndarray], pull: float
) -> tuple[Vector, list[Vector]]:
    """Algorithm 1 of the paper, with its proximal problem min f_i(w) + pull/2 ||w - u_i||^2 by R SGD steps.

    A client's w_i is its own and moves whenever it trains; the server mixes the last w_i that it has been sent. What
    the server sends, and so what aggregation momentum acts on, are the u_i.
    """
    settings = run.settings
    own = [start for _ in run.clients]
    uploaded = [start for _ in run.clients]
    sent = [start for _ in run.clients]
    for chosen in run.chosen_by_round:
        for i in run.clients:
            if run.trains(i, chosen):
                w = own[i] if run.read[i] else sent[i]  # a client begins with the first message it receives
                for batch in run.next(i, settings.R):
                    w = w - settings.alpha * (gradient(w, batch) + pull * (w - sent[i]))
                own[i] = w
        for i in chosen:
            uploaded[i] = own[i]
        made = mixed_models(uploaded, weights(uploaded, settings))
        sent = [run.momentum(sent[i], made[i]) for i in run.clients]
    personal = [own[i] if run.read[i] else sent[i] for i in run.clients]
    return sum(sent[1:], sent[0]) / len(sent), personal


def fedamp(run: Run, start: Vector) -> tuple[Vector, list[Vector]]:
    return message_passing(run, start, attention, run.settings.lam / run.settings.alpha_k)


def heurfedamp(run: Run, start: Vector) -> tuple[Vector, list[Vector]]:
    return message_passing(run, start, heuristic_attention, run.settings.lam)


# FedU ------------------------------------------------------------------------------------------------------


def fedu(run: Run, start: Vector) -> tuple[Vector, list[Vector]]:
    """Local SGD, then one step down the Laplacian among the sampled clients, of size mu R eta; here a_kl = 1/N.

    The server has every w_k. Those that are not sampled stay, whatever their clients may have computed.
    """
    settings = run.settings
    models = [start for _ in run.clients]
    for chosen in run.chosen_by_round:
        local = {}
        for i in run.clients:
            if run.trains(i, chosen):
                w = models[i]
                for batch in run.next(i, settings.R):
                    w = w - settings.alpha * gradient(w, batch)
                local[i] = w
        mixed = {}
        for k in chosen:
            laplacian = np.zeros_like(start)
            for other in chosen:
                laplacian = laplacian + (local[k] - local[other]) / len(models)
            mixed[k] = local[k] - settings.alpha * settings.R * settings.lam * laplacian
        for k in chosen:
            models[k] = run.momentum(models[k], mixed[k])
    return sum(models[1:], models[0]) / len(models), models


# What the wrappers are tested over -------------------------------------------------------------------------


def scaffold(run: Run, start: Vector) -> tuple[Vector, list[Vector]]:
    """Algorithm 1, option II. Clients that are not sampled keep their control variates; momentum spares them all."""
    settings = run.settings
    w, c = start, np.zeros_like(start)
    controls = [np.zeros_like(start) for _ in run.clients]
    for chosen in run.chosen_by_round:
        local, changes = {}, {}
        for i in run.clients:
            if run.trains(i, chosen):
                y = w
                for batch in run.next(i, settings.R):
                    y = y - settings.alpha * (gradient(y, batch) - controls[i] + c)
                local[i] = y
                changes[i] = -c + (w - y) / (settings.R * settings.alpha)
        new = w + settings.alpha_server * (run.average(local, chosen) - w)
        w = run.momentum(w, new)
        for i in chosen:
            controls[i] = controls[i] + changes[i]
            c = c + changes[i] / len(run.clients)
    return w, [w for _ in run.clients]


def per_fedavg(run: Run, start: Vector) -> tuple[Vector, list[Vector]]:
    """First-order Per-FedAvg; P is w after a step of size alpha on the next minibatch, left unused."""
    settings = run.settings
    w = start
    for chosen in run.chosen_by_round:
        local = {}
        for i in run.clients:
            if run.trains(i, chosen):
                v = w
                batches = run.next(i, 2 * settings.R)
                for r in range(settings.R):
                    adapted = v - settings.alpha * gradient(v, batches[2 * r])
                    v = v - settings.alpha_m * gradient(adapted, batches[2 * r + 1])
                local[i] = v
        w = run.momentum(w, run.average(local, chosen))
    return w, [w - settings.alpha * gradient(w, run.ahead(i, 0)) for i in run.clients]


def sample_losses(v: Vector, batch: Batch) -> Vector:
    """-ln softmax(z)_y of each sample, one after another."""
    x, y = batch
    weight, bias = unpack(v, x.shape[1])
    losses = []
    for features, label in zip(x, y, strict=True):
        z = weight @ features + bias
        losses.append(np.log(np.sum(np.exp(z - z.max()))) + z.max() - z[label])
    return np.array(losses)


def responsibilities(components: np.ndarray, pi: Vector, batch: Batch) -> np.ndarray:
    """q_s(m), proportional to pi_m p(y_s | x_s, theta_m); one row a sample."""
    q = np.stack([pi[m] * np.exp(-sample_losses(components[m], batch)) for m in range(len(pi))], axis=1)
    return q / q.sum(axis=1, keepdims=True)


def weighted_gradient(v: Vector, batch: Batch, q: Vector) -> Vector:
    """Of the mean over the samples of q_s times the loss of sample s."""
    x, y = batch
    total = np.zeros_like(v)
    for s in range(len(y)):
        total = total + q[s] * gradient(v, (x[s : s + 1], y[s : s + 1]))
    return total / len(y)


def fedem(run: Run, start: np.ndarray) -> tuple[np.ndarray, list[Vector]]:
    """``start`` has the M components as rows. Returns the shared components, and each client's pi_i."""
    settings = run.settings
    shared, pi = start, [np.ones(len(start)) / len(start) for _ in run.clients]
    for chosen in run.chosen_by_round:
        local = {}
        for i in run.clients:
            if run.trains(i, chosen):
                rows = []
                batches = run.next(i, settings.R)
                for m in range(len(shared)):
                    v = shared[m]
                    for batch in batches:
                        q = responsibilities(shared, pi[i], batch)[:, m]  # the E-step's, while v moves
                        v = v - settings.alpha * weighted_gradient(v, batch, q)
                    rows.append(v)
                local[i] = np.stack(rows)
                pi[i] = responsibilities(shared, pi[i], run.samples[i]).mean(axis=0)
        shared = run.momentum(shared, run.average(local, chosen))
    return shared, pi


METHODS = {
    "fedamp": fedamp,
    "heurfedamp": heurfedamp,
    "fedu": fedu,
    "scaffold": scaffold,
    "per-fedavg": per_fedavg,
}
OWN_MINIBATCHES = {"per-fedavg": 1}  # those that P itself reads, before fine-tuning does


# Fine-tuning -----------------------------------------------------------------------------------------------


def fine_tuned(v: Vector, batch: Batch, ft_alpha: float) -> Vector:
    """One SGD step from the personal model."""
    return v - ft_alpha * gradient(v, batch)


def fine_tuned_mixture(
    components: np.ndarray, log_pi: Vector, batch: Batch, ft_alpha: float
) -> tuple[np.ndarray, Vector]:
    """One SGD step of a FedEM client on -ln sum_m pi_m p(y | x, theta_m), pi = softmax(log_pi).

    With r the responsibilities, the gradient in theta_m is that of the loss weighted by r_m, and in log_pi it is
    pi - r, both averaged over the samples.
    """
    pi = np.exp(log_pi) / np.exp(log_pi).sum()
    r = responsibilities(components, pi, batch)
    steps = [weighted_gradient(components[m], batch, r[:, m]) for m in range(len(components))]
    return components - ft_alpha * np.stack(steps), log_pi - ft_alpha * (pi - r.mean(axis=0))


# Any of them, and Algorithm 1's methods, with and without the wrappers ---------------------------------------


def run_vectors(
    name: str, run: Run, start: Vector, ft_alpha: float | None = None, algorithm_1: Algorithm1 | None = None
) -> tuple[Vector, list[Vector]]:
    """Global and personal models of a method whose models are vectors; ``algorithm_1`` for those of that paper.

    Aggregation momentum over Algorithm 1 is its own line 14: there it is part of ``algorithm_1.beta``.
    """
    if algorithm_1 is None:
        global_, personal = METHODS[name](run, start)
    else:
        sizes = [len(y) for _, y in run.samples]
        global_, personal = run_algorithm_1(
            name, algorithm_1, start, run.sequences, sizes, run.chosen_by_round, run.participation
        )
        for chosen in run.chosen_by_round:
            for i in run.clients:
                if run.trains(i, chosen):
                    run.next(i, minibatches_per_round(name, algorithm_1))
    if ft_alpha is not None:
        first = OWN_MINIBATCHES.get(name, 0)
        personal = [fine_tuned(v, run.ahead(i, first), ft_alpha) for i, v in enumerate(personal)]
    return global_, personal
