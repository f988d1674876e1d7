"""PFLlib's convolutional network, fast with different params per client."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.models.base import Model
from pfedbred.models.cnn import conv_pools
from pfedbred.models.images import conv_init, sides_and_channels
from pfedbred.models.linear import dense, dense_init
from pfedbred.types import Array, Key, Tree

_SMALLEST = 16  # 16 -> conv 12 -> pool 6 -> conv 2 -> pool 1


def pfllib_cnn(
    shape: tuple[int, ...],
    classes: int,
    filters: tuple[int, int] = (32, 64),
    hidden: int = 512,
    dtype: Any = jnp.float32,
) -> Model:
    """PFLlib's FedAvgCNN: two convolutions with pooling, two linear layers, ReLU between them.

    conv 5x5x32, pool 2x2, conv 5x5x64, pool 2x2, linear 512, classes; no padding, max pooling. Images are (height,
    width) or (height, width, channels). Params are initialised as in PyTorch, uniform in +-1/sqrt(fan_in), where the
    fan-in of a convolution is 25 times its input channels.

    Args:
      shape: the shape of one sample.
      classes: number of labels.
      filters: the filters of the two convolutions.
      hidden: width of the first linear layer.
      dtype: the type of the params.

    References: Zhang et al., "PFLlib: Personalized Federated Learning Algorithm Library", 2023. McMahan et al.,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017, pads the convolutions.
    """
    height, width, channels = sides_and_channels("pfllib-cnn", shape, _SMALLEST)
    pooled = [((side - 4) // 2 - 4) // 2 for side in (height, width)]

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 4)
        return {
            "conv1": conv_init(keys[0], channels, filters[0], 5, dtype),
            "conv2": conv_init(keys[1], filters[0], filters[1], 5, dtype),
            "hidden": dense_init(keys[2], pooled[0] * pooled[1] * filters[1], hidden, dtype),
            "output": dense_init(keys[3], hidden, classes, dtype),
        }

    def apply(params: Tree, x: Array) -> Array:
        x = x.reshape(x.shape[0], height, width, channels).astype(params["output"]["weight"].dtype)
        x = conv_pools([params["conv1"], params["conv2"]], x).reshape(x.shape[0], -1)
        x = jax.nn.relu(dense(params["hidden"], x))
        return dense(params["output"], x)

    return Model(init, apply, head=("output",))
