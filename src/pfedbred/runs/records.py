"""Run folders: what was run, every evaluation, the outcome and its picture, as files anyone can read.

config.yaml     everything needed to run it again: ``pfedbred run FOLDER/config.yaml``
metrics.jsonl   a line for each evaluation
data.json       who has what: samples by client and label
summary.json    the outcome
curves.png      accuracy by round, and client by client
models.safetensors  the models at the end, in safetensors' format: see ``pfedbred export``
checkpoint-ROUND.safetensors  where an interrupted run goes on: see ``pfedbred run --resume``
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from pfedbred.runs import checkpoints
from pfedbred.runs import locks
from pfedbred.io.shapes import expect
from pfedbred.io import strict
from pfedbred.io import tensors
from pfedbred._version import __version__
from pfedbred.data.federation import Federation
from pfedbred.engine import StreamedSimulation
from pfedbred.errors import SettingError, is_file_name
from pfedbred.experiment.configuration import Experiment
from pfedbred.io.shapes import COUNT
from pfedbred.io.shapes import FRACTION
from pfedbred.io.shapes import NUMBER
from pfedbred.io.shapes import Each
from pfedbred.io.shapes import Maybe
from pfedbred.io.shapes import Some
from pfedbred.experiment.loop import Run
from pfedbred.experiment.sweep import Sweep


def find_folder(folder: Path) -> Path:
    """A folder of that name, made if there is none, that can be written into."""
    try:
        if folder.exists() and not folder.is_dir():
            raise SettingError(f"{folder} exists and is not a folder")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SettingError(f"cannot make the folder {folder}: {problem.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise SettingError(f"cannot write into {folder}: permission denied")
    return folder


def make_folder(folder: Path, overwrite: bool = False) -> Path:
    """A folder of that name for a new run. An existing run is left alone, unless ``overwrite`` removes it."""
    if not is_free(find_folder(folder)):
        if not overwrite:
            raise SettingError(f"{folder} is not empty; choose another --out, or add --overwrite")
        try:
            _remove_runs(folder)
        except OSError as problem:
            raise SettingError(f"cannot remove the run in {folder}: {problem.strerror}") from None
    return folder


def is_free(folder: Path) -> bool:
    """Whether there is nothing in a folder but what processes leave that die."""
    nothing = {locks.LOCK, *(each.name for each in left_behind(folder))}
    return all(each.name in nothing for each in folder.iterdir())


def _remove_runs(folder: Path) -> None:
    """Removes the files of a run, and of the runs of a comparison that are its own; nothing else.

    What says that a run is finished goes first, what says that there is one goes last: whatever is left if this is cut
    off can be removed again.
    """
    for name in _parts(folder):
        below = folder / name
        if below.is_dir() and not below.is_symlink():
            with locks.locked(below):
                _remove_runs(below)
            if not any(below.iterdir()):
                below.rmdir()
    for each in (folder / "summary.json", *checkpoints.files(folder), *left_behind(folder)):
        each.unlink(missing_ok=True)
    for each in (*folder.glob("client-*.safetensors"), *(folder / name for name in _RUN_FILES)):
        each.unlink(missing_ok=True)


def _parts(folder: Path) -> list[str]:
    """The runs of the comparison in a folder, if it holds one."""
    try:
        names = read_config(folder / "config.yaml").get("algorithms")
    except SettingError:
        return []  # there is none that could be read
    return [each for each in names if isinstance(each, str) and is_file_name(each)] if isinstance(names, list) else []


def left_behind(folder: Path) -> list[Path]:
    """What a process leaves that dies while it writes a file of a run."""
    names = "|".join(map(re.escape, _RUN_FILES))
    ours = re.compile(rf"\.({names}|checkpoint-\d+\.safetensors)(\.\d+)?{re.escape(tensors.PARTIAL)}")
    return [each for each in folder.iterdir() if ours.fullmatch(each.name)]


_RUN_FILES = (
    "summary.json",
    "curves.png",
    "data.json",
    "global.safetensors",
    "heatmap.png",
    "metrics.jsonl",
    "models.safetensors",
    "report.html",
    "sweep.json",
    "table.json",
    "config.yaml",
)


def free_name(parent: Path, name: str) -> Path:
    """``parent/name``, or the first of ``name-2``, ``name-3``, ... that does not exist."""
    candidate, number = parent / name, 1
    try:
        while candidate.exists():
            number += 1
            candidate = parent / f"{name}-{number}"
    except OSError as problem:
        raise SettingError(f"cannot look into {parent}: {problem.strerror}") from None
    return candidate


def plain(experiment: Experiment) -> dict[str, Any]:
    """The experiment as plain values, for YAML and JSON."""
    return {name: _plain(value) for name, value in dataclasses.asdict(experiment).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if isinstance(value, bool | int | float | str | list | None):
        return value
    return f"<{type(value).__name__}>"  # an object from Python: named, but not to be read back


class _WithoutAliases(yaml.SafeDumper):
    """Writes a list out wherever it stands: an experiment file has no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_config(folder: Path, options: Mapping[str, Any], command: str) -> None:
    """Writes config.yaml."""
    head = f"# pfedbred {__version__}. To run it again: pfedbred {command} {folder / 'config.yaml'}\n"
    text = head + yaml.dump(dict(options), Dumper=_WithoutAliases, sort_keys=False)
    write_text(folder / "config.yaml", text)


