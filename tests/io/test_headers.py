"""Files that promise more than they hold, or unpack into more than any memory: rejected before it is allocated."""

import io
import itertools
import json
import os
import pickle
import re
import resource
import signal
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from support.federations import images
from support.memory import GIGABYTE, data_bytes

import pfedbred
from pfedbred.data import prepared
from pfedbred.experiment.sigma import read_sigma
from pfedbred.io import npy, strict, tensors
from pfedbred.io.shapes import COUNT, Each, expect
from pfedbred.report import console
from pfedbred.runs import checkpoints, metrics_file, saved_models, schema
from pfedbred.runs.config_file import read_config, write_config
from pfedbred.runs.layout import MODELS

PROMISE = 10**12


@pytest.fixture
def little_memory():
    """A quarter of a gigabyte beside what there is: to make room for a promise fails with a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + GIGABYTE // 4, hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def refused(read, words):
    with pytest.raises(pfedbred.SettingError, match=words) as problem:
        read()
    assert "alloc" not in str(problem.value)
    assert len(str(problem.value).splitlines()) == 1


def npy_file(shape, descr="<f8", body=b"\0" * 64):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + body


def npz_file(path, x, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", npy_file((8,), "<i8"))
    return str(path)


@pytest.mark.parametrize("shape", [(PROMISE,), (PROMISE, 3), (3, PROMISE), (2**31, 2**31), (2**62, 2**62)])
def test_an_array_that_promises_too_much(shape, little_memory, tmp_path):
    (tmp_path / "sigma.npy").write_bytes(npy_file(shape))
    refused(lambda: read_sigma(str(tmp_path / "sigma.npy")), "claims .* numbers, but the file is too short")
    path = npz_file(tmp_path / "own.npz", npy_file(shape))
    refused(lambda: pfedbred.load(path), "'x' in .*own.npz: its header claims")


@pytest.mark.parametrize("descr", ["|O", "<U1000000000", "|V1000000000", "<c16", "<M8[s]", "[('a', '<f8')]"])
def test_arrays_of_other_things(descr, little_memory, tmp_path):
    path = npz_file(tmp_path / "own.npz", npy_file((8, 1), descr))
    refused(lambda: pfedbred.load(path), "Python objects|does not describe|too short")


def test_a_directory_that_promises_too_much(little_memory, tmp_path):
    """The archive itself lies about the size of its array, to fit the array's header."""
    content = bytearray(Path(npz_file(tmp_path / "own.npz", npy_file((2**28,)), zipfile.ZIP_DEFLATED)).read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**31 + 128)
    (tmp_path / "own.npz").write_bytes(content)
    refused(lambda: pfedbred.load(str(tmp_path / "own.npz")), "'x' in .*own.npz: it is damaged")


def test_a_zip_bomb(little_memory, tmp_path):
    """Two gigabytes of zeros in two megabytes, all of it as promised."""
    size, block, crc = 2 * GIGABYTE, bytes(2**22), 0
    header = npy_file((size // 8, 1), body=b"")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * (size // len(block))
    name = b"x.npy"
    facts = (20, 0, 8, 0, 0, crc, len(packed), size + len(header), len(name), 0)
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, *facts)
    central = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, *facts, 0, 0, 0, 0, 0)
    body = local + name + packed
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(central) + len(name), len(body), 0)
    (tmp_path / "own.npz").write_bytes(body + central + name + end)
    with npy.Npz(tmp_path / "own.npz") as arrays:
        assert arrays.names == ["x"]
        refused(lambda: arrays["x"], "would unpack to .* too many for real data")


def test_large_and_well_packed_data_is_no_bomb():
    npy.refuse_bomb("x", 10**6, 10**9)  # a gigabyte of zeros, say
    npy.refuse_bomb("x", 10**9, 10**11)


