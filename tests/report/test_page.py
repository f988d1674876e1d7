"""What is on report.html, and that it needs nothing but itself."""

import json
import re

import numpy as np
import pytest
from support.page_folders import change_json, write_comparison, write_json, write_lines, write_run, write_sweep

from pfedbred.engine.metrics import METRICS
from pfedbred.errors import SettingError
from pfedbred.report.page import Section, embedded, gather, write_page
from pfedbred.runs.record import RunRecord
from pfedbred.runs.summary import summary

EVIL = '</script><script>window.evil = 1</script><img src=x onerror="window.evil = 1">'
MODELS = {"G": "global", "P": "personal"}


@pytest.mark.parametrize("schema", [1, 2])
def test_every_metric_of_a_run_is_shown(tmp_path, schema):
    lines = write_run(tmp_path, schema=schema, clients=(EVIL, "a&b", "c"))
    content = gather([tmp_path])
    (run,) = content["runs"]
    names = ["accuracy", "loss", "f1", "rmse"][: 2 * schema]
    assert list(run["metrics"]) == [each["name"] for each in content["metrics"]] == names
    assert run["rounds"] == [1, 2, 3]
    assert run["clients"] == [EVIL, "a&b", "c"]
    for info in content["metrics"]:
        scale, pick = (100 if info["percent"] else 1), (np.max if info["higher_is_better"] else np.min)
        for letter, model in MODELS.items():
            shown = run["metrics"][info["name"]][letter]
            values = scale * np.array([line[model]["test"][info["name"]] for line in lines])
            best = pick(values, axis=0)
            assert [shown["best"], shown["std"]] == pytest.approx([best.mean(), best.std(ddof=1)], abs=1e-3)
            for kind, curve in {"mean": np.mean, "low": np.min, "high": np.max}.items():
                np.testing.assert_allclose(shown[kind], curve(values, axis=1), atol=1e-3)
            clients = scale * np.mean(lines[-1][model]["test"][f"client_{info['name']}"], axis=0)
            np.testing.assert_allclose(shown["clients"], clients, atol=0.06)
    worst = 100 * np.mean(lines[-1]["personal"]["test"]["worst_decile"])
    assert run["metrics"]["accuracy"]["P"]["worst_tenth"] == pytest.approx(worst, abs=1e-3)


def test_metrics_are_shown_as_their_run_says(tmp_path):
    write_run(tmp_path / "old", "fedavg", schema=1)
    write_run(tmp_path / "new", "mg-meta", metrics=("f1",))
    shown = {each["name"]: each for each in gather([tmp_path / "old", tmp_path / "new"])["metrics"]}
    assert list(shown) == ["accuracy", "loss", "f1"]
    assert shown["loss"] == {"name": "loss", "title": "loss", "percent": False, "higher_is_better": False}
    assert shown["f1"] == {"name": "f1", "title": "macro F1", "percent": True, "higher_is_better": True}


def test_a_metric_that_is_sometimes_undefined_has_a_best_value(tmp_path):
    lines = write_run(tmp_path, seeds=1, metrics=("f1",))
    lines[1]["global"]["test"]["f1"] = [None]
    write_lines(tmp_path, lines)
    shown = gather([tmp_path])["runs"][0]["metrics"]["f1"]["G"]
    assert shown["mean"][1] is None
    assert shown["best"] == pytest.approx(100 * max(lines[i]["global"]["test"]["f1"][0] for i in (0, 2)), abs=1e-3)


def test_the_summary_has_the_same_best_values(tmp_path):
    """One definition: undefined values do not count, and a seed that diverged has none."""
    lines = write_run(tmp_path, metrics=("f1",))
    lines[1]["global"]["test"]["f1"] = [None, 0.1]
    lines[1]["personal"]["train"]["loss"][0] = None
    write_lines(tmp_path, lines)
    run, shown = RunRecord.read(tmp_path), gather([tmp_path])["runs"][0]["metrics"]
    made = summary(
        names={},
        experiment={"rounds": 3, "seeds": 2},
        data={},
        points=run.points,
        metrics=[METRICS[name] for name in run.metrics],
        seconds=dict.fromkeys(("compile", "round", "total"), 0.0),
        rejections=run.points[-1].rejections,
        diverged=None,
        finished_early=None,
        newcomers=None,
        evaluated=None,
    )
    for info in gather([tmp_path])["metrics"]:
        for letter, model in MODELS.items():
            best, on_page = made[model]["metrics"][info["name"]]["best"], shown[info["name"]][letter]
            scale = 100 if info["percent"] else 1
            for kind, place in (("mean", "best"), ("std", "std")):
                expected = None if model == "personal" else pytest.approx(scale * best[kind], rel=1e-3)
                assert on_page[place] == expected
                assert (best[kind] is None) == (model == "personal")
    values = [line["global"]["test"]["f1"][0] for line in lines]
    assert made["global"]["metrics"]["f1"]["best_round"][0] == (1 if values[0] > values[2] else 3)


