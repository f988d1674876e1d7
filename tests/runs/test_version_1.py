"""Run folders of before metrics were open: metrics.jsonl without a schema, other names for rejected updates."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.custom import federation

from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks import Callback
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.io.atomic import write_json
from pfedbred.report import page
from pfedbred.runs import checkpoints, saved_models
from pfedbred.runs.config_file import read_config
from pfedbred.runs.metrics_file import read_points
from pfedbred.runs.record import RunRecord

NEW_OPTIONS = ("metrics", "diagnostics")


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def _before(name: str) -> str:
    """An array's name in a checkpoint of version 1."""
    name = re.sub(r"^rejected\.", "left_out.", name)
    return name.replace(".rejected", ".sick").replace(".participated", ".met")


def to_version_1(folder: Path) -> None:
    """Rewrites the files of a run as they were before."""
    config = without(read_config(folder / "config.yaml"), *NEW_OPTIONS)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [{**without(line, "schema", "rejected"), "left_out": line["rejected"]} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for path in checkpoints.files(folder):
        found = checkpoints.read(path)
        arrays = {_before(name): np.array(array) for name, array in found.arrays.items()}
        facts = without(found.facts, "metrics_sha256") | {"metrics": (folder / "metrics.jsonl").stat().st_size}
        facts["experiment"] = without(facts["experiment"], *NEW_OPTIONS)
        checkpoints.write(folder, found.round, facts, arrays)
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        summary["left_out"] = summary["rejected"]
        summary["experiment"] = without(summary["experiment"], *NEW_OPTIONS)
        for model in ("global", "personal"):
            del summary[model]["metrics"]
        write_json(folder / "summary.json", without(summary, "rejected", "metric_info", "finished_early"))


class StopAfterThird(Callback):
    def most_rounds(self, progress):
        return 1

    def stop_reason(self, progress):
        return "interrupted" if progress.round == 3 else None


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"participation": "sample", "store": "memory"}, marks=pytest.mark.full)],
    ids=["resident", "streamed"],
)
def test_an_interrupted_run_is_resumed(options, tmp_path):
    given = {"algorithm": "fedavg", "rounds": 4, "eval_every": 2, "aggregated": 2, "batch_size": 3, **options}
    built = build(Experiment("small", settings={"R": 1}, **given), federation())

    def run(folder, *callbacks, resume=False):
        with open_folder(folder, resume=resume):
            how = FolderOptions(resume=resume, outcome=False, warn=pytest.fail)
            return run_into(folder, built, callbacks, how)

    whole = run(tmp_path / "whole")
    assert run(tmp_path / "half", StopAfterThird()).round == 3
    to_version_1(tmp_path / "half")
    (saved,) = checkpoints.files(tmp_path / "half")
    arrays = checkpoints.read(saved).arrays
    assert ("left_out.0" if options else "clients.sick") in arrays
    resumed = run(tmp_path / "half", resume=True)
    ours, theirs = (resumed.backend.save(each.state).arrays for each in (resumed, whole))
    assert ours.keys() == theirs.keys()
    first, second = (read_points(tmp_path / name) for name in ("half", "whole"))
    assert [point.round for point in first] == [point.round for point in second] == [2, 4]
    for one, other in zip(first, second, strict=True):
        assert one.rejections == other.rejections
        for name in ("accuracy", "loss"):
            np.testing.assert_array_equal(
                one.scores.personal.test.values[name], other.scores.personal.test.values[name]
            )
    np.testing.assert_array_equal(resumed.global_model()["output"]["weight"], whole.global_model()["output"]["weight"])
    written = [json.loads(line) for line in (tmp_path / "half" / "metrics.jsonl").read_text().splitlines()]
    assert ["schema" in line for line in written] == [False, True]


def test_a_finished_run_is_read_reported_exported_and_run_again(finished, tmp_path, call):
    folder = tmp_path / "old"
    shutil.copytree(finished / "run", folder)
    to_version_1(folder)
    record, new = RunRecord.read(folder), RunRecord.read(finished / "run")
    assert record.summary["rejected"] == new.summary["rejected"]
    np.testing.assert_array_equal(record.accuracy("personal"), new.accuracy("personal"))
    ours, theirs = (page.gather([each])["runs"][0] for each in (folder, finished / "run"))
    assert ours["metrics"]["accuracy"] == theirs["metrics"]["accuracy"]
    assert list(ours["metrics"]) == ["accuracy", "loss"]
    code, _, err = call("report", "old")
    assert code == 0, err
    assert saved_models.export(folder, client=1).exists()
    code, _, err = call("run", "old/config.yaml", "--out", "again")
    assert code == 0, err
    again = RunRecord.read(tmp_path / "again")
    np.testing.assert_array_equal(again.accuracy("personal"), new.accuracy("personal"))


def test_another_schema_is_one_line(finished, tmp_path):
    shutil.copytree(finished / "run", tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 3'))
    with pytest.raises(ValueError, match="was written by another version: its schema is 3, not 2"):
        RunRecord.read(tmp_path / "run")
