"""Every file may be damaged, or made to do harm: it is read or rejected with one line, in little memory.

A reader is a line in READERS: how to write an intact file into a folder, how to read it, how many inputs the full suite
gives it, and in which ways beside its bytes the file can be changed.
"""

import functools
import io
import json
import resource
import signal
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import yaml
from conftest import small_federation
from support import mutations
from support.federations import images, words
from support.memory import GIGABYTE, data_bytes
from support.mutations import JSON, JSON_LINES, SAFETENSORS, View, npz_with_damaged_arrays

import pfedbred
from pfedbred import priors
from pfedbred.data import prepared, text
from pfedbred.data.datasets import femnist, sent140
from pfedbred.data.sources.hub import find_files
from pfedbred.experiment.building import build
from pfedbred.experiment.callbacks import Interruption
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import latest_checkpoint, load_progress, open_folder
from pfedbred.experiment.run import run_into
from pfedbred.experiment.sigma import read_sigma
from pfedbred.io import tensors
from pfedbred.io.atomic import write_json
from pfedbred.io.strict import parse_yaml
from pfedbred.paper import cells, records, tables
from pfedbred.paper.markdown import markdown
from pfedbred.paper.page import section as paper_section
from pfedbred.report import page, terminal
from pfedbred.runs import checkpoints, saved_models
from pfedbred.runs.config_file import read_config, write_config
from pfedbred.runs.record import RunRecord
from pfedbred.runs.start_params import start_params

STUCK = 120  # seconds for what takes milliseconds: a reader that hangs, not a slow one


