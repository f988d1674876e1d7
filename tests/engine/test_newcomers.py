"""Newcomers: clients held out of training start from what the server sends to clients it has not met."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from support.page_folders import change_json

import pfedbred
from pfedbred.engine import newcomers
from pfedbred.experiment.building import build
from pfedbred.experiment.configuration import Experiment
from pfedbred.report.terminal import show_outcome
from pfedbred.runs.schema import read_summary

SIZES = (7, 12, 5, 20, 9, 11, 8, 30)


def run(algorithm, **options):
    return pfedbred.run(
        federation=small_federation(SIZES),
        algorithm=algorithm,
        rounds=3,
        held_out_clients=0.25,
        joining_rounds=2,
        **{"settings": {"R": 4}, **options},
    )


def accuracy(params, split, clients):
    """Of a linear model, on the samples of these clients, by hand."""
    x = np.concatenate([split.client(i)[0] for i in clients])
    y = np.concatenate([split.client(i)[1] for i in clients])
    layer = jax.tree.map(np.asarray, params["output"])
    return np.mean(np.argmax(x @ layer["weight"].T + layer["bias"], axis=1) == y)


def held_out(result):
    """Numbers of the clients that did not train."""
    trained = set(map(int, result.backend.federation.names))
    return [i for i in range(len(SIZES)) if i not in trained]


@pytest.mark.full
def test_training_does_not_see_newcomers():
    """The run is that of the other clients alone."""
    result = run("fedavg")
    assert len(held_out(result)) == 2
    others = small_federation(SIZES).take(np.array(sorted(map(int, result.backend.federation.names))))
    alone = pfedbred.run(federation=others, algorithm="fedavg", rounds=3, settings={"R": 4})
    jax.tree.map(np.testing.assert_array_equal, result.global_model(), alone.global_model())


@pytest.mark.broad
@pytest.mark.broad
def test_a_newcomer_starts_from_the_global_model():
    """pFedMe's newcomer starts at w, and so at first P is G, on the newcomers' own test samples."""
    result = run("pfedme", seeds=2)
    federation = small_federation(SIZES)
    assert len(result.newcomers) == 3
    for seed in (0, 1):
        expected = accuracy(result.global_model(seed), federation.test, held_out(result))
        assert result.newcomers[0].global_.test.accuracy[seed] == pytest.approx(expected)
        assert result.newcomers[0].personal.test.accuracy[seed] == pytest.approx(expected)
    first, last = result.newcomers[0].personal.train.loss, result.newcomers[-1].personal.train.loss
    assert np.all(last < first)
    for evaluation in result.newcomers:  # the server does not learn from them
        np.testing.assert_array_equal(evaluation.global_.test.loss, result.newcomers[0].global_.test.loss)


@pytest.mark.full
def test_a_newcomer_trains_alone():
    """With `local`, two rounds of joining are two rounds of that client's own SGD from the initial params."""
    result = run("local")
    alone = small_federation(SIZES).take(np.array(held_out(result)))
    trained = pfedbred.run(federation=alone, algorithm="local", rounds=2, settings={"R": 4}, select=[0, 1])
    np.testing.assert_allclose(
        result.newcomers[-1].personal.test.client_loss, trained.points[-1].scores.personal.test.client_loss, rtol=1e-5
    )


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["fedamp", "fedu"])
def test_servers_with_a_model_per_client_have_one_for_newcomers(algorithm):
    """It is the mean of the others'; a newcomer's number would point past the end of the server's table."""
    result = run(algorithm)
    new = small_federation(SIZES).take(np.array(held_out(result)))
    frozen = newcomers.frozen(result.backend.algorithm)
    state = jax.tree.map(lambda leaf: leaf[0], result.state.server)
    message = frozen.server.send(state, np.int32(0))
    expected = jax.tree.map(lambda leaf: np.mean(np.asarray(leaf), axis=0), state.model)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-6), message, expected)
    assert result.newcomers[0].personal.test.accuracy[0] == pytest.approx(accuracy(expected, new.test, [0, 1]))


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm", ["heurfedamp", "scaffold+ft", "fedem", "fedrep", "mime", "per-fedavg", "pfedbayes", "pfedvem"]
)
@pytest.mark.few_cases
def test_methods_that_send_more_than_a_model_welcome_newcomers(algorithm):
    """All others send every client the one model."""
    result = run(algorithm, model="dnn", settings={"R": 2})
    for evaluation in result.newcomers:
        assert np.all(np.isfinite(evaluation.personal.test.loss))
        assert evaluation.personal.test.client_accuracy.shape == (1, 2)


def unlike_the_others(task):
    """Every client's update is the same, but that of the client with 30 samples is opposite and much longer."""

    def train(message, state, data):
        sign = jnp.where(data.size == 30, -100.0, 1.0)
        moved = jax.tree.map(lambda leaf: leaf * (1 + sign / 2), message)
        return moved, moved

    client = pfedbred.Client(lambda message: message, train, lambda message, state, data: state, draws=1)
    return pfedbred.Algorithm(client, pfedbred.averaging_server(task), task.model.apply)


