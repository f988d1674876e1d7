"""The layout of a run folder, and making, recognising and removing one.

config.yaml         everything needed to reproduce the run: ``pfedbred run FOLDER/config.yaml``
metrics.jsonl       one line per evaluation
data.json           the data distribution: samples by client and label
summary.json        the outcome; written last, so it marks a finished run
curves.png          accuracy, or another metric, by round, and client by client
models.safetensors  the models at the end: see ``pfedbred export``
tracking/           what trackers such as TensorBoard have recorded: see ``pfedbred run --track``
checkpoint-ROUND.safetensors  where an interrupted run is resumed, or a finished one given more rounds: see ``--resume``

A comparison has a folder of this kind for each algorithm, with ``table.json`` and ``comparison.json`` beside them; over
several splits, a comparison in ``split-SEED`` for each of them. A sweep has ``sweep.json``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pfedbred.errors import SettingError, file_name, is_folder_name
from pfedbred.io.atomic import PARTIAL
from pfedbred.io.folders import ensure_folder
from pfedbred.runs import checkpoints, locks
from pfedbred.runs.config_file import read_config

CONFIG, METRICS, DATA, SUMMARY = "config.yaml", "metrics.jsonl", "data.json", "summary.json"
CURVES, HEATMAP, SWEEP, TABLE, PAGE = "curves.png", "heatmap.png", "sweep.json", "table.json", "report.html"
COMPARISON, TRACKING = "comparison.json", "tracking"
MODELS, GLOBAL_MODEL = "models.safetensors", "global.safetensors"
EXPORTED = (".safetensors", ".onnx", ".pt")
"""The usual suffixes of exported models, which are called ``global`` or ``client-7``."""

_MOST_SPLITS = 10_000
_FILES = (SUMMARY, COMPARISON, CURVES, DATA, GLOBAL_MODEL, HEATMAP, METRICS, MODELS, PAGE, SWEEP, TABLE, CONFIG)
"""In the order in which they are removed: first what marks the run as finished, last what marks it as a run."""


def started(folder: Path) -> bool:
    """Whether there is a run in the folder."""
    return (folder / CONFIG).exists()


def finished(folder: Path) -> bool:
    """Whether the run in the folder is finished."""
    return (folder / SUMMARY).exists()


def new_folder(folder: Path, overwrite: bool = False) -> Path:
    """A folder for a new run. An existing run is left alone, unless ``overwrite`` removes it."""
    ensure_folder(folder)
    try:
        if not is_free(folder):
            if not overwrite:
                said = f"{folder} is not empty; choose another"
                raise SettingError(
                    f"{said} folder, or overwrite it (overwrite=True)",
                    in_shell=f"{said} --out, or overwrite it (--overwrite)",
                )
            _remove_runs(folder)
    except OSError as problem:
        raise SettingError(f"cannot remove the run in {folder}: {problem.strerror}") from None
    return folder


def is_free(folder: Path) -> bool:
    """Whether a folder is empty, apart from what killed processes leave behind."""
    nothing = {locks.LOCK, *(each.name for each in leftovers(folder))}
    return all(each.name in nothing for each in folder.iterdir())


def _remove_runs(folder: Path) -> None:
    """Removes the files of a run, and the runs of a comparison in it; nothing else."""
    for name in _compared(folder):
        below = folder / name
        if below.is_dir() and not below.is_symlink():
            with locks.locked(below):
                _remove_runs(below)
            if not any(below.iterdir()):
                below.rmdir()
    (folder / SUMMARY).unlink(missing_ok=True)
    recorded = folder / TRACKING
    if started(folder) and recorded.is_dir() and not recorded.is_symlink():
        shutil.rmtree(recorded)
    for each in checkpoints.files(folder):
        checkpoints.remove(each)
    exported = [each for suffix in EXPORTED for name in ("global", "client-*") for each in folder.glob(name + suffix)]
    for each in (*leftovers(folder), *exported, *(folder / name for name in _FILES)):
        each.unlink(missing_ok=True)


def _compared(folder: Path) -> list[str]:
    """The folders of the comparison in a folder, if it holds one: its algorithms, or its splits."""
    try:
        config = read_config(folder / CONFIG)
    except SettingError:
        return []  # not a readable comparison
    first, splits = config.get("split_seed") or 0, config.get("split_seeds")
    if isinstance(splits, int) and isinstance(first, int) and 0 < splits <= _MOST_SPLITS:
        return [split_name(seed) for seed in range(first, first + splits)]
    names = config.get("algorithms")
    folders = [method_folder(each) for each in names if isinstance(each, str)] if isinstance(names, list) else []
    return [each for each in folders if is_folder_name(each)]


def method_folder(name: str) -> str:
    """The folder of a method in a comparison: its name, or what a folder can be called if that is an import path."""
    return file_name(name) if ":" in name else name


def split_name(seed: int) -> str:
    """The folder of a comparison on one of several splits."""
    return f"split-{seed}"


def leftovers(folder: Path) -> list[Path]:
    """Partial files of processes that died while writing."""
    names = "|".join(map(re.escape, _FILES))
    ours = re.compile(rf"\.({names}|checkpoint-\d+\.safetensors)(\.\d+)?{re.escape(PARTIAL)}")
    return [each for each in folder.iterdir() if ours.fullmatch(each.name)]


def free_name(parent: Path, name: str) -> Path:
    """``parent/name``, or the first of ``name-2``, ``name-3``, ... that does not exist."""
    candidate, number = parent / name, 1
    try:
        while candidate.exists():
            number += 1
            candidate = parent / f"{name}-{number}"
    except OSError as problem:
        raise SettingError(f"cannot read the folder {parent}: {problem.strerror}") from None
    return candidate
