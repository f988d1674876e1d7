"""How long a round takes: the compiled engine beside a plain PyTorch loop, and beside what the machine can do.

    python benchmarks/rounds.py                       # mclr, dnn, cnn, lstm with mg-meta
    python benchmarks/rounds.py --models dnn --methods fedavg,pfedme,mg-meta,per-fedavg,fedem,fedamp
    python benchmarks/rounds.py --models pfllib-cnn,resnet18 --local-steps 1 --methods fedavg,mg-meta
    python benchmarks/rounds.py --no-torch            # where there is no PyTorch
    python benchmarks/rounds.py --against ../old      # in turns with another checkout: the ratio old to new

Data are random, in the shapes of the paper's experiments or of CIFAR-10: they change nothing in the time. Both sides
train all clients in every round and average a fifth of them, with R = 20, K = 5. Times are medians of rounds that were
not the first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pfedbred

pfedbred.use_all_cores()

import jax  # noqa: E402
import jax.extend  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pfedbred.data.federation import Federation, Split, offsets_of  # noqa: E402
from pfedbred.data.minibatches import Batch  # noqa: E402
from pfedbred.data.text import Text  # noqa: E402
from pfedbred.experiment.building import build  # noqa: E402


class Shapes(NamedTuple):
    """Of one column of the paper's table, or of another network."""

    sample: tuple[int, ...]
    classes: int
    clients: int
    samples: int  # of each client
    batch_size: int
    words: int = 0


SHAPES = {
    "mclr": Shapes((28, 28), 10, 100, 440, 20),
    "dnn": Shapes((28, 28), 10, 100, 440, 20),
    "cnn": Shapes((32, 32, 3), 10, 20, 2000, 20),
    "lstm": Shapes((25,), 2, 10, 800, 400, 5000),
    "pfllib-cnn": Shapes((32, 32, 3), 10, 20, 200, 10),  # this and the next are not of the paper
    "resnet18": Shapes((32, 32, 3), 10, 4, 200, 20),
}
GRADIENTS = {"fedavg": 1, "per-fedavg": 2, "pfedme": 5, "mg-meta": 7, "fedamp": 1, "fedem": 3}  # of a local step


def federation(shapes: Shapes) -> Federation:
    """Random samples of those shapes."""
    rng = np.random.default_rng(0)
    rows = shapes.clients * shapes.samples
    if shapes.words:
        x: np.ndarray = rng.integers(2, shapes.words, (rows, *shapes.sample)).astype(np.int32)
    else:
        x = rng.integers(0, 256, (rows, *shapes.sample), dtype=np.uint8)
    y = rng.integers(0, shapes.classes, rows).astype(np.int32)
    train = Split(x, y, offsets_of([shapes.samples] * shapes.clients))
    test = Split(x[: shapes.clients * 10], y[: shapes.clients * 10], offsets_of([10] * shapes.clients))
    text = Text(tuple(map(str, range(shapes.words - 2)))) if shapes.words else None
    scale = None if shapes.words else np.asarray(1 / 255, np.float32)
    return Federation("random", train, test, shapes.classes, scale and np.zeros((), np.float32), scale, text)


