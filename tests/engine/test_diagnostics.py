"""Diagnostics: averages over the clients of what ``train`` reports, which cost nothing when nobody asks for them."""

import dataclasses
import functools
import json
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from support.backends import backend, federation, task_for, trained
from support.poison import poisoned

import pfedbred
from pfedbred.engine.round import Shared
from pfedbred.report import page
from pfedbred.report.content import add_record
from pfedbred.runs.metrics_file import read_points

SIZES = (7, 12, 5, 20, 9)
DATA = federation(SIZES)


@functools.cache
def reporting(costly=False):
    """FedAvg that reports its number of samples, and if asked the length of a full gradient."""
    task = task_for(DATA)
    fedavg = pfedbred.make("fedavg", task, {"R": 2})

    def train(message, state, data):
        info = {"samples": data.size.astype(jnp.float32)}
        if costly:
            gradient = task.full_gradient(message, data)
            info["gradient"] = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
        return *fedavg.client.train(message, state, data)[:2], info

    return fedavg._replace(client=fedavg.client._replace(train=train))


def norms_of_updates(made, state):
    """||upload - G|| of every client, from the uploads."""
    shared = Shared(made.shards, state.key[0], jax.tree.map(lambda leaf: leaf[0], state.server), {})
    records = jax.tree.map(lambda leaf: leaf[0], state.clients)
    uploads = jax.jit(made.round.train)(shared, (jnp.arange(len(SIZES)), records)).upload
    start = jax.tree.leaves(made.global_model(state))
    flat = [
        (np.asarray(leaf) - np.asarray(old)).reshape(len(SIZES), -1)
        for leaf, old in zip(jax.tree.leaves(uploads), start, strict=True)
    ]
    return np.linalg.norm(np.concatenate(flat, axis=1), axis=1)


def test_diagnostics_are_means_over_the_clients_that_trained():
    """In every round anew; before the first there are none."""
    made, state = trained(reporting(), DATA, rounds=0, select=(0, 3), diagnostics=True)
    before = made.diagnostics(state)
    assert all(np.isnan(values).all() for values in before.values())
    for _ in range(2):
        expected = np.mean(norms_of_updates(made, state))
        state = made.advance(state, 1)
        found = made.diagnostics(state)
        assert found.keys() == before.keys() == {"update_norm", "samples"}
        assert found["update_norm"] == pytest.approx([expected], rel=1e-9)
        assert found["samples"] == pytest.approx([np.mean(SIZES)])  # all train, and two are averaged


@pytest.mark.full
def test_only_the_cohort_counts_if_only_it_trains():
    made, state = trained(reporting(), DATA, select=(0, 3), participation="sample", diagnostics=True, rounds=1)
    assert made.diagnostics(state)["samples"] == pytest.approx([np.mean([7, 20])])


@pytest.mark.full
def test_rejected_updates_do_not_count():
    made, state = trained(poisoned(reporting(), [1]), DATA, diagnostics=True, rounds=1)
    found = made.diagnostics(state)
    assert made.rejections(state).rejected == [{"1": 1}]
    assert found["samples"] == pytest.approx([np.mean([7, 5, 20, 9])])
    assert np.isfinite(found["update_norm"]).all()


