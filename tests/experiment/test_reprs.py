"""What objects say of themselves in a notebook: one short line."""

import dataclasses

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.runs.trained_model import load_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    data, folder = small_federation(), tmp_path_factory.mktemp("made") / "run"
    run = pfedbred.run(federation=data, algorithm="fedavg+ft", rounds=2, aggregated=2, batch_size=3, out=folder)
    task, backend = run.backend.task, run.backend
    personal = load_model(pfedbred.export(folder, client=1))
    objects = [run, data, run.experiment, task, task.model, backend.algorithm, backend, run.record()]
    return {type(each).__name__: repr(each) for each in objects}, repr(personal), repr(run.trained())


def test_objects_are_one_short_line(made):
    made, *_ = made
    for name, text in made.items():
        assert "\n" not in text
        assert len(text) < 320, name
        assert text.startswith(f"{name}(")
        assert " at 0x" not in text
    assert made["Task"] == "Task(classification with Model(mclr))"
    assert made["Algorithm"] == "Algorithm(Client(fedavg), Server(averaging_server))"
    federation = "Federation(small: 4 clients, 44 train + 14 test samples, 3 labels)"
    assert made["ResidentBackend"] == f"ResidentBackend({made['Algorithm']} on {federation})"
    assert made["RunRecord"].startswith("RunRecord(fedavg+ft on small, mclr, 2 of 2 rounds: test accuracy G ")


def test_a_model_says_whose_it_is(made):
    _, personal, of_all = made
    assert personal == "TrainedModel(P of client 1: fedavg+ft on small, mclr, round 2)"
    assert of_all == "TrainedModel(G: fedavg+ft on small, mclr, round 2)"


def test_an_experiment_shows_what_is_not_usual():
    experiment = pfedbred.Experiment("digits", algorithm="ditto", settings={"lam": 2.0}, rounds=7)
    assert repr(experiment) == "Experiment(algorithm='ditto', settings={'lam': 2.0}, rounds=7)"
    assert repr(pfedbred.Experiment()) == "Experiment()"
    given = dataclasses.replace(experiment, start_from={"output": np.zeros((3, 3))})
    assert "start_from=<params>" in repr(given)


def test_a_sweep_says_which_point_is_best():
    from pfedbred.experiment.sweep_result import Sweep

    scores = np.array([[[0.1]], [[0.5]]])
    experiment = pfedbred.Experiment(small_federation(), algorithm="fedavg")
    options = {"validation": {"global": scores, "personal": scores}, "evaluations": np.ones(2, int)}
    found = Sweep(experiment, ("alpha",), np.array([[0.1], [0.25]]), [1], scores, scores, 0.0, 0.0, **options)
    assert repr(found) == "Sweep(fedavg on small, 2 points of alpha; best on validation samples: alpha=0.25)"
    lost = dataclasses.replace(found, personal=scores * np.nan, chosen_on="test")
    assert repr(lost).endswith("all diverged)")