def ours(model: str, method: str, shapes: Shapes, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a round, of compiling, and of an evaluation."""
    rounds, seeds = options.rounds, options.seeds
    experiment = pfedbred.Experiment(
        model=model,
        algorithm=method,
        batch_size=shapes.batch_size,
        executor=options.executor,
        batch_norm="group",  # as in the PyTorch network; of those here, only ResNet-18 is normalised
        settings={"R": options.local_steps},
    )
    backend = build(experiment, federation(shapes)).backend
    state = jax.block_until_ready(backend.advance(backend.init(range(seeds)), 1))
    compiled = backend.compile_seconds
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        state = jax.block_until_ready(backend.advance(state, 1))
        times.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    state = jax.block_until_ready(backend.advance(state, 5))
    five = (time.perf_counter() - begun) / 5
    backend.evaluate(state)
    begun = time.perf_counter()
    backend.evaluate(state)
    evaluation = time.perf_counter() - begun
    return {"round": min(statistics.median(times), five), "compile": compiled, "evaluation": evaluation}


def torch_loop(model: str, method: str, shapes: Shapes, rounds: int, local_steps: int, device: str) -> float:
    """Seconds of a round of the plain loop."""
    import torch
    from torch_loop import Loop, network

    torch.manual_seed(0)
    data = federation(shapes).train
    x = torch.tensor(data.x).long() if shapes.words else torch.tensor(data.x).float() / 255
    shape = shapes.sample
    if len(shape) == 3:
        x, shape = x.permute(0, 3, 1, 2).contiguous(), (3, 32, 32)
    net = network(model, shape, shapes.classes, shapes.words).to(device)
    y = torch.tensor(data.y).long().to(device)
    loop = Loop(net, x.to(device), y, shapes.clients, shapes.batch_size, local_steps)
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        loop.round(method, max(1, shapes.clients // 5))
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def work(model: str, method: str, shapes: Shapes, local_steps: int) -> tuple[float, float]:
    """FLOP of a round's gradients as they are written, and the bytes of their params, read and written once each.

    Steps taken in coordinates (pfedbred.bregman.first_layer) do less, so a rate above the machine's is possible.
    """
    data = federation(shapes)
    network = pfedbred.models.get(model, data.shape, data.classes, data.words)
    params = jax.eval_shape(network.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((shapes.batch_size, *shapes.sample), jnp.int32 if shapes.words else jnp.float32)
    batch = Batch(x, jax.ShapeDtypeStruct((shapes.batch_size,), jnp.int32))  # type: ignore[arg-type]
    gradient = jax.make_jaxpr(jax.grad(pfedbred.Task(network).loss))(params, batch)
    steps = GRADIENTS[method] * local_steps * shapes.clients
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return products(gradient.jaxpr) * steps, 4.0 * size * steps


def products(program: Any) -> float:
    """FLOP of a program's matrix products and convolutions, loops counted as often as they run."""
    total = 0.0
    for equation in program.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += (
                2.0 * equation.outvars[0].aval.size * np.prod([equation.invars[0].aval.shape[i] for i in contracted])
            )
        if equation.primitive.name == "convolve":  # the library's
            shapes = equation.params["convolution"]
            total += 2.0 * np.prod(shapes.y) * np.prod(shapes.k) / shapes.k[shapes.dimension_numbers.rhs_spec[0]]
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += times * sum(products(inner) for inner in jax.extend.core.jaxprs_in_params(equation.params))
    return total


def limits() -> tuple[float, float]:
    """What a large matrix product and a copy reach here, in FLOP/s and bytes/s."""
    large = jax.default_backend() != "cpu"
    size = 8192 if large else 2048
    a = jnp.ones((size, size))
    product = jax.jit(lambda a: a @ a)
    seconds = best_of(lambda: product(a).block_until_ready())
    long = jnp.ones(2**29 if large else 2**26)
    copy = jax.jit(lambda v: v + 1)
    return 2 * size**3 / seconds, 2 * long.nbytes / best_of(lambda: copy(long).block_until_ready())


def best_of(run: Callable[[], Any]) -> float:
    """Seconds, the best of five."""
    run()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


def compare(options: argparse.Namespace) -> None:
    """Prints the time of a round in another checkout and in this one, which take turns, and their ratio.

    Each runs its own benchmark in a process of its own. The machine's speed changes with time, so turns are compared
    with each other, and the median of their ratios is what counts.
    """
    checkouts = [Path(options.against).resolve(), Path(__file__).resolve().parent.parent]
    print(f"{'model':<11}{'method':<12}{'old':>12}{'new':>12}{'ratio old to new':>19}  lowest and highest")
    for model in options.models.split(","):
        for method in options.methods.split(","):
            turns = [[_measured(each, model, method, options) for each in checkouts] for _ in range(options.turns)]
            old, new = (1000 * statistics.median(times) for times in zip(*turns, strict=True))
            ratios = sorted(before / after for before, after in turns)
            print(
                f"{model:<11}{method:<12}{old:>9.1f} ms{new:>9.1f} ms{statistics.median(ratios):>19.3f}"
                f"  {ratios[0]:.3f} {ratios[-1]:.3f}",
                flush=True,
            )


def _measured(checkout: Path, model: str, method: str, options: argparse.Namespace) -> float:
    """Seconds of a round in that checkout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        given = {"rounds": options.rounds, "seeds": options.seeds, "local-steps": options.local_steps}
        given |= {"executor": options.executor, "models": model, "methods": method, "json": file}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, str(checkout / "benchmarks" / "rounds.py"), "--no-torch", *words]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        return float(json.loads(file.read_text(encoding="utf-8"))["rows"][0]["round"])


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mclr,dnn,cnn,lstm")
    parser.add_argument("--methods", default="mg-meta")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each side")
    parser.add_argument("--seeds", type=int, default=1, help="of our side")
    parser.add_argument("--local-steps", type=int, default=20, help="R; fewer for a quick look")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--against", help="another checkout, to take turns with")
    parser.add_argument("--turns", type=int, default=5, help="of both checkouts")
    options = parser.parse_args()
    if options.against:
        compare(options)
        return
    device = jax.devices()[0]
    print(
        f"{device.device_kind} x {jax.device_count()} ({jax.default_backend()}), {platform.machine()}, "
        f"jax {jax.__version__}"
    )
    flops, bandwidth = limits()
    print(f"a large matrix product: {flops / 1e9:,.0f} GFLOP/s; a copy: {bandwidth / 1e9:,.0f} GB/s")
    print(
        f"{'model':<11}{'method':<12}{'ours':>10}{'torch':>11}{'ratio':>8}{'compile':>9}{'evaluate':>10}"
        f"{'GFLOP/s':>10}{'GB/s':>8}"
    )
    records = []
    for model in options.models.split(","):
        for method in options.methods.split(","):
            shapes = SHAPES[model]
            mine = ours(model, method, shapes, options)
            on = "cpu" if jax.default_backend() == "cpu" else "cuda"
            theirs = None
            if not options.no_torch:
                theirs = torch_loop(model, method, shapes, options.rounds, options.local_steps, on)
            done, moved = (options.seeds * each for each in work(model, method, shapes, options.local_steps))
            ratio = f"{theirs / mine['round']:.1f}" if theirs else "-"
            print(
                f"{model:<11}{method:<12}{1000 * mine['round']:>7.1f} ms"
                f"{f'{1000 * theirs:.0f} ms' if theirs else '-':>11}{ratio:>8}{mine['compile']:>7.1f} s"
                f"{1000 * mine['evaluation']:>7.1f} ms"
                f"{done / mine['round'] / 1e9:>10,.0f}{moved / mine['round'] / 1e9:>8,.0f}",
                flush=True,
            )
            records.append({"model": model, "method": method, "seeds": options.seeds, "torch": theirs, **mine})
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": device.device_kind, "jax": jax.__version__, "rows": records}, file, indent=2)


if __name__ == "__main__":
    main()
