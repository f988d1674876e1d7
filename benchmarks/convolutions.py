"""A user's networks with convolutions when every client has its own params: the library's rewrite beside lax.conv.

    python benchmarks/convolutions.py [--quick] [--clients N] [--only pfllib-cnn|resnet18] [--json FILE] [--torch]

Each row runs the same SGD steps, as in ``client_models.py``, of a Flax module with and without
``with_fast_convolutions``: PFLlib's CNN (32 and 64 filters of 5x5, 512 units; batch 10) and ResNet-18 with group
normalisation (3x3 stem; batch 20) on CIFAR-10's shapes. ``--quick`` takes four clients and, on a CPU, a quarter of
ResNet-18's channels. ``evaluation`` is one set of params for all clients' samples. ``--torch`` adds a PyTorch loop.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
from client_models import Row, measure, show
from flax import linen as nn
from torch_networks import torch_step

from pfedbred import models
from pfedbred.engine import executors
from pfedbred.types import Array


class PfllibCNN(nn.Module):
    """conv 5x5x32, pool, conv 5x5x64, pool, linear 512, classes."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits."""
        for filters in (32, 64):
            x = nn.max_pool(nn.relu(nn.Conv(filters, (5, 5), padding="VALID")(x)), (2, 2), (2, 2))
        return nn.Dense(10)(nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1))))


class ResNet18(nn.Module):
    """ResNet-18 for small images, with group normalisation; ``width`` channels in its first stage."""

    width: int = 64

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits."""
        norm = lambda x: nn.GroupNorm(8)(x)  # noqa: E731
        x = nn.relu(norm(nn.Conv(self.width, (3, 3), use_bias=False)(x)))
        for stage in range(4):
            for block in range(2):
                channels, stride = self.width * 2**stage, 2 if stage and not block else 1
                y = nn.relu(norm(nn.Conv(channels, (3, 3), strides=stride, use_bias=False)(x)))
                y = norm(nn.Conv(channels, (3, 3), use_bias=False)(y))
                if y.shape != x.shape:
                    x = norm(nn.Conv(channels, (1, 1), strides=stride, use_bias=False)(x))
                x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


def rows(model: models.Model, on_gpu: bool) -> list[Row]:
    """With and without the rewrite. On a CPU grouped convolutions would take minutes."""
    ways = {"library": model.apply, "lax.conv": model.apply.__wrapped__}
    each = {"vmap": ways, "in-turn": ways} if on_gpu else {"in-turn": ways, "vmap": {"library": model.apply}}
    return [Row(clients, way, apply) for clients in each for way, apply in each[clients].items()]


def evaluation(model: models.Model, items: Any, repeats: int) -> dict[str, float]:
    """Milliseconds of one model's outputs for the samples of all clients."""
    params, x = jax.tree.map(lambda leaf: leaf[0], items[0]), items[1]
    clients, times = executors.choose("auto"), {}
    for way, apply in {"library": model.apply, "lax.conv": model.apply.__wrapped__}.items():
        run = jax.jit(executors.every(apply, clients)).lower(params, x).compile()
        times[way] = float("inf")
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            jax.block_until_ready(run(params, x))
            times[way] = min(times[way], (time.perf_counter() - begun) * 1e3)
    return times


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="four clients and, on a CPU, a narrower ResNet-18")
    parser.add_argument("--clients", type=int, metavar="N", help="how many (20; 4 if quick)")
    parser.add_argument("--only", choices=["pfllib-cnn", "resnet18"], help="one network alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    parser.add_argument("--torch", action="store_true", help="a PyTorch loop too")
    options = parser.parse_args()
    device = jax.devices()[0]
    on_gpu = device.platform != "cpu"
    clients = options.clients or (4 if options.quick else 20)
    width = 16 if options.quick and not on_gpu else 64
    report: dict[str, Any] = {"platform": device.platform, "device": device.device_kind, "jax": jax.__version__}
    print(f"{report['device']} ({report['platform']}), jax {report['jax']}")
    for name, module, batch in (("pfllib-cnn", PfllibCNN(), 10), ("resnet18", ResNet18(width), 20)):
        if options.only not in (None, name):
            continue
        model = models.from_flax(module, (32, 32, 3))
        keys = jax.random.split(jax.random.key(0), 3)
        x, y = (
            jax.random.normal(keys[0], (clients, batch, 32, 32, 3)),
            jax.random.randint(keys[1], (clients, batch), 0, 10),
        )
        items = (jax.jit(jax.vmap(model.init))(jax.random.split(keys[2], clients)), x, y)
        steps, repeats = (20, 5) if on_gpu else (1, 2)
        results = measure(rows(model, on_gpu), items, steps, repeats)
        show(f"{name}{f', width {width}' if name == 'resnet18' else ''}: {clients} clients, batch {batch}", results)
        report[name] = {"steps": results, "evaluation": evaluation(model, items, repeats)}
        own, other = report[name]["evaluation"].values()
        print(f"evaluation of one model: {own:.3f} ms, by lax.conv {other:.3f} ms; ratio {own / other:.2f}")
        if options.torch:
            one = min(each["ms"] for each in results if each["way"] == "library") / clients
            report[name]["torch"] = loop = torch_step(name, width, batch, steps)
            print(f"a client: {one:.3f} ms, PyTorch {loop:.3f} ms; {loop / one:.1f} times")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
