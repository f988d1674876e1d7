"""``pfedbred predict``, where the personal models are."""

import io
import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import pfedbred
from pfedbred import cli
from pfedbred.runs.saved_models import write_model


def command(*arguments):
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def test_predict(tmp_path):
    """With an exported model, and with labels in the file."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2, 1, (40, 3)), rng.normal(2, 1, (40, 3))]).astype(np.float32)
    y = np.repeat(["cat", "dog"], 40)
    federation = pfedbred.from_arrays(x, y, np.tile(["a", "b"], 40))
    result = pfedbred.run(federation=federation, algorithm="pfedme", rounds=5)
    model = tmp_path / "home" / "0123456789abcdef" / "personal.safetensors"
    model.parent.mkdir(parents=True)
    plain, task = result.experiment.plain(), result.backend.task
    write_model(model, result.personal_model(1), plain, federation, 5, task, client=1, name="b")
    np.savez(tmp_path / "samples.npz", x=x[:10], y=y[:10])
    (tmp_path / "samples.csv").write_text("p,q,r\n" + "".join(f"{','.join(map(str, row))}\n" for row in x[70:]))
    done = command("predict", tmp_path / "home", tmp_path / "samples.npz")
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["cat"] * 10
    assert (
        "personal model of client b, pfedme, after round 5: 10 of 10 labels agree with the file, 100.00 %"
        in done.stderr
    )
    done = command("predict", model, tmp_path / "samples.csv", "--out", tmp_path / "labels.txt")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "labels.txt").read_text().split() == ["dog"] * 10
    (tmp_path / "empty").mkdir()
    assert "there is no personal model" in str(
        command("predict", tmp_path / "empty", tmp_path / "samples.npz").exception
    )
    wrong = {
        "short": ({"x": x[:10], "y": y[:9]}, "has 10 samples and 9 labels"),
        "none": ({"x": x[:0], "y": y[:0]}, "holds no samples"),
        "texts": ({"x": np.array(["one", "two"])}, "holds texts, but the model expects numbers"),
        "infinite": ({"x": np.where(x == x[3, 1], np.inf, x)}, "sample 3 has a feature that is not a finite number"),
    }
    for name, (arrays, complaint) in wrong.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        assert complaint in str(command("predict", model, tmp_path / f"{name}.npz").exception)
    (tmp_path / "typo.csv").write_text("p,q,r\n1,2,3\n1,2,old\n1,2,3\n")
    problem = str(command("predict", model, tmp_path / "typo.csv").exception)
    assert problem.endswith("typo.csv, line 3: column 'r' does not hold numbers")
    (tmp_path / "diagnosis.csv").write_text("p,q,r,diagnosis\n1,2,3,dog\n-3,-2,-1,cat\n")
    done = command("predict", model, tmp_path / "diagnosis.csv", "--label-column", "diagnosis")
    assert "2 of 2 labels agree with the file" in done.stderr
    shutil.copy(tmp_path / "samples.npz", tmp_path / "samples.xyz")
    assert "expected .npz, .npy, .csv, .parquet or .fed" in str(
        command("predict", model, tmp_path / "samples.xyz").exception
    )


@pytest.mark.full
def test_columns_are_found_by_name(tmp_path):
    """In whatever order a file has them, and others beside them."""
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    table = {"age": rng.normal(size=80), "dose": rng.normal(size=80) + 4 * y, "label": y, "client": np.arange(80) // 40}

    def write(name, columns):
        rows = zip(*(table[each] for each in columns), strict=True)
        (tmp_path / name).write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
        return tmp_path / name

    training = write("training.csv", ["age", "dose", "label", "client"])
    prepared = tmp_path / "training.fed"
    assert command("data", "prepare", training, "--out", prepared).exit_code == 0
    done = command("run", "--dataset", prepared, "--algorithm", "fedavg", "--rounds", "20", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert command("export", tmp_path / "run", "--client", "0").exit_code == 0
    model = tmp_path / "run" / "client-0.safetensors"
    table["row"] = table["client"] * 1000.0
    expected = command("predict", model, write("plain.csv", ["age", "dose", "label"])).stdout.split()
    assert np.mean(np.array(expected) == y.astype(str)) > 0.9
    for columns in (["dose", "age", "label"], ["row", "label", "dose", "client", "age"], ["dose", "age"]):
        done = command("predict", model, write("other.csv", columns))
        assert done.stdout.split() == expected, columns
    everything = write("everything.csv", ["dose", "row", "age", "label", "client"])
    for chosen in ((), ("--features", "dose,age")):
        other = tmp_path / f"other-{len(chosen)}.fed"
        assert command("data", "prepare", everything, "--out", other, *chosen).exit_code == 0
        done = command("predict", model, other)
        assert "labels agree with the file" in done.stderr
        right = int(re.search(r": (\d+) of 20 labels", done.stderr)[1])
        assert right == int(re.search(r": (\d+) of 20 labels", command("predict", model, prepared).stderr)[1])
    problem = str(command("predict", model, write("less.csv", ["age", "row", "label"])).exception)
    assert "less.csv has no column 'dose', which the model needs; it has age, row, label" in problem
    problem = str(command("predict", model, training, "--label-column", "dose").exception)
    assert "the column 'dose' is one of the model's inputs" in problem


@pytest.mark.full
def test_an_input_is_not_taken_for_the_label(tmp_path):
    """Though it is called y."""
    rows = "".join(f"{i % 5},{3 * (i % 2)},{i % 2},{i // 20}\n" for i in range(40))
    (tmp_path / "xy.csv").write_text("x,y,outcome,client\n" + rows)
    options = ("--label-column", "outcome", "--out", tmp_path / "xy.fed")
    assert command("data", "prepare", tmp_path / "xy.csv", *options).exit_code == 0
    assert (
        command(
            "run", "--dataset", tmp_path / "xy.fed", "--algorithm", "fedavg", "--rounds", "2", "--out", tmp_path / "run"
        ).exit_code
        == 0
    )
    assert command("export", tmp_path / "run").exit_code == 0
    done = command("predict", tmp_path / "run" / "global.safetensors", tmp_path / "xy.csv")
    assert len(done.stdout.split()) == 40
    assert "labels agree with the file" not in done.stderr


@pytest.mark.full
def test_a_column_of_images_is_found_by_name(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'pfedbred[data]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    cells = []
    for i in range(24):
        file = io.BytesIO()
        image.fromarray(np.full((4, 4), 200 * (i % 2), np.uint8)).save(file, "PNG")
        cells.append({"bytes": file.getvalue(), "path": None})
    table = {"id": list(range(24)), "picture": cells, "label": [i % 2 for i in range(24)], "client": [0, 1] * 12}
    table["client"] = [i // 12 for i in range(24)]
    parquet.write_table(pyarrow.table(table), tmp_path / "p.parquet")
    options = ("--features", "picture", "--out", tmp_path / "p.fed")
    assert command("data", "prepare", tmp_path / "p.parquet", *options).exit_code == 0
    assert (
        command(
            "run", "--dataset", tmp_path / "p.fed", "--algorithm", "fedavg", "--rounds", "2", "--out", tmp_path / "run"
        ).exit_code
        == 0
    )
    assert command("export", tmp_path / "run").exit_code == 0
    done = command("predict", tmp_path / "run" / "global.safetensors", tmp_path / "p.parquet")
    assert done.exit_code == 0, done.exception
    assert "of 24 labels agree with the file" in done.stderr
