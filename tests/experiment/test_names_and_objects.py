"""Names: an object that a table names is that name, and a name that a program has added is what it stands for."""

import functools

import numpy as np
import optax
import pytest
import yaml
from support import custom

import pfedbred
from pfedbred import aggregation, data, means, models, priors, tasks
from pfedbred.algorithms.wrappers import WRAPPERS
from pfedbred.data import augmentation
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import changed_options
from pfedbred.settings import schedules

NAMES = {
    "algorithm": "pfedbred",
    "model": "dnn",
    "dataset": "digits",
    "split": "iid",
    "task": "classification",
    "loss": "huber",
    "select": "by-data",
    "aggregate": "median",
    "augment": "flip",
    "metrics": ["f1"],
    "settings": {"prior": "huber", "mean": "fo"},
}
OBJECTS = {
    "algorithm": pfedbred.ALGORITHMS["pfedbred"],
    "model": models.dnn,
    "dataset": pfedbred.DATASETS["digits"],
    "split": data.SPLITS["iid"],
    "task": pfedbred.TASKS["classification"],
    "loss": tasks.LOSSES["huber"],
    "select": pfedbred.SELECTIONS["by-data"],
    "aggregate": pfedbred.RULES["median"],
    "augment": augmentation.flip,
    "metrics": [pfedbred.METRICS["f1"]],
    "settings": {"prior": priors.huber, "mean": means.fo},
}


@pytest.mark.parametrize("option", NAMES)
def test_an_object_that_a_table_names_is_recorded_by_its_name(option):
    algorithm = {"algorithm": "pfedbred"} if option == "settings" else {}
    named, given = (Experiment(**algorithm, **{option: each[option]}).checked() for each in (NAMES, OBJECTS))
    assert given.plain() == named.plain()
    assert Experiment.from_mapping(given.plain()).plain() == named.plain()


def test_an_import_path_of_what_a_table_names_is_that_name():
    assert Experiment(algorithm="pfedbred.algorithms.fedavg:fedavg").checked().algorithm == "fedavg"


def test_a_run_given_by_names_is_resumed_with_objects(tmp_path):
    options = {"federation": custom.federation(), "out": tmp_path, "settings": {"R": 1}, "task": "classification"}
    pfedbred.run(**options, rounds=1, model="mclr", algorithm="fedavg")
    objects = {
        "model": models.mclr,
        "task": pfedbred.TASKS["classification"],
        "aggregate": pfedbred.RULES["mean"],
        "algorithm": pfedbred.ALGORITHMS["fedavg"],
    }
    again = pfedbred.run(**options | objects, rounds=2, resume=True)
    assert again.points[-1].round == 2
    del options["settings"]  # then they are those of the run in the folder, as for an algorithm given by its name
    assert pfedbred.run(**options | objects, rounds=3, resume=True).experiment.settings["R"] == 1


def test_a_users_own_setting_may_be_called_as_one_that_takes_names():
    def method(task, *, mean=np.mean):
        return pfedbred.make("fedavg", task)

    assert Experiment(algorithm=method, settings={"mean": means.fo}).checked().settings["mean"] is means.fo


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"algorithm": "pfedbred.algorithms.fedavg:fedavg"}, {"algorithm": "fedavg"}),
        ({"local_optimizer": "optax._src.alias:adam"}, {"local_optimizer": "optax:adam"}),
        ({"settings": {"mean": "pfedbred.bregman.means:fo"}}, {"settings": {"mean": "fo"}}),
    ],
)
def test_records_of_earlier_versions_have_the_path_of_what_has_a_name(before, now):
    assert changed_options(before, now) == []


@pytest.mark.parametrize(
    ("before", "now"),
    [("pfedbred.algorithms.fedavg:fedavg", "fedprox"), ("no_such_module:method", "fedavg"), ("mine", "fedavg")],
)
def test_another_path_is_another_method(before, now):
    assert changed_options({"algorithm": before}, {"algorithm": now}) == [f"algorithm {before!r}, now {now!r}"]


def test_an_object_is_recorded_by_its_public_path():
    experiment = Experiment(local_optimizer=optax.adam).checked()
    assert experiment.plain()["local_optimizer"] == "optax:adam"
    by_path = Experiment(local_optimizer="optax._src.alias:adam").checked()
    assert by_path.plain()["local_optimizer"] == "optax:adam"


# Names that a program has added ---------------------------------------------------------------------------------


