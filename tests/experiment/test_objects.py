"""Names and objects alike: what can be given by name can be given as an object, with the same result."""

import functools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import custom

import pfedbred
from pfedbred import aggregation, means, priors
from pfedbred.engine import devices
from pfedbred.engine import selection as custom_selection
from pfedbred.experiment.building import build, load_data
from pfedbred.experiment.command import command
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.loop import train
from pfedbred.runs.config_file import write_config

NAMED = {"algorithm": "fedavg", "rounds": 2, "aggregated": 2, "batch_size": 3, "settings": {"R": 2}}


def scores(**options):
    """Losses, which differ more readily than accuracies."""
    done = pfedbred.run(**options)
    return np.stack([done.curve("loss", model, "train") for model in ("global", "personal")])


@functools.cache
def expected():
    return scores(**NAMED, dataset=custom.federation())


@pytest.mark.parametrize("parts", [custom.builders, custom.objects])
def test_all_parts_as_builders_and_as_objects(parts):
    np.testing.assert_array_equal(scores(**NAMED | parts()), expected())


@pytest.mark.full
@pytest.mark.parametrize("parts", [custom.builders, custom.objects])
@pytest.mark.parametrize("name", ["algorithm", "model", "select", "aggregate", "dataset"])
@pytest.mark.few_cases
def test_each_part_as_a_builder_and_as_an_object(parts, name):
    given = {**NAMED, "dataset": custom.federation(), name: parts()[name]}
    if parts is custom.objects and name == "algorithm":
        given["settings"] = {}
    np.testing.assert_array_equal(scores(**given), expected())


def test_a_custom_part_is_used():
    """Not only accepted: other parts give other numbers."""
    first = NAMED | {"dataset": custom.federation()}

    def twice(gathered):
        return {name: {key: 2 * leaf for key, leaf in each.items()} for name, each in custom.weighted(gathered).items()}

    assert not np.array_equal(scores(**first | {"aggregate": twice}), expected())
    chosen = build(Experiment(**first | {"select": lambda key, sizes: np.array([1, 3])})).backend
    np.testing.assert_array_equal(chosen.plan.select(None, chosen.shards.sizes), [1, 3])


PRIORS_AND_MEANS = {
    "objects": ({"prior": "poisson", "mean": "fo"}, {"prior": priors.poisson(), "mean": means.fo(0.02)}),
    "builders": (
        {"prior": "gaussian", "mean": "fo", "sigma": 2.0},
        {"prior": custom.scaled_prior, "mean": custom.first_order, "sigma": 2.0},
    ),
    "paths": (
        {"prior": "poisson", "mean": "fo"},
        {"prior": "support.custom:poisson", "mean": "support.custom:first_order"},
    ),
}


@pytest.mark.parametrize(
    "kind", ["builders", *(pytest.param(each, marks=pytest.mark.full) for each in ("objects", "paths"))]
)
@pytest.mark.full
def test_priors_and_means_by_name_or_not(kind):
    common = {**NAMED, "algorithm": "pfedbred", "dataset": custom.federation()}
    steps = {"R": 2, "K": 1, "eta_a": 0.02}
    named, given = (scores(**common | {"settings": steps | each}) for each in PRIORS_AND_MEANS[kind])
    np.testing.assert_array_equal(named, given)


@pytest.mark.parametrize(
    "given",
    [custom.confident, [custom.confident], "support.custom:confident", "loss, support.custom:confident"],
    ids=["object", "list", "path", "paths"],
)
def test_a_metric_by_name_or_not(given):
    experiment = Experiment(dataset=custom.federation(), metrics=given).checked()
    assert experiment.metrics == ["accuracy", "loss", custom.confident]
    assert experiment.plain()["metrics"] == ["accuracy", "loss", "support.custom:confident"]


@pytest.mark.parametrize("given", [custom.sure, [custom.sure], "support.custom:sure", "f1,support.custom:sure"])
def test_a_function_that_builds_a_metric(given):
    experiment = Experiment(dataset=custom.federation(), metrics=given).checked()
    assert experiment.metrics[-1].name == "sure"
    assert experiment.plain()["metrics"][-1] == "support.custom:sure"


