"""Malicious clients: what attacks cost each aggregation rule, and whom screening rejects.

    python benchmarks/attacks.py [--rules mean,median] [--seeds 5] [--rounds 100] [--clients 20] [--aggregated 4]
                                  [--unscreened]

FedAvg on digits over 20 clients, with i.i.d. data and with three labels a client as in the paper. Each seed has its own
attackers. "absent" is what the attackers' silence costs: with few labels a client nobody else may have their data, so
that no defence can do better. All clients are averaged, unless --aggregated says how many of them. Under each rule, all
attacks and seeds are one program. With --unscreened only updates that are not finite are rejected.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import typer

import pfedbred

pfedbred.use_all_cores()

from pfedbred import aggregation  # noqa: E402
from pfedbred.engine import screening, selection  # noqa: E402
from pfedbred.engine.round import Round  # noqa: E402
from pfedbred.engine.varying import Varying  # noqa: E402


class Attack(NamedTuple):
    """What attackers send: ``scale`` times their update, perhaps trained on labels c - 1 - y, perhaps agreed upon."""

    scale: float
    flips_labels: bool = False
    alie: bool = False


ATTACKS = {
    "absent": Attack(np.nan),
    "sign flip": Attack(-1),
    "times -10": Attack(-10),
    "times 10": Attack(10),
    "times -90": Attack(-90),
    "label flip": Attack(1, flips_labels=True),
    "label flip, times 10": Attack(10, flips_labels=True),
    # Baruch et al., "A Little Is Enough", NeurIPS 2019: all send mean - z std of the honest updates.
    "ALIE, z = 1.5": Attack(1.5, alie=True),
}
FRACTIONS = (0.1, 0.2)


def attackers(settings: Mapping[str, Any], clients: int) -> Any:
    """Which clients attack: as many as the settings say, others in each seed."""
    order = jax.random.permutation(jax.random.key(settings["pick"].astype(jnp.uint32)), clients)
    return order < settings["count"]


def attacked(round_: Round, classes: int, owners: np.ndarray, clients: int) -> Callable[..., Any]:
    """The training of a round's clients, with what the attackers send in place of their uploads."""
    honest_training = round_.train

    def train(shared: Any, items: Any, costs: Any) -> Any:
        own, shards = shared.settings, shared.shards
        bad_clients = attackers(own, clients)
        flips = bad_clients[owners] & (own["flips_labels"] > 0)
        labels = jnp.where(flips, classes - 1 - shards.y, shards.y)
        trained = honest_training(shared._replace(shards=shards._replace(y=labels)), items, costs)
        client, server = round_.algorithm(own)[:2]
        numbers = shards.numbers[items[0]]
        bad = bad_clients[numbers]
        start = jax.vmap(lambda number: client.unchanged(server.send(shared.server, number)))(numbers)

        def sent(new: Any, old: Any) -> Any:
            update, shape = new - old, (-1, *(1,) * (new.ndim - 1))
            honest = (~bad).astype(new.dtype).reshape(shape) / jnp.sum(~bad)
            mean = jnp.sum(honest * update, 0)
            std = jnp.sqrt(jnp.sum(honest * (update - mean) ** 2, 0))
            evil = jnp.where(own["alie"] > 0, mean - own["scale"] * std, own["scale"] * update)
            return jnp.where(bad.reshape(shape), old + evil, new)

        upload = jax.tree.map(sent, trained.upload, start)
        return trained._replace(upload=upload, norms=jax.vmap(screening.measure)(start, upload, trained.state))

    return train


class Found(NamedTuple):
    """Of each run: G's test accuracy, and the fractions of attackers' and of honest updates that were rejected."""

    accuracy: np.ndarray
    caught: np.ndarray
    wronged: np.ndarray


def simulate(federation: Any, plan: Any, settings: dict[str, np.ndarray], rounds: int) -> Found:
    """All runs with one plan, in one program."""
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes))
    fedavg = pfedbred.make("fedavg", task)
    backend = pfedbred.ResidentBackend(fedavg, task, federation, plan, Varying(lambda own: fedavg))
    owners = np.repeat(np.arange(federation.clients), federation.train.sizes)
    backend.round.train = attacked(backend.round, federation.classes, owners, federation.clients)
    seeds = settings["pick"].astype(int).tolist()
    states = backend.advance(backend.init(seeds, settings), rounds)
    accuracy = 100 * backend.evaluate(states).global_.test.accuracy
    rejected = np.asarray(states.clients.rejected) / rounds
    runs = [{name: jnp.asarray(values[i]) for name, values in settings.items()} for i in range(len(seeds))]
    bad = np.stack([np.asarray(attackers(each, federation.clients)) for each in runs])
    caught, wronged = (np.where(who, rejected, 0).sum(1) / np.maximum(who.sum(1), 1) for who in (bad, ~bad))
    return Found(accuracy, caught, wronged)


