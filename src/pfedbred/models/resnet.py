"""Residual networks for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.base import Model
from pfedbred.models.images import sides_and_channels, unit, unit_init
from pfedbred.models.linear import dense, dense_init
from pfedbred.models.normalisation import Norm, NormaliseLayer, with_norm
from pfedbred.types import Array, Key, Tree

_SMALLEST = 8  # 8 -> 4 -> 2 -> 1 in the four stages of ResNet-18


def resnet18(shape: tuple[int, ...], classes: int, *, norm: Norm = "group", dtype: Any = jnp.float32) -> Model:
    """ResNet-18 for small images: 3x3 stem without pooling, stages of 64, 128, 256, 512 channels, two blocks each.

    A block is ReLU(x + norm(conv(ReLU(norm(conv(x)))))) with 3x3 convolutions. The first block of each stage but the
    first has stride 2; where a block changes the shape, x is norm(conv 1x1 (x)). At the end, the mean over positions
    and a linear layer. Normalisation is by two groups of channels, or by minibatch (:mod:`.normalisation`). Images
    are (height, width) or (height, width, channels). Convolutions have no biases and are initialised with variance
    2 / fan-out, norms with scale 1 and shift 0, the linear layer as in PyTorch.

    References: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2016; He, Zhang, Ren and Sun,
    "Delving Deep into Rectifiers", 2015 (initialisation).
    """
    return resnet("resnet18", shape, classes, (64, 128, 256, 512), 2, norm, dtype)


def resnet8(shape: tuple[int, ...], classes: int, *, norm: Norm = "group", dtype: Any = jnp.float32) -> Model:
    """ResNet-8 for small images: 3x3 stem, stages of 16, 32, 64 channels, one block each; the rest as ``resnet18``."""
    return resnet("resnet8", shape, classes, (16, 32, 64), 1, norm, dtype)


def resnet(
    name: str, shape: tuple[int, ...], classes: int, widths: Sequence[int], blocks: int, norm: Norm, dtype: Any
) -> Model:
    """A residual network with that many blocks in each stage; ``widths`` are the stages' channels."""
    height, width, channels = sides_and_channels(name, shape, _SMALLEST)
    before = (widths[0], *widths[:-1])

    def init(key: Key) -> Tree:
        stem, output, *keys = jax.random.split(key, 2 + len(widths))
        params = {"stem": unit_init(stem, channels, widths[0], 3, dtype)}
        for number, (key, inputs, outputs) in enumerate(zip(keys, before, widths, strict=True), 1):
            sizes = [inputs] + [outputs] * blocks
            params[f"stage{number}"] = {
                f"block{i + 1}": _block_init(each, sizes[i], outputs, dtype)
                for i, each in enumerate(jax.random.split(key, blocks))
            }
        return {**params, "output": dense_init(output, widths[-1], classes, dtype)}

    def network(params: Tree, x: Array, normalise: NormaliseLayer) -> Array:
        x = x.reshape(x.shape[0], height, width, channels).astype(params["output"]["weight"].dtype)
        x = jax.nn.relu(unit(params["stem"], "stem", x, 1, normalise))
        for stage in range(1, len(widths) + 1):
            for block in range(1, blocks + 1):
                stride = 2 if stage > 1 and block == 1 else 1
                names = (f"stage{stage}", f"block{block}")
                x = _block(params[names[0]][names[1]], ".".join(names), x, stride, normalise)
        return dense(params["output"], x.mean((1, 2)))

    return with_norm(init, network, shape, norm)


def _block_init(key: Key, inputs: int, outputs: int, dtype: Any) -> Tree:
    first, second, skip = jax.random.split(key, 3)
    block = {
        "unit1": unit_init(first, inputs, outputs, 3, dtype),
        "unit2": unit_init(second, outputs, outputs, 3, dtype),
    }
    return block if inputs == outputs else {**block, "skip": unit_init(skip, inputs, outputs, 1, dtype)}


def _block(block: Tree, name: str, x: Array, stride: int, normalise: NormaliseLayer) -> Array:
    y = jax.nn.relu(unit(block["unit1"], f"{name}.unit1", x, stride, normalise))
    y = unit(block["unit2"], f"{name}.unit2", y, 1, normalise)
    if "skip" in block:
        x = unit(block["skip"], f"{name}.skip", x, stride, normalise)
    return jax.nn.relu(x + y)