@pytest.mark.broad
def test_newcomers_do_not_depend_on_each_other():
    """In a run, the client unlike the others would be rejected and keep its state."""
    federation = small_federation((5, 6, 7, 8, 9, 10, 11, 30))
    backend = build(Experiment(federation, algorithm=unlike_the_others)).backend
    trained = backend.advance(backend.init([0]), 1)
    np.testing.assert_array_equal(trained.clients.rejected[0], [0] * 7 + [1])
    state = backend.init([0])
    together = newcomers.join(backend, state, federation, rounds=2)[-1]
    for i in (0, 7):
        alone = newcomers.join(backend, state, federation.take(np.array([i])), rounds=2)[-1]
        np.testing.assert_allclose(
            together.personal.train.client_loss[0, i], alone.personal.train.client_loss[0, 0], rtol=1e-6
        )


@pytest.mark.broad
def test_newcomers_join_a_schedule_where_it_ended():
    """After its last round the step size is too small to learn from; in the first round it was not."""
    schedule = {"schedule": "steps", "start": 0.3, "at": [1], "factor": 1e-6}
    scheduled, constant = run("ditto", settings={"alpha": schedule, "R": 4, "lam": 0.1}), run("ditto")
    begun, ended = (scheduled.newcomers[i].personal.train.loss for i in (0, -1))
    np.testing.assert_allclose(ended, begun, rtol=1e-4)
    assert np.all(constant.newcomers[-1].personal.train.loss < 0.99 * constant.newcomers[0].personal.train.loss)


@pytest.mark.broad
def test_clients_are_held_out_by_name():
    federation = dataclasses.replace(small_federation(SIZES), names=tuple(f"site{i}" for i in range(len(SIZES))))
    options = {"federation": federation, "rounds": 1, "algorithm": "fedavg", "joining_rounds": 1}
    run = pfedbred.run(held_out_clients="site2, 0", **options)
    assert run.backend.federation.names == tuple(name for name in federation.names if name not in ("site0", "site2"))
    assert run.newcomers[0].personal.test.clients["accuracy"].shape[1] == 2
    assert pfedbred.run(held_out_clients=["site2", "site0"], **options).backend.federation.names == (
        run.backend.federation.names
    )
    with pytest.raises(pfedbred.SettingError, match=r"no client called 'site'; did you mean"):
        pfedbred.run(held_out_clients="site", **options)
    with pytest.raises(pfedbred.SettingError, match="at least one must be held out and one must train"):
        pfedbred.run(held_out_clients=list(federation.names), **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("7,7", "7, 7"),
        ("site1, site2, site1", "site1, site2, site1"),
        (["site2", "2"], "site2, 2"),
        ([str(i % 7) for i in range(8)], "0, 1, 2, 3, 4, 5, 6, 0"),  # as many names as clients
    ],
)
def test_no_client_is_held_out_twice(given, said):
    federation = dataclasses.replace(small_federation(SIZES), names=tuple(f"site{i}" for i in range(len(SIZES))))
    with pytest.raises(pfedbred.SettingError, match=f"^a client is named twice in held_out_clients: {said}$"):
        pfedbred.run(held_out_clients=given, federation=federation, rounds=1, aggregated=1)


@pytest.mark.broad
def test_a_whole_number_above_1_is_a_client():
    names = tuple(f"site{i}" for i in range(len(SIZES)))
    for called, out in ((names, "site2"), (("2", *names[1:]), "2")):
        federation = dataclasses.replace(small_federation(SIZES), names=called)
        built = build(Experiment(held_out_clients="2"), federation)
        assert (built.experiment.held_out_clients, built.newcomers.names) == (["2"], (out,))


@pytest.mark.broad
def test_the_command_names_those_held_out(call, tmp_path):
    code, out, _ = call("run", "--clients", "6", "--hold-out", "1,4", "--rounds", "1", "--out", tmp_path / "run")
    assert (code, "digits: 4 clients" in out, "; 2 more clients held out: 1, 4" in out) == (0, True, True)
    _, out, _ = call("run", "--clients", "6", "--hold-out", "4", "--rounds", "1", "--out", tmp_path / "alone")
    assert "; 1 more client held out: 4" in out
    assert "new: the 1 held-out client at once, and after 5 local rounds" in out


def test_every_metric_of_newcomers_is_in_the_summary_and_the_tables(tmp_path, capsys):
    """The first one also where summaries of earlier versions have it, which had no others."""
    result = run("pfedme", seeds=2, metrics="f1", out=tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    found = read_summary(path)["newcomers"]
    assert list(found["metrics"]) == ["accuracy", "loss", "f1"]
    for name, scores in found["metrics"].items():
        assert scores["global"]["mean"] == pytest.approx(result.newcomers[0].global_.test.values[name].mean())
        means = [each.personal.test.values[name].mean() for each in result.newcomers]
        assert [each["mean"] for each in scores["personal"]] == pytest.approx(means)
    assert {name: found[name] for name in ("global", "personal")} == found["metrics"]["accuracy"]

    def titles():
        show_outcome([read_summary(path)])
        shown = " ".join(capsys.readouterr().out.split())
        return re.findall(r"joined after the last round: test ([^+]*) in %", shown)

    assert titles() == ["accuracy", "macro F1"]
    change_json(path, lambda summary: summary["newcomers"].pop("metrics"))
    assert titles() == ["accuracy"]
    change_json(path, lambda summary: summary["newcomers"].update(metrics={"f1": 1}))
    with pytest.raises(pfedbred.SettingError, match="newcomers"):
        read_summary(path)
