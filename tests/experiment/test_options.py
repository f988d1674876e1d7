"""The fields of an experiment: declared once, in groups, with what the library needs to know of each."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import pfedbred
from pfedbred.aggregation import RULES
from pfedbred.data.loading import Options
from pfedbred.data.partition import SPLITS
from pfedbred.engine.selection import SELECTIONS
from pfedbred.experiment.building import load_data
from pfedbred.experiment.configuration import Experiment, field_names, plain_defaults
from pfedbred.experiment.options import GROUPS, option
from pfedbred.experiment.resume import changed_options
from pfedbred.runs.model_file import FACTS

FIELDS = {each.name: each for each in dataclasses.fields(Experiment)}


def test_every_field_belongs_to_exactly_one_group():
    declared = [each.name for group in GROUPS for each in dataclasses.fields(group)]
    assert sorted(declared) == sorted(FIELDS)
    assert [group.__name__ for group in GROUPS] == [
        "DataOptions",
        "TaskOptions",
        "ModelOptions",
        "MethodOptions",
        "ProtocolOptions",
        "ExecutionOptions",
    ]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_its_metadata(name):
    metadata = FIELDS[name].metadata
    assert metadata.keys() == {"help", *inspect.signature(option).parameters} - {"default"}
    assert bool(metadata["help"]) == (name != "settings")
    assert all(isinstance(metadata[each], bool) for each in metadata if each not in ("help", "flag", "unfit"))
    assert metadata["deployed"] or name == "settings" or not metadata["sent"]  # clients learn nothing that nobody sets


@pytest.mark.parametrize(("name", "table"), [("split", SPLITS), ("select", SELECTIONS), ("aggregate", RULES)])
def test_the_help_names_all_there_is(name, table):
    assert all(each in FIELDS[name].metadata["help"] for each in table)


def test_paths_are_recorded_as_absolute_ones():
    given = dict.fromkeys(field_names(path=True), "here")
    assert set(given) == {"data_dir", "store_dir", "glove"}
    recorded = Experiment(**given).checked().plain()
    assert {name: recorded[name] for name in given} == {name: str(Path("here").resolve()) for name in given}


def test_data_is_loaded_with_every_option_of_load(monkeypatch):
    """Except those that are no option of an experiment, or have a group of their own."""
    named = {"seed" if name == "split_seed" else name for name in field_names(load=True)}
    assert named == set(Options.__annotations__) - {"test_fraction", "task"}
    loaded = []
    monkeypatch.setattr("pfedbred.data.load", lambda dataset, **options: loaded.append(options))
    load_data(Experiment(split="iid", split_seed=7, standardise="none"))
    assert set(loaded[0]) == named | {"task"}
    assert (loaded[0]["split"], loaded[0]["seed"], loaded[0]["standardise"]) == ("iid", 7, "none")


def test_a_clients_node_config_has_the_options_of_its_data():
    assert set(field_names(node=True)) <= set(field_names(load=True))


def test_files_of_models_record_what_decides_their_predictions():
    """The number of rounds shows in the settings, which are recorded as they are in the models' round."""
    assert set(field_names(predicts=True)) - set(FACTS) == {"rounds"}


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.metadata["unfit"]])
def test_an_option_unfit_for_estimators_is_refused_with_its_reason(name):
    estimator = pfedbred.PersonalizedClassifier(options={name: 1})
    with pytest.raises(pfedbred.SettingError, match=re.escape(FIELDS[name].metadata["unfit"])):
        estimator.fit(np.zeros((4, 1)), [0, 1, 0, 1], clients=[0, 0, 1, 1])


def test_what_cannot_change_the_results_does_not_identify_them():
    assert not set(field_names(result=False)) & set(field_names(identifies=True))
    assert set(field_names(result=False)) == {"data_dir", "store_dir", "executor", "chunk"}


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "settings"])
def test_a_resumed_run_may_change_exactly_what_cannot_change_its_results(name):
    changed = changed_options({name: 1}, {name: 2})
    assert changed == ([] if name in field_names(result=False) else [f"{name} 1, now 2"])


def test_changed_settings_are_named_one_by_one():
    before, now = {"algorithm": "mg", "settings": {"lam": 1.0, "R": 2}}, {"algorithm": "mg", "settings": {"lam": 3.0}}
    assert changed_options(before, now) == ["lam 1.0, now 3.0", "R 2, now None"]
    assert changed_options(before, {**now, "algorithm": "fo"}) == ["algorithm 'mg', now 'fo'"]


def test_a_record_from_before_a_field_existed_has_its_default():
    plain = Experiment(task="classification").checked(data_elsewhere=True).plain()
    assert {**plain, "settings": None} == plain_defaults() | {"settings": None}
    older = {
        name: value for name, value in plain.items() if name not in ("metrics", "task", "diagnostics", "aggregate")
    }
    assert changed_options(older, plain) == []
    assert changed_options(older, {**plain, "diagnostics": True}) == ["diagnostics False, now True"]


def test_a_file_of_plain_values_is_the_experiment():
    experiment = Experiment(algorithm="pfedme", clients=7, select=[0, 3], metrics="f1", settings={"lam": 3}).checked()
    assert Experiment.from_mapping(yaml.safe_load(yaml.safe_dump(experiment.plain()))) == experiment


def test_a_flat_file_with_few_keys_is_enough():
    experiment = Experiment.from_mapping(yaml.safe_load("algorithm: pfedme\nrounds: '7'\nsettings: {lam: 2e1}\n"))
    assert (experiment.rounds, experiment.settings["lam"], experiment.metrics) == (7, 20.0, ["accuracy", "loss"])


def test_every_field_is_an_option_of_the_command_line(call):
    code, out, _ = call("run", "--help")
    assert code == 0
    for name in FIELDS:
        assert (f"--{name.replace('_', '-')}" in out) == (name != "settings"), name