def test_a_federation_that_promises_too_much(little_memory, tmp_path):
    prepared.save(images(), tmp_path / "one.fed")
    whole = (tmp_path / "one.fed").read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    for change in ({"shape": [PROMISE, 1]}, {"data_offsets": [0, PROMISE]}, {"shape": [PROMISE], "dtype": "F64"}):
        header = json.loads(whole[8 : 8 + length])
        header["train.x"] |= change
        text = json.dumps(header).encode()
        (tmp_path / "one.fed").write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
        refused(lambda: prepared.load(tmp_path / "one.fed"), "one.fed is (damaged|truncated)")
    (tmp_path / "one.fed").write_bytes(struct.pack("<Q", PROMISE) + whole[8:])
    refused(lambda: prepared.load(tmp_path / "one.fed"), "or only the beginning of one")


def test_a_federation_of_too_many_labels(little_memory, tmp_path):
    """The arrays are as promised; it is the models that would need the room."""
    federation = images()
    arrays = {
        f"{part}.{name}": array
        for part in ("train", "test")
        for name, array in getattr(federation, part)._asdict().items()
    }
    facts = {"name": "x", "classes": PROMISE, "vocabulary": None, "names": None, "labels": None, "about": {}}
    prepared.tensors.save(prepared._KIND, tmp_path / "one.fed", facts, arrays)
    refused(lambda: prepared.load(tmp_path / "one.fed"), "at most 100,000 labels are supported")
    np.savez(tmp_path / "own.npz", x=np.ones((4, 2)), y=[0, 1, 2, 2**31 - 2], client=[0, 0, 1, 1])
    refused(lambda: pfedbred.load(str(tmp_path / "own.npz")), "own: labels from 0 to 2,147,483,646")


def test_models_that_promise_too_much(little_memory, tmp_path):
    said = {"format": "pfedbred models 1"}
    for entry in (
        {"dtype": "F32", "shape": [PROMISE], "data_offsets": [0, 4 * PROMISE]},
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 16]},
    ):
        text = json.dumps({"__metadata__": said, "global.w": entry}).encode()
        (tmp_path / MODELS).write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 16)
        refused(lambda: saved_models.export(tmp_path), "models.safetensors is not a file of a run's models, or")
    (tmp_path / MODELS).write_bytes(struct.pack("<Q", PROMISE) + b"{}")
    refused(lambda: saved_models.export(tmp_path), "models.safetensors is not a file of a run's models, or")


def zigzag(number):
    """A number as Parquet's footer writes it."""
    number, digits = 2 * number, b""
    while number > 127:
        digits, number = digits + bytes([number & 127 | 128]), number >> 7
    return digits + bytes([number])


def test_a_parquet_file_that_promises_too_much(little_memory, tmp_path):
    rows = 77_777  # a number that is nowhere else in the footer
    columns = {"client": np.zeros(rows, np.int8), "x": np.zeros(rows, np.int8), "label": np.zeros(rows, np.int8)}
    path = tmp_path / "own.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    whole = path.read_bytes()
    length = struct.unpack("<I", whole[-8:-4])[0]
    footer = whole[-8 - length : -8]
    assert zigzag(rows) in footer
    lying = footer.replace(zigzag(rows), zigzag(PROMISE))
    path.write_bytes(whole[: -8 - length] + lying + struct.pack("<I", len(lying)) + b"PAR1")
    refused(
        lambda: pfedbred.load(str(path)),
        "own.parquet: its .* bytes would unpack to 3,000,000,000,000, too many for real data",
    )


def test_an_image_that_promises_too_much(little_memory, tmp_path):
    """A PNG's header says how many pixels follow."""
    from PIL import Image

    encoded = io.BytesIO()
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(encoded, "png")
    png = bytearray(encoded.getvalue())
    for side in (30_000, 10**6):
        png[16:24] = struct.pack(">II", side, side)
        png[29:33] = struct.pack(">I", zlib.crc32(png[12:29]))
        columns = {"client": [0, 1], "image": [{"bytes": bytes(png)}] * 2, "label": [0, 1]}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
        refused(
            lambda: pfedbred.load(str(tmp_path / "own.parquet")), f"an image of {side} x {side}|does not hold an image"
        )