def read_config(path: Path) -> dict[str, Any]:
    """The options in an experiment file."""
    loaded = strict.read_yaml(path)
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise SettingError(f"cannot read {path}: expected names with values, such as 'algorithm: pfedme'")
    return loaded


def summary(run: Run) -> dict[str, Any]:
    """summary.json: the outcome, and what made it."""
    experiment = run.experiment
    return {
        "algorithm": experiment.algorithm,
        "dataset": experiment.dataset,
        "model": experiment.model if isinstance(experiment.model, str) else "custom",
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "global": _outcome(run, "global"),
        "personal": _outcome(run, "personal"),
        "seconds": {
            "compile": round(run.compile_seconds, 4),
            "round": float(f"{np.median(run.round_seconds):.4g}"),
            "total": round(run.total_seconds, 4),
        },
        "data": run.simulation.federation.facts,
        "left_out": run.health.left_out,
        "skipped_rounds": run.health.skipped,
        "diverged": run.diverged,
        "newcomers": _newcomers(run),
        "scored": _scored(run),
        "version": __version__,
        "revision": revision(),
        "platform": platform_facts(),
        "experiment": plain(experiment),
    }


def _outcome(run: Run, model: Any) -> dict[str, Any]:
    accuracy = run.accuracy(model)
    best = accuracy.argmax(axis=0)
    last = run.points[-1].scores
    final = (last.global_ if model == "global" else last.personal).test
    return {
        "best_accuracy": _mean_std(accuracy.max(axis=0)),
        "final_accuracy": _mean_std(accuracy[-1]),
        "best_round": [run.points[i].round for i in best],
        "final_loss": _mean_std(final.loss),
        "final_worst_decile": _mean_std(final.worst_decile),
        "final_client_std": _mean_std(final.client_std),
    }


def _newcomers(run: Run) -> dict[str, Any] | None:
    """How the clients that were held out did: after so many rounds of local training each, from none on."""
    if run.newcomers is None:
        return None
    return {
        "clients": run.newcomers[0].personal.test.client_accuracy.shape[1],
        "global": _mean_std(run.newcomers[0].global_.test.accuracy),
        "personal": [_mean_std(each.personal.test.accuracy) for each in run.newcomers],
    }


def _scored(run: Run) -> dict[str, Any] | None:
    """Where not all clients are scored: how many, and how many of them have taken part, by seed."""
    if not isinstance(run.simulation, StreamedSimulation):
        return None
    scored = run.simulation.scored
    return {"clients": len(scored), "took_part": run.simulation.took_part(run.states), "numbers": scored.tolist()}


def _mean_std(values: np.ndarray) -> dict[str, float | None]:
    """Over seeds; the sample standard deviation, 0 for a single seed. None where a run has diverged."""
    if not np.all(np.isfinite(values)):
        return {"mean": None, "std": None}
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0}


def write_sweep(sweep: Sweep, folder: Path) -> dict[str, Any]:
    """config.yaml and sweep.json, whose content it returns."""
    write_config(folder, plain(sweep.experiment), "sweep --grid ...")
    facts = sweep_facts(sweep)
    write_json(folder / "sweep.json", facts)
    return facts


