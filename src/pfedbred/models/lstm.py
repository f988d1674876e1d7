"""The recurrent network of the paper's Sent140 experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pfedbred.errors import SettingError
from pfedbred.models.base import Model
from pfedbred.models.linear import dense, dense_init, uniform
from pfedbred.models.platform import platform
from pfedbred.types import Array, Key, Tree, Words

_EMBEDDING = 50
_DENSE = 100
_UNROLL = 25  # loop iterations (words) unrolled on GPUs; on CPUs unrolling is slower


def lstm(shape: tuple[int, ...], classes: int, *, words: Words, hidden: int = 50, dtype: Any = jnp.float32) -> Model:
    r"""Word vectors, a two-layer bidirectional LSTM, two linear layers with a leaky ReLU of slope 0.1 between them.

    In each layer and direction, with sigma the logistic function and (i, f, g, o) the four parts of
    W_x x_t + b_x + W_h h_{t-1} + b_h,

        c_t = sigma(f) c_{t-1} + sigma(i) tanh(g),    h_t = sigma(o) tanh(c_t)

    The linear layers read the second layer's output at the last word, then the last h of each layer and direction (at
    the first word, for the backward direction). Samples are word ids; trailing ids of 0 are padding, which leaves the
    state unchanged, as in PyTorch's packed sequences. Params are initialised as in PyTorch.

    Args:
      shape: (length,), the number of ids in a sample.
      classes: number of labels.
      words: the number of word ids, and their vectors; without vectors, an embedding of size 50 is learned.
      hidden: size of the hidden state h.
      dtype: the type of the params.

    References: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; Gers, Schmidhuber and Cummins, "Learning to
    Forget", 2000.
    """
    frozen = frozen_vectors("lstm", shape, words, dtype)
    dimensions = _EMBEDDING if frozen is None else frozen.shape[1]

    def init(key: Key) -> Tree:
        keys = jax.random.split(key, 5)
        params = {
            "layer1": _layer_init(keys[0], dimensions, hidden, dtype),
            "layer2": _layer_init(keys[1], 2 * hidden, hidden, dtype),
            "hidden": dense_init(keys[2], 6 * hidden, _DENSE, dtype),
            "output": dense_init(keys[3], _DENSE, classes, dtype),
        }
        if frozen is None:
            params["embedding"] = jax.random.normal(keys[4], (words.count, dimensions), dtype)
        return params

    def apply(params: Tree, x: Array) -> Array:
        if not _by_kernels(params["layer1"]):
            return logits(params, x)
        order = _order(lengths(x.T)[0])
        # Declaring the indices unique makes the gradient's scatter deterministic.
        return logits(params, x[order]).at[jnp.argsort(order)].get(unique_indices=True, mode="promise_in_bounds")

    def logits(params: Tree, x: Array) -> Array:
        vectors = params["embedding"] if frozen is None else frozen.astype(params["output"]["weight"].dtype)
        ids = x.T
        length, last = lengths(ids)
        largest = jnp.max(jnp.abs(jax.lax.stop_gradient(vectors)))
        first = _layer(params["layer1"], vectors[ids], length, largest)
        second = _layer(params["layer2"], first, length, jnp.ones(()))  # no h is larger than 1
        # A masked sum instead of an index: its gradient needs no scatter, which is not deterministic on GPUs.
        end1, end2 = (jnp.sum(jnp.where(last, layer, 0), axis=0) for layer in (first, second))
        states = (end1[:, :hidden], first[0, :, hidden:], end2[:, :hidden], second[0, :, hidden:])
        features = jnp.concatenate([end2, *states], axis=1)
        return dense(params["output"], jax.nn.leaky_relu(dense(params["hidden"], features), 0.1))

    return Model(init, apply, head=("output",))


def frozen_vectors(model: str, shape: tuple[int, ...], words: Words, dtype: Any) -> Array | None:
    """The given vectors of the word ids, if any; samples that are not sequences are rejected."""
    if len(shape) != 1 or shape[0] < 1:
        raise SettingError(f"{model} needs samples of shape (length,), not {tuple(shape)}")
    if words.vectors is None:
        return None
    if words.vectors.ndim != 2 or len(words.vectors) != words.count:
        raise SettingError(
            f"{model} needs one vector for each of the {words.count} word ids, not an array of shape "
            f"{words.vectors.shape}"
        )
    return jnp.asarray(words.vectors, dtype)


def lengths(ids: Array) -> tuple[Array, Array]:
    """The length of each sample without padding, and a mask of its last id; ids are (time, batch)."""
    place = jnp.arange(1, ids.shape[0] + 1)[:, None]
    length = jnp.max(jnp.where(ids != 0, place, 0), axis=0)
    return length, (place == length)[:, :, None]


def _layer_init(key: Key, inputs: int, hidden: int, dtype: Any) -> Tree:
    """Both directions, forward first; all arrays are uniform in +-1/sqrt(hidden)."""
    keys = jax.random.split(key, 4)
    shapes = {
        "input": (2, 4 * hidden, inputs),
        "recurrent": (2, 4 * hidden, hidden),
        "input_bias": (2, 4 * hidden),
        "recurrent_bias": (2, 4 * hidden),
    }
    return {name: uniform(key, shape, hidden, dtype) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def _layer(params: Tree, x: Array, length: Array, largest: Array) -> Array:
    """Both directions: maps x, (time, batch, inputs), given the samples' lengths, to (time, batch, 2 hidden).

    No number in x is larger than ``largest``.
    """
    if _by_kernels(params):
        from pfedbred.models import lstm_on_gpu

        # The layer rounds float32 to half precision itself; params and x in bfloat16 are passed as float32.
        found = lstm_on_gpu.layer(jax.tree.map(widened, params), widened(x), length, widened(largest))
        return found.astype(x.dtype)
    return scanned(params, x, length)


def _order(length: Array) -> Array:
    """The order in which the kernels take the samples."""
    return jnp.argsort(length)


def _by_kernels(params: Tree) -> bool:
    """Whether layers run as GPU kernels, which are faster if neighbouring samples are of similar length."""
    if platform() != "gpu":
        return False
    from pfedbred.models import lstm_on_gpu

    return lstm_on_gpu.usable(jax.eval_shape(lambda params: jax.tree.map(widened, params), params))


def widened(array: Array) -> Array:
    """The array in float32, if it is in half precision."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def scanned(params: Tree, x: Array, length: Array) -> Array:
    """Like :func:`_layer`: both directions, word by word.

    The backward direction reads the reversed sequence, padding first, so that one scan runs both. Inside the scan the
    batch is the last axis: the four parts of the sums are then contiguous, and rows are as long as the batch. W_x x is
    part of each step's single product: computing it for all words beforehand costs an extra write and read, more than
    it saves (benchmarks/client_models.py). On a CPU, whose caches are small, the gates are recomputed for the gradient
    rather than stored, and the loop is not unrolled. With x in half precision, only the products' factors and results
    are in it: h, c and the sum of the gradients over the words are in float32.
    """
    cell, unroll = cell_and_unrolling(len(x))
    kernel = widened(jnp.concatenate([params["input"], params["recurrent"]], axis=2))
    bias = (widened(params["input_bias"]) + widened(params["recurrent_bias"]))[:, :, None]
    x, factors = x.transpose(0, 2, 1), x.dtype
    real = jnp.arange(len(x))[:, None] < length
    both_real = jnp.stack([real, real[::-1]], axis=1)[:, :, None]

    def step(state: tuple[Array, Array], inputs: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        forward, backward, real = inputs
        right = jnp.concatenate([jnp.stack([forward, backward]), h.astype(factors)], axis=1)
        sums = widened(kernel.astype(factors) @ right) + bias
        h, c = cell(sums, c, real)
        return (h, c), h

    start = jnp.zeros((2, params["recurrent"].shape[2], x.shape[2]), kernel.dtype)
    _, out = jax.lax.scan(step, (start, start), (x, x[::-1], both_real), unroll=unroll)
    return jnp.concatenate([out[:, 0], out[::-1, 1]], axis=1).transpose(0, 2, 1).astype(factors)


def cell_and_unrolling(time: int) -> tuple[Callable[..., tuple[Array, Array]], int]:
    """How to compute a step, and how many steps to unroll, on this platform."""
    return (jax.checkpoint(_cell), 1) if platform() == "cpu" else (_cell, min(_UNROLL, time))


def _cell(sums: Array, c: Array, real: Array) -> tuple[Array, Array]:
    """The next h and c; c is zero on padding, which the backward direction reads before its first word."""
    i, f, g, o = jnp.split(sums, 4, axis=1)
    c = jnp.where(real, jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g), 0)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c
