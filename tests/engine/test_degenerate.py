"""Federations with hardly any data: every method runs, and every score that can be a number is one."""

import json

import numpy as np
import pytest

import pfedbred
from pfedbred import algorithms, data, settings
from pfedbred.data.pool import federate

SETTINGS = {"R": 1, "K": 1, "R_head": 1, "R_personal": 1, "tune_steps": 1, "adapt_steps": 1}


def samples(count, label=None, seed=0):
    rng = np.random.default_rng([count, seed])
    y = rng.integers(0, 2, count) if label is None else np.full(count, label)
    return rng.normal(size=(count, 2)), y.astype(np.int32)


NOTHING = samples(0, 0)
FEDERATIONS = {
    "one client": ([samples(5)], [samples(3)]),
    "one sample": ([samples(1, 0)], [samples(1, 1)]),
    "one class": ([samples(4, 0), samples(2, 0)], [samples(2, 0), samples(1, 0)]),
    "a client without a test": ([samples(4), samples(3)], [samples(2), NOTHING]),
    "no test at all": ([samples(4), samples(3)], [NOTHING, NOTHING]),
    "very different sizes": ([samples(1), samples(700), samples(2)], [samples(1), samples(150), NOTHING]),
    "labels seen in the test alone": ([samples(4, 0), samples(3, 1)], [samples(2, 2), samples(2, 4)]),
}


def federation(name):
    return pfedbred.from_clients(*FEDERATIONS[name], name=name)


def ordinary(algorithm):
    known = settings.declared(algorithms.builder(algorithm))
    return {name: value for name, value in SETTINGS.items() if name in known}


def check_scores(finished):
    """A score is a number if and only if there is something to score."""
    here = finished.backend.federation
    for scores in (finished.points[-1].scores.global_, finished.points[-1].scores.personal):
        for split, found in ((here.train, scores.train), (here.test, scores.test)):
            assert np.isfinite(found.accuracy).all() == (len(split.y) > 0)
            assert np.isfinite(found.loss).all() == (len(split.y) > 0)
            np.testing.assert_array_equal(np.isfinite(found.client_accuracy[0]), split.sizes > 0)
            if len(split.y):
                assert ((found.accuracy >= 0) & (found.accuracy <= 1)).all()
                assert np.isfinite(found.worst_decile).all()
                assert np.isfinite(found.client_std).all()


@pytest.mark.broad
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=[] if name == "mg-meta" else [pytest.mark.full])
        for name in algorithms.ALGORITHMS
        if name != "fedbn"  # which the linear model has no layers for
    ],
)
@pytest.mark.few_cases
def test_every_method_on_one_sample_and_labels_that_nobody_trains_on(algorithm):
    """Both at once, and a client of 40 samples, and one without a test: all that is hard for a method."""
    train = [samples(1, 0), samples(40, 1), samples(2, 1)]
    hard = pfedbred.from_clients(train, [samples(1, 2), samples(3), NOTHING], name="hard")
    check_scores(pfedbred.run(federation=hard, algorithm=algorithm, rounds=1, settings=ordinary(algorithm)))


@pytest.mark.full
@pytest.mark.parametrize("name", FEDERATIONS)
@pytest.mark.few_cases
def test_a_run_folder_and_its_page(name, call, tmp_path):
    """As the command line makes them: metrics, summary, pictures, models, and a report."""
    data.prepared.save(federation(name), tmp_path / "x.fed")
    code, out, err = call(
        "run", "--dataset", "x.fed", "--rounds", 1, "--algorithm", "pfedme", "--set", "R=1", "--out", "r"
    )
    assert code == 0, err
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    tested = name != "no test at all"
    for model in ("global", "personal"):
        assert (summary[model]["best_accuracy"]["mean"] is not None) == tested
        assert (summary[model]["final_loss"]["mean"] is not None) == tested
    assert "nan" not in (tmp_path / "r" / "summary.json").read_text().lower()
    assert "nan" not in out.lower()
    for command in (("report", "r"), ("export", "r"), ("export", "r", "--client", 0), ("data", "show", "x.fed")):
        code, _, err = call(*command)
        assert code == 0, (command, err)
    assert (tmp_path / "r" / "report.html").stat().st_size > 10**6
    assert (tmp_path / "r" / "curves.png").stat().st_size > 1000


def test_a_client_without_training_samples_is_rejected_by_name():
    with pytest.raises(pfedbred.SettingError, match=r"client 1 has 0 training inputs .* it needs at least one"):
        pfedbred.from_clients([samples(3), NOTHING], [samples(1), samples(1)])
    pool = data.Pool("x", *samples(4), classes=2)
    with pytest.raises(pfedbred.SettingError, match="x: client 1 has no training samples"):
        federate(pool, data.Assignment([np.arange(3), np.arange(0)], [np.arange(0)] * 2), about={})


def test_a_federation_of_nobody_is_rejected():
    with pytest.raises(pfedbred.SettingError, match="need training and test samples of the same clients, got 0 and 0"):
        pfedbred.from_clients([], [])
    with pytest.raises(pfedbred.SettingError, match=r"samples of shape \(0,\) are empty"):
        pfedbred.from_clients([(np.zeros((2, 0)), np.zeros(2, int))], [(np.zeros((0, 0)), np.zeros(0, int))])


@pytest.mark.full
def test_a_comparison_and_a_sweep_without_test_samples(call, tmp_path):
    data.prepared.save(federation("no test at all"), tmp_path / "x.fed")
    code, out, err = call(
        "compare", "--dataset", "x.fed", "--rounds", 1, "--algorithms", "fedavg,local", "--set", "R=1"
    )
    assert code == 0, err
    assert "nan" not in out.lower()
    code, _, err = call("sweep", "--dataset", "x.fed", "--algorithm", "fedavg", "--grid", "alpha=0.1,0.2")
    assert code == 2
    assert "no test samples to compare the points by" in err


@pytest.mark.full
def test_newcomers_of_a_small_federation():
    """One client trains, the other joins afterwards."""
    two = federation("one class")
    finished = pfedbred.run(federation=two, algorithm="fedavg", rounds=1, held_out_clients=0.5, settings={"R": 1})
    check_scores(finished)
    json.dumps(finished.record().summary, allow_nan=False)