@pytest.mark.broad
@pytest.mark.parametrize(
    "options",
    [
        {"streamed": True},
        pytest.param({"executor": "vmap"}, marks=pytest.mark.full),
        pytest.param({"executor": "loop"}, marks=pytest.mark.full),
        pytest.param({"executor": "loop", "streamed": True}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_backends_and_executors_agree(options):
    runs = [
        trained(reporting(), DATA, participation="sample", diagnostics=True, seeds=(0, 1), rounds=2, **each)
        for each in ({}, options)
    ]
    expected, found = (made.diagnostics(state) for made, state in runs)
    assert found.keys() == expected.keys() == {"update_norm", "samples"}
    for name, values in expected.items():
        assert values.shape == (2,)
        np.testing.assert_allclose(found[name], values, rtol=1e-9)


def returning(info):
    """FedAvg whose ``train`` returns this as its diagnostics."""
    fedavg = pfedbred.make("fedavg", task_for(DATA), {"R": 1})

    def train(message, state, data):
        return *fedavg.client.train(message, state, data)[:2], info

    return fedavg._replace(client=fedavg.client._replace(train=train))


def test_a_diagnostic_may_be_a_plain_number():
    made, state = trained(returning({"steps": 3, "shrunk": 0.5}), DATA, diagnostics=True, rounds=1)
    found = made.diagnostics(state)
    assert (found["steps"], found["shrunk"]) == ([3.0], [0.5])


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (None, "the diagnostics of train must map names to numbers, not be None"),
        ([1.0], r"the diagnostics of train must map names to numbers, not be \[1.0\]"),
        ({"v": np.ones(5)}, r"v, a diagnostic of train, must be one number, not an array of shape \(5,\)"),
    ],
    ids=["none", "list", "array"],
)
def test_diagnostics_that_are_no_numbers_are_refused_in_one_line(info, message):
    with pytest.raises(pfedbred.SettingError, match=message):
        trained(returning(info), DATA, diagnostics=True, rounds=1)


def instructions(algorithm, diagnostics):
    """How many a compiled round has, and its FLOP."""
    made = backend(algorithm, DATA, select=(0, 3), diagnostics=diagnostics)
    state = made.init([0])
    assert (jax.tree.leaves(state.info) == []) == (not diagnostics)
    made.advance(state, 1)
    program = made._advance._programs[1]
    return sum(" = " in line for line in program.as_text().splitlines()), program.cost_analysis()["flops"]


@pytest.mark.broad
@pytest.mark.full
def test_diagnostics_that_nobody_asks_for_cost_nothing():
    """A round that reports a full gradient is as large as one that reports nothing; with diagnostics it is larger."""
    fedavg = reporting()
    silent = fedavg._replace(
        client=fedavg.client._replace(train=lambda *given: fedavg.client.train(*given)[:2])  # as if it had no info
    )
    count, work = instructions(silent, diagnostics=False)
    assert instructions(reporting(costly=True), diagnostics=False) == (count, work)
    count_on, work_on = instructions(reporting(costly=True), diagnostics=True)
    assert count_on > count
    assert work_on > work


@pytest.mark.broad
@pytest.mark.parametrize("options", [{}, {"participation": "sample", "store": "memory"}])
def test_whole_numbers_are_averaged_as_numbers(options):
    def counting(task):
        made = pfedbred.make("fedavg", task, {"R": 1})

        def train(message, state, data):
            return (*made.client.train(message, state, data)[:2], {"samples": data.size})

        return made._replace(client=made.client._replace(train=train))

    done = pfedbred.run(
        dataset=small_federation(),
        algorithm=counting,
        rounds=2,
        aggregated=4,
        batch_size=2,
        diagnostics=True,
        **options,
    )
    assert done.points[-1].diagnostics["samples"] == pytest.approx(np.mean([7, 12, 5, 20]))


# What describes each client ----------------------------------------------------------------------------------------

LEARNED = {"algorithm": "learned-prior", "settings": {"R": 2, "lam": "learned(client x layer)"}, "seeds": 2}
LEARNED |= {"rounds": 3, "aggregated": 4, "batch_size": 2, "model": "dnn", "diagnostics": True}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    return pfedbred.run(**LEARNED, federation=small_federation(), out=tmp_path_factory.mktemp("described") / "run")


def test_the_strength_of_every_client_is_recorded_at_evaluations(described):
    """It is what the client would train with next; the mean over clients in the next round's diagnostics."""
    points = described.points
    assert all(point.described["strength_hidden"].shape == (2, 4) for point in points)
    for before, after in pairwise(points):
        for name, values in before.described.items():
            np.testing.assert_allclose(values.mean(axis=1), after.diagnostics[name], rtol=1e-5)
    assert np.ptp(points[-1].described["strength_hidden"], axis=1).min() > 0


def test_recorded_strengths_are_read_again_and_folders_without_them_too(described, tmp_path):
    found = read_points(described.folder)
    for one, other in zip(described.points, found, strict=True):
        for name, values in one.described.items():
            np.testing.assert_allclose(other.described[name], values, rtol=1e-3)
    lines = [json.loads(line) for line in (described.folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["client_diagnostics"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [point.described for point in read_points(tmp_path)] == [{}] * len(lines)
    lines[0]["client_diagnostics"] = {"strength_hidden": [[1.0], [2.0]]}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[0]))
    with pytest.raises(pfedbred.SettingError, match="'strength_hidden' is not of all seeds and clients"):
        read_points(tmp_path)


def test_the_page_has_a_map_of_clients_and_rounds_for_each_layer(described):
    (shown,) = page.gather([described.folder])["runs"]
    maps = shown["described"]["maps"]
    assert [each["name"] for each in maps] == ["strength_hidden", "strength_output"]
    assert all(each["strength"] for each in maps)
    assert maps[0]["clients"] == maps[1]["clients"]
    last = np.exp(np.log(described.points[-1].described["strength_output"]).mean(axis=0))
    found = dict(zip(maps[1]["clients"], [row[-1] for row in maps[1]["rows"]], strict=True))
    names = list(map(str, range(4)))
    np.testing.assert_allclose([found[name] for name in names], last, rtol=1e-3)
    assert shown["described"]["rounds"] == [1, 2, 3]


def test_the_page_shows_other_numbers_of_clients_as_they_are(described):
    """Their arithmetic means, which may be negative, each sorted on its own; a strength that is 0 has no logarithm."""
    run = described.record()
    change = np.array([[-3.0, 0.0, 2.0, -1.0], [-1.0, 0.0, 4.0, -3.0]])
    strength = np.array([[1.0, 100.0, 0.0, 10.0], [1.0, 1.0, 1.0, 10.0]])
    points = [point._replace(described={"change": change, "strength": strength}) for point in run.points]
    content = {"metrics": [], "platforms": [], "runs": []}
    add_record(dataclasses.replace(run, points=points), list("abcd"), np.arange(4), content, None)
    moved, held = content["runs"][0]["described"]["maps"]
    assert (moved["name"], moved["strength"], moved["clients"]) == ("change", False, ["a", "d", "b", "c"])
    assert moved["rows"] == [[-2.0] * 3, [-2.0] * 3, [0.0] * 3, [3.0] * 3]
    assert (held["name"], held["strength"], held["clients"]) == ("strength", True, ["a", "b", "d", "c"])
    assert held["rows"] == [[1.0] * 3, [10.0] * 3, [10.0] * 3, [None] * 3]


@pytest.mark.full
@pytest.mark.parametrize("options", [{"store": "memory", "participation": "sample"}, {"executor": "loop"}], ids=str)
def test_every_backend_and_executor_records_strengths(described, options):
    usual = described if "store" not in options else None
    usual = usual or pfedbred.run(**LEARNED, federation=small_federation(), participation="sample")
    other = pfedbred.run(**LEARNED, federation=small_federation(), **options)
    for one, two in zip(usual.points, other.points, strict=True):
        for name, values in one.described.items():
            np.testing.assert_allclose(two.described[name], values, rtol=2e-3)


def test_without_diagnostics_or_a_learned_strength_nothing_is_recorded():
    for change in ({"diagnostics": False}, {"settings": {"R": 2, "lam": 5.0}}):
        run = pfedbred.run(**{**LEARNED, "rounds": 1, **change}, federation=small_federation())
        assert [point.described for point in run.points] == [{}] * len(run.points)
