"""Ways to compute a gradient step of the networks when every client has its own params, side by side.

    python benchmarks/client_models.py [--quick] [--json FILE] [--torch]
                                       [--only cnn|pfllib-cnn|resnet18|cnn1d|lstm|charlstm]

Each row runs the same SGD steps, for all clients at once (``vmap``) or one client after another (``in-turn``), inside
one compiled program as in a round; the way that the library has is marked. Repeats go through all rows in turn, so that
a busy machine slows all of them; the time is the least of them. ``difference`` shows that all rows compute the same:
how far the params end from the first row's, over how far they went. Shapes are CIFAR-10's (20 clients, batch 20; 10
for pfllib-cnn), UCI HAR's (30 clients, batch 20), Sent140's (10 clients, batch 400, 25 words) and Shakespeare's (10
clients, batch 20, 80 characters); ``--quick`` takes fewer clients and steps, and on a CPU a quarter of ResNet-18's
channels. Rows ``in bfloat16``, on GPUs alone, cast params and images inside the loss; gradients and params stay
float32. ``--torch`` adds a PyTorch loop of pfllib-cnn and resnet18, in bfloat16 by its autocast.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from torch_networks import torch_step

from pfedbred import models
from pfedbred.engine import executors
from pfedbred.models.linear import dense
from pfedbred.models.normalisation import GROUPS
from pfedbred.models.resnet import resnet
from pfedbred.tasks import cross_entropy
from pfedbred.types import Array, Tree, Words

Apply = Callable[[Tree, Array], Array]
NETWORKS = ("cnn", "pfllib-cnn", "resnet18", "cnn1d", "lstm", "charlstm")


class Row(NamedTuple):
    """One way to compute a step."""

    clients: str
    way: str
    apply: Apply


# cnn: params as in models.cnn, images (n, height, width, channels) ------------------------------------------------


def cnn_with(conv: Callable[[Array, Array], Array], params: Tree, x: Array) -> Array:
    """The cnn by another convolution ``conv(kernel, x)``."""
    for name in ("conv1", "conv2"):
        y = conv(params[name]["weight"], x)
        n, height, width, filters = y.shape
        y = y.reshape(n, height // 2, 2, width // 2, 2, filters).max((2, 4))
        x = jax.nn.relu(y + params[name]["bias"])
    x = x.reshape(x.shape[0], -1)
    for name in ("hidden1", "hidden2"):
        x = jax.nn.relu(dense(params[name], x))
    return dense(params["output"], x)


def lax_conv(kernel: Array, x: Array) -> Array:
    """The compiler's own convolution; under vmap a grouped one."""
    layout = ("NHWC", "OHWI", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)


def lax_patches(kernel: Array, x: Array) -> Array:
    """Patches by the compiler's own function (itself a convolution), and a matrix product."""
    layout = ("NHWC", "OHWI", "NHWC")
    patches = jax.lax.conv_general_dilated_patches(x, kernel.shape[1:3], (1, 1), "VALID", dimension_numbers=layout)
    return patches @ kernel.transpose(0, 3, 1, 2).reshape(len(kernel), -1).T


def slices(kernel: Array, x: Array) -> Array:
    """Patches by joining 25 slices, and a matrix product."""
    side, height, width = kernel.shape[1], x.shape[1], x.shape[2]
    rows, columns = height - side + 1, width - side + 1
    patches = [x[:, i : i + rows, j : j + columns] for i in range(side) for j in range(side)]
    return jnp.concatenate(patches, axis=3) @ kernel.reshape(len(kernel), -1).T


def cnn_rows(model: models.Model) -> list[Row]:
    """All ways for the cnn."""
    ways = {
        "windows of the pools, matmul (library)": model.apply,
        "25 slices, matmul": partial(cnn_with, slices),
        "conv_general_dilated_patches, matmul": partial(cnn_with, lax_patches),
        "lax.conv": partial(cnn_with, lax_conv),
    }
    return [Row(clients, way, apply) for clients in ("vmap", "in-turn") for way, apply in ways.items()]


# pfllib-cnn and resnet18: as cnn -----------------------------------------------------------------------------------


