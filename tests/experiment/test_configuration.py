"""Experiments: every option reaches what it is for."""

import itertools

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred import Experiment
from pfedbred.engine import metrics, selection
from pfedbred.experiment.building import build, load_data
from pfedbred.experiment.command import command
from pfedbred.experiment.resume import changed_options


def experiment(**options):
    return Experiment.from_mapping({"algorithm": "fedavg", "clients": 10, "rounds": 2, "settings": {"R": 2}, **options})


def test_options_reach_the_plan():
    given = {"participation": "sample", "weights": "uniform", "batch_size": 7, "executor": "vmap", "chunk": 3}
    plan = build(experiment(**given)).backend.plan
    assert {name: getattr(plan, name) for name in given} == given
    default = build(experiment()).backend.plan
    assert all(getattr(default, name) != value for name, value in given.items())


@pytest.mark.parametrize(
    ("options", "chosen"),
    [({"select": "0,3,5"}, [0, 3, 5]), ({"select": [4]}, [4]), ({"aggregated": 7}, 7), ({}, 10), ({"clients": 20}, 4)],
)
def test_selection_and_how_many(options, chosen):
    """A fifth of the clients by default."""
    backend = build(experiment(**options)).backend
    got = np.asarray(backend.plan.select(backend.init([0]).key[0], backend.shards.sizes)).tolist()
    assert got == chosen if isinstance(chosen, list) else len(got) == chosen


def test_the_seed_and_the_split_seed():
    assert experiment(seed=5, seeds=3).seed_list == [5, 6, 7]
    first, second = pfedbred.run(experiment(seeds=2)).accuracy("personal").T
    assert not np.array_equal(first, second)
    splits = [load_data(experiment(split_seed=seed)).train.sizes for seed in (0, 1)]
    assert not np.array_equal(*splits)


def test_an_experiment_made_by_hand_is_checked_and_filled_in():
    by_hand = build(Experiment(algorithm="fedavg", clients=10, rounds=2, settings={"R": 2})).experiment
    assert by_hand.aggregated == 10
    assert by_hand == build(experiment()).experiment
    with pytest.raises(pfedbred.SettingError, match="rounds must be"):
        pfedbred.run(Experiment(rounds=0))


@pytest.mark.parametrize("given", [{"dataset": small_federation()}, {"clients": 10}], ids=["own data", "named"])
def test_an_experiment_is_checked_once(given, monkeypatch):
    """However it is built, and its metrics are resolved with it."""
    checked, resolved = [], []
    monkeypatch.setattr(Experiment, "_settings", lambda self, algorithm: checked.append(1) or {"R": 1})
    resolve = metrics.resolve
    monkeypatch.setattr(metrics, "resolve", lambda given, *kind: resolved.append(given) or resolve(given, *kind))
    made = []

    def own():
        made.append(1)
        return metrics.get("f1")

    build(Experiment(algorithm="fedavg", metrics=[own], **given))
    assert len(checked) == len(made) == 1
    assert len([each for each in resolved if each]) == 1, resolved  # "" stands for the metrics of training samples


def test_a_custom_federation_must_fit():
    federation = pfedbred.load("digits", clients=10)
    with pytest.raises(pfedbred.SettingError, match="for 20 clients, the federation has 10"):
        pfedbred.run(Experiment(clients=20), federation=federation)
    result = pfedbred.run(federation=federation, rounds=np.int64(2), settings={"lam": np.float32(3), "R": 2})
    assert result.experiment.settings["lam"] == 3.0


def test_accuracy_by_model_and_split():
    result = pfedbred.run(experiment(algorithm="pfedme"))
    for model, scores in (("global", "global_"), ("personal", "personal")):
        for split in ("train", "test"):
            expected = [getattr(getattr(point.scores, scores), split).accuracy for point in result.points]
            np.testing.assert_array_equal(result.accuracy(model, split), expected)
    assert not np.array_equal(result.accuracy("personal", "train"), result.accuracy("personal", "test"))


def test_size_counts_once_in_the_selection_or_in_the_average():
    def weights(**given):
        return Experiment.from_mapping(given).weights

    assert weights() == "data"
    assert weights(select="by-data") == "uniform"
    assert weights(select=selection.by_data) == "uniform"
    assert weights(select="by-data", weights="data") == "data"
    assert weights(select=[0, 1], weights=None) == "data"


def test_the_command_says_weights_that_are_not_the_usual_ones():
    for given in ({"select": "by-data"}, {"select": "by-data", "weights": "data"}, {}, {"weights": "uniform"}):
        plain = Experiment.from_mapping(given).plain()
        said = command(plain).split()
        again = {name.lstrip("-"): value for name, value in itertools.pairwise(said) if name.startswith("--")}
        options = {name: again[name] for name in ("select", "weights") if name in again}
        assert Experiment.from_mapping(options).weights == plain["weights"]
    assert "--weights" not in command(Experiment.from_mapping({}).plain())


def test_per_fedavg_of_before_took_two_steps():
    """Its records do not mention how many: an interrupted run is resumed with two, and with one it is another run."""

    def plain(**settings):
        return Experiment(algorithm="per-fedavg+ft", settings=settings).checked().plain()

    before = plain(adapt_steps=2)
    del before["settings"]["adapt_steps"]
    assert changed_options(before, plain(adapt_steps=2)) == []
    assert changed_options(before, plain()) == ["adapt_steps 2, now 1"]


@pytest.mark.parametrize(("clients", "averaged"), [(1, 1), (6, 6), (10, 10), (11, 2), (100, 20)])
def test_all_of_a_few_clients_are_averaged(clients, averaged):
    """Of six clients a fifth would be one: FedAvg would be the training of a single client."""
    assert pfedbred.Experiment(dataset="digits", clients=clients).checked().aggregated == averaged
