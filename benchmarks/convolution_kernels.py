"""Whether the convolutions' kernels compute on this GPU what slices do: tests have them run by an interpreter only.

    python benchmarks/convolution_kernels.py [--quick] [--time]

The layers of ResNet-18 (20 samples) and PFLlib's CNN (10 samples), and some of odd sizes, strides and dilations, for
several clients at once: the output y, and the gradients x' and k'. Errors are against slices and one matrix product in
float64, which tests compare with ``lax.conv``: the largest, over the largest figure of that array; beside them those of
slices in the same type.
``same bits`` says whether a second call gives the same. Exits with 1 if the kernels are more than four times as far off
as slices, or not the same twice. ``--quick`` takes two clients and two samples, for a machine that has the interpreter
only. ``--time``, for a GPU, adds the microseconds of each, and marks where the library uses the kernels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.models import convolution_kernels
from pfedbred.models.convolution import convolve
from pfedbred.types import Array

_ROUNDED = 2**-12  # the kernels round factors of float32 to 11 bits, as slices do on GPUs but not on CPUs


class Layer(NamedTuple):
    """A convolution of images (side, side, channels)."""

    side: int
    channels: int
    outputs: int
    window: int
    stride: int = 1
    dilation: int = 1
    padding: int | None = None
    samples: int = 20

    def pads(self) -> int:
        """On each side; by default so that the output is as large as the input."""
        return self.dilation * (self.window - 1) // 2 if self.padding is None else self.padding

    def result(self) -> int:
        """The side of the output."""
        return (self.side + 2 * self.pads() - self.dilation * (self.window - 1) - 1) // self.stride + 1


LAYERS = [
    Layer(32, 64, 64, 3),
    Layer(32, 64, 128, 3, stride=2),
    Layer(16, 128, 128, 3),
    Layer(16, 128, 256, 3, stride=2),
    Layer(8, 256, 256, 3),
    Layer(8, 256, 512, 3, stride=2),
    Layer(4, 512, 512, 3),
    Layer(14, 32, 64, 5, padding=0, samples=10),
    Layer(13, 24, 40, 3, stride=2, padding=2),
    Layer(17, 33, 17, 5, dilation=2),
    Layer(9, 16, 100, 4, stride=3, padding=1),
]


def by_slices(layer: Layer, x: Array, k: Array) -> Array:
    """The output by slices and one matrix product."""
    pads = [(layer.pads(),) * 2] * 2
    strides, dilation = (layer.stride,) * 2, (layer.dilation,) * 2
    return convolve(x, k, strides, pads, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def each(function: Callable[[Array, Array], Array], wanted: str, x: Array, k: Array, y: Array) -> Array:
    """y, x' or k' of a function of (x, k), for all clients."""
    if wanted == "y":
        return jax.vmap(function)(x, k)
    if wanted == "x":
        return jax.vmap(lambda x, k, y: jax.linear_transpose(lambda x: function(x, k), x)(y)[0])(x, k, y)
    return jax.vmap(lambda x, k, y: jax.linear_transpose(lambda k: function(x, k), k)(y)[0])(x, k, y)


def by_kernels(layer: Layer, wanted: str, x: Array, k: Array, y: Array) -> Array:
    """The same by the GPU kernels."""
    side = {"y": layer.result(), "x": layer.side, "k": layer.window}[wanted]
    pair = {"y": (x, k), "x": (y, k), "k": (x, y)}[wanted]
    how: Any = [(size,) * 2 for size in (side, layer.window, layer.stride, layer.dilation, layer.pads())]
    return jax.vmap(lambda a, b: convolution_kernels.compute(wanted, a, b, *how))(*pair)


def error(found: Array, exact: np.ndarray) -> float:
    """The largest, over the largest figure."""
    return float(np.max(np.abs(np.asarray(found, np.float64) - exact)) / np.max(np.abs(exact)))


def microseconds(run: Callable[..., Array], arguments: Any) -> float:
    """Of a call, the least of five times ten."""
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(10):
            found = run(*arguments)
        jax.block_until_ready(found)
        best = min(best, (time.perf_counter() - begun) * 1e5)
    return best


def main() -> int:
    """Prints the errors; 1 if the kernels are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two clients, two samples, small layers")
    parser.add_argument("--time", action="store_true", help="measure how long each takes")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    clients = 2 if given.quick else 20
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}: {clients} clients")
    wrong = False
    for layer in LAYERS[-3:] if given.quick else LAYERS:
        samples = 2 if given.quick else layer.samples
        rng = np.random.default_rng(0)
        out = layer.result()
        shapes = {
            "x": (samples, layer.side, layer.side, layer.channels),
            "k": (layer.window, layer.window, layer.channels, layer.outputs),
            "y": (samples, out, out, layer.outputs),
        }
        exactly = [jnp.asarray(rng.normal(size=(clients, *shape))) for shape in shapes.values()]
        print(f"{layer.side}x{layer.side}x{layer.channels} to {layer.outputs}, {layer[3:7]}")
        for dtype in (jnp.float32, jnp.bfloat16):
            arguments = [leaf.astype(dtype) for leaf in exactly]
            rounded = [leaf.astype(jnp.float64) for leaf in arguments]
            for wanted in "yxk":
                slices = jax.jit(partial(each, partial(by_slices, layer), wanted))
                exact = np.asarray(slices(*rounded))
                kernels = jax.jit(partial(by_kernels, layer, wanted))
                once, twice = (np.asarray(kernels(*arguments), np.float64) for _ in range(2))
                far, near = error(once, exact), error(slices(*arguments), exact)
                same = np.array_equal(once, twice)
                off = not far <= 4 * max(near, _ROUNDED) or not same
                wrong |= off
                line = f"  {jnp.dtype(dtype).name:<8} {wanted}  kernels {far:.1e}  slices {near:.1e}"
                line += f"  same bits {'yes' if same else 'NO'}{'  OFF' if off else ''}"
                if given.time:
                    used = convolution_kernels.faster(wanted, shapes["k"], (layer.stride,) * 2, dtype)
                    times = [microseconds(run, arguments) for run in (kernels, slices)]
                    line += f"  {times[0]:8.0f} us  {times[1]:8.0f} us{'  kernels used' if used else ''}"
                print(line, flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
