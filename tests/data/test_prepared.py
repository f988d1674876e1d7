"""Prepared federations: a file is loaded as it was saved, or rejected with one clear line."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from conftest import small_federation
from safetensors.numpy import load_file
from support.federations import images, words

import pfedbred
from pfedbred.data import prepared
from pfedbred.data.federation import Federation, Split
from pfedbred.io import tensors


def with_validation():
    return small_federation().with_validation(0.5, seed=3)


@pytest.mark.parametrize("make", [images, words, small_federation, with_validation])
def test_round_trip(make, tmp_path):
    federation = make()
    prepared.save(federation, tmp_path / "one.fed")
    found = prepared.load(tmp_path / "one.fed")
    for name in ("name", "classes", "names", "labels", "about", "clients", "shape"):
        assert getattr(found, name) == getattr(federation, name)
    assert list(found.parts) == list(federation.parts)
    for ours, theirs in zip(found.parts.values(), federation.parts.values(), strict=True):
        for one, two in zip(ours, theirs, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one, two)
    for name in ("shift", "scale"):
        np.testing.assert_array_equal(getattr(found, name), getattr(federation, name))
    assert (found.text is None) == (federation.text is None)
    if found.text:
        assert found.text.vocabulary == federation.text.vocabulary
        np.testing.assert_array_equal(found.text.vectors, federation.text.vectors)


def test_anyone_can_read_it(tmp_path):
    """It is a safetensors file."""
    prepared.save(images(), tmp_path / "one.fed")
    arrays = load_file(tmp_path / "one.fed")
    np.testing.assert_array_equal(arrays["train.x"], images().train.x)


def test_every_damaged_byte_is_noticed(tmp_path):
    """Flips each byte of the file in turn: always one line, never another federation."""
    path = tmp_path / "one.fed"
    prepared.save(images(), path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(pfedbred.SettingError, match=r"one\.fed"):
            prepared.load(path)


def test_every_cut_is_noticed(tmp_path):
    path = tmp_path / "one.fed"
    prepared.save(images(), path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(pfedbred.SettingError, match=r"one\.fed (is|has|: )"):
            prepared.load(path)


def write(path, arrays, facts, **metadata):
    """A file with a correct checksum."""
    from safetensors.numpy import save_file

    text = json.dumps(facts)
    checksum = tensors._checksum(text, arrays)
    save_file(
        arrays, path, metadata={"format": prepared._KIND.format, "federation": text, "sha256": checksum, **metadata}
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train.y": np.array([0, 1, 2, 9, 0, 0, 0, 0], np.int32)}, "client 0 \\('a'\\), sample 3 .* label 9"),
        (
            {"test.y": np.array([0, -1, 2], np.int32)},
            "client 0 \\('a'\\), sample 1 of the test set: label -1 is not one of 0 to 2",
        ),
        ({"train.offsets": np.array([0, 4, 4, 8], np.int32)}, "client 1 \\('b'\\) has no training samples"),
        ({"train.offsets": np.array([0, 5, 4, 8], np.int32)}, "client 1 \\('b'\\) has no training samples"),
        ({"train.offsets": np.array([0, 4, 5, 99], np.int32)}, "do not match the clients' offsets"),
        ({"train.x": np.full((8, 5, 5), np.nan, np.float32)}, "client 0 .* not a finite number"),
        ({"train.x": np.zeros((8, 2), np.float32)}, "do not have the shapes"),
        ({"train.y": None}, "has no 'train.y'"),
    ],
)
def test_a_file_with_inconsistent_content_is_rejected(change, words, tmp_path):
    federation = images()
    prepared.save(federation, tmp_path / "good.fed")
    arrays = {**load_file(tmp_path / "good.fed"), **change}
    facts = {"name": "n", "classes": 3, "vocabulary": None, "names": ["a", "b", "c"], "labels": None, "about": {}}
    write(tmp_path / "bad.fed", {name: array for name, array in arrays.items() if array is not None}, facts)
    with pytest.raises(pfedbred.SettingError, match=f"bad.fed.*{words}"):
        prepared.load(tmp_path / "bad.fed")


def test_other_files_are_rejected(tmp_path):
    path = tmp_path / "x.fed"
    with pytest.raises(pfedbred.SettingError, match=r"cannot read .*No such file"):
        prepared.load(path)
    for content in (b"", b"hello", b"\xff" * 64, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 4) + b"null"):
        path.write_bytes(content)
        with pytest.raises(pfedbred.SettingError, match="is not a prepared federation"):
            prepared.load(path)
    prepared.save(images(), path)
    path.write_bytes(path.read_bytes().replace(b"pfedbred federation 1", b"pfedbred federation 2"))
    with pytest.raises(pfedbred.SettingError, match="written by another version"):
        prepared.load(path)


def test_a_header_that_promises_too_much_allocates_nothing(tmp_path):
    path = tmp_path / "x.fed"
    entry = {"dtype": "F32", "shape": [10**12, 1], "data_offsets": [0, 4 * 10**12]}
    header = json.dumps(
        {"__metadata__": {"format": prepared._KIND.format, "federation": "{}", "sha256": ""}, "train.x": entry}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(pfedbred.SettingError, match=r"is truncated: 'train.x' ends at byte 4000000"):
        prepared.load(path)


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    with pytest.raises(pfedbred.SettingError, match="cannot write"):
        prepared.save(images(), tmp_path / "absent" / "x.fed")
    assert list(tmp_path.iterdir()) == []


def test_a_prepared_file_is_split_already(tmp_path):
    prepared.save(images(), tmp_path / "x.fed")
    for option in ({"clients": 3}, {"split": "iid"}, {"seed": 1}, {"test_fraction": 0.1}):
        with pytest.raises(pfedbred.SettingError, match="is already split"):
            pfedbred.load(str(tmp_path / "x.fed"), **option)


def test_loading_needs_no_other_library_and_no_memory(tmp_path):
    """In a fresh process: without the libraries that made it, and with its 40 MB left in the file."""
    rows = 50_000
    split = Split(np.zeros((rows, 800), np.uint8), np.zeros(rows, np.int32), np.array([0, rows], np.int32))
    small = Split(np.zeros((1, 800), np.uint8), np.zeros(1, np.int32), np.array([0, 1], np.int32))
    path = tmp_path / "large.fed"
    prepared.save(Federation("large", split, small, 1), path)
    program = f"""
import sys
for name in ("datasets", "flwr_datasets", "pyarrow", "PIL", "safetensors"):
    sys.modules[name] = None
import pfedbred
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
federation = pfedbred.load({str(path)!r})
print(resident() - before, federation.train.x.nbytes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    grown, held = map(int, done.stdout.split())
    assert held == 40_000_000
    assert grown < path.stat().st_size / 4