# Texts --------------------------------------------------------------------------------------------------------------


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghijkl")
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 9)}]}}\n" for a, b in itertools.pairwise("abcdefghijkl")
)


@pytest.mark.parametrize(
    "text",
    [
        *(LAUGHS, MERGES, "a: &a [*a]", "a: &a 1", "x: *a"),
        *("!!python/object/apply:os.system [touch evil]", "x: !!python/name:os.system", "x: !!python/tuple [1]"),
        *("x: !!timestamp x", "x: !!bool x", "x: !!int x", "x: !!set {a, b}", "x: !own 1", "!!map {a: 1}"),
        *("x: " + "9" * 5000, "x: " + "[" * 5000, "x: " + "{a: " * 900, 'x: "\\ud800"', "[1, 2", "- 1", "1: 2", ""),
        "x: " + "[" * 45 + "]" * 45,
    ],
)
def test_yaml_makes_nothing_but_plain_values(text, little_memory, tmp_path):
    (tmp_path / "exp.yaml").write_text(text)
    refused(lambda: read_config(tmp_path / "exp.yaml"), "cannot read .*exp.yaml")


def test_yaml_still_reads_what_it_should(tmp_path):
    (tmp_path / "exp.yaml").write_text("a: 1\nb: 1e-3\nc: [1, x, null, true]\nd: {e: 2001-99-99, f: '*a'}\n")
    found = read_config(tmp_path / "exp.yaml")
    assert found == {"a": 1, "b": "1e-3", "c": [1, "x", None, True], "d": {"e": "2001-99-99", "f": "*a"}}
    write_config(tmp_path / "config.yaml", {"a": (shared := [1]), "b": shared}, "run")
    assert read_config(tmp_path / "config.yaml") == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds: 2\nseed: 1\nrounds: 3\n", "line 3, column 1: 'rounds' is given twice"),
        ("settings:\n  lam: 1\n  'lam': 2\n", "line 3, column 3: 'lam' is given twice"),
        ("settings: {a: {1: x, 1: y}}", "line 1, column 22: '1' is given twice"),
    ],
)
def test_a_name_given_twice_is_refused(text, words, tmp_path):
    (tmp_path / "exp.yaml").write_text(text)
    refused(lambda: read_config(tmp_path / "exp.yaml"), f"cannot read .*exp.yaml: .*{words}")


@pytest.mark.parametrize("value", ["1:30", "-1:30", "1:30.5", "190:20:30"])
def test_numbers_to_the_base_of_sixty_are_texts(value):
    """So that the check of an option's type complains."""
    assert strict.parse_yaml(f"[{value}, {{rounds: {value}}}]", "x.yaml") == [value, {"rounds": value}]
    with pytest.raises(pfedbred.SettingError, match="rounds"):
        pfedbred.Experiment.from_mapping(strict.parse_yaml(f"rounds: {value}", "x.yaml"))


@pytest.mark.parametrize(
    "text", ["NaN", "[1e999]", "-Infinity", "[" * 10**5, '{"a":' * 900, '"\\ud800"', "9" * 5000, b"\xff"]
)
def test_json_is_only_json(text):
    refused(lambda: strict.parse_json(text, "x.json"), "cannot read x.json")


@pytest.mark.parametrize("times", [None, "often", [], -1, 0.5, True])
def test_counts_by_name_are_counts(times):
    """Whose updates were rejected, and how often: the counts are added up and sorted."""
    expect([{"a": 3}, {}], [Each(COUNT)], "x.json")
    refused(lambda: expect([{"a": times}], [Each(COUNT)], "x.json"), "must be a whole number")
    for shapes in (schema.FINISHED, metrics_file._LINE):
        refused(lambda shapes=shapes: expect([{"b": times}], shapes["rejected"], "x"), "must be a whole number")


