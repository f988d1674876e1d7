"""One FedAvg model with batch normalisation, evaluated with four kinds of statistics.

    python benchmarks/batch_statistics.py [--model resnet8] [--rounds 40] [--seeds 3] [--data-dir FOLDER]

CIFAR-10 by Dirichlet(0.1) among 20 clients, 20 steps of 0.05 on minibatches of 20, all clients averaged. The params
are the same in all rows. ``averaged`` and ``own`` are this library's G and, with ``--batch-norm local``, P; ``initial``
is what a server has that averages params alone and never sees data: mean 0, variance 1; ``minibatch`` is a network
that was left in training mode, on the clients' test samples in minibatches of 20.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import pfedbred

pfedbred.use_all_cores()

import jax  # noqa: E402

from pfedbred.models.base import WithStatistics  # noqa: E402
from pfedbred.runs.statistics import estimate  # noqa: E402

_BATCH = 20


def accuracy(predict: Any, federation: pfedbred.Federation) -> float:
    """In percent, over all test samples, each client's in minibatches."""
    test, right = federation.test, 0
    predict = jax.jit(predict)
    for start, stop in zip(test.offsets[:-1], test.offsets[1:], strict=True):
        for at in range(start, stop, _BATCH):
            x, y = test.x[at : min(at + _BATCH, stop)], test.y[at : min(at + _BATCH, stop)]
            logits = predict((x.astype(np.float32) - federation.shift) * federation.scale)
            right += int(np.sum(np.argmax(logits, -1) == y))
    return 100 * right / len(test.y)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    federation = pfedbred.load("cifar10", split="dirichlet(0.1)", clients=20, data_dir=options.data_dir)
    experiment = pfedbred.Experiment(
        model=options.model,
        algorithm="fedavg",
        settings={"alpha": 0.05},
        rounds=options.rounds,
        eval_every=options.rounds,
        seeds=options.seeds,
        aggregated=20,
        batch_size=_BATCH,
    )
    done = pfedbred.run(experiment, federation=federation)
    network = pfedbred.models.get(options.model, federation.shape, federation.classes)
    assert network.statistics is not None
    assert network.train is not None
    key = jax.random.key(0)
    rows: dict[str, Any] = {
        "averaged": 100 * done.accuracy("global")[-1],
        "own": 100 * done.accuracy("personal")[-1],
        "initial": [],
        "minibatch": [],
    }
    for seed in range(options.seeds):
        params = done.global_model(seed).params
        start = WithStatistics(params, network.statistics.init())
        rows["initial"].append(accuracy(lambda x, start=start: network.apply(start, x), federation))
        rows["minibatch"].append(accuracy(lambda x, params=params: network.train(params, x, key), federation))
    facts = federation.facts
    print("accuracy of G's params in percent, and the half-width of its 95 % interval over seeds")
    print(f"{jax.devices()[0].device_kind}, {options.model}, {options.rounds} rounds, {options.seeds} seeds; {facts}")
    for name, values in rows.items():
        found = estimate(np.asarray(values))
        print(f"{name:<10} {found.mean:6.2f} ± {found.half_width or 0:.2f}   {np.round(values, 2)}")


if __name__ == "__main__":
    main()
