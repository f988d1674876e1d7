"""docs/deploy.md: its commands work as they stand. And the small commands around a federation."""

import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'pfedbred[flower]'")

from cryptography import x509
from support.processes import until
from typer.testing import CliRunner

import pfedbred
from pfedbred import cli
from pfedbred.errors import SettingError
from pfedbred.flower import certificates, client_data, processes, run_config

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def typed(section):
    """The commands of a section of the page, by terminal, in their order."""
    (text,) = re.findall(rf"^## {section}\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"```bash\n# (all three terminals|terminal \d)[^\n]*\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["Three terminals", "With TLS and node authentication"])
def test_the_pages_commands(section, tmp_path):
    blocks = typed(section)
    assert len(blocks) >= 4
    (everywhere,) = [commands for where, commands in blocks if where == "all three terminals"]
    environment = processes.environment(tmp_path / "flower")
    script = tmp_path / "bin"
    script.mkdir()
    (script / "pfedbred").write_text(f'#!/bin/sh\nexec {sys.executable} -m pfedbred "$@"\n')
    (script / "pfedbred").chmod(0o755)
    environment["PATH"] = f"{script}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    said = tmp_path / "said.txt"
    started = []
    try:
        with said.open("ab") as file:
            for where, commands in blocks:
                if where == "all three terminals":
                    continue
                process = subprocess.Popen(
                    ["bash", "-c", everywhere + commands + "wait\n"],
                    cwd=tmp_path,
                    env=environment,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
                started.append(process)
                lasts = "flower-super" in commands
                if lasts:
                    assert until(lambda text=commands: _listens(text), 60), said.read_text()
                else:
                    assert process.wait(300) == 0, said.read_text()
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = said.read_text(errors="replace")
    assert "round 5/5" in text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["federation"]["clients"] == ["north", "south"]
    if section == "Three terminals":
        assert "north's personal model of mg-meta, after round 5" in text


def _listens(commands):
    """Whether the server of these commands can be reached; clients have nothing to wait for."""
    import socket

    if "flower-superlink" not in commands:
        return True
    port = int(re.search(r"--port (\d+)", commands)[1])
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_the_demo(tmp_path):
    command = [sys.executable, "-m", "pfedbred", "flower", "demo", "--out", str(tmp_path / "demo"), "--rounds", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mg-meta: round 2/2" in done.stdout
    assert "everything is stopped again" in done.stdout
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in running


# The commands around it ---------------------------------------------------------------------------------------------


def command(*arguments):
    return CliRunner().invoke(cli.app, [str(each) for each in arguments])


def test_keys(tmp_path):
    done = command(
        "flower", "keys", tmp_path / "keys", "--node", "north", "--host", "hub.example", "--host", "10.0.0.7"
    )
    assert done.exit_code == 0, done.output
    for private in ("superlink.key", "north"):
        assert stat.S_IMODE((tmp_path / "keys" / private).stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate((tmp_path / "keys" / "superlink.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["hub.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    ca = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(ca)
    assert (tmp_path / "keys" / "north.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert command("flower", "keys", tmp_path / "keys", "--node", "later").exit_code == 0  # the authority stays
    again = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())
    assert again.serial_number == ca.serial_number
    assert "already has certificates" in str(command("flower", "keys", tmp_path / "keys", "--host", "other").exception)
    assert "a host must be an ASCII name or an IP address, not 'bücher.example'" in str(
        command("flower", "keys", tmp_path / "odd", "--host", "bücher.example").exception
    )
    assert "a node is called by letters" in str(
        command("flower", "keys", tmp_path / "new", "--node", "../evil").exception
    )
    assert not (tmp_path / "new").exists()
    with pytest.raises(SettingError, match="already exists"):
        certificates.node_key(tmp_path / "keys" / "north")


def test_an_app_is_what_flower_takes_for_one(tmp_path):
    from flwr.cli.config_utils import load_and_validate

    done = command("flower", "app", tmp_path / "app", "--out", tmp_path / 'a "run"', "--set", "algorithm=pfedme")
    assert done.exit_code == 0, done.output
    found, _ = load_and_validate(tmp_path / "app" / "pyproject.toml")
    written = found["tool"]["flwr"]["app"]["config"]
    assert written["algorithm"] == "pfedme"
    assert set(written) == set(processes.DEFAULTS)
    options, fields = run_config.understood(written)
    assert options.out == tmp_path / 'a "run"'
    assert fields["algorithm"] == "pfedme"
    wrong = command("flower", "app", tmp_path / "app", "--out", "x", "--set", "algoritm=pfedme")
    assert "did you mean 'algorithm'" in str(wrong.exception)


def test_predict(tmp_path):
    """With an exported model, and with labels in the file."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2, 1, (40, 3)), rng.normal(2, 1, (40, 3))]).astype(np.float32)
    y = np.repeat(["cat", "dog"], 40)
    federation = pfedbred.from_arrays(x, y, np.tile(["a", "b"], 40))
    result = pfedbred.run(federation=federation, algorithm="pfedme", rounds=5)
    from pfedbred.runs.saved_models import keep_one

    model = tmp_path / "home" / "0123456789abcdef" / "personal.safetensors"
    model.parent.mkdir(parents=True)
    keep_one(model, result.personal_model(1), result.experiment, federation, 5, client=1, name="b")
    np.savez(tmp_path / "samples.npz", x=x[:10], y=y[:10])
    (tmp_path / "samples.csv").write_text("p,q,r\n" + "".join(f"{','.join(map(str, row))}\n" for row in x[70:]))
    done = command("predict", tmp_path / "home", tmp_path / "samples.npz")
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["cat"] * 10
    assert "b's personal model of pfedme, after round 5: 10 of 10 labels are those in the file, 100.00 %" in done.stderr
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
        "texts": ({"x": np.array(["one", "two"])}, "holds texts, and the model is for the other kind"),
    }
    for name, (arrays, complaint) in wrong.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        assert complaint in str(command("predict", model, tmp_path / f"{name}.npz").exception)
    (tmp_path / "diagnosis.csv").write_text("p,q,r,diagnosis\n1,2,3,dog\n-3,-2,-1,cat\n")
    done = command("predict", model, tmp_path / "diagnosis.csv", "--label-column", "diagnosis")
    assert "2 of 2 labels are those in the file" in done.stderr
    shutil.copy(tmp_path / "samples.npz", tmp_path / "samples.xyz")
    assert "not a kind of file" in str(command("predict", model, tmp_path / "samples.xyz").exception)


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
    done = command("run", "--dataset", prepared, "--rounds", "20", "--out", tmp_path / "run")
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
        assert "labels are those in the file" in done.stderr
        right = int(re.search(r": (\d+) of 20 labels", done.stderr)[1])
        assert right == int(re.search(r": (\d+) of 20 labels", command("predict", model, prepared).stderr)[1])
    problem = str(command("predict", model, write("less.csv", ["age", "row", "label"])).exception)
    assert "less.csv has no column 'dose', which the model needs; it has age, row, label" in problem
    problem = str(command("predict", model, training, "--label-column", "dose").exception)
    assert "the column 'dose' is one of the model's inputs" in problem


def test_an_input_is_not_taken_for_the_label(tmp_path):
    """Though it is called y."""
    rows = "".join(f"{i % 5},{3 * (i % 2)},{i % 2},{i // 20}\n" for i in range(40))
    (tmp_path / "xy.csv").write_text("x,y,outcome,client\n" + rows)
    options = ("--label-column", "outcome", "--out", tmp_path / "xy.fed")
    assert command("data", "prepare", tmp_path / "xy.csv", *options).exit_code == 0
    assert command("run", "--dataset", tmp_path / "xy.fed", "--rounds", "2", "--out", tmp_path / "run").exit_code == 0
    assert command("export", tmp_path / "run").exit_code == 0
    done = command("predict", tmp_path / "run" / "global.safetensors", tmp_path / "xy.csv")
    assert len(done.stdout.split()) == 40
    assert "labels are those in the file" not in done.stderr


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
    assert command("run", "--dataset", tmp_path / "p.fed", "--rounds", "2", "--out", tmp_path / "run").exit_code == 0
    assert command("export", tmp_path / "run").exit_code == 0
    done = command("predict", tmp_path / "run" / "global.safetensors", tmp_path / "p.parquet")
    assert done.exit_code == 0, done.exception
    assert "of 24 labels are those in the file" in done.stderr


# A client's own data ------------------------------------------------------------------------------------------------


def test_a_node_says_where_its_data_are(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = client_data.node({"dataset": "x.fed", "name": "St. Mary's/../etc"}, 7)
    assert found.home.parent == tmp_path / "pfedbred" / "clients"
    assert client_data.node({}, 7).name == "node-7"
    with pytest.raises(SettingError, match="partition-id must be int, not 'one'"):
        client_data.node({"partition-id": "one"}, 7)


def test_a_part_of_a_dataset_is_kept(tmp_path):
    node = client_data.node({"dataset": "digits", "clients": 5, "partition-id": 3, "home": str(tmp_path)}, 1)
    own, place = client_data.own_data(node, tmp_path)
    again, _ = client_data.own_data(node, tmp_path)
    whole = pfedbred.load("digits", clients=5)
    assert place == 3
    np.testing.assert_array_equal(own.train.x, whole.train.client(3)[0])
    np.testing.assert_array_equal(again.train.x, own.train.x)
    assert len(list(tmp_path.glob("data-*.fed"))) == 1
    for wrong, why in (({"partition-id": 5}, "partition-id is from 0 to 4"), ({}, "needs partition-id=NUMBER")):
        with pytest.raises(SettingError, match=why):
            client_data.own_data(client_data.node({"dataset": "digits", "clients": 5, **wrong}, 1), tmp_path)


def test_labels_are_numbered_as_the_federation_does(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,label\n1,2,dog\n2,1,emu\n3,1,dog\n1,1,emu\n")
    own, _ = client_data.own_data(client_data.node({"dataset": str(tmp_path / "a.csv")}, 1), tmp_path)
    same = client_data.relabelled(own, 3, ["cat", "dog", "emu"])
    names = [same.labels[i] for i in same.train.y]
    assert names == [own.labels[i] for i in own.train.y]
    assert same.classes == 3
    with pytest.raises(SettingError, match="the label 'emu' is not one of the federation's"):
        client_data.relabelled(own, 2, ["cat", "dog"])
    with pytest.raises(SettingError, match="there is a label 1, and the federation has 0 to 0"):
        client_data.relabelled(own, 1, None)


def test_a_node_may_order_its_columns(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,label\n1,2,0\n2,1,1\n3,1,0\n1,1,1\n")
    own = {"dataset": str(tmp_path / "a.csv")}
    plain, _ = client_data.own_data(client_data.node(own, 1), tmp_path)
    other, _ = client_data.own_data(client_data.node({**own, "features": "z, x"}, 1), tmp_path)
    assert (plain.features, other.features) == (("x", "z"), ("z", "x"))
    np.testing.assert_array_equal(plain.train.x, other.train.x[:, ::-1])
    pfedbred.data.prepared.save(plain, tmp_path / "a.fed")
    again, _ = client_data.own_data(
        client_data.node({"dataset": str(tmp_path / "a.fed"), "features": "z,x"}, 1), tmp_path
    )
    assert again.features == ("z", "x")
    np.testing.assert_array_equal(again.train.x, other.train.x)
    np.testing.assert_allclose(again.shift, other.shift)
    np.testing.assert_allclose(again.scale, other.scale)
    with pytest.raises(SettingError, match=r"a.fed has no column 'w', only 'x', 'z'"):
        client_data.own_data(client_data.node({"dataset": str(tmp_path / "a.fed"), "features": "z,w"}, 1), tmp_path)
    with pytest.raises(SettingError, match="features names columns of a table, and digits is none"):
        client_data.own_data(client_data.node({"dataset": "digits", "features": "x"}, 1), tmp_path)