def pfllib_with(conv: Callable[[Array, Array], Array], params: Tree, x: Array) -> Array:
    """The pfllib-cnn by another convolution ``conv(kernel, x)``."""
    for name in ("conv1", "conv2"):
        y = conv(params[name]["weight"], x.astype(params[name]["weight"].dtype))
        n, height, width, filters = y.shape
        x = jax.nn.relu(y.reshape(n, height // 2, 2, width // 2, 2, filters).max((2, 4)) + params[name]["bias"])
    return dense(params["output"], jax.nn.relu(dense(params["hidden"], x.reshape(x.shape[0], -1))))


def half(apply: Apply) -> Apply:
    """The same in bfloat16, from float32 params and to float32 logits."""

    def run(params: Tree, x: Array) -> Array:
        params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
        return apply(params, x).astype(jnp.float32)

    return run


def image_rows(ways: dict[str, Apply], on_gpu: bool) -> list[Row]:
    """All ways, the library's first. On a CPU grouped convolutions and bfloat16 would take minutes."""
    own = next(iter(ways))
    if not on_gpu:
        return [Row("in-turn", way, apply) for way, apply in ways.items()] + [Row("vmap", own, ways[own])]
    both = {**ways, **{f"{way}, in bfloat16": half(apply) for way, apply in ways.items()}}
    return [Row("vmap", way, apply) for way, apply in both.items()] + [Row("in-turn", own, ways[own])]


def image_items(model: models.Model, clients: int, batch: int) -> Any:
    """Params and random images for every client."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (clients, batch, 32, 32, 3))
    y = jax.random.randint(keys[1], (clients, batch), 0, 10)
    return jax.jit(jax.vmap(model.init))(jax.random.split(keys[2], clients)), x, y


def torch_rows(name: str, width: int, batch: int, clients: int, on_gpu: bool) -> list[dict[str, Any]]:
    """The results of a PyTorch loop over the clients; none where PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        print("PyTorch is not installed: no rows of a PyTorch loop")
        return []
    results = []
    for in_half in (False, True) if on_gpu else (False,):
        ms = torch_step(name, width, batch, 20 if on_gpu else 1, GROUPS, in_half)
        way = "PyTorch" + ", in bfloat16" * in_half
        empty = {"compile_s": 0.0, "difference": float("nan")}
        results.append({"clients": "in-turn", "way": way, **empty, "ms": ms * clients, "ms_client": ms})
    return results


def image_network(name: str, quick: bool, with_torch: bool, on_gpu: bool, repeats: int) -> list[dict[str, Any]]:
    """All results of pfllib-cnn or resnet18."""
    clients, width = (4 if quick else 20), 16 if quick and not on_gpu else 64
    if name == "pfllib-cnn":
        batch, steps, model = 10, (50 if on_gpu else 10), models.pfllib_cnn((32, 32, 3), 10)
        ways = {
            "windows of the pools, matmul (library)": model.apply,
            "25 slices, matmul": models.with_fast_convolutions(partial(pfllib_with, lax_conv)),
            "lax.conv": partial(pfllib_with, lax_conv),
        }
    else:
        widths = tuple(width * 2**stage for stage in range(4))
        batch, steps = 20, 20 if on_gpu else 1
        model = resnet(name, (32, 32, 3), 10, widths, 2, "group", jnp.float32)
        ways = {"slices, matmul (library)": model.apply, "lax.conv": model.apply.__wrapped__}
    results = measure(image_rows(ways, on_gpu), image_items(model, clients, batch), steps, repeats)
    if with_torch:
        results += torch_rows(name, width, batch, clients, on_gpu)
    wide = f", {width} channels" if name == "resnet18" else ""
    show(f"{name}{wide}, CIFAR-10 shapes: {clients} clients, batch {batch}", results)
    return results


# cnn1d: params as in models.cnn1d, signals (n, length, channels) ---------------------------------------------------


def cnn1d_with(conv: Callable[[Array, Array], Array], params: Tree, x: Array) -> Array:
    """The cnn1d by another convolution ``conv(kernel, x)``."""
    for name in ("conv1", "conv2"):
        y = conv(params[name]["weight"], x)
        n, length, filters = y.shape
        y = y[:, : length // 2 * 2].reshape(n, length // 2, 2, filters).max(2)
        x = jax.nn.relu(y + params[name]["bias"])
    return dense(params["output"], jax.nn.relu(dense(params["hidden"], x.reshape(x.shape[0], -1))))


def lax_conv1d(kernel: Array, x: Array) -> Array:
    """The compiler's own convolution; under vmap a grouped one."""
    return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "OWI", "NWC"))


def slices1d(kernel: Array, x: Array) -> Array:
    """Patches by joining 9 slices, and a matrix product."""
    steps = x.shape[1] - kernel.shape[1] + 1
    patches = [x[:, i : i + steps] for i in range(kernel.shape[1])]
    return jnp.concatenate(patches, axis=2) @ kernel.reshape(len(kernel), -1).T


def sum1d(kernel: Array, x: Array) -> Array:
    """A matrix product for each of the 9 steps of a kernel, added up."""
    steps = x.shape[1] - kernel.shape[1] + 1
    return sum(x[:, i : i + steps] @ kernel[:, i].T for i in range(kernel.shape[1]))


def cnn1d_rows(model: models.Model) -> list[Row]:
    """All ways for the cnn1d."""
    ways = {
        "windows of the pools, matmul (library)": model.apply,
        "9 slices, matmul": partial(cnn1d_with, slices1d),
        "9 matmuls": partial(cnn1d_with, sum1d),
        "lax.conv": partial(cnn1d_with, lax_conv1d),
    }
    return [Row(clients, way, apply) for clients in ("vmap", "in-turn") for way, apply in ways.items()]


# lstm: params as in models.lstm, word ids (n, length) --------------------------------------------------------------


class Way(NamedTuple):
    """How a layer is computed.

    Attributes:
      fused: both directions in one scan.
      hoisted: W_x x for all words before the scan.
      again: gates computed again for the gradient, in place of keeping them.
      batch_last: arrays (time, features, batch) in place of (time, batch, features).
      unroll: of the scan.
    """

    fused: bool = True
    hoisted: bool = False
    again: bool = True
    batch_last: bool = True
    unroll: int = 1

    def __str__(self) -> str:
        parts = [
            "both directions in a scan" if self.fused else "a scan for each direction",
            "W x before it" if self.hoisted else "W x in it",
            "gates again" if self.again else "gates kept",
            "batch last" if self.batch_last else "batch first",
        ]
        return ", ".join(parts) + (f", unroll {self.unroll}" if self.unroll > 1 else "")


def cell(axis: int, sums: Array, c: Array, real: Array) -> tuple[Array, Array]:
    """The next h and c, zero on padding."""
    i, f, g, o = jnp.split(sums, 4, axis)
    c = jnp.where(real, jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g), 0)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def times(way: Way, kernel: Array, x: Array) -> Array:
    """Kernel times x in the way's layout."""
    return kernel @ x if way.batch_last else x @ jnp.swapaxes(kernel, -1, -2)


