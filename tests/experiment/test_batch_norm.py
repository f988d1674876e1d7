"""A user's own modules with batch norm and dropout, from training to prediction; and the choice of statistics."""

import jax
import numpy as np
import pytest
from conftest import small_federation
from support import normalised
from test_resume import interrupt, lines, run_into, states

import pfedbred
from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks import Interruption
from pfedbred.experiment.configuration import Experiment
from pfedbred.io.strict import read_yaml
from pfedbred.models import WithStatistics
from pfedbred.report.terminal import show_network

FEDERATION = small_federation((8, 12, 5))


def options(network, **given):
    return {
        "model": getattr(normalised, network),
        "algorithm": "ditto",
        "settings": {"R": 3, "R_personal": 3, "alpha": 0.1},
        "rounds": 4,
        "eval_every": 2,
        "aggregated": 2,
        "batch_size": 4,
        **given,
    }


@pytest.mark.parametrize(
    ("network", "mode"),
    [
        ("linen_network", "local"),
        pytest.param("equinox_network", "average", marks=pytest.mark.full),
        pytest.param("nnx_network", "local", marks=pytest.mark.full),
        pytest.param("linen_network", "group", marks=pytest.mark.full),
    ],
)
@pytest.mark.few_cases
def test_own_modules_are_trained_resumed_exported_and_used(network, mode, tmp_path, call):
    """Resumed to the same bits; P and G with their statistics; ``predict`` from a file gives the labels of P."""
    ready = build(Experiment(dataset="small", batch_norm=mode, **options(network)), FEDERATION)
    whole, half = tmp_path / "whole", tmp_path / "half"
    expected = run_into(whole, ready)
    stop = Interruption()
    with stop.listening():
        assert run_into(half, ready, interrupt(2), stop).stopped == "interrupted"
    resumed = run_into(half, ready, resume=True, outcome=True)
    assert states(resumed) == states(expected)
    assert lines(half) == lines(whole)
    assert read_yaml(half / "config.yaml")["batch_norm"] == mode

    model, x = getattr(normalised, network), FEDERATION.test.x
    for client in (1, None):
        path = pfedbred.export(half, client=client, out=tmp_path / "model.safetensors")
        loaded = pfedbred.load_model(path, model)
        tree = resumed.global_model() if client is None else resumed.personal_model(client)
        assert isinstance(tree, WithStatistics) == (mode != "group")
        jax.tree.map(np.testing.assert_array_equal, loaded.params, tree)
        built = pfedbred.models.get(model, FEDERATION.shape, FEDERATION.classes, batch_norm=mode)
        np.testing.assert_allclose(loaded.logits(x), built.apply(tree, x), atol=1e-5)
        np.savez(tmp_path / "x.npz", x=x)
        code, out, err = call("predict", path, "x.npz", "--model", f"support.normalised:{network}")
        assert (code, out.split()) == (0, [str(each) for each in np.argmax(loaded.logits(x), 1)]), err
    code, _, err = call("predict", path, "x.npz")
    assert code == 2
    assert "give it as load_model(path, model=...) or --model" in err


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("local", "batch norm with each client's own statistics (local)"),
        ("average", "batch norm with averaged statistics (average)"),
        ("group", "group norm in place of batch norm (group)"),
    ],
)
def test_a_run_says_how_its_network_normalises(mode, words, capsys):
    experiment = Experiment(dataset="small", batch_norm=mode, **options("linen_network"))
    ready = build(experiment, FEDERATION)
    show_network(ready.experiment.plain(), ready.backend.task.model.statistics is not None)
    assert capsys.readouterr().out == f"support.normalised:linen_network: {words}\n"


def test_a_choice_that_does_not_apply_is_noted(call, prepared):
    small = ("--dataset", prepared[1], "--rounds", 1, "--dry-run")
    for command in (("run", "--algorithm", "fedavg"), ("compare", "--algorithms", "fedavg,local")):
        code, out, err = call(*command, *small, "--batch-norm", "average")
        assert code == 0, err
        assert err == "pfedbred: note: mclr has no batch norm: --batch-norm average has no effect\n"
        assert "batch_norm: local" in out
        assert call(*command, *small)[2] == ""


@pytest.mark.full
def test_local_statistics_are_the_clients_own():
    """The clients' inputs lie apart. Under ``local`` the same params normalise each client's inputs by its own."""
    apart = small_federation((30, 30, 30), seed=2)
    found = {}
    for mode in ("local", "average"):
        given = options("linen_network", algorithm="fedavg", settings={"R": 3}, batch_norm=mode, aggregated=3)
        run = pfedbred.run(federation=apart, **given)
        found[mode] = [run.personal_model(i) for i in range(3)], run.global_model()
    for mode, (personal, shared) in found.items():
        same = [np.array_equal(*(each.statistics["norm"]["mean"] for each in (one, shared))) for one in personal]
        assert all(same) == (mode == "average")
        assert any(same) == (mode == "average")
    # What is averaged, and so G, does not depend on the mode.
    jax.tree.map(np.testing.assert_array_equal, found["local"][1], found["average"][1])


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["scaffold+am", "fedem"])
@pytest.mark.few_cases
def test_newcomers_and_seeds(algorithm):
    given = options("linen_network", algorithm=algorithm, settings={"R": 2}, rounds=2)
    run = pfedbred.run(federation=small_federation(), held_out_clients=0.25, joining_rounds=1, seeds=2, **given)
    assert len(run.newcomers) == 2
    assert np.isfinite(run.newcomers[-1].personal.test.loss).all()


def test_a_model_without_batch_norm_has_no_choice():
    for mode in ("average", "group"):
        ready = build(Experiment(dataset="small", algorithm="fedavg", settings={"R": 1}, batch_norm=mode), FEDERATION)
        assert ready.experiment.batch_norm == "local"


def test_a_wrong_choice_is_one_line():
    with pytest.raises(pfedbred.SettingError, match=r"batch_norm must be .*local.*average.*group.*, not 'shared'"):
        Experiment(batch_norm="shared").checked()
