"""The command that reproduces an experiment."""

import pytest

from pfedbred.experiment.command import command

RECORD = {"dataset": "my data.npz", "algorithm": "mg-meta", "seeds": 2, "batch_size": 20, "data_dir": "/data"}


def test_a_command_has_what_differs_from_the_defaults():
    said = command({**RECORD, "settings": {"R": 2, "lam": 15.0}})
    assert said == "pfedbred run --algorithm mg-meta --dataset 'my data.npz' --seeds 2 --set R=2"


def test_the_settings_of_a_grid_are_left_to_it():
    settings = {"R": 2, "eta": 0.2, "lam": 30.0}
    assert command({**RECORD, "settings": settings}, "sweep", without=["eta", "lam"]).endswith(" --set R=2")


@pytest.mark.parametrize("name", ["mine", "x; rm -rf /"])
def test_all_settings_of_an_unknown_algorithm_are_listed(name):
    said = command({"algorithm": name, "settings": {"R": 20, "a b": "$HOME"}})
    assert said.endswith(" --set R=20 --set 'a b=$HOME'")
    assert said.startswith(f"pfedbred run --algorithm {name if name == 'mine' else repr(name)}")


def test_a_flag_has_no_value():
    assert command({**RECORD, "diagnostics": True, "settings": {}}).endswith(" --seeds 2 --diagnostics")


def test_what_only_existed_in_a_program_has_no_command():
    assert command({**RECORD, "settings": {"prior": "<family, not importable>"}}) is None
    assert command({**RECORD, "metrics": ["accuracy", "<metric, not importable>"], "settings": {}}) is None