def column(way: Way, bias: Array) -> Array:
    """A bias in the way's layout."""
    return bias[..., :, None] if way.batch_last else bias[..., None, :]


def scan_directions(way: Way, params: Tree, x: tuple[Array, ...], real: tuple[Array, ...]) -> Array:
    """The directions whose inputs are in x, along the second axis of the result."""
    axis = -2 if way.batch_last else -1
    bias = column(way, params["input_bias"] + params["recurrent_bias"])
    step_cell = jax.checkpoint(partial(cell, axis)) if way.again else partial(cell, axis)
    if way.hoisted:
        inputs = tuple(times(way, kernel, each) + b for kernel, each, b in zip(params["input"], x, bias, strict=True))
        kernel, bias = params["recurrent"], jnp.zeros_like(bias)
    else:
        inputs, kernel = x, jnp.concatenate([params["input"], params["recurrent"]], axis=-1)

    def step(state: tuple[Array, Array], item: Any) -> tuple[tuple[Array, Array], Array]:
        (h, c), (x, real) = state, item
        if way.hoisted:
            sums = jnp.stack(x) + times(way, kernel, h)
        else:
            sums = times(way, kernel, jnp.concatenate([jnp.stack(x), h], axis)) + bias
        state = step_cell(sums, c, real)
        return state, state[0]

    hidden = params["recurrent"].shape[-1]
    batch = x[0].shape[-1] if way.batch_last else x[0].shape[1]
    start = jnp.zeros((len(x), hidden, batch) if way.batch_last else (len(x), batch, hidden), x[0].dtype)
    mask = jnp.stack(real, axis=1)
    mask = mask[:, :, None, :] if way.batch_last else mask[..., None]
    return jax.lax.scan(step, (start, start), (inputs, mask), unroll=way.unroll)[1]


def lstm_layer(way: Way, params: Tree, x: Array, real: Array) -> Array:
    """Both directions of a layer."""
    if way.fused:
        out = scan_directions(way, params, (x, x[::-1]), (real, real[::-1]))
        forward, backward = out[:, 0], out[::-1, 1]
    else:
        one = [jax.tree.map(lambda leaf, d=d: leaf[d : d + 1], params) for d in range(2)]
        forward = scan_directions(way, one[0], (x,), (real,))[:, 0]
        backward = scan_directions(way, one[1], (x[::-1],), (real[::-1],))[::-1, 0]
    return jnp.concatenate([forward, backward], axis=1 if way.batch_last else 2)