def test_paths_and_arrays_as_run_takes_them_and_load_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Experiment(dataset=Path("digits"), split="iid", clients=2).checked().dataset == str(tmp_path / "digits")
    experiment = Experiment(custom.federation(), select=np.array([0, 1])).checked()
    assert experiment.select == experiment.plain()["select"] == [0, 1]
    with pytest.raises(pfedbred.SettingError, match="a selection must be client numbers"):
        Experiment(custom.federation(), select=np.array([0.5])).checked()


@pytest.mark.parametrize(
    ("name", "part", "path"),
    [
        ("prior", custom.poisson, "support.custom:poisson"),
        ("prior", custom.scaled_prior, "support.custom:scaled_prior"),
        ("mean", custom.first_order, "support.custom:first_order"),
    ],
)
@pytest.mark.parametrize("by_path", [False, True])
def test_a_prior_or_mean_is_recorded_by_its_path(name, part, path, by_path):
    given = Experiment(custom.federation(), algorithm="pfedbred", settings={name: path if by_path else part})
    recorded = given.checked().plain()
    assert recorded["settings"][name] == path
    again = Experiment.from_mapping(recorded | {"dataset": custom.federation(), "select": "uniform"})
    assert again.settings[name] is part


def test_a_split_as_a_function():
    named, given = (
        load_data(Experiment(dataset="digits", clients=5, split=split)) for split in ("paper", custom.few_labels)
    )
    np.testing.assert_array_equal(named.train.offsets, given.train.offsets)
    np.testing.assert_array_equal(named.test.x, given.test.x)


def lines(folder):
    """What was measured in a run folder, but not when."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def test_importable_parts_are_recorded_by_their_path_and_run_again(call, tmp_path):
    pfedbred.run(**NAMED | custom.builders(), out=tmp_path / "first")
    said = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())
    assert {name: said[name] for name in custom.builders()} == {
        "algorithm": "support.custom:local_sgd",
        "model": "support.custom:network",
        "select": "support.custom:uniform",
        "aggregate": "support.custom:average",
        "dataset": "support.custom:federation",
    }
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    names = (summary["algorithm"], summary["dataset"], summary["model"])
    assert names == ("local-sgd", "federation", "support.custom:network")
    code, out, err = call("run", "first/config.yaml")
    assert code == 0, err
    assert lines(tmp_path / "runs/federation-support.custom-network-local-sgd") == lines(tmp_path / "first")
    assert "local-sgd" in out


def test_a_dataset_is_recorded_by_its_path_and_run_again(call, tmp_path):
    """As an object, from its config.yaml, from the shell, and resumed: always with the options of a named dataset."""
    options = {**NAMED, "model": "mclr", "dataset": custom.small, "split": "iid", "clients": 3}
    pfedbred.run(**options, out=tmp_path / "first")
    said = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())
    assert said["dataset"] == "support.custom:small"
    assert (said["split"], said["clients"], said["split_seed"]) == ("iid", 3, 5)
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert summary["dataset"] == "small"
    code, _, err = call("run", "first/config.yaml")
    assert code == 0, err
    assert lines(tmp_path / "runs/rows-mclr-fedavg") == lines(tmp_path / "first")
    shell = command(summary["experiment"])
    assert shell is not None
    code, _, err = call(*shlex.split(shell)[1:], "--out", "shell")
    assert code == 0, err
    assert lines(tmp_path / "shell") == lines(tmp_path / "first")
    pfedbred.run(**options | {"rounds": 3}, out=tmp_path / "first", resume=True)
    assert lines(tmp_path / "first")[:-1] == lines(tmp_path / "shell")


def test_a_dataset_of_a_program_is_marked_and_resumed_from_it(tmp_path):
    local = custom.small._replace(clients=3, seed=2)
    options = {**NAMED, "dataset": local, "split": "iid"}
    pfedbred.run(**options, out=tmp_path)
    said = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (said["dataset"], said["clients"], said["split_seed"]) == ("<dataset, not importable>", 3, 2)
    assert pfedbred.run(**options | {"rounds": 3}, out=tmp_path, resume=True).points[-1].round == 3
    with pytest.raises(pfedbred.SettingError, match="dataset was 'dataset', an object that only existed"):
        pfedbred.run(rounds=4, out=tmp_path, resume=True)


def test_a_dataset_brings_its_defaults():
    checked = Experiment(dataset=pfedbred.DATASETS["digits"]).checked()
    named = Experiment(dataset="digits").checked()
    assert checked.plain() == named.plain()
    assert checked.dataset_name == "digits"


def test_clients_of_a_dataset_are_generated_on_demand(monkeypatch):
    monkeypatch.setattr(devices, "device_memory", lambda: 1)
    options = {"clients": 3, "participation": "sample"}
    assert isinstance(
        load_data(Experiment(dataset=pfedbred.DATASETS["synthetic"], **options)), pfedbred.data.Population
    )


def test_what_cannot_be_imported_is_marked_and_not_run_again(call, tmp_path):
    given = {"algorithm": lambda task: custom.local_sgd(task), "model": custom.objects()["model"]}
    given |= {"dataset": custom.small._replace(seed=1), "metrics": [custom.sure()]}
    for name, part in [*given.items(), ("dataset", custom.federation())]:
        plain = Experiment(**{name: part}).checked().plain()
        assert "not importable" in str(plain[name])
        write_config(tmp_path / f"{name}.yaml", plain, "run")
        code, _, err = call("run", f"{name}.yaml")
        assert code == 2
        assert f"pfedbred: {name} was " in err
        assert "an object that only existed in the program that made the run" in err
        assert err.count("\n") == 1


SCRIPT = """
import multiprocessing  # names the script a second time
import numpy as np
import pfedbred