def test_a_model_that_diverged_has_no_best_value(tmp_path):
    lines = write_run(tmp_path)
    lines[1]["personal"]["train"]["loss"][0] = None
    write_lines(tmp_path, lines)
    shown = gather([tmp_path])["runs"][0]["metrics"]["accuracy"]
    assert (shown["P"]["diverged"], shown["P"]["best"]) == (True, None)
    assert (shown["G"]["diverged"], shown["G"]["best"] is None) == (False, False)


def test_diagnostics_are_curves_with_gaps(tmp_path):
    lines = write_run(tmp_path)
    lines[0]["diagnostics"] = {"distance": [1.0, 3.0]}
    lines[2]["diagnostics"] = {"distance": [4.0, 4.5], "steps": [5, 7]}
    write_lines(tmp_path, lines)
    found = gather([tmp_path])["runs"][0]["diagnostics"]
    assert found["distance"] == {"mean": [2.0, None, 4.25], "low": [1.0, None, 4.0], "high": [3.0, None, 4.5]}
    assert found["steps"]["mean"] == [None, None, 6.0]


@pytest.mark.parametrize(("schema", "key"), [(1, "left_out"), (2, "rejected")])
def test_rejected_updates_are_counted_over_rounds_and_seeds(tmp_path, schema, key):
    lines = write_run(tmp_path, schema=schema)
    lines[0][key] = [{"a": 2}, {}]
    lines[2][key] = [{"a": 1}, {"b": 4}]
    write_lines(tmp_path, lines)
    assert gather([tmp_path])["runs"][0]["rejected"] == 7


ODD = {
    "a text": (lambda test, line: test.update(f1=["x", 1.0]), "an entry of 'f1' must be a number, not 'x'"),
    "more than all": (lambda test, line: test.update(accuracy=[1.5, 0.5]), "must be a number from 0 to 1"),
    "another seed": (lambda test, line: test["f1"].append(0.5), "same seeds and clients"),
    "another client": (lambda test, line: test["client_f1"][0].append(0.5), "same seeds and clients"),
    "no clients": (lambda test, line: test.pop("client_f1"), "has no 'client_f1'"),
    "no metric": (lambda test, line: test.pop("f1"), "has no 'f1'"),
    "spread": (lambda test, line: test.update(worst_decile="low"), "'worst_decile' must be"),
    "rejected": (lambda test, line: line.update(rejected=[{"a": -1}]), "'rejected'"),
    "diagnostics": (lambda test, line: line.update(diagnostics={"steps": ["x", 1]}), "must be a number"),
    "its seeds": (lambda test, line: line.update(diagnostics={"steps": [1]}), "'steps' has 1 seeds, not 2"),
}


@pytest.mark.parametrize(("change", "words"), ODD.values(), ids=ODD)
def test_odd_lines_are_refused(tmp_path, change, words):
    lines = write_run(tmp_path)
    change(lines[-1]["personal"]["test"], lines[-1])
    write_lines(tmp_path, lines)
    with pytest.raises(SettingError) as stopped:
        gather([tmp_path])
    assert words in str(stopped.value)
    assert "metrics.jsonl" in str(stopped.value)


def test_odd_files_beside_the_lines_are_refused(tmp_path):
    def refused(file, change):
        write_run(tmp_path)
        change_json(tmp_path / file, change)
        with pytest.raises(SettingError) as stopped:
            gather([tmp_path])
        return str(stopped.value)

    assert "'percent' must be true" in refused("summary.json", lambda all_: all_["metric_info"]["f1"].update(percent=1))
    scored = {"numbers": [0], "clients": 1, "took_part": [1, 1]}
    assert "scored 1 clients, not 3" in refused("summary.json", lambda all_: all_.update(scored=scored))
    assert "train table does not fit" in refused("data.json", lambda all_: all_["train"].pop())
    assert "validation table does not fit" in refused("data.json", lambda all_: all_["validation"].pop())
    assert "'validation'" in refused("data.json", lambda all_: all_.update(validation="none"))
    parts = {part: [[1, 2]] for part in ("train", "validation", "test")}
    assert "does not belong to this run" in refused(
        "data.json", lambda all_: all_.update(clients=1, names=["a"], **parts)
    )
    write_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("\n")
    with pytest.raises(SettingError, match="is empty: the run has not been evaluated"):
        gather([tmp_path])


def test_of_very_many_clients_a_thousand_are_shown(tmp_path):
    write_run(tmp_path, clients=[f"client-{i}" for i in range(2500)], rounds=1, seeds=1)
    content = gather([tmp_path])
    (run,) = content["runs"]
    assert len(run["clients"]) == len(run["metrics"]["f1"]["P"]["clients"]) == 1000
    assert (run["clients"][0], run["clients"][-1]) == ("client-0", "client-2499")
    assert len(embedded({"runs": content["runs"]})) < 100_000  # and plotly.js is 4.8 MB