def lstm_with(layer: Callable[..., Array], batch_last: bool, vectors: Array, params: Tree, x: Array) -> Array:
    """The lstm by another layer."""
    ids = x.T
    place = jnp.arange(1, ids.shape[0] + 1)[:, None]
    length = jnp.max(jnp.where(ids != 0, place, 0), axis=0)
    embedded = vectors[ids].transpose(0, 2, 1) if batch_last else vectors[ids]
    layers = [layer(params["layer1"], embedded, place <= length)]
    layers.append(layer(params["layer2"], layers[0], place <= length))
    at_end = (place == length)[:, None] if batch_last else (place == length)[..., None]
    turn = (lambda y: y.T) if batch_last else (lambda y: y)
    ends = [turn(jnp.sum(jnp.where(at_end, out, 0), axis=0)) for out in layers]
    hidden = params["layer1"]["recurrent"].shape[-1]
    starts = [turn(out[0]) for out in layers]
    states = (ends[0][:, :hidden], starts[0][:, hidden:], ends[1][:, :hidden], starts[1][:, hidden:])
    features = jnp.concatenate([ends[1], *states], axis=1)
    return dense(params["output"], jax.nn.leaky_relu(dense(params["hidden"], features), 0.1))


def lstm_rows(model: models.Model, vectors: Array, quick: bool) -> list[Row]:
    """All ways for the lstm, with the clients run as the library does on this platform."""
    ways = [
        Way(),
        Way(again=False),
        Way(hoisted=True),
        Way(hoisted=True, again=False),
        Way(batch_last=False),
        Way(batch_last=False, hoisted=True),
        Way(fused=False),
        Way(fused=False, hoisted=True),
    ]
    if not quick:  # these take long to compile
        ways += [Way(hoisted=hoisted, unroll=unroll) for hoisted in (False, True) for unroll in (5, 25)]
    clients = executors.choose("auto")
    rows = [Row(each, "library", model.apply) for each in ("vmap", "in-turn")]
    rows += [Row(clients, str(w), partial(lstm_with, partial(lstm_layer, w), w.batch_last, vectors)) for w in ways]
    return rows


def charlstm_with(way: Way, params: Tree, x: Array) -> Array:
    """The charlstm by another layer, of samples without padding."""
    vectors = params["embedding"][x.T]
    out = vectors.transpose(0, 2, 1) if way.batch_last else vectors
    real = jnp.ones(x.T.shape, bool)
    for name in ("layer1", "layer2"):
        one = jax.tree.map(lambda leaf: leaf[None], params[name])
        out = scan_directions(way, one, (out,), (real,))[:, 0]
    return dense(params["output"], out[-1].T if way.batch_last else out[-1])


def charlstm_rows(model: models.Model) -> list[Row]:
    """All ways for the charlstm, with the clients run as the library does on this platform."""
    ways = [Way(), Way(again=False), Way(hoisted=True), Way(batch_last=False), Way(batch_last=False, again=False)]
    rows = [Row(each, "library", model.apply) for each in ("vmap", "in-turn")]
    names = [str(way).partition(", ")[2] for way in ways]  # there is one direction
    clients = executors.choose("auto")
    return rows + [Row(clients, name, partial(charlstm_with, way)) for name, way in zip(names, ways, strict=True)]


# measuring ----------------------------------------------------------------------------------------------------------


def program(row: Row, steps: int) -> Callable[..., Tree]:
    """``steps`` steps of every client, as one compiled program."""

    def client(_: Any, item: tuple[Tree, Array, Array]) -> Tree:
        params, x, y = item

        def loss(params: Tree) -> Array:
            return jnp.mean(cross_entropy(row.apply(params, x), y))

        def step(_: Any, params: Tree) -> Tree:
            return optax.tree.add_scale(params, -0.01, jax.grad(loss)(params))

        return jax.lax.fori_loop(0, steps, step, params)

    every = executors.every(client, row.clients)
    return jax.jit(lambda items: every((), items))


def distance(a: Tree, b: Tree) -> float:
    """Euclidean, between two sets of params."""
    return float(optax.tree.norm(optax.tree.sub(a, b)))