def test_an_added_name_is_recorded_as_the_path_of_what_it_stands_for(call, tmp_path, monkeypatch):
    options = {"dataset": "support.custom:federation", "aggregated": 2, "rounds": 1, "settings": {"R": 1}}
    with monkeypatch.context() as program:
        program.setitem(pfedbred.ALGORITHMS, "mine", custom.local_sgd)
        done = pfedbred.run(algorithm="mine", **options, out=tmp_path / "first")
        assert done.experiment.algorithm == "mine"
        pfedbred.run(algorithm="mine", dataset=custom.federation, rounds=2, out=tmp_path / "first", resume=True)
    config = (tmp_path / "first" / "config.yaml").read_text()
    assert yaml.safe_load(config)["algorithm"] == "support.custom:local_sgd"
    code, _, err = call("run", "first/config.yaml", "--out", "again")
    assert code == 0, err
    first, again = (pfedbred.RunRecord.read(tmp_path / name) for name in ("first", "again"))
    np.testing.assert_array_equal(first.curve("loss", "global"), again.curve("loss", "global"))


def test_an_added_name_of_what_has_no_path_is_not_reproducible(call, tmp_path, monkeypatch):
    monkeypatch.setitem(pfedbred.ALGORITHMS, "mine", functools.partial(custom.local_sgd, R=1))
    options = {"dataset": custom.federation, "algorithm": "mine", "settings": {"alpha": 0.1}}
    pfedbred.run(**options, rounds=1, out=tmp_path / "run")
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert yaml.safe_load(config)["algorithm"] == "<mine, not importable>"
    assert "pfedbred run" not in config
    code, _, err = call("run", "run/config.yaml")
    assert (code, "algorithm was 'mine', an object that only existed in the program that made the run" in err) == (
        2,
        True,
    )
    del options["settings"]
    assert pfedbred.run(**options, rounds=2, out=tmp_path / "run", resume=True).experiment.settings["alpha"] == 0.1


ADDED = {
    "algorithm": (pfedbred.ALGORITHMS, custom.local_sgd, "mine+am"),
    "suffix": (WRAPPERS, WRAPPERS["am"], "fedavg+mine"),
    "aggregate": (pfedbred.RULES, aggregation.RULES["trimmed"], "mine(0.3)"),
    "prior": (priors.LONG_TAILED, priors.student_t, "mine(3)"),
    "schedule": (schedules.SCHEDULES, schedules.cosine, {"schedule": "mine", "start": 0.1}),
}


@pytest.mark.parametrize("kind", ADDED)
def test_a_text_with_an_added_name_in_it_is_not_reproducible(monkeypatch, kind):
    table, entry, text = ADDED[kind]
    monkeypatch.setitem(table, "mine", entry)
    setting = {"prior": "prior", "schedule": "alpha"}.get(kind)
    given = {"settings": {setting: text}} if setting else {"algorithm" if kind == "suffix" else kind: text}
    written = str(Experiment(**{"algorithm": "pfedbred"} | given).checked().plain())
    assert f"<{text['schedule'] if setting == 'alpha' else text}, not importable>" in written


@pytest.mark.parametrize(
    ("table", "option", "entry", "path"),
    [
        (models.MODELS, "model", custom.network, "support.custom:network"),
        (pfedbred.DATASETS, "dataset", custom.small, "support.custom:small"),
        (pfedbred.METRICS, "metrics", custom.confident, "support.custom:confident"),
    ],
)
def test_added_names_of_other_kinds(monkeypatch, table, option, entry, path):
    monkeypatch.setitem(table, "mine", entry)
    by_name, given = (Experiment(**{option: each}).checked() for each in ("mine", entry))
    written = by_name.plain()[option]
    assert (written[-1] if option == "metrics" else written) == path
    assert given.plain() == by_name.plain()
    assert "mine" in str(by_name.plain(by_name=True)[option])


def test_models_are_loaded_by_names_that_this_program_has_added(monkeypatch, tmp_path):
    monkeypatch.setitem(models.MODELS, "mine", custom.network)
    pfedbred.run(federation=custom.federation(), model="mine", settings={"R": 1}, rounds=1, out=tmp_path)
    assert pfedbred.load_model(pfedbred.export(tmp_path)).about["model"] == "mine"


def test_a_replaced_entry_is_not_the_packages_own(monkeypatch):
    monkeypatch.setitem(pfedbred.ALGORITHMS, "fedavg", custom.local_sgd)
    assert Experiment(algorithm="fedavg").checked().plain()["algorithm"] == "support.custom:local_sgd"


# Tasks ----------------------------------------------------------------------------------------------------------


def test_a_task_given_as_a_function_is_built_once():
    built = []

    def kind():
        built.append(kind)
        return pfedbred.TASKS["classification"]._replace(name="sorting")

    done = pfedbred.run(federation=custom.federation(), task=kind, rounds=1, settings={"R": 1})
    assert len(built) == 1
    assert done.experiment.kind.name == "sorting"
    assert done.experiment.plain()["task"] == "<kind, not importable>"