def counted(task, *, R: int = 1):
    return pfedbred.make("fedavg", task, {"R": R})

if __name__ == "__main__":
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 2
    data = pfedbred.from_arrays(x, y, client=np.arange(8) // 4)
    pfedbred.run(dataset=data, algorithm=counted, rounds=1, aggregated=2, out="run")
"""


@pytest.mark.full
def test_what_a_script_defines_is_marked(tmp_path):
    """Its module is ``__main__`` and, as multiprocessing has it, ``__mp_main__``; in another process, another one."""
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, capture_output=True)
    said = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert said["algorithm"] == "<counted, not importable>"


KINDS = {
    "algorithm": [
        (3, "algorithm must be a name, an Algorithm or a function that builds one, not 3"),
        (lambda task: 3, "a function given as algorithm must return an Algorithm, not a int"),
    ],
    "model": [
        (3, "model must be a name, a Model or a function, not 3"),
        (lambda shape, classes: 3, "a function given as model must return a Model, not a int"),
    ],
    "aggregate": [
        (3, "aggregate must be a name or a function, not 3"),
        (lambda: 3, "a function that builds an aggregation rule must return one, not a int"),
    ],
    "select": [
        (1.5, "select must be a name, a list or a function, not 1.5"),
        (lambda count: 3, "a function that builds a selection must return one, not a int"),
    ],
    "metrics": [
        (3, "metrics must be a name, a list, a Metric or a function, not 3"),
        ([3], "unknown metric 3; choose one of"),
        (lambda: 3, "a function given as metric must return a Metric, not a int"),
        (lambda k: custom.confident, "a function given as metric takes no arguments: missing a required argument: 'k'"),
        ([custom.confident._replace(name="loss")], "'loss' is already the name of another metric"),
        ([custom.confident._replace(name="a b")], "a metric's name must be a plain word"),
    ],
    "dataset": [
        (3, "dataset must be a name, a Dataset, a Federation, a Population or a function, not 3"),
        (lambda: 3, "the dataset function must return a Federation, not a int"),
        (pfedbred.Dataset, "a function given as dataset takes no arguments: missing a required argument: 'pool'"),
        (custom.small._replace(pool=3), "a Dataset's pool must be a function of data_dir, clients and seed: 3 is not"),
        (
            custom.small._replace(pool=lambda: 3),
            "a Dataset's pool must be a function of data_dir, clients and seed: too",
        ),
        (custom.small._replace(pool=lambda *given: 3), "the pool of the Dataset lambda must return a Pool, not a int"),
        (custom.small._replace(paper="iid"), "the paper of the Dataset rows must be a function, not 'iid'"),
        (custom.small._replace(clients=0), "the clients of the Dataset rows must be a whole number >= 1"),
        (custom.small._replace(task="x"), "unknown task 'x'"),
    ],
    "split": [
        (3, "split must be a name or a function, not 3"),
        ("iid", "small is already split: split cannot be changed"),
    ],
    "settings": [
        ({"prior": 3}, "prior must be a name, a Prior or a function, not 3"),
        ({"prior": priors.poisson, "sigma": 2.0}, "sigma belongs to the gaussian prior, not to poisson"),
        ({"prior": lambda: 3}, "a function given as prior must return a Prior, not a int"),
        ({"mean": 3}, "mean must be a name, a Mean or a function, not 3"),
        ({"mean": lambda eta: 3}, "a function given as mean must return a Mean, not a int"),
        ({"mean": lambda gamma: 3}, "a function given as mean may take eta_a and eta: missing a required argument"),
    ],
}


@pytest.mark.parametrize(
    ("name", "given", "words"), [(name, given, words) for name, all_ in KINDS.items() for given, words in all_]
)
def test_a_wrong_kind_is_one_line(name, given, words):
    options = {"dataset": custom.federation(), "algorithm": "pfedbred", name: given}
    with pytest.raises(pfedbred.SettingError) as refused:
        train(build(Experiment.from_mapping(options)))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_algorithm_object_takes_no_settings():
    with pytest.raises(pfedbred.SettingError, match="an Algorithm object is already built: it takes no settings"):
        Experiment(algorithm=custom.objects()["algorithm"], settings={"R": 2}).checked()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--algorithm", "os:path"), "algorithm must be a name, an Algorithm or a function that builds one, not"),
        (("--algorithm", "nowhere_at_all:x"), "algorithm: cannot import nowhere_at_all:x: No module named"),
        (("--model", "support.custom:nothing"), "model: cannot import support.custom:nothing: module"),
        (("--dataset", "support.custom:confident"), "dataset must be a name, a Dataset, a Federation"),
        (("--dataset", "support.custom:smal"), "dataset: cannot import support.custom:smal: module"),
        (("--dataset", "support.custom:small", "--clients", "100"), "small has 58 samples, too few for 100 clients"),
        (("--metrics", "support.custom:nothing,f1"), "metrics: cannot import support.custom:nothing: module"),
        (("--set", "prior=support.custom:confident"), "prior must be a name, a Prior or a function, not"),
    ],
)
def test_a_wrong_path_is_one_line_in_the_shell(arguments, words, call, tmp_path):
    code, out, err = call("run", *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert not list(tmp_path.iterdir())


def needs(task, *, alpha):
    return pfedbred.make("fedavg", task, {"alpha": alpha, "R": 1})


def unbounded(task, *, clip=float("inf")):
    return pfedbred.make("fedavg", task, {"R": 1})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"algorithm": needs}, "the setting 'alpha' has no default: it must be given"),
        ({"algorithm": unbounded}, "clip must be a finite number, not inf"),
        ({"select": max}, "cannot be used here"),
        ({"aggregate": dict}, "cannot be used here|must return one"),
        ({"model": "support.broken_module:model"}, "cannot import support.broken_module:model: ZeroDivisionError"),
    ],
)
def test_objects_that_cannot_work_are_one_line(options, problem):
    with pytest.raises(pfedbred.SettingError, match=problem):
        pfedbred.run(**{"rounds": 1, "dataset": custom.federation(), **options})


def broken(*arguments, **settings):
    """A builder of any part, with a fault in it."""
    raise ZeroDivisionError("no shops today")


BROKEN = {
    "algorithm": (lambda task: broken(), "algorithm"),
    "model": (lambda shape, classes: broken(), "model"),
    "prior": (lambda: broken(), "prior"),
    "mean": (lambda eta: broken(), "mean"),
    "select": (lambda count: broken(), "selection"),
    "aggregate": (lambda: broken(), "aggregation rule"),
    "metrics": (lambda: broken(), "metric"),
    "task": (lambda: broken(), "task"),
    "dataset": (lambda: broken(), "dataset"),
    "split": (lambda pool, *, clients, seed: broken(), "split"),
}


@pytest.mark.parametrize("option", BROKEN)
def test_what_a_builder_raises_is_one_line_that_names_it(option):
    build_part, what = BROKEN[option]
    build_part.__name__ = "shops"
    given = {"settings": {option: build_part}} if option in ("prior", "mean") else {option: build_part}
    with pytest.raises(pfedbred.SettingError) as refused:
        pfedbred.run(**{"dataset": "digits", "algorithm": "pfedbred", "clients": 4, "rounds": 1, **given})
    assert str(refused.value) == f"the {what} shops cannot be built: ZeroDivisionError: no shops today"
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


def test_a_builder_given_by_its_path_is_one_line_in_the_shell(call):
    code, _, err = call("run", "--clients", "4", "--model", "test_objects:broken")
    assert (code, err.count("\n")) == (2, 1)
    assert "the model broken cannot be built: ZeroDivisionError: no shops today" in err


def test_what_a_part_raises_while_it_is_used_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError, match="no shops today"):
        pfedbred.run(dataset=custom.federation(), rounds=1, aggregate=lambda gathered: broken())


def test_that_memory_is_exhausted_is_told_as_such():
    def large(shape, classes):
        raise MemoryError

    with pytest.raises(MemoryError):
        pfedbred.run(dataset=custom.federation(), rounds=1, model=large)


def test_paths_are_not_import_paths():
    assert Experiment(store_dir="ab:cd").checked().store_dir.endswith("ab:cd")


def test_numbers_of_numpy_and_tuples_are_recorded_as_plain_values(tmp_path):
    given = Experiment(custom.federation(), algorithm="fedavg", settings={"alpha": np.float32(0.5)}, select=(0, 1))
    plain = given.checked().plain()
    assert plain["select"] == [0, 1]
    json.dumps(plain, allow_nan=False)
    write_config(tmp_path / "config.yaml", plain, "run")


@pytest.mark.full
def test_a_model_trained_with_objects_is_loaded_again(tmp_path):
    settings = {"prior": priors.get("poisson"), "mean": means.get("identity", 0.0, 0.0), "R": 1, "K": 1}
    done = pfedbred.run(
        dataset=custom.federation(), algorithm="pfedbred", settings=settings, rounds=1, out=tmp_path / "run"
    )
    model = pfedbred.load_model(pfedbred.export(tmp_path / "run", client=1))
    np.testing.assert_array_equal(model.params["output"]["weight"], done.personal_model(1)["output"]["weight"])


def test_what_was_not_evaluated_is_one_line():
    done = pfedbred.run(**NAMED, dataset=custom.federation())
    for wrong, problem in (
        (lambda: done.accuracy("globel"), "model must be 'global' or 'personal'"),
        (lambda: done.accuracy("global", "validation"), "there are no validation samples"),
        (lambda: done.accuracy("global", "held"), "part must be 'train', 'validation' or 'test'"),
        (lambda: done.curve("f1", "global"), "'f1' was not evaluated"),
    ):
        with pytest.raises(pfedbred.SettingError, match=problem):
            wrong()


def test_a_users_builder_is_called_once():
    called = []

    def select(count):
        called.append(count)
        return custom_selection.uniform(count)

    def rule(*, outliers=0.2):
        called.append("rule")
        return aggregation.weighted_mean

    built = build(Experiment(custom.federation(), algorithm="fedavg", select=select, aggregate=rule, aggregated=2))
    assert sorted(map(str, called)) == ["2", "rule"]
    assert built.experiment.aggregated == 2
