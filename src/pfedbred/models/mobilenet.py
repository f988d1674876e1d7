"""MobileNetV2 for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pfedbred.models.base import Model
from pfedbred.models.images import sides_and_channels, unit, unit_init
from pfedbred.models.linear import dense, dense_init
from pfedbred.models.normalisation import Norm, NormaliseLayer, with_norm
from pfedbred.types import Array, Key, Tree

_SMALLEST = 8  # 8 -> 4 -> 2 -> 1


class Stage(NamedTuple):
    """A row of blocks: their expansion and output channels, their number, and the stride of the first."""

    expansion: int
    channels: int
    blocks: int
    stride: int


# The paper's table 2, with stride 1 instead of 2 in the second stage and in the stem: a reduction by 8, not by 32.
_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 1),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)


def mobilenet(
    shape: tuple[int, ...],
    classes: int,
    stem: int = 32,
    stages: Sequence[Stage] = _STAGES,
    last: int = 1280,
    *,
    norm: Norm = "group",
    dtype: Any = jnp.float32,
) -> Model:
    """MobileNetV2 for small images: inverted residuals with depthwise convolutions.

    conv 3x3x32, seven stages of blocks, conv 1x1x1280, the mean over positions, a linear layer. All layers are those
    of the paper; for images of about 32 by 32 the stem and the second stage have stride 1 instead of 2. A block is
    conv 1x1 (to six times the channels; not in the first stage), conv 3x3 depthwise, conv 1x1, with ReLU6 after the
    first two, and x is added where the shape does not change. Convolutions have no bias and are followed by a norm: by
    two groups of channels, or by minibatch (:mod:`.normalisation`). There is no dropout. Images are (height, width) or
    (height, width, channels). Kernels are initialised with variance 2 / fan-out, norms with scale 1 and shift 0, the
    linear layer as in PyTorch.

    References: Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
    2018.
    """
    height, width, channels = sides_and_channels("mobilenet", shape, _SMALLEST)
    blocks = [(stage, i) for stage in stages for i in range(stage.blocks)]
    outputs = [stage.channels for stage, _ in blocks]
    inputs = [stem, *outputs[:-1]]
    strides = [stage.stride if i == 0 else 1 for stage, i in blocks]

    def init(key: Key) -> Tree:
        first, final, output, *keys = jax.random.split(key, 3 + len(blocks))
        params = {"stem": unit_init(first, channels, stem, 3, dtype)}
        for number, key in enumerate(keys):
            expansion = blocks[number][0].expansion
            params[f"block{number + 1}"] = _block_init(key, inputs[number], expansion, outputs[number], dtype)
        params["last"] = unit_init(final, outputs[-1], last, 1, dtype)
        return {**params, "output": dense_init(output, last, classes, dtype)}

    def network(params: Tree, x: Array, normalise: NormaliseLayer) -> Array:
        x = x.reshape(x.shape[0], height, width, channels).astype(params["output"]["weight"].dtype)
        x = jax.nn.relu6(unit(params["stem"], "stem", x, 1, normalise))
        for number, stride in enumerate(strides, 1):
            x = _block(params[f"block{number}"], f"block{number}", x, stride, normalise)
        x = jax.nn.relu6(unit(params["last"], "last", x, 1, normalise))
        return dense(params["output"], x.mean((1, 2)))

    return with_norm(init, network, shape, norm)


def _block_init(key: Key, inputs: int, expansion: int, outputs: int, dtype: Any) -> Tree:
    first, second, third = jax.random.split(key, 3)
    wide = expansion * inputs
    block = {
        "depthwise": unit_init(second, wide, wide, 3, dtype, groups=wide),
        "project": unit_init(third, wide, outputs, 1, dtype),
    }
    return block if expansion == 1 else {"expand": unit_init(first, inputs, wide, 1, dtype), **block}


def _block(block: Tree, name: str, x: Array, stride: int, normalise: NormaliseLayer) -> Array:
    y = x
    if "expand" in block:
        y = jax.nn.relu6(unit(block["expand"], f"{name}.expand", y, 1, normalise))
    y = jax.nn.relu6(unit(block["depthwise"], f"{name}.depthwise", y, stride, normalise))
    y = unit(block["project"], f"{name}.project", y, 1, normalise)
    return x + y if stride == 1 and x.shape[-1] == y.shape[-1] else y