def measure(rows: list[Row], items: Any, steps: int, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a step of all clients, and of one, for each row; how far its params moved from the first's."""
    programs, results, first = [], [], None
    for row in rows:
        begun = time.perf_counter()
        programs.append(program(row, steps).lower(items).compile())
        compiling = time.perf_counter() - begun
        params = jax.block_until_ready(programs[-1](items))
        first = params if first is None else first
        result = {"clients": row.clients, "way": row.way, "compile_s": round(compiling, 2), "ms": float("inf")}
        results.append({**result, "difference": distance(params, first) / distance(first, items[0])})
    for _ in range(repeats):
        for run, result in zip(programs, results, strict=True):
            begun = time.perf_counter()
            jax.block_until_ready(run(items))
            result["ms"] = min(result["ms"], (time.perf_counter() - begun) * 1e3 / steps)
            result["ms_client"] = result["ms"] / len(items[1])
    return results


def show(title: str, results: list[dict[str, Any]]) -> None:
    """The table."""
    fastest = min(each["ms"] for each in results)
    width = max(len(each["way"]) for each in results)
    columns = f"{'ms a step':>10} {'a client':>9} {'ratio':>6} {'compile s':>10} {'difference':>11}"
    print(f"\n{title}\n{'clients':<8} {'computed by':<{width}} {columns}")
    for each in sorted(results, key=lambda each: each["ms"]):
        each["ratio"] = each["ms"] / fastest
        numbers = f"{each['ms']:>10.3f} {each['ms_client']:>9.3f} {each['ratio']:>6.2f} {each['compile_s']:>10.1f}"
        numbers += f" {each['difference']:>11.0e}"
        print(f"{each['clients']:<8} {each['way']:<{width}} {numbers}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer clients and steps: some minutes on two CPU cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    parser.add_argument("--torch", action="store_true", help="a PyTorch loop too, of pfllib-cnn and resnet18")
    parser.add_argument("--only", choices=NETWORKS, help="one model alone")
    options = parser.parse_args()
    chosen = [options.only] if options.only else NETWORKS
    device = jax.devices()[0]
    on_gpu = device.platform != "cpu"
    report: dict[str, Any] = {"platform": device.platform, "device": device.device_kind, "jax": jax.__version__}
    print(f"{report['device']} ({report['platform']}), jax {report['jax']}")
    repeats = 2 if options.quick else 5
    keys = jax.random.split(jax.random.key(0), 4)
    if "cnn" in chosen:
        clients = 4 if options.quick else 20
        model = models.cnn((32, 32, 3), 10)
        x, y = jax.random.normal(keys[0], (clients, 20, 32, 32, 3)), jax.random.randint(keys[1], (clients, 20), 0, 10)
        items = (jax.vmap(model.init)(jax.random.split(keys[2], clients)), x, y)
        report["cnn"] = measure(cnn_rows(model), items, 50 if on_gpu else 10, repeats)
        show(f"cnn, CIFAR-10 shapes: {clients} clients, batch 20", report["cnn"])
    for name in ("pfllib-cnn", "resnet18"):
        if name in chosen:
            report[name] = image_network(name, options.quick, options.torch, on_gpu, repeats)
    if "cnn1d" in chosen:
        clients = 4 if options.quick else 30
        model = models.cnn1d((128, 9), 6)
        x, y = jax.random.normal(keys[0], (clients, 20, 128, 9)), jax.random.randint(keys[1], (clients, 20), 0, 6)
        items = (jax.vmap(model.init)(jax.random.split(keys[2], clients)), x, y)
        report["cnn1d"] = measure(cnn1d_rows(model), items, 50 if on_gpu else 4, repeats)
        show(f"cnn1d, UCI HAR shapes: {clients} clients, batch 20", report["cnn1d"])
    if "lstm" in chosen:
        clients, batch, length, count = (1 if options.quick else 10), 400, 25, 10_000
        vectors = jax.random.normal(keys[3], (count, 50))
        model = models.lstm((length,), 2, words=Words(count, np.asarray(vectors)))
        real = jnp.arange(length) < jax.random.randint(keys[1], (clients, batch, 1), 1, length + 1)
        x = jnp.where(real, jax.random.randint(keys[0], real.shape, 1, count), 0)
        y = jax.random.randint(keys[1], (clients, batch), 0, 2)
        items = (jax.vmap(model.init)(jax.random.split(keys[2], clients)), x, y)
        rows = lstm_rows(model, vectors, options.quick)
        report["lstm"] = measure(rows, items, 50 if on_gpu else 1, repeats)
        show(f"lstm, Sent140 shapes: {clients} clients, batch 400, 25 words", report["lstm"])
    if "charlstm" in chosen:
        clients = 1 if options.quick else 10
        model = models.charlstm((80,), 80, words=Words(82))
        x, y = jax.random.randint(keys[0], (clients, 20, 80), 2, 82), jax.random.randint(keys[1], (clients, 20), 0, 80)
        items = (jax.vmap(model.init)(jax.random.split(keys[2], clients)), x, y)
        report["charlstm"] = measure(charlstm_rows(model), items, 50 if on_gpu else 1, repeats)
        show(f"charlstm, Shakespeare shapes: {clients} clients, batch 20, 80 characters", report["charlstm"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
