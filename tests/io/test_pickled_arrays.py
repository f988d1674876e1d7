"""Pickled dicts of arrays are read as data: nothing that a file names is imported, called or trusted."""

import contextlib
import os
import pickle
import time
import zipfile

import numpy as np
import pytest

import pfedbred
from pfedbred.io.npy import Npz
from pfedbred.io.pickled_arrays import read_pickled

ARRAYS = {
    "x": np.random.default_rng(0).normal(size=(3, 1, 2, 2)).astype(np.float32),
    "y": np.array([4, 0, 2]),
    "big-endian": np.arange(6, dtype=">i2"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "empty": np.zeros((0, 3), np.uint8),
    "large": np.arange(70_000, dtype=np.int32),  # in the longer encodings
}


def object_array(value):
    whole = np.empty((), object)
    whole[()] = value
    return whole


@pytest.mark.parametrize("protocol", [3, 4])
def test_what_numpy_pickles_is_read(protocol):
    """Also where two names share an array, and as older versions of NumPy name their functions."""
    given = {**ARRAYS, "again": ARRAYS["x"]}
    written = pickle.dumps(object_array(given), protocol=protocol)
    older = written.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    if protocol == 4:  # the length before the name
        older = written.replace(b"\x16numpy._core.multiarray", b"\x15numpy.core.multiarray")
    for content in (written, older):
        found = read_pickled(content, "here")
        assert list(found) == list(given)
        for name, array in given.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def test_files_that_numpy_writes(tmp_path):
    np.savez_compressed(tmp_path / "0.npz", data=ARRAYS)
    with Npz(tmp_path / "0.npz") as arrays:
        found = read_pickled(arrays.objects("data"), "here")
    np.testing.assert_array_equal(found["x"], ARRAYS["x"])
    np.savez(tmp_path / "1.npz", data=np.zeros(3))
    with Npz(tmp_path / "1.npz") as arrays, pytest.raises(pfedbred.SettingError, match="not an array of objects"):
        arrays.objects("data")


class Evil:
    """Asks to be unpickled by making a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Subclass(np.ndarray):
    pass


def crafted(state):
    """A dict whose x is an array with this state."""
    call = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01bt"
    inner = call + b"R" + state + b"b"
    objects = dtype(b"O8", b"|", flags=b"K?")
    return b"\x80\x03" + call + b"R(K\x01)" + objects + b"\x89]}X\x01\x00\x00\x00x" + inner + b"satb."


def dtype(text, order=b"<", inner=b"NNN", flags=b"K\x00"):
    begin = b"cnumpy\ndtype\nX" + len(text).to_bytes(4, "little") + text + b"\x89\x88\x87R"
    return begin + b"(K\x03X\x01\x00\x00\x00" + order + inner + b"J\xff\xff\xff\xffJ\xff\xff\xff\xff" + flags + b"tb"


def array_state(shape, kind, content):
    return b"(K\x01" + shape + kind + b"\x89" + content + b"t"


EIGHT = b"C\x08" + b"\x41" * 8


def test_the_crafted_pickle_is_one_that_can_be_read():
    state = array_state(b"K\x02\x85", dtype(b"f4"), EIGHT)
    assert read_pickled(crafted(state), "here")["x"].tobytes() == b"\x41" * 8
    assert pickle.loads(crafted(state))[()]["x"].tobytes() == b"\x41" * 8  # by Python itself


@pytest.mark.parametrize(
    "state",
    [
        array_state(b"K\x01\x85", dtype(b"O8", b"|"), EIGHT),  # an address
        array_state(b"K\x01\x85", dtype(b"V8", b"|"), EIGHT),
        array_state(b"K\x01\x85", dtype(b"f8", inner=b"(cnumpy\ndtype\ntNN"), EIGHT),  # a dtype within
        array_state(b"K\x01\x85", dtype(b"f8, (1000000000,)i8"), EIGHT),
        array_state(b"K\x03\x85", dtype(b"f4"), EIGHT),  # longer than its bytes
        array_state(b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x7f\x85", dtype(b"f4"), EIGHT),
        array_state(b"J\xff\xff\xff\xff\x85", dtype(b"f4"), EIGHT),  # of length -1
        array_state(b"K\x02\x85", dtype(b"f4"), b"X\x08\x00\x00\x00AAAAAAAA"),
        array_state(b"K\x02\x85", EIGHT, EIGHT),
        array_state(b"]", dtype(b"f4"), EIGHT),
        b"N",
        b")",
    ],
)
def test_crafted_arrays_are_refused(state):
    with pytest.raises(pfedbred.SettingError, match=r"^cannot read here: it (is damaged|holds Python objects other)"):
        read_pickled(crafted(state), "here")


def test_nothing_is_called(tmp_path):
    """Wherever it stands: in place of the dict, of an array, of what an array is made of, or of a name."""
    evil = Evil(tmp_path / "made")
    for value in (evil, {"x": evil}, {"x": np.array([evil])}, {"x": [evil]}, {evil: 1}, [evil], {**ARRAYS, "z": evil}):
        for protocol in range(6):
            with pytest.raises(pfedbred.SettingError, match="cannot read here"):
                read_pickled(pickle.dumps(object_array(value), protocol=protocol), "here")
    calls = pickle.dumps(evil, protocol=3)[2:-1]
    for state in (calls, array_state(calls, dtype(b"f4"), EIGHT), array_state(b"K\x02\x85", calls, EIGHT)):
        with pytest.raises(pfedbred.SettingError, match="cannot read here"):
            read_pickled(crafted(state), "here")
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(evil))
    assert (tmp_path / "made").exists()  # as it would be


@pytest.mark.parametrize(
    "value",
    [
        {"x": np.array(["a", "b"])},
        {"x": np.array(["2020-01-01"], "M8[D]")},
        {"x": np.zeros(2, [("a", int)])},
        {"x": np.zeros(2, complex)},
        {"x": np.zeros(2).view(Subclass)},
        {"x": np.float64(1.0)},
        {"x": [1, 2]},
        {1: np.zeros(2)},
        np.zeros(3),
        "text",
        None,
    ],
)
def test_other_objects_are_refused(value):
    with pytest.raises(pfedbred.SettingError, match="it holds Python objects other than a dict of arrays"):
        read_pickled(pickle.dumps(object_array(value), protocol=4), "here")


def test_every_cut_and_every_changed_byte_is_read_or_refused():
    """Never anything but a dict of arrays or the one error."""
    whole = pickle.dumps(object_array({"x": np.zeros((2, 2), np.float32), "y": np.arange(2)}), protocol=4)
    changed = [whole[:end] for end in range(len(whole))]
    changed += [whole[:i] + bytes([value]) + whole[i + 1 :] for i in range(len(whole)) for value in range(0, 256, 5)]
    for content in changed:
        found = {}
        with contextlib.suppress(pfedbred.SettingError):
            found = read_pickled(content, "here")
        assert all(type(array) is np.ndarray and array.dtype.kind in "iuf" for array in found.values())


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04" + b"(" * 300_000 + b"t" * 300_000 + b".",  # tuples in tuples
        b"\x80\x04" + b"]" * 300_000 + b"a" * 299_999 + b".",
        b"\x80\x04Nr\xff\xff\xff\xff.",  # a memo of four billion entries
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f",  # so many bytes
        b"\x80\x04\x8b\xff\xff\xff\x7f1.",  # a number of so many digits
        b"I" + b"9" * 1_000_000 + b"\n.",
    ],
    ids=["tuples", "lists", "memo", "bytes", "number", "digits"],
)
def test_bombs_are_refused_at_once(content):
    begun = time.process_time()
    with pytest.raises(pfedbred.SettingError, match="cannot read here"):
        read_pickled(content, "here")
    assert time.process_time() - begun < 10


@pytest.mark.full
def test_a_compression_bomb_is_not_unpacked(tmp_path):
    header = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n"
    archive = zipfile.ZipFile(tmp_path / "0.npz", "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("data.npy", "w", force_zip64=True) as file:
        file.write(header)
        for _ in range(1100):
            file.write(bytes(2**20))
    with Npz(tmp_path / "0.npz") as arrays, pytest.raises(pfedbred.SettingError, match="would unpack to"):
        arrays.objects("data")
