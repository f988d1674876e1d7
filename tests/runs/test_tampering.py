"""Run folders that somebody changes while a run writes into them, or before it is resumed."""

import functools
import json
import os
import re
import shutil

import pytest
from support.custom import federation

from pfedbred.errors import SettingError
from pfedbred.experiment import run as run_module
from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks import Callback
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import open_folder
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.metrics_file import MetricsFile, digest, size_of


@functools.cache
def built():
    options = {"algorithm": "fedavg", "rounds": 8, "eval_every": 2, "aggregated": 2, "batch_size": 3}
    return build(Experiment("small", settings={"R": 1}, **options), federation())


class At(Callback):
    """Does something after the evaluation of a round."""

    def __init__(self, round_, do):
        self.on_evaluation = lambda progress, point: do() if point.round == round_ else None


def run_into(folder, *callbacks, resume=False, warn=pytest.fail, outcome=False):
    with open_folder(folder, resume=resume):
        how = run_module.FolderOptions(checkpoint_every=2, resume=resume, warn=warn, outcome=outcome)
        return run_module.run_into(folder, built(), callbacks, how)


def metrics(folder):
    """Without times."""
    lines = [json.loads(line) for line in (folder / layout.METRICS).read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def cut(path):
    os.truncate(path, 10)


def add(path):
    with path.open("a") as file:
        file.write("{}\n")


def alter(path):
    text = path.read_text()
    digit = re.search(r"0\.\d\d", text)
    path.write_text(text[: digit.end() - 1] + str((int(digit[0][-1]) + 1) % 10) + text[digit.end() :])


NOTHING = "nothing of the run is saved"
CHANGED = "metrics.jsonl has been changed while the run was writing it"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, f"{CHANGED}; {NOTHING}"),
        (add, f"{CHANGED}; the run is saved up to round 2"),  # what comes after a checkpoint's lines does not matter
        (alter, f"{CHANGED}; {NOTHING}"),
        (lambda path: path.unlink(), f"No such file or directory; {NOTHING}"),
        (lambda path: shutil.rmtree(path.parent), f"No such file or directory; {NOTHING}"),
        (lambda path: [each.unlink() for each in path.parent.iterdir()], f"No such file or directory; {NOTHING}"),
    ],
    ids=["cut", "added to", "altered", "removed", "folder removed", "folder emptied"],
)
def test_a_folder_that_is_changed_under_a_run_is_not_called_saved(change, words, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(SettingError) as stopped:
        run_into(folder, At(4, lambda: change(folder / layout.METRICS)), outcome=True)
    assert str(stopped.value).endswith(words)
    assert not layout.finished(folder)


def stop():
    raise KeyboardInterrupt


@pytest.fixture
def interrupted(tmp_path):
    """The folder of a run with checkpoints of rounds 2 and 4."""
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_into(folder, At(6, stop))
    assert [each.name[-13:-12] for each in checkpoints.files(folder)] == ["4", "2"]
    return folder


def test_altered_metrics_are_noticed_when_a_run_is_resumed(interrupted):
    alter(interrupted / layout.METRICS)
    warnings = []
    words = r"no checkpoint in .* fits its metrics.jsonl: restore that file, or start again with --overwrite"
    with pytest.raises(SettingError, match=words):
        run_into(interrupted, resume=True, warn=warnings.append)
    assert len(warnings) == 2
    assert all("metrics.jsonl has been changed since" in each for each in warnings)


def test_metrics_that_are_no_file_are_not_waited_for(interrupted):
    (interrupted / layout.METRICS).unlink()
    os.mkfifo(interrupted / layout.METRICS)
    for read in (lambda: digest(interrupted, 1), lambda: MetricsFile(interrupted), lambda: size_of(interrupted)):
        with pytest.raises(SettingError, match=r"cannot read .*metrics.jsonl: it is not a file"):
            read()
    with pytest.raises(SettingError, match=r"no checkpoint in .* can be read: .*metrics.jsonl: it is not a file"):
        run_into(interrupted, resume=True, warn=[].append)


@pytest.mark.parametrize("what", ["folder", "dangling link", "fifo"])
def test_a_checkpoint_that_cannot_be_read_is_passed_over(what, interrupted, tmp_path):
    newest = checkpoints.files(interrupted)[0]
    newest.unlink()
    if what == "folder":
        newest.mkdir()
        (newest / "precious").write_text("mine")
    elif what == "dangling link":
        newest.symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(newest)
    warnings = []
    run_into(interrupted, resume=True, warn=warnings.append)
    assert len(warnings) == 1
    assert re.search(r"cannot read .*checkpoint-00000004.safetensors: .*; trying the one before", warnings[0])
    run_into(tmp_path / "whole")
    assert metrics(interrupted) == metrics(tmp_path / "whole")
    kept = [each.read_text() for each in interrupted.rglob("precious")]
    assert kept == (["mine"] if what == "folder" else [])