def test_a_comparison_and_a_sweep_are_shown(tmp_path):
    write_comparison(tmp_path / "cmp")
    write_sweep(tmp_path / "sweep" / "sweep.json")
    content = gather([tmp_path / "cmp", tmp_path / "sweep"])
    assert [run["name"] for run in content["runs"]] == ["fedavg", "mg-meta"]
    assert len(content["federations"]) == 1  # that both runs share
    (sweep,) = content["sweeps"]
    assert sweep["names"] == ["eta", "lam"]
    both = {"G": {"value": 50.0, "best": 50.0}, "P": {"value": 25.0, "best": 25.0}}
    assert sweep["points"][-1] == {"eta": 0.1, "lam": 15, **both, "score": 25.0, "rounds": None}
    assert (sweep["chosen_on"], sweep["figures"]) == ("test", ["best"])  # as earlier versions did
    assert set(content["platforms"]) == {"cpu (cpu), jax 0.10"}


def test_runs_of_the_same_method_have_different_names(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / name)
    names = [run["name"] for run in gather([tmp_path / "one", tmp_path / "two"])["runs"]]
    assert names == ["mg-meta on mine, mclr", "mg-meta on mine, mclr (2)"]


def test_runs_are_compared_on_the_same_test_samples_only(tmp_path):
    facts = {
        "one": {"name": "mine", "clients": 3, "train_samples": 80, "validation_samples": 20, "validation": 0.2},
        "two": {"name": "mine", "clients": 3, "train_samples": 100},
        "other": {"name": "mine", "clients": 4, "train_samples": 100},
    }
    for name, data in facts.items():
        write_run(tmp_path / name)
        change_json(tmp_path / name / "summary.json", lambda all_, data=data: all_.update(data=data))
    one, two, other = (run["tests"] for run in gather([tmp_path / name for name in facts])["runs"])
    assert one == two
    assert one != other


def test_commands_come_from_the_caller(tmp_path):
    write_run(tmp_path / "run")
    write_sweep(tmp_path / "sweep" / "sweep.json")

    def command(experiment, verb="run", without=()):
        return f"{verb} {experiment['algorithm']} without {','.join(without)}"

    folders = [tmp_path / "run", tmp_path / "sweep"]
    run, sweep = gather(folders, command=command)["commands"]
    assert run == {
        "name": "mg-meta",
        "command": "run mg-meta without ",
        "settings": {"dataset": "mine", "model": "mclr", "algorithm": "mg-meta", "rounds": 3, "R": 2},
    }
    assert sweep["command"] == "sweep mg-meta without eta,lam --grid eta=0.01,0.1 --grid lam=5,15 --choose-on-test"
    assert [each["command"] for each in gather(folders)["commands"]] == [None, None]


def test_other_kinds_of_result_are_contributed(tmp_path):
    """Without a line about them in the report."""

    def gather_notes(folder, content):
        content["notes"] += [file.read_text() for file in folder.glob("*.note")]
        return any(folder.glob("*.note"))

    notes = Section("note", gather_notes, {"notes": "note"}, "addSection(() => section('notes', 'Notes'));")
    (tmp_path / "a.note").write_text("remember")
    assert gather([tmp_path], [notes])["notes"] == ["remember"]
    write_page([tmp_path], tmp_path / "page.html", [notes])
    text = (tmp_path / "page.html").read_text()
    assert notes.script in text
    assert '<p class="quiet">1 note</p>' in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match="empty contains no finished run, comparison, sweep or note"):
        gather([tmp_path / "empty"], [notes])


def test_the_page_stands_alone_and_is_small(tmp_path):
    write_comparison(tmp_path, clients=(EVIL, "b"))
    write_page([tmp_path], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert len(text) < 6 * 10**6
    assert EVIL not in text
    head = text.split('<script id="content"')[0]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", head)
    assert text.count("<script") == 3  # the content, plotly.js, and the page's own


def test_folders_without_results_are_refused(call, tmp_path):
    (tmp_path / "empty").mkdir()
    write_json(tmp_path / "damaged" / "summary.json", {})
    for folder, words in {
        "nowhere": "no folder nowhere",
        "empty": "pfedbred: empty contains no finished run, comparison, sweep or paper result",
        "damaged": "damaged",
    }.items():
        code, _, err = call("report", folder)
        assert code == 2
        assert words in err
        assert len(err.splitlines()) == 1


def test_the_command_line_writes_the_page_of_a_run(call, finished, tmp_path):
    """From files as a run leaves them, with the command that reproduces it."""
    code, out, err = call("report", finished / "run", finished / "sweep", "--out", "page.html")
    assert code == 0, err
    assert out == "page: page.html\n"
    text = (tmp_path / "page.html").read_text()
    content = json.loads(re.search(r'<script id="content" type="application/json">(.*?)</script>', text)[1])
    (run,) = content["runs"]
    summary = json.loads((finished / "run" / "summary.json").read_text())
    for letter, model in MODELS.items():
        best = summary[model]["best_accuracy"]
        shown = run["metrics"]["accuracy"][letter]
        assert [shown["best"], shown["std"]] == pytest.approx([100 * best["mean"], 100 * best["std"]], abs=1e-3)
    commands = [each["command"] for each in content["commands"]]
    assert [each.partition(" --dataset ")[0] for each in commands] == [
        "pfedbred run --algorithm pfedme",
        "pfedbred sweep --algorithm fedavg",
    ]