def runs_of(cases: list[tuple[str, float]], clients: int, seeds: int) -> dict[str, np.ndarray]:
    """The settings of all runs: a case after another, with all its seeds."""
    each = [ATTACKS.get(name, Attack(1)) for name, _ in cases]
    columns = {name: [getattr(attack, name) for attack in each] for name in Attack._fields}
    columns["count"] = [round(fraction * clients) for _, fraction in cases]
    own = {name: np.repeat(np.asarray(values, float), seeds) for name, values in columns.items()}
    return {**own, "pick": np.tile(np.arange(float(seeds)), len(cases))}


@dataclasses.dataclass(frozen=True)
class Claims(pfedbred.Plan):
    """As if client 0 had claimed 2^24 samples."""

    def gather(self, uploads: Any, numbers: Any, sizes: Any, valid: Any, key: Any, typical: Any = None) -> Any:
        """With the claim in place of its number."""
        return super().gather(uploads, numbers, jnp.where(numbers == 0, 2**24, sizes), valid, key, typical)


def show_attacks(federation: Any, rules: list[str], rounds: int, seeds: int, aggregated: int) -> None:
    """A table for each rule."""
    cases = [("none", 0.0), *((name, fraction) for name in ATTACKS for fraction in FRACTIONS)]
    settings = runs_of(cases, federation.clients, seeds)
    for rule in rules:
        plan = pfedbred.Plan(selection.uniform(aggregated), rule=aggregation.get(rule))
        found = simulate(federation, plan, settings, rounds)
        accuracy, caught, wronged = (column.reshape(len(cases), seeds).mean(1) for column in found)
        print(f"\n{rule}: {'attack':<22}attackers      G  change  attackers rejected  honest rejected")
        for i, (name, fraction) in enumerate(cases):
            rejected = f"{caught[i]:>15.1%}" if fraction else " " * 15
            change = accuracy[i] - accuracy[0]
            print(
                f"{'':{len(rule) + 2}}{name:<22}{fraction:>9.0%}  {accuracy[i]:5.1f}  {change:+6.1f}     {rejected}"
                f"  {wronged[i]:>14.2%}",
                flush=True,
            )


def show_claims(federation: Any, rounds: int, seeds: int) -> None:
    """One client that claims 2^24 samples and flips its update: with its weight bounded, and believed."""
    first = (
        seed for seed in range(10**6) if bool(attackers({"pick": jnp.uint32(seed), "count": 1}, federation.clients)[0])
    )
    settings = runs_of([("none", 0.0)], federation.clients, seeds)
    settings["pick"] = np.asarray(list(itertools.islice(first, seeds)), float)  # seeds in which client 0 attacks
    print("\none client claims 2^24 samples, and sends an honest update or a flipped one:")
    for weights in ("data", "unbounded"):
        scores = []
        for scale in (1.0, -1.0):
            plan = Claims(selection.uniform(federation.clients), weights=weights)
            own = {**settings, "scale": np.full(seeds, scale), "count": np.ones(seeds)}
            scores.append(simulate(federation, plan, own, rounds).accuracy.mean())
        print(f"  weights {weights:<10} G {scores[0]:5.1f} and {scores[1]:5.1f}", flush=True)


def finite(norms: screening.Norms, *rest: Any, **others: Any) -> Any:
    """In place of screening: all updates that are finite are valid."""
    return jnp.isfinite(norms.update)


def main(
    rules: str = "mean,median,trimmed,clipped,krum",
    seeds: int = 5,
    rounds: int = 100,
    clients: int = 20,
    aggregated: int | None = None,
    unscreened: bool = False,
) -> None:
    """Prints the tables."""
    if unscreened:
        mock.patch.object(screening, "screen", finite).start()
    for split in ("iid", "paper"):
        federation = pfedbred.load("digits", split=split, clients=clients)
        print(f"\n== digits, {split}, {federation.clients} clients, FedAvg, {rounds} rounds, {seeds} seeds", flush=True)
        show_attacks(federation, rules.split(","), rounds, seeds, aggregated or clients)
        if split == "iid" and aggregated is None:
            show_claims(pfedbred.load("digits", split=split, clients=clients // 2), rounds, seeds)


if __name__ == "__main__":
    typer.run(main)
