"""Validation samples in a run: they are evaluated, never trained on, and choose the round."""

import dataclasses
import json

import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.errors import SettingError
from pfedbred.runs.metrics_file import read_points
from pfedbred.runs.record import RunRecord

OPTIONS = {"algorithm": "pfedme", "settings": {"R": 2, "K": 1}, "aggregated": 2, "rounds": 3, "batch_size": 4}
VALIDATION = {**OPTIONS, "validation": 0.3, "seeds": 2, "metrics": "f1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation") / "run"
    return pfedbred.run(**VALIDATION, federation=small_federation(), out=folder)


def test_validation_samples_are_not_trained_on(run):
    """The run is that on the remaining samples, whatever the others hold."""
    divided = small_federation().with_validation(0.3, seed=0)
    rest = dataclasses.replace(divided, validation=None)
    options = {name: value for name, value in VALIDATION.items() if name != "validation"}
    alone = pfedbred.run(**options, federation=rest)
    for part in ("train", "test"):
        for model in ("global", "personal"):
            np.testing.assert_array_equal(run.curve("loss", model, part), alone.curve("loss", model, part))
    with pytest.raises(SettingError, match=r"there are no validation samples: keep some with validation=0\.2"):
        alone.curve("loss", "global", "validation")


def test_every_metric_of_the_validation_samples_is_in_every_line(run):
    for line in map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines()):
        assert line["schema"] == 2
        for model in ("global", "personal"):
            assert line[model]["validation"].keys() == line[model]["test"].keys()
            assert np.shape(line[model]["validation"]["client_f1"]) == (2, 4)
    read = RunRecord.read(run.folder)
    for name in ("accuracy", "loss", "f1"):
        found = read.curve(name, "personal", "validation")
        np.testing.assert_array_equal(found, run.curve(name, "personal", part="validation"))
        assert not np.array_equal(found, read.curve(name, "personal"))


def test_a_line_without_them_is_damaged_only_if_the_first_one_has_them(run, tmp_path):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["global"]["validation"], line["personal"]["validation"]
    whole = (run.folder / "metrics.jsonl").read_text().splitlines()[0]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert len(read_points(tmp_path)) == 3
    path.write_text("".join(f"{line}\n" for line in (whole, json.dumps(lines[1]))))
    with pytest.raises(SettingError, match="line 2 is damaged: it has no 'accuracy' of the validation samples"):
        read_points(tmp_path)


@pytest.mark.full
def test_streamed_clients_have_the_same_validation_samples():
    options = {**OPTIONS, "participation": "sample", "validation": 0.3}
    resident, streamed = (
        pfedbred.run(**options, federation=small_federation(), store=store) for store in ("device", "memory")
    )
    for model in ("global", "personal"):
        one, other = (each.curve("loss", model, "validation") for each in (resident, streamed))
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.full
def test_clients_made_on_demand_have_validation_samples():
    options = {**OPTIONS, "dataset": "synthetic", "clients": 6, "participation": "sample", "validation": 0.2}
    made = pfedbred.data.population("synthetic", clients=6)
    whole, found = (
        pfedbred.run(**options, store="memory"),
        pfedbred.run(**{**options, "dataset": made, "clients": None}),
    )
    np.testing.assert_allclose(
        whole.curve("loss", "personal", "validation"), found.curve("loss", "personal", "validation"), rtol=1e-6
    )


@pytest.mark.full
def test_held_out_clients_have_validation_samples_too():
    run = pfedbred.run(**OPTIONS, validation=0.3, held_out_clients=0.25, federation=small_federation())
    assert run.newcomers[-1].personal.validation.accuracy.shape == (1,)
