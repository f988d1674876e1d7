"""The command line's part for data and for models: prepare, show, held-out clients, export."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import pfedbred
from pfedbred.report import distribution
from pfedbred.report.distribution import draw_distribution

QUICK = ["--rounds", "2", "--set", "R=2"]


def test_prepare_show_run_export(call, tmp_path):
    """From a name to a file, from the file to a run, from the run to a client's model; and the run once more."""
    code, out, _ = call("data", "prepare", "digits", "--clients", "6", "--out", "mine.fed")
    assert code == 0
    assert "digits: 6 clients, 10 labels" in out
    assert "use it with --dataset mine.fed" in out
    code, out, _ = call("data", "show", "mine.fed")
    assert code == 0
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call("run", "--dataset", "mine.fed", "--out", "one", *QUICK)
    assert code == 0
    assert "digits: 6 clients (all averaged in a round), " in out
    code, out, _ = call("run", "one/config.yaml", "--out", "two", "--no-models")  # the same run once more
    assert code == 0
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert first["personal"] == second["personal"]
    assert first["data"] == {
        "name": "digits",
        "clients": 6,
        "classes": 10,
        "split": "paper",
        "seed": 0,
        "train_samples": first["data"]["train_samples"],
        "test_samples": first["data"]["test_samples"],
    }
    assert not (tmp_path / "two" / "models.safetensors").exists()
    code, out, _ = call("export", "one", "--client", "5")
    assert code == 0
    assert "one/client-5.safetensors" in out
    kept = load_file(tmp_path / "one" / "models.safetensors")["personal.output.weight"]
    exported = load_file(tmp_path / "one" / "client-5.safetensors")["output.weight"]
    np.testing.assert_array_equal(exported, kept[0, 5])
    code, _, err = call("export", "two", "--client", "5")
    assert code == 2
    assert "kept no models" in err


def test_show_prints_counts(call):
    _, out, _ = call("data", "show", "digits")
    lines = [line.split() for line in out.splitlines()]
    federation = pfedbred.load("digits")
    for label in range(10):
        train, test = (int(np.sum(split.y == label)) for split in (federation.train, federation.test))
        assert [str(label), str(train), str(test), "6"] in lines
    assert any("1,349" in line for line in lines)


@pytest.mark.full
def test_held_out_clients_are_reported(call, tmp_path):
    code, out, _ = call(
        "compare",
        *("--algorithms", "fedavg,pfedme", "--clients", "10", "--held-out-clients", "0.2", "--out", "here"),
        *("--joining-rounds", "3", *QUICK),
    )
    assert code == 0
    assert "2 more clients held out" in out
    assert "new: P after 3" in out
    table = json.loads((tmp_path / "here" / "table.json").read_text())
    for row in table:
        assert row["data"]["clients"] == 8
        assert row["newcomers"]["clients"] == 2
        assert len(row["newcomers"]["personal"]) == 4
    fedavg = table[0]["newcomers"]
    assert fedavg["personal"] == [fedavg["global"]] * 4  # it has no personal model


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("data", "show", "nothing"), "unknown dataset 'nothing'"),
        (("data", "show", "digits", "--split", "irid"), "unknown split 'irid'; did you mean 'iid'"),
        (("data", "prepare", "digits", "--out", "x.npz"), "the name of a prepared federation must end in .fed"),
        (("data", "prepare", "digits", "--out", "absent/x.fed"), "there is no folder absent"),
        (("data", "show", "digits", "--out", "x.nonsense"), "cannot write x.nonsense"),
        (("data", "show", "absent.csv"), "there is no file absent.csv"),
        (("data", "shwo", "digits"), "no such command 'shwo'; did you mean 'show'?"),
        (("run", "--held-out-clients", "1.5"), "held_out_clients must be a number from 0 to 1"),
        (("run", "--held-out-clients", "20"), "there is no client 20; clients are 0 to 19"),
        (("run", "--held-out-clients", "0.99"), "holds out 20; at least one must be held out and one must train"),
        (("run", "--held-out-clients", "0.01"), "holds out 0; at least one must be held out"),
        (("run", "--dataset", "absent.fed"), "cannot read"),
        (("run", "--glove", "absent.txt"), "glove is for texts"),
        (("run", "--model", "cnn"), "cnn needs images"),
        (("run", "--model", "lstm"), "lstm"),
        (("export", "absent"), "there is no folder absent"),
        (("export", "absent.safetensors"), "there is no file absent.safetensors\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_get_one_line(arguments, words, call, tmp_path):
    code, out, err = call(*arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1
    assert "Traceback" not in err + out
    assert not (tmp_path / "runs").exists()


def test_the_picture_shows_validation_samples_too(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(distribution, "save", lambda figure, path: drawn.append(figure))
    federation = pfedbred.load("digits", clients=5)
    for each in (federation, federation.with_validation(0.25, 0)):
        draw_distribution(each, tmp_path / "x.png")
    titles = [[panel.get_title("left").split(" samples")[0] for panel in figure.axes] for figure in drawn]
    train, test = len(federation.train.y), len(federation.test.y)
    held = sum(round(0.25 * size) for size in federation.train.sizes)
    assert titles == [
        [f"training: {train:,}", f"test: {test:,}"],
        [f"training: {train - held:,}", f"validation: {held:,}", f"test: {test:,}"],
    ]


@pytest.mark.parametrize("clients", [1, 100, 450])
def test_the_picture_fits_any_number_of_clients(clients, tmp_path):
    """It opens, is not blank, and is not larger than a screen can show."""
    from PIL import Image

    y = np.arange(clients * 8) % 5
    federation = pfedbred.from_arrays(np.zeros((len(y), 2)), y, np.repeat(np.arange(clients), 8))
    draw_distribution(federation, tmp_path / "x.png")
    image = np.asarray(Image.open(tmp_path / "x.png").convert("L"))
    assert image.shape[1] <= 2400
    assert 0.002 < np.mean(image < 250) < 0.6


def test_a_dataset_by_its_import_path(call, tmp_path):
    code, out, err = call(
        "data", "prepare", "support.custom:small", "--split", "iid", "--clients", "3", "--out", "s.fed"
    )
    assert code == 0, err
    assert "small: 3 clients" in out
    assert pfedbred.load(tmp_path / "s.fed").clients == 3
    code, _, err = call("data", "show", "support.custom:on_demand")
    assert code == 2
    assert err == (
        "pfedbred: the clients of support.custom:on_demand are generated on demand: there is no data to show or "
        "to write\n"
    )