def sweep_facts(sweep: Sweep) -> dict[str, Any]:
    """Every point with its best accuracies, and what made them."""
    g, p = sweep.best_accuracy("global"), sweep.best_accuracy("personal")
    points = [
        {**dict(zip(sweep.names, map(float, row), strict=True)), "global": _finite(g[i]), "personal": _finite(p[i])}
        for i, row in enumerate(sweep.points)
    ]
    return {
        "algorithm": sweep.experiment.algorithm,
        "grid": list(sweep.names),
        "best": sweep.best_point(),
        "points": points,
        "seconds": {"compile": round(sweep.compile_seconds, 4), "total": round(sweep.total_seconds, 4)},
        "version": __version__,
        "revision": revision(),
        "platform": platform_facts(),
        "experiment": plain(sweep.experiment),
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def write_data(federation: Federation, path: Path, most: int = 1_000) -> None:
    """data.json, or a file like it: samples by client and label, of at most so many clients, taken evenly."""
    shown = np.unique(np.linspace(0, federation.clients - 1, min(most, federation.clients)).round().astype(int))
    counts = {
        part: split.take(shown).label_counts(federation.classes).tolist()
        for part, split in (("train", federation.train), ("test", federation.test))
    }
    facts = {
        "name": federation.name,
        "clients": federation.clients,
        "names": [federation.names[i] if federation.names else str(i) for i in shown.tolist()],
        "labels": list(federation.labels or map(str, range(federation.classes))),
        **counts,
    }
    write_text(path, json.dumps(facts, separators=(",", ":")) + "\n")


PLATFORM = {"device": str, "backend": str, "jax": str}
_OVER_SEEDS = {"mean": Maybe(FRACTION), "std": Maybe(FRACTION)}
_OUTCOME = {"best_accuracy": _OVER_SEEDS, "final_worst_decile": _OVER_SEEDS}
_EXPERIMENT = {"algorithm": str, "settings": dict}
_ACCURACY = {"test": {"accuracy": Some(Maybe(FRACTION))}, "train": {"loss": [Maybe(NUMBER)]}}
_CLIENTS = {"test": {"client_accuracy": Some([Maybe(FRACTION)])}}
SUMMARY = {
    "algorithm": str,
    "model": str,
    "seeds": COUNT,
    "seconds": {"round": NUMBER},
    "data": {"name": str},
    "global": _OUTCOME,
    "personal": _OUTCOME,
    "experiment": _EXPERIMENT,
    "platform": PLATFORM,
}
FINISHED = {
    **SUMMARY,
    "rounds": COUNT,
    "newcomers": Maybe({"clients": COUNT, "global": _OVER_SEEDS, "personal": Some(_OVER_SEEDS)}),
    "scored": Maybe({"clients": COUNT, "took_part": Some(COUNT)}),
    "left_out": [Each(COUNT)],
    "skipped_rounds": [COUNT],
    "diverged": Maybe(COUNT),
}
METRICS_LINE = {"round": COUNT, "global": _ACCURACY, "personal": _ACCURACY}
LAST_LINE = {"global": _CLIENTS, "personal": _CLIENTS}
DATA = {"name": str, "clients": COUNT, "names": [str], "labels": [str], "train": [[COUNT]], "test": [[COUNT]]}
SWEEP = {
    "algorithm": str,
    "grid": Some(str),
    "best": dict,
    "points": Some({"global": Maybe(FRACTION), "personal": Maybe(FRACTION)}),
    "experiment": {**_EXPERIMENT, "dataset": str, "model": str, "rounds": COUNT},
    "platform": PLATFORM,
}
DEVIATION = {
    **{kind: [Maybe(NUMBER)] for kind in ("global", "local")},
    "samples": {kind: [COUNT] for kind in ("global", "local")},
    "fingerprint": {"rounds": COUNT},
    "platform": PLATFORM,
}
"""What those who read these files need to find in them."""


def read_sweep(path: Path) -> dict[str, Any]:
    """What sweep.json says, or a file like it."""
    facts = strict.read_json(path)
    check_sweep(facts, path)
    return facts


def check_sweep(facts: Any, where: Path) -> None:
    """Refuses what is not the facts of a sweep."""
    expect(facts, SWEEP, where)
    values = dict.fromkeys(facts["grid"], NUMBER)
    expect(facts, {"best": values, "points": [values]}, where)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, indented."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes beside the place and then into it: a file is there whole or not at all."""
    beside = path.with_name(f".{path.name}{tensors.PARTIAL}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def revision() -> str | None:
    """The commit of the source this runs from, if it runs from a checkout of its own repository."""
    source = Path(__file__).resolve().parent
    root = source.parent.parent
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or a repository it will not read: the version still tells
    return found.stdout.strip()


def platform_facts() -> dict[str, Any]:
    """What the numbers were made on."""
    device = jax.devices()[0]
    return {
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
    }