class Reader(NamedTuple):
    """A kind of file. ``read`` may raise SettingError and nothing else."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    inputs: int
    views: Sequence[Any] = ()


# Intact files -------------------------------------------------------------------------------------------------------


def federation(folder):
    prepared.save(images(), folder / "one.fed")
    return folder / "one.fed"


def federation_of_words(folder):
    prepared.save(words(), folder / "one.fed")
    return folder / "one.fed"


def _join_checked(parts):
    """With its checksum corrected, so that the checks behind it are reached."""
    header = parts.get("header")
    said = header.get("__metadata__") if isinstance(header, dict) else None
    content = SAFETENSORS.pack(parts)
    facts = [said.get(name) for name in ("federation", "checkpoint")] if isinstance(said, dict) else []
    facts = [each for each in facts if isinstance(each, str)]
    if not facts:
        return content
    begin = 8 + int.from_bytes(content[:8], "little")
    arrays = {}
    try:
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                flat = np.frombuffer(content[begin + first : begin + last], tensors._TYPES[entry["dtype"]])
                arrays[name] = flat.reshape(entry["shape"])
        said["sha256"] = tensors._checksum(facts[0], arrays)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return content
    return SAFETENSORS.pack(parts)


CHECKED = View(SAFETENSORS.unpack, _join_checked)


def config(folder):
    experiment = Experiment.from_mapping({"algorithm": "pfedbred", "select": [0, 3], "aggregated": 2, "clients": 5})
    write_config(folder / "config.yaml", experiment.plain(), "run")
    return folder / "config.yaml"


def read_experiment(path):
    return Experiment.from_mapping(read_config(path))


YAML = View(
    lambda data: parse_yaml(data.decode(), "x"),
    lambda value: yaml.safe_dump(value).encode("utf-8", "surrogatepass"),
)


def from_run(name):
    def make(folder):
        for each in ("summary.json", "metrics.jsonl", "data.json", "models.safetensors", "client-1.safetensors"):
            (folder / each).write_bytes((FINISHED / "run" / each).read_bytes())
        return folder / name

    return make


@functools.cache
def stopped_run():
    """The files of a run that was stopped after its first evaluation, and the run built again."""
    experiment = Experiment("small", algorithm="mfo", rounds=2, aggregated=2, batch_size=3, settings={"R": 1, "K": 1})
    built = build(experiment, small_federation())
    with tempfile.TemporaryDirectory() as folder, open_folder(Path(folder) / "run") as run:
        assert run_into(run, built, [Interruption(time_limit=0.0)]).round == 1
        return built, {each.name: each.read_bytes() for each in run.iterdir() if each.is_file()}


def from_stopped_run(name):
    def make(folder):
        for each, content in stopped_run()[1].items():
            (folder / each).write_bytes(content)
        return folder / name

    return make


def resume(path, built=None):
    """The run as its checkpoint left it."""
    built = built or stopped_run()[0]
    return load_progress(path.parent, built, latest_checkpoint(path.parent, lambda message: None))


def streamed_checkpoint(folder):
    """Of clients that come and go."""
    experiment, backend, _ = streamed()
    saved = backend.save(backend.advance(backend.init([0]), 1))
    facts = {**saved.facts, "experiment": experiment.plain(), "data": backend.federation.facts}
    (folder / "metrics.jsonl").touch()
    facts |= {"metrics": 0, "seconds": 1.0, "compile_seconds": 1.0, "round_seconds": 1.0}
    return checkpoints.write(folder, 1, facts, saved.arrays)


@functools.cache
def streamed():
    settings = {"participation": "sample", "store": "memory", "settings": {"R": 1, "K": 1}}
    experiment = Experiment("small", algorithm="mfo", rounds=2, aggregated=2, batch_size=3, **settings)
    return build(experiment, small_federation())


def finished_summary(folder):
    _, files = stopped_run()
    (folder / "metrics.jsonl").write_bytes(files["metrics.jsonl"])
    summary = json.loads((FINISHED / "run" / "summary.json").read_text())
    write_json(folder / "summary.json", summary)
    return folder / "summary.json"


@functools.cache
def calibrated_run():
    """The files of a run with calibrated models, one of which is exported."""
    options = {"algorithm": "local", "rounds": 1, "settings": {"R": 1}, "validation": 0.5, "coverage": 0.8}
    with tempfile.TemporaryDirectory() as folder:
        pfedbred.run(**options, federation=small_federation((20, 9)), out=f"{folder}/run")
        saved_models.export(f"{folder}/run", client=0)
        return {each.name: each.read_bytes() for each in Path(folder, "run").iterdir() if each.is_file()}


def from_calibrated_run(name):
    def make(folder):
        for each, content in calibrated_run().items():
            (folder / each).write_bytes(content)
        return folder / name

    return make


def calibration_alone(view):
    """Changes what a view shows of the calibration, and nothing else."""

    def unpack(data):
        return view.unpack(data)["calibration"]

    def pack(value):
        whole = view.unpack(calibrated_run()["summary.json"])
        return view.pack({**whole, "calibration": value})

    return View(unpack, pack)


def report_and_show(path):
    report(path)
    return show_again(path)


def sure(path):
    """What a calibrated model is sure of."""
    model = pfedbred.load_model(path)
    return model.probabilities(np.ones((2, 6))), model.sets(np.ones((2, 6)))


def show_again(path):
    """A run that was finished before, in a comparison that is resumed."""
    record = RunRecord.read(path.parent)
    terminal.show_outcome([record.summary])
    terminal.show_rejections([record.summary])
    terminal.warn_of_divergence([record])
    return record


def from_sweep(folder):
    (folder / "sweep.json").write_bytes((FINISHED / "sweep" / "sweep.json").read_bytes())
    return folder / "sweep.json"


def report(path):
    folder = path.parents[3] if path.parent.parent.name == "deviation" else path.parent
    return page.embedded(page.gather([folder], [paper_section()]))


def compared(folder):
    """The table of a comparison whose runs are beside it."""
    (folder / "pfedme").mkdir(exist_ok=True)
    from_run("summary.json")(folder / "pfedme")
    (folder / "table.json").write_text(f"[{(folder / 'pfedme' / 'summary.json').read_text()}]")
    return folder / "table.json"


def paper_table(folder):
    cell = cells.Cell("mnist-mclr", "fedavg", "G", 80.0, 81.0, 0.1, 5, 100, 90, 3.0, 80.0, 70.0, 80.5, 0.2)
    write_json(folder / "table2.json", [cell.plain()] * 2)
    return folder / "table2.json"


PLATFORM = {"device": "cpu", "backend": "cpu", "jax": "0.10"}


def record(folder):
    file = records.record_file(folder, "table2", "mnist-mclr", "fedavg")
    of_model = {"best": [90.0, 91.0], "best_round": [1, 2], "final": [90.0, 90.5], "client_mean": [89.0, None]}
    of_model |= {"chosen": [89.5, 90.0], "chosen_round": [1, 1]}
    of_model |= {
        "worst_decile": [70.0, 71.0],
        "curve": [80.0, 90.0],
        "low": [79.0, 89.0],
        "high": [81.0, 91.0],
        "finite": True,
    }
    facts = {"fingerprint": {"R": 1}, "platform": PLATFORM}
    records.write_record(file, {**facts, "rounds": [1, 2], "G": of_model, "P": of_model, "seconds": 1.5})
    paper_table(folder)
    return file


def read_record(path):
    found = cells.read_cells(tables.TABLE2, path.parents[3])
    page.embedded(page.gather([path.parents[3]], [paper_section()]))
    return markdown(tables.TABLE2, found), records.load_or_measure(path, {"R": 1}, dict, cells.CELL)


def deviation(folder):
    path = folder / "cells" / "deviation" / "mnist-mclr" / "pfedme.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"global": [0.5, None], "local": [0.1, 0.2]}
    facts = {"client": 0, "fingerprint": {"rounds": 3}, "platform": PLATFORM}
    write_json(path, {**facts, **values, "samples": {"global": [3, 4], "local": [1, 0]}})
    return path


def leaf(rows):
    def make(folder):
        path = folder / ("femnist" if rows is _pixels else "sent140") / "train" / "all.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        users = {name: {"x": [rows(i) for i in range(3)], "y": [0, 1, 1]} for name in ("a", "b")}
        path.write_text(json.dumps({"users": list(users), "num_samples": [3, 3], "user_data": users}))
        return path

    return make


def _pixels(i):
    return [0.0] * 780 + [0.25 * i] * 4


def _tweet(i):
    return [i, "Monday", "NO_QUERY", "me", f"what a day {i}"]


def npz(folder):
    x = np.arange(24.0).reshape(8, 3)
    np.savez(folder / "own.npz", x=x, y=np.arange(8) % 2, client=np.array(["a", "b"])[np.arange(8) // 4])
    return folder / "own.npz"


def csv(folder):
    (folder / "own.csv").write_text(
        "client,age,visits,label\n" + "".join(f"{i % 2},{i}.5,{i},{'yn'[i % 2]}\n" for i in range(8))
    )
    return folder / "own.csv"


def parquet(folder):
    columns = {"client": ["a", "b"] * 4, "age": np.arange(8.0), "visits": np.arange(8), "label": ["y", "n"] * 4}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "own.parquet")
    return folder / "own.parquet"


def parquet_of_images(folder):
    from PIL import Image

    cells = []
    for i in range(4):
        encoded = io.BytesIO()
        Image.fromarray(np.full((2, 2), 40 * i, np.uint8)).save(encoded, "png")
        cells.append({"bytes": encoded.getvalue(), "path": None})
    columns = pyarrow.table({"client": [0, 0, 1, 1], "image": cells, "label": [0, 1, 0, 1]})
    pyarrow.parquet.write_table(columns, folder / "own.parquet", compression="none")
    return folder / "own.parquet"


def damaged_image(data, rng):
    """An intact table of damaged images."""
    begin = data.index(b"\x89PNG")
    return data[:begin] + mutations._flip(data[begin : begin + 40], rng) + data[begin + 40 :]


def load_own(path):
    return pfedbred.load(str(path))


def vectors(folder):
    np.savez(folder / "glove.npz", words=["day", "what", "else"], vectors=np.arange(9.0).reshape(3, 3))
    return folder / "glove.npz"


def glove(folder):
    (folder / "glove.txt").write_text("day 0.1 0.2 0.3\nwhat 1 2 3\nelse 4 5 6\n")
    return folder / "glove.txt"


def sigma(folder):
    np.save(folder / "sigma.npy", np.eye(3))
    return folder / "sigma.npy"


def params_of_others(folder):
    arrays = {"hidden.weight": np.ones((3, 2), np.float32), "hidden.bias": np.ones(3, np.float16)}
    tensors.write(folder / "params.safetensors", arrays, {"format": "pt"})
    return folder / "params.safetensors"


READERS = {
    "federation": Reader(federation, prepared.load, 1500, [CHECKED]),
    "federation of words": Reader(federation_of_words, prepared.load, 700, [CHECKED]),
    "config.yaml": Reader(config, read_experiment, 1200, [YAML]),
    "summary.json": Reader(from_run("summary.json"), report, 700, [JSON]),
    "metrics.jsonl": Reader(from_run("metrics.jsonl"), report, 800, [JSON_LINES]),
    "checkpoint": Reader(from_stopped_run("checkpoint-00000001.safetensors"), resume, 900, [CHECKED]),
    "streamed checkpoint": Reader(
        streamed_checkpoint,
        lambda path: resume(path, streamed()),
        600,
        [CHECKED],
    ),
    "summary of a finished run": Reader(finished_summary, show_again, 500, [JSON]),
    "calibration in summary.json": Reader(
        from_calibrated_run("summary.json"), report_and_show, 600, [calibration_alone(JSON)]
    ),
    "calibrated models": Reader(
        from_calibrated_run("models.safetensors"),
        lambda path: saved_models.export(path.parent, client=0),
        400,
        [SAFETENSORS],
    ),
    "calibrated model": Reader(from_calibrated_run("client-0.safetensors"), sure, 400, [SAFETENSORS]),
    "metrics of a stopped run": Reader(from_stopped_run("metrics.jsonl"), resume, 600, [JSON_LINES]),
    "data.json": Reader(from_run("data.json"), report, 600, [JSON]),
    "table.json": Reader(compared, report, 300, [JSON]),
    "sweep.json": Reader(from_sweep, report, 600, [JSON]),
    "table2.json": Reader(paper_table, report, 400, [JSON]),
    "deviation": Reader(deviation, report, 400, [JSON]),
    "paper's record": Reader(record, read_record, 500, [JSON]),
    "models": Reader(
        from_run("models.safetensors"), lambda path: saved_models.export(path.parent, client=1), 600, [SAFETENSORS]
    ),
    "exported model": Reader(from_run("client-1.safetensors"), pfedbred.load_model, 400, [SAFETENSORS]),
    "params of others": Reader(params_of_others, lambda path: start_params(str(path)), 400, [SAFETENSORS]),
    "LEAF images": Reader(
        leaf(_pixels), lambda path: femnist.read(find_files(femnist.SOURCE, str(path.parents[2]))), 300, [JSON]
    ),
    "LEAF tweets": Reader(leaf(_tweet), lambda path: sent140.sent140(str(path.parents[2]), 10, 0), 500, [JSON]),
    "npz": Reader(npz, load_own, 800, [npz_with_damaged_arrays]),
    "csv": Reader(csv, load_own, 600),
    "parquet": Reader(parquet, load_own, 600),
    "parquet of images": Reader(parquet_of_images, load_own, 400, [damaged_image]),
    "word vectors": Reader(vectors, lambda path: text.WordVectors(path, 2).vocabulary(["what a day"]), 500),
    "GloVe": Reader(glove, lambda path: text.WordVectors(path).vocabulary(["what a day"]), 500),
    "sigma.npy": Reader(sigma, lambda path: priors.gaussian(read_sigma(str(path))), 500),
}
FINISHED = Path()


@pytest.fixture
def intact(finished, tmp_path, request):
    global FINISHED
    FINISHED = finished
    return READERS[request.param].make(tmp_path)


class Fault(NamedTuple):
    number: int
    problem: str
    content: bytes


class Stuck(BaseException):
    """Not an error that a reader may turn into its own."""


def give_up(number, frame):
    raise Stuck(f"no end in {STUCK} s")


def faults_of(reader, path, count, seed):
    """What was neither read nor rejected properly, and how many inputs were read and rejected."""
    whole = path.read_bytes()
    faults, outcomes = [], {"read": 0, "refused": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.read(path)  # libraries load and threads start before memory is counted
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + GIGABYTE, hard))
        before = signal.signal(signal.SIGALRM, give_up)
        try:
            for number, content in enumerate(mutations.mutated(whole, count, seed, reader.views)):
                path.write_bytes(content)
                signal.alarm(STUCK)
                try:
                    reader.read(path)
                    outcomes["read"] += 1
                except pfedbred.SettingError as refused:
                    outcomes["refused"] += 1
                    message = str(refused)
                    if not message or len(message.splitlines()) != 1 or "alloc" in message:
                        faults.append(Fault(number, f"refused with {message!r}", content))
                except BaseException as problem:
                    if isinstance(problem, KeyboardInterrupt):
                        raise
                    faults.append(Fault(number, f"{type(problem).__name__}: {problem}", content))
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
            path.write_bytes(whole)
    return faults, outcomes


def check(name, path, share, seed):
    """With a share of the inputs that the full suite tries."""
    count = max(20, round(share * READERS[name].inputs))
    reject_or_read(name, path, count, seed)


def reject_or_read(name, path, count, seed):
    faults, outcomes = faults_of(READERS[name], path, count, seed)
    print(f"{name}: {count} inputs, {outcomes}")
    lines = [f"input {each.number}: {each.problem[:200]}: {each.content[:120]!r}" for each in faults[:5]]
    assert not faults, f"{len(faults)} of {count} inputs of {name}, seed {seed}:\n" + "\n".join(lines)
    assert sum(outcomes.values()) == count
    assert outcomes["refused"] > count / 10


@pytest.mark.parametrize("intact", READERS, indirect=True, ids=str)
def test_mutated_files_are_read_or_rejected(intact, request):
    check(request.node.callspec.params["intact"], intact, 1 / 12, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("intact", READERS, indirect=True, ids=str)
@pytest.mark.few_cases
def test_more_mutated_files(intact, request):
    name = request.node.callspec.params["intact"]
    check(name, intact, 1, seed=len(name))


@pytest.mark.slow
@pytest.mark.parametrize("intact", READERS, indirect=True, ids=str)
def test_ten_times_as_many_mutated_files(intact, request):
    name = request.node.callspec.params["intact"]
    check(name, intact, 10, seed=1000 + len(name))


@pytest.mark.broad
@pytest.mark.parametrize("model", ["global", "personal"])
def test_a_summary_has_the_chosen_rounds_of_both_models_or_of_neither(model, tmp_path):
    path = from_calibrated_run("summary.json")(tmp_path)
    summary = json.loads(path.read_text())
    del summary[model]["chosen_round"]
    path.write_text(json.dumps(summary))
    with pytest.raises(pfedbred.SettingError, match=rf"'{model}' has no 'chosen_round'"):
        report_and_show(path)
