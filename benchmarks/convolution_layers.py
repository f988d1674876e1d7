"""Convolutions of one client on a CPU, layer by layer: slices, XLA's own in its fast order, Winograd's, and PyTorch's.

    python benchmarks/convolution_layers.py [--torch] [--json FILE]

For each layer the rate, in GFLOP/s, of the output y and the gradients x' and k', in float32 on one thread; JAX's inside
a loop, as they run within a round. Times are CPU time, the median of several, so that other work on the machine matters
little. ``as given`` is ``lax.conv_general_dilated`` with its axes as a model has them. A mark shows
which way the library takes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")

import jax
import jax.numpy as jnp
from jax import lax

from pfedbred.models.convolution_forms import GIVEN, by_lax, by_ordered_lax, of_equation
from pfedbred.models.convolution_on_cpu import by_chunks, fastest
from pfedbred.models.convolution_winograd import by_winograd, has_form
from pfedbred.types import Array


class Layer(NamedTuple):
    """A convolution of square images, padded to keep their size where its window is smaller than 5."""

    samples: int
    side: int
    inputs: int
    outputs: int
    window: int
    stride: int


LAYERS = (
    Layer(20, 32, 3, 64, 3, 1),  # ResNet-18, a quarter of its channels and all of them
    Layer(20, 32, 16, 16, 3, 1),
    Layer(20, 16, 32, 32, 3, 1),
    Layer(20, 8, 64, 64, 3, 1),
    Layer(20, 32, 64, 64, 3, 1),
    Layer(20, 16, 128, 128, 3, 1),
    Layer(20, 8, 256, 256, 3, 1),
    Layer(20, 4, 512, 512, 3, 1),
    Layer(20, 32, 64, 128, 3, 2),
    Layer(20, 32, 64, 128, 1, 2),
    Layer(20, 16, 64, 64, 1, 1),
    Layer(10, 32, 3, 32, 5, 1),  # PFLlib's CNN
    Layer(10, 14, 32, 64, 5, 1),
)
WAYS = {
    "slices": by_chunks,
    "ordered": by_ordered_lax,
    "winograd": by_winograd,
    "as given": by_lax,
}


def median(function: Callable[[], Any], repeats: int = 5) -> float:
    """CPU seconds."""
    function()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        function()
        times.append(time.process_time() - begun)
    return statistics.median(times)


def in_a_loop(function: Callable[[Array, Array], Array], a: Array, b: Array, steps: int = 3) -> float:
    """Seconds of one call."""

    @jax.jit
    def run(a: Array, b: Array) -> Array:
        return lax.fori_loop(0, steps, lambda _, a: a + 1e-6 * jnp.mean(function(a, b)), a)

    return median(lambda: jax.block_until_ready(run(a, b))) / steps


def torch_seconds(layer: Layer, padding: int) -> dict[str, float]:
    """PyTorch's, on one thread."""
    import torch

    torch.set_num_threads(1)
    x = torch.randn(layer.samples, layer.inputs, layer.side, layer.side)
    k = torch.randn(layer.outputs, layer.inputs, layer.window, layer.window)
    forward = partial(torch.nn.functional.conv2d, x, k, stride=layer.stride, padding=padding)
    given = (forward(), x, k, None, [layer.stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)
    backward = {
        name: partial(torch.ops.aten.convolution_backward, *given, [name == "x", name == "k", False]) for name in "xk"
    }
    return {name: median(each) for name, each in {"y": forward, **backward}.items()}


def measured(layer: Layer, with_torch: bool) -> dict[str, Any]:
    """GFLOP/s by way, of y, x' and k'."""
    shapes = {
        "x": (layer.samples, layer.side, layer.side, layer.inputs),
        "k": (layer.outputs, layer.window, layer.window, layer.inputs),
    }
    padding = "SAME" if layer.window < 5 else "VALID"
    x, k = (jax.random.normal(jax.random.key(0), shape) for shape in shapes.values())
    conv = partial(
        lax.conv_general_dilated,
        window_strides=(layer.stride, layer.stride),
        padding=padding,
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )
    given = {"x": x, "k": k, "y": conv(x, k)}
    shape = of_equation(jax.make_jaxpr(conv)(x, k).eqns[-1])
    work = 2 * given["y"].size * layer.window**2 * layer.inputs / 1e9
    rates: dict[str, Any] = {name: {} for name in WAYS}
    for wanted, names in GIVEN.items():
        for name, way in WAYS.items():
            if way is by_winograd and not has_form(shape):
                continue
            one = partial(way, wanted=wanted, convolution=shape)
            rates[name][wanted] = work / in_a_loop(one, *(given[each] for each in names))
    if with_torch:
        seconds = torch_seconds(layer, layer.window // 2 if padding == "SAME" else 0)
        rates["torch"] = {wanted: work / each for wanted, each in seconds.items()}
    names_of_ways = {way: name for name, way in WAYS.items()}
    library = {each: names_of_ways[fastest(each, shape, x.dtype)] for each in "yxk"}
    return {"layer": layer._asdict(), "gflops": rates, "library": library}


def main() -> None:
    """Prints a row for each layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true", help="PyTorch's convolutions, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    options = parser.parse_args()
    rows = []
    for layer in LAYERS:
        row = measured(layer, options.torch)
        rows.append(row)
        cells = [
            f"{name} "
            + " ".join(f"{rate:5.0f}{'*' if row['library'][wanted] == name else ' '}" for wanted, rate in rates.items())
            for name, rates in row["gflops"].items()
            if rates
        ]
        title = f"{layer.samples} x {layer.side}^2, {layer.inputs} to {layer.outputs}, {layer.window}^2"
        print(f"{title + (f' by {layer.stride}' if layer.stride > 1 else ''):<32} {' | '.join(cells)}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
