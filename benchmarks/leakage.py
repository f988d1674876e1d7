"""What a server can infer from the uploads of logistic regression: label sets, and single samples.

    python benchmarks/leakage.py [--clients 20] [--rounds 20]

With the update (dW, db) of the linear layer, the bias of a label grows if the client has it and shrinks if it does not,
so that {c: db_c > 0} is a guess of its labels. Every step moves row c of W by the same number times x as it moves b_c,
so that a client with one sample x uploads dW_c / db_c = x; with more samples that is a weighted mean of them, in which
samples of label c count most.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import typer

import pfedbred
from pfedbred.algorithms.base import Task
from pfedbred.engine import Plan, selection
from pfedbred.engine.round import Round, Shared, new_record, shards_of
from pfedbred.types import Tree

METHODS = ("fedavg", "pfedme", "mg-meta")


def updates(
    federation: pfedbred.Federation, params: Tree, algorithm: str, **settings: float
) -> tuple[np.ndarray, np.ndarray]:
    """What each client's upload changes in the weight and in the bias of these params: a round of the simulation."""
    task = Task(pfedbred.models.get("mclr", federation.shape, federation.classes))
    made = pfedbred.make(algorithm, task, settings)
    passing_on = made._replace(server=made.server._replace(send=lambda params, i: params))
    numbers = np.arange(federation.clients)
    shards = jax.tree.map(jnp.asarray, shards_of(federation, numbers))
    records = jax.vmap(lambda _: new_record(made.client.init(params)))(numbers)
    train = jax.jit(Round(passing_on, Plan(selection.fixed([0])), "vmap", None).train)
    upload = train(Shared(shards, jax.random.key(0), params, {}), (numbers, records)).upload
    change = jax.tree.map(lambda after, before: np.asarray(after, float) - before, upload, params)["output"]
    return change["weight"], change["bias"]


def guessed(federation: pfedbred.Federation, params: Tree, algorithm: str) -> str:
    """Of how many clients the label set is guessed exactly."""
    present = federation.train.label_counts(federation.classes) > 0
    guess = updates(federation, params, algorithm)[1] > 0
    return f"{np.sum(np.all(guess == present, axis=1))} of {len(present)}"


def recovered(x: np.ndarray, y: np.ndarray, params: Tree, steps: int) -> np.ndarray:
    """A guess at a sample for each client along the first axis and each label."""
    samples = list(zip(x, y, strict=True))
    weight, bias = updates(pfedbred.from_clients(samples, samples), params, "fedavg", R=steps)
    return weight / bias[..., None]


def error(guesses: np.ndarray, x: np.ndarray, y: np.ndarray) -> str:
    """The relative error of the sample that is guessed best, by label: the median over clients."""
    distances = np.linalg.norm(np.take_along_axis(guesses, y[..., None], 1) - x, axis=-1) / np.linalg.norm(x, axis=-1)
    return f"{np.median(np.min(distances, axis=1)):.1g}"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table in Markdown."""
    lines = [[title, *columns], ["---"] * (1 + len(columns)), *rows]
    print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n", flush=True)


def main(clients: int = 20, rounds: int = 20, repeats: int = 20) -> None:
    """Prints two tables; the second one's entries are medians over ``repeats`` clients of random samples."""
    federation = pfedbred.load("digits", clients=clients)
    trained = pfedbred.run(federation=federation, algorithm="fedavg", rounds=rounds).global_model()
    new = pfedbred.models.get("mclr", federation.shape, federation.classes).init(jax.random.key(0))
    new, trained = jax.device_get((new, trained))
    rows = [[name, guessed(federation, new, name), guessed(federation, trained, name)] for name in METHODS]
    table("label sets guessed", ["first round", f"G after {rounds} rounds"], rows)
    inputs, labels = federation.inputs(federation.train), federation.train.y
    every, rng = np.asarray(inputs.take(np.arange(len(labels)))), np.random.default_rng(0)
    of_label = [every[labels == label] for label in range(federation.classes)]  # none of some, where clients are few
    means = np.stack([samples.sum(axis=0) / max(1, len(samples)) for samples in of_label])
    rows = []
    for count in (1, 2, 5, 20, 100):
        drawn = np.stack([rng.choice(len(every), count, replace=False) for _ in range(repeats)])
        x, y = every[drawn], labels[drawn]
        found = [error(recovered(x, y, new, steps), x, y) for steps in (1, 20)]
        rows.append([str(count), *found, error(np.broadcast_to(means, (repeats, *means.shape)), x, y)])
    table("samples of the client", ["error after 1 local step", "after 20", "of the label's mean"], rows)


if __name__ == "__main__":
    typer.run(main)