def test_an_outcome_without_a_deviation_is_shown():
    """One run's summary may be edited, or of another version."""
    assert console.shown_estimate({"mean": 0.5, "std": None}, 2) == "50.00"
    assert console.shown_estimate({"mean": 0.5, "half_width": 0.25}, 2) == "50.00 ± 25.00"
    assert console.shown_estimate({"mean": None, "std": 0.25}, 2) == "-"


def test_a_large_experiment_file_is_refused_unread(tmp_path):
    (tmp_path / "exp.yaml").write_text("a: " + "x" * 2**20)
    refused(lambda: read_config(tmp_path / "exp.yaml"), "larger than")
    refused(lambda: read_config(tmp_path), "it is a folder")
    refused(lambda: read_config(Path("/dev/zero")), "it is not a file")


@pytest.fixture
def no_waiting():
    """Whatever waits for a writer that never comes is interrupted."""

    def interrupt(*_):
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "read",
    [
        lambda path: npy.read_npy(path, "samples"),
        npy.Npz,
        lambda path: tensors.load(tensors.Kind("pfedbred federation 1", "federation", "prepare it again"), path),
        lambda path: checkpoints.read(path),
        strict.read_json,
        read_config,
        saved_models.facts,
        lambda path: metrics_file.read_points(path.parent),
    ],
)
def test_a_fifo_is_refused_and_not_waited_for(read, no_waiting, tmp_path):
    """Opening one waits until somebody writes into it."""
    path = tmp_path / "metrics.jsonl"
    os.mkfifo(path)
    refused(lambda: read(path), "is not a file")


def test_a_file_that_is_none_is_named():
    for path, reason in ((Path("missing"), "No such file"), (Path("a\0b"), "null"), (Path("/"), "it is a folder")):
        refused(lambda path=path: strict.check_regular_file(path), f"cannot read .*{reason}")
    assert strict.check_regular_file(Path(__file__)) == Path(__file__).stat().st_size


# Pickles ------------------------------------------------------------------------------------------------------------


class Evil:
    """Whoever unpickles it makes a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_nothing_is_unpickled(tmp_path):
    """Neither objects in NumPy's files nor a pickle under another name."""
    mark, pickled = tmp_path / "evil", pickle.dumps(Evil(tmp_path / "evil"))
    objects = np.array([Evil(mark)] * 2, object)
    np.savez(tmp_path / "own.npz", x=objects, y=objects, client=objects)
    np.save(tmp_path / "sigma.npy", objects)
    refused(lambda: pfedbred.load(str(tmp_path / "own.npz")), "holds Python objects")
    refused(lambda: read_sigma(str(tmp_path / "sigma.npy")), "holds Python objects")
    for name in ("a.npz", "a.fed", "a.csv", "a.parquet"):
        (tmp_path / name).write_bytes(pickled)
        refused(lambda name=name: pfedbred.load(str(tmp_path / name)), name)
    for name, read in {
        "exp.yaml": read_config,
        "sigma.npy": lambda path: read_sigma(str(path)),
        MODELS: lambda path: saved_models.export(path.parent),
        "model.safetensors": pfedbred.load_model,
    }.items():
        (tmp_path / name).write_bytes(pickled)
        refused(lambda name=name, read=read: read(tmp_path / name), name)
    assert not mark.exists()
    pickle.loads(pickled)
    assert mark.exists()  # so the test would notice


def test_no_source_file_can_unpickle_or_evaluate():
    words = re.compile(
        r"\bpickle\b|np\.load\(|\beval\(|\bexec\(|yaml\.(load|full_load|unsafe_load)\(|\bmarshal\b|\bshelve\b"
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(Path(pfedbred.__file__).parent.rglob("*.py"))
        for line in path.read_text().splitlines()
        if words.search(line)
    ]
    assert found == ["strict.py: value = yaml.load(text, _PlainLoader)"]
