"""The run config."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import field_names
from pfedbred.flower.run_config import DEFAULTS, check, parse


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "the run config needs out"),
        ({"out": "x", "algoritm": "fedavg"}, "did you mean 'algorithm'"),
        ({"out": "x", "posterior": "ensemble"}, "an ensemble is not available on a real federation"),
        ({"out": "x", "clients": 2, "min-clients": 3}, "min-clients must be at most clients, 2"),
        ({"out": "x", "deadline": -1.0}, "deadline must be a number > 0"),
        ({"out": "x", "settings": "lam"}, "NAME=VALUE"),
        ({"out": "x", "labels": "cat,cat"}, "labels must be distinct names"),
        ({"out": "x", "labels": "cat,dog", "classes": 5}, "as many as classes, not"),
        ({"out": "x", "deadline": 0}, "deadline must be a number > 0"),
        ({"out": "x", "track": "tensorbord"}, "unknown tracker 'tensorbord'; did you mean 'tensorboard'"),
        ({"out": "x", "deadline": 1e300}, "deadline must be a number > 0 and at most 31536000"),
    ],
)
def test_bad_run_configs_are_refused(config, complaint):
    with pytest.raises(SettingError, match=complaint):
        parse(config)


def test_options_and_fields():
    options, fields = parse(
        {"out": "~/x", "algorithm": "pfedme", "settings": "lam=30 R=5", "batch-size": 7, "aggregated": 0, "seed": 0}
        | {"outliers": 0.0, "select": 3, "labels": "cat, dog", "metrics": "accuracy,f1"}
    )
    assert options.labels == ["cat", "dog"]
    assert fields == {
        "algorithm": "pfedme",
        "batch_size": 7,
        "seed": 0,
        "outliers": 0.0,
        "select": "3",
        "metrics": "accuracy,f1",
        "settings": {"lam": 30, "R": 5},
    }
    assert options.min_clients == 2
    assert options.clients is None


def test_a_setting_can_have_a_schedule():
    _, fields = parse({"out": "x", "settings": "  lam=30 alpha={schedule: steps, start: 0.1, at: [2, 3]}  R=5"})
    assert fields["settings"] == {"lam": 30, "alpha": {"schedule": "steps", "start": 0.1, "at": [2, 3]}, "R": 5}


def test_the_defaults_can_be_run():
    options, fields = parse({**DEFAULTS, "out": "x"})
    assert (options.clients, options.classes, options.labels) == (None, 0, None)
    assert {name.replace("_", "-") for name in field_names(deployed=True)} <= set(DEFAULTS)
    assert "aggregated" not in fields
    assert fields["participation"] == "sample"


def test_the_page_names_every_key():
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    section = re.search(r"^## The run\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)[1]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert sorted(key for cell in cells for key in re.findall(r"`(.*?)`", cell)) == sorted(DEFAULTS)


@pytest.mark.parametrize("name", field_names(at_server=True))
def test_what_is_at_the_server_is_not_looked_for_elsewhere(name):
    check({"start_from": "/nowhere/here.safetensors", name: "/nowhere/here.safetensors"})


def test_an_experiment_is_checked_before_anything_is_started():
    with pytest.raises(SettingError, match="train_only needs start_from"):
        check({"train_only": "output"})
