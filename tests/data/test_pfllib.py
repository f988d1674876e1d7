"""Federations in PFLlib's files."""

import numpy as np
import pytest

import pfedbred
from pfedbred.experiment.building import load_data

SIZES = (7, 12, 3)


def samples(rng, size, shape=(1, 4, 6)):
    return {"x": rng.uniform(-1, 1, (size, *shape)).astype(np.float32), "y": rng.integers(0, 3, size)}


def write(folder, sizes=SIZES, *, pickled=True, shape=(1, 4, 6), numbers=None):
    """What PFLlib writes, and in a dict what it wrote."""
    rng, written = np.random.default_rng(0), {}
    for part, share in (("train", 1), ("test", 2)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, size in zip(numbers or range(len(sizes)), sizes, strict=True):
            mine = written[part, number] = samples(rng, size // share, shape)
            with open(folder / part / f"{number}.npz", "wb") as file:
                np.savez_compressed(file, data=mine) if pickled else np.savez(file, **mine)
    (folder / "config.json").write_text("{}")
    return written


@pytest.mark.parametrize("pickled", [True, False])
def test_every_client_has_its_own_samples(pickled, tmp_path):
    """Numbered by file, not in alphabetical order; sizes unequal; images without the axis of their one channel."""
    written = write(tmp_path / "MNIST", pickled=pickled, numbers=(2, 10, 0))
    federation = pfedbred.load(f"pfllib:{tmp_path / 'MNIST'}")
    assert (federation.name, federation.names, federation.classes) == ("MNIST", ("0", "2", "10"), 3)
    assert federation.train.sizes.tolist() == [3, 7, 12]
    assert federation.shape == (4, 6)
    for part, split in (("train", federation.train), ("test", federation.test)):
        for i, number in enumerate((0, 2, 10)):
            x, y = split.client(i)
            np.testing.assert_array_equal(x, written[part, number]["x"][:, 0])
            np.testing.assert_array_equal(y, written[part, number]["y"])
    assert federation.train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3, 4, 6), lambda x: x.transpose(0, 2, 3, 1)),
        ((4, 6, 3), lambda x: x),
        ((4, 6, 1), lambda x: x[..., 0]),
        ((9, 1, 8), lambda x: x[:, :, 0].transpose(0, 2, 1)),
        ((5,), lambda x: x),
        ((1,), lambda x: x),
    ],
    ids=["channels-first", "channels-last", "one-channel", "signals", "numbers", "one-number"],
)
def test_channels_become_the_last_axis(shape, expected, tmp_path):
    written = write(tmp_path, (4,), shape=shape)
    federation = pfedbred.load(f"pfllib:{tmp_path}")
    np.testing.assert_array_equal(federation.train.x, expected(written["train", 0]["x"]))


def test_bytes_become_numbers_from_0_to_1(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        np.savez(tmp_path / part / "0.npz", x=np.full((2, 4, 4), 51, np.uint8), y=np.array([0.0, 1.0]))
    federation = pfedbred.load(f"pfllib:{tmp_path}")
    assert federation.train.x.dtype == np.uint8
    np.testing.assert_allclose(np.asarray(federation.inputs(federation.train).take(np.arange(2))), 0.2, rtol=1e-6)


def test_an_experiment_names_the_folder_wherever_it_is_read(tmp_path, monkeypatch):
    write(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    experiment = pfedbred.Experiment(dataset="pfllib:mnist").checked()
    assert experiment.plain()["dataset"] == f"pfllib:{tmp_path / 'mnist'}"
    monkeypatch.chdir("/")
    assert load_data(pfedbred.Experiment.from_mapping(experiment.plain())).clients == 3


def rewrite(**arrays):
    return lambda folder: np.savez(folder / "test" / "1.npz", **arrays)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "test" / "2.npz").unlink(), r"test has no 2\.npz: expected PFLlib's files"),
        (lambda folder: (folder / "train" / "0.npz").unlink(), r"train has no 0\.npz: expected PFLlib's files"),
        (lambda folder: [path.unlink() for path in folder.glob("t*/*.npz")], "holds no clients: expected PFLlib's"),
        (lambda folder: (folder / "test" / "1.npz").write_bytes(b"PK"), r"cannot read .*test/1\.npz"),
        (rewrite(z=np.zeros(3)), r"1\.npz has no arrays x and y, and no dict data, only z"),
        (rewrite(data={"x": np.zeros(3)}), r"1\.npz has no x and y, only x"),
        (
            rewrite(data={"x": [1], "y": [1]}),
            r"1\.npz: it holds Python objects other .*np\.savez\(file, x=\.\.\., y=\.\.\.\)$",
        ),
        (rewrite(x=np.zeros((2, 4, 6)), y=np.array([0, -1])), r"1\.npz: labels must be whole numbers from 0"),
        (rewrite(x=np.zeros((2, 4, 6)), y=np.array([0, 0.5])), r"1\.npz: labels must be whole numbers from 0"),
        (rewrite(x=np.zeros((2, 5, 5)), y=np.array([0, 1])), r"client 1 has samples of shape \(5, 5\), client 0 of"),
        (rewrite(x=np.array(["a"]), y=np.array([0])), "x must be numbers or texts|must be numbers"),
    ],
)
def test_wrong_files_are_named(change, words, tmp_path):
    write(tmp_path)
    change(tmp_path)
    with pytest.raises(pfedbred.SettingError, match=words):
        pfedbred.load(f"pfllib:{tmp_path}")


def test_it_is_split_already(tmp_path):
    write(tmp_path)
    with pytest.raises(pfedbred.SettingError, match="is already split: clients cannot be changed"):
        pfedbred.load(f"pfllib:{tmp_path}", clients=2)
    with pytest.raises(pfedbred.SettingError, match="absent holds no clients"):
        pfedbred.load(f"pfllib:{tmp_path / 'absent'}")


@pytest.mark.full
def test_a_run(tmp_path, call):
    write(tmp_path / "MNIST", shape=(1, 16, 16))
    code, out, _ = call(
        *("run", "--dataset", "pfllib:MNIST", "--model", "cnn", "--algorithm", "ditto", "--rounds", 2, "--set", "R=1")
    )
    assert code == 0
    assert "MNIST: 3 clients (all averaged in a round), 22 training" in out
    assert (tmp_path / "runs" / "MNIST-cnn-ditto" / "summary.json").exists()
