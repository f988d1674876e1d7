"""The methods of the paper's table as a plain PyTorch loop over clients, to compare with.

Written as a competent user would write it for research: one client after another, the network as an ``nn.Module``
called functionally, gradients from autograd, updates with the fused ``_foreach`` operations, minibatches gathered from
tensors already on the device. No client is trained in a batch with another; that is what is being measured.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch_networks import image_network

from pfedbred.models.normalisation import GROUPS

Params = list[torch.Tensor]
ALPHA, ALPHA_M, ETA, ETA_A, LAM, K = 0.01, 0.01, 0.05, 0.01, 15.0, 5


class Lstm(nn.Module):
    """The paper's Sent140 network with a learned embedding."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 50)
        self.lstm = nn.LSTM(50, 50, num_layers=2, bidirectional=True, batch_first=True)
        self.hidden, self.output = nn.Linear(300, 100), nn.Linear(100, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of word ids; every text is taken at its full length."""
        out, (h, _) = self.lstm(self.embedding(x))
        features = torch.cat([out[:, -1], *h], dim=1)
        return self.output(nn.functional.leaky_relu(self.hidden(features), 0.1))


def network(model: str, shape: tuple[int, ...], classes: int, words: int = 0) -> nn.Module:
    """The library's models in PyTorch."""
    if model == "mclr":
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
    if model == "dnn":
        inputs = int(np.prod(shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 100), nn.LeakyReLU(0.1), nn.Linear(100, classes))
    if model == "cnn":
        convolutions = [nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
        dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
        return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *dense)
    if model in ("pfllib-cnn", "resnet18"):
        return image_network(model, groups=GROUPS, classes=classes)
    return Lstm(words, classes)


class Loop:
    """A federation of N clients, trained one after another."""

    def __init__(
        self, net: nn.Module, x: torch.Tensor, y: torch.Tensor, clients: int, batch_size: int, local_steps: int
    ) -> None:
        self.net, self.clients, self.batch_size, self.local_steps = net, clients, batch_size, local_steps
        self.names = [name for name, _ in net.named_parameters()]
        self.w: Params = [p.detach().clone() for p in net.parameters()]
        self.x, self.y = x.chunk(clients), y.chunk(clients)
        self.order = [torch.randperm(len(each)) for each in self.y]
        self.place = [0] * clients
        self.theta = [[p.clone() for p in self.w] for _ in range(clients)]
        self.memory = [[p.clone() for p in self.w] for _ in range(clients)]
        self.u = [[p.clone() for p in self.w] for _ in range(clients)]
        self.components = [[p + 0.01 * torch.randn_like(p) for p in self.w] for _ in range(3)]

    def batch(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The client's next minibatch, by shuffled passes over its samples."""
        if self.place[i] + self.batch_size > len(self.y[i]):
            self.order[i], self.place[i] = torch.randperm(len(self.y[i])), 0
        rows = self.order[i][self.place[i] : self.place[i] + self.batch_size]
        self.place[i] += self.batch_size
        return self.x[i][rows], self.y[i][rows]

    def gradient(self, params: Params, batch: tuple[torch.Tensor, torch.Tensor]) -> Params:
        """Of the mean cross-entropy."""
        leaves = [p.requires_grad_() for p in params]
        logits = functional_call(self.net, dict(zip(self.names, leaves, strict=True)), (batch[0],))
        found = torch.autograd.grad(nn.functional.cross_entropy(logits, batch[1]), leaves)
        for p in params:
            p.requires_grad_(False)
        return list(found)

    def step(self, params: Params, batch: tuple[torch.Tensor, torch.Tensor], size: float) -> Params:
        """One step of SGD."""
        return list(torch._foreach_sub(params, torch._foreach_mul(self.gradient(params, batch), size)))

    def prox(self, start: Params, mu: Params, batch: tuple[torch.Tensor, torch.Tensor]) -> Params:
        """K gradient steps on f + lambda/2 |. - mu|^2."""
        theta = [p.clone() for p in start]
        for _ in range(K):
            gradient = self.gradient(theta, batch)
            torch._foreach_add_(gradient, torch._foreach_mul(torch._foreach_sub(theta, mu), LAM))
            torch._foreach_sub_(theta, torch._foreach_mul(gradient, ALPHA))
        return theta

    def fedavg(self, i: int) -> Params:
        """R steps."""
        w = self.w
        for _ in range(self.local_steps):
            w = self.step(w, self.batch(i), ALPHA)
        return w

    def per_fedavg(self, i: int) -> Params:
        """First order."""
        w = self.w
        for _ in range(self.local_steps):
            ahead = self.step(w, self.batch(i), ALPHA)
            gradient = self.gradient(ahead, self.batch(i))
            w = list(torch._foreach_sub(w, torch._foreach_mul(gradient, ALPHA_M)))
        return w

    def pfedme(self, i: int) -> Params:
        """Prox, then a step of the envelope."""
        w = self.w
        for _ in range(self.local_steps):
            self.theta[i] = self.prox(w, w, self.batch(i))
            w = list(torch._foreach_sub(w, torch._foreach_mul(torch._foreach_sub(w, self.theta[i]), ALPHA_M * LAM)))
        return w

    def mg_meta(self, i: int) -> Params:
        """The meta step moves w; mu adds the memory; prox; a step of the envelope."""
        w = self.w
        for _ in range(self.local_steps):
            first, second = self.batch(i), self.batch(i)
            gradient = self.gradient(self.step(w, first, ETA_A), second)
            w = list(torch._foreach_sub(w, torch._foreach_mul(gradient, ETA_A)))
            apart = torch._foreach_sub(self.memory[i], self.theta[i])
            mu = list(torch._foreach_sub(w, torch._foreach_mul(apart, ETA)))
            self.theta[i] = self.prox(w, mu, second)
            w = list(torch._foreach_sub(w, torch._foreach_mul(torch._foreach_sub(mu, self.theta[i]), ALPHA_M * LAM)))
        self.memory[i] = w
        return w

    def fedamp(self, i: int) -> Params:
        """R steps held at u_i."""
        w = self.theta[i]
        for _ in range(self.local_steps):
            gradient = self.gradient(w, self.batch(i))
            torch._foreach_add_(gradient, torch._foreach_sub(w, self.u[i]))
            w = list(torch._foreach_sub(w, torch._foreach_mul(gradient, ALPHA)))
        self.theta[i] = w
        return w

    def fedem(self, i: int) -> Params:
        """Three components: responsibilities of all local samples, then R weighted steps of each."""
        with torch.no_grad():
            for m in self.components:
                functional_call(self.net, dict(zip(self.names, m, strict=True)), (self.x[i],))
        trained = self.components
        for _ in range(self.local_steps):
            batch = self.batch(i)
            trained = [self.step(m, batch, ALPHA) for m in trained]
        return [p for m in trained for p in m]

    def round(self, method: str, selected: int) -> None:
        """All clients train, some are averaged."""
        train: Callable[[int], Params] = getattr(self, method.replace("-", "_"))
        uploads = [train(i) for i in range(self.clients)]
        chosen = np.random.default_rng(0).choice(self.clients, selected, replace=False)
        averaged = [torch.stack(each).mean(0) for each in zip(*(uploads[i] for i in chosen), strict=True)]
        if method == "fedem":
            size = len(self.w)
            self.components = [averaged[m * size : (m + 1) * size] for m in range(3)]
        elif method == "fedamp":
            flat = torch.stack([torch.cat([p.ravel() for p in each]) for each in uploads])
            xi = torch.softmax(-(torch.cdist(flat, flat) ** 2), dim=1)
            mixed = (xi @ flat).split([p.numel() for p in self.w], dim=1)
            self.u = [[part[i].view_as(p) for part, p in zip(mixed, self.w, strict=True)] for i in range(self.clients)]
        else:
            self.w = averaged
