"""Whether the lstm's kernels compute on this GPU what the scan does: tests have them run by an interpreter only.

    python benchmarks/lstm_kernels.py [--quick] [--time]

A layer of each kind that Sent140 has, its outputs and gradients for several clients at once, in float32; beside them
the scan in float32. Both errors are against the scan in float64: the largest, over the largest figure of that array.
With ``highest`` products are in float32; ``default`` leaves the GPU its shorter products, which both may use.
``same bits`` says whether a second call gives the same. Exits with 1 if the kernels are more than four times as far off
as the scan, or not the same twice. ``--quick`` takes fewer clients and samples, for a machine that has the interpreter
only.

``--time``, for a GPU, measures instead: ms for the gradient of the whole network, a minibatch of 400 for each of 10
clients (one seed) and of 50 (five seeds), and for the two kernels of a layer alone. The samples have the lengths of
Sent140's tweets and are sorted by them, as the model does it, or in the order in which they come; or all are of full
length.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred import models
from pfedbred.models import lstm_kernels, lstm_on_gpu
from pfedbred.models.lstm import _layer_init, scanned
from pfedbred.types import Array, Tree, Words

_INPUTS = {"first layer": 50, "second layer": 100}
_HIDDEN, _TIME = 50, 25
_NAMES = ("outputs", "gradient by the params", "gradient by the inputs")


def results(layer: Callable[..., Array], params: Tree, x: Array, length: Array) -> tuple[Array, Tree, Array]:
    """Outputs and the gradients of a function of all of them."""

    def loss(params: Tree, x: Array) -> tuple[Array, Array]:
        out = layer(params, x, length)
        return jnp.sum(jnp.sin(3 * out + jnp.arange(out.size, dtype=out.dtype).reshape(out.shape) % 7)), out

    (_, out), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)
    return out, *gradients


def by_kernels(params: Tree, x: Array, length: Array) -> Array:
    """The layer as the model calls it."""
    return lstm_on_gpu.layer(params, x, length, jnp.max(jnp.abs(x)))


def error(found: Tree, exact: Tree) -> float:
    """The largest of an array, over its largest figure; of several arrays the worst."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    return max(float(np.max(np.abs(np.asarray(a, float) - b)) / np.max(np.abs(b))) for a, b in pairs)


def times(rounds: int, clients: int, batch: int) -> None:
    """Prints the time of a gradient, by how the samples are sorted."""
    model_module = sys.modules["pfedbred.models.lstm"]
    rng = np.random.default_rng(0)
    # Quantiles of the lengths of Sent140's 51,879 training tweets; at 0, 5, 25, 50, 75, 90 and 100 %.
    quantiles = np.interp(rng.random((clients, batch)), (0, 0.05, 0.25, 0.5, 0.75, 0.9, 1), (1, 4, 9, 15, 22, 25, 25))
    length = np.rint(quantiles).astype(int)
    words = Words(1000, rng.normal(size=(1000, 50)).astype(np.float32))
    ids = rng.integers(1, 1000, (clients, batch, _TIME))
    y = jnp.asarray(rng.integers(0, 2, (clients, batch)))
    tweets = np.where(np.arange(_TIME) < length[:, :, None], ids, 0)
    model = models.lstm((_TIME,), 2, words=words)
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), clients))
    order = model_module._order
    for name, samples, sorts in (("sorted", tweets, True), ("as they come", tweets, False), ("full length", ids, True)):
        model_module._order = order if sorts else (lambda length: jnp.arange(len(length)))

        def loss(params: Tree, x: Array, y: Array) -> Array:
            return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(model.apply(params, x)), y[:, None], axis=1))

        gradient = jax.jit(jax.vmap(jax.grad(loss)))
        print(f"  {name:<24} {milliseconds(rounds, gradient, params, jnp.asarray(samples, jnp.int32), y):.2f} ms")
    model_module._order = order

    width, sorted_ = lstm_kernels.WIDTH, jnp.sort(jnp.asarray(length, jnp.int32), axis=1)
    keys = jax.random.split(jax.random.key(1), 3)
    shapes = (2, 4, width, width), (_TIME, batch, 8 * width), (_TIME, batch, 2 * width)
    arrays = [jax.random.normal(key, (clients, *shape)) for key, shape in zip(keys, shapes, strict=True)]
    recurrent, products, d_out = ((each / 10).astype(jnp.float16) for each in arrays)
    forward, backward = (jax.jit(jax.vmap(kernel)) for kernel in (lstm_kernels.forward, lstm_kernels.backward))
    out = forward(recurrent, sorted_, products)
    print(f"  {'forward kernel':<24} {milliseconds(rounds, forward, recurrent, sorted_, products):.3f} ms")
    took = milliseconds(rounds, backward, recurrent, sorted_, products, *out, d_out)
    print(f"  {'backward kernel':<24} {took:.3f} ms")


def milliseconds(rounds: int, run: Callable[..., Any], *arguments: Any) -> float:
    """How long a call takes when many follow one another."""
    jax.block_until_ready(run(*arguments))
    started = time.perf_counter()
    for _ in range(rounds):
        found = run(*arguments)
    jax.block_until_ready(found)
    return 1000 * (time.perf_counter() - started) / rounds


def main() -> int:
    """Prints the errors; 1 if the kernels are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few clients and samples")
    parser.add_argument("--time", action="store_true", help="measure how long a gradient takes")
    given = parser.parse_args()
    clients, batch = (2, 40) if given.quick else (10, 400)
    if given.time:
        for several in (clients, 5 * clients):
            print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {several} clients, {batch} samples each")
            times(2 if given.quick else 200, several, batch)
        return 0
    jax.config.update("jax_enable_x64", True)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {clients} clients, {batch} samples each")
    wrong = False
    for name, inputs in _INPUTS.items():
        keys = jax.random.split(jax.random.key(0), 3)
        start = jax.vmap(lambda key, inputs=inputs: _layer_init(key, inputs, _HIDDEN, jnp.float64))
        params = start(jax.random.split(keys[0], clients))
        x = jax.random.normal(keys[1], (clients, _TIME, batch, inputs), jnp.float64)
        length = jax.random.randint(keys[2], (clients, batch), 0, _TIME + 1)
        arguments = (params, x, length)
        narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, arguments)

        def run(layer: Callable[..., Array], arguments: Any) -> Any:
            each = jax.jit(jax.vmap(lambda *one: results(layer, *one)))
            return jax.tree.map(np.asarray, each(*arguments))

        with jax.default_matmul_precision("highest"):
            exact = run(scanned, arguments)
        for precision in ("highest", "default"):
            with jax.default_matmul_precision(precision):
                by_scan, once, twice = (run(layer, narrow) for layer in (scanned, *2 * (by_kernels,)))
            pairs = zip(jax.tree.leaves(once), jax.tree.leaves(twice), strict=True)
            same = all(np.array_equal(a, b) for a, b in pairs)
            print(f"{name}, {precision}: same bits {'yes' if same else 'NO'}")
            wrong |= not same
            for what, kernels, scan, true in zip(_NAMES, once, by_scan, exact, strict=True):
                far = error(kernels, true), error(scan, true)
                off = not far[0] <= 4 * far[1]
                wrong |= off
                print(f"  {what:<24} kernels {far[0]:.1e}  scan {far[1]:.1e}{'  OFF' if off else ''}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
