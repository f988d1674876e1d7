"""The documented server: it answers what ``pfedbred predict`` prints."""

import http.client
import importlib
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.trained import samples, trained

import pfedbred
from pfedbred.runs import onnx_model
from pfedbred.runs.saved_models import write_models

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'pfedbred[onnx]'")
pytest.importorskip("onnxruntime", reason="onnxruntime, which the documented server uses, is not installed")

DOCS = Path(__file__).parent.parent.parent / "docs"

pytestmark = pytest.mark.full


def ask(port, body, path="/predict"):
    """The status and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body if isinstance(body, str) else json.dumps(body))
        found = connection.getresponse()
        return found.status, json.loads(found.read())
    finally:
        connection.close()


@contextmanager
def serving(model, monkeypatch):
    """The port of a server of that model."""
    monkeypatch.syspath_prepend(DOCS)
    serve = importlib.import_module("serve")
    monkeypatch.setattr(serve.BaseHTTPRequestHandler, "log_message", lambda *_: None)
    with serve.server(str(model), 0) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield running.server_port
        finally:
            running.shutdown()
            thread.join()


def test_the_server_answers_what_predict_prints(finished, call, monkeypatch):
    call("export", finished / "run", "--client", 2, "--out", "two.safetensors")
    call("export", "two.safetensors", "--format", "onnx")
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    np.save("x.npy", x)
    predicted = call("predict", "two.safetensors", "x.npy")[1].split()
    with serving("two.onnx", monkeypatch) as port:
        status, found = ask(port, {"samples": x.tolist()})
        assert status == 200
        assert list(map(str, found["label"])) == predicted
        np.testing.assert_allclose(np.sum(found["probabilities"], axis=1), 1, rtol=1e-5)
        for body, words in {
            "no JSON": "JSONDecodeError",
            '{"x": []}': "KeyError",
            '{"samples": []}': "at least one sample",
            '{"samples": 3}': "samples must be a list",
            '{"samples": [[1, 2]]}': "samples have shape (2,), the model is for (3,)",
            '{"samples": [[1, 2, "a"]]}': "could not convert",
        }.items():
            status, found = ask(port, body)
            assert status == 400
            assert words in found["error"]
        assert ask(port, {"samples": [[0, 0, 0]]}, "/elsewhere")[0] == 404
        assert ask(port, "")[0] == 413


def test_texts_are_given_as_texts(tmp_path, monkeypatch):
    model = trained("lstm", labels=["-", "0", "+"])
    onnx_model.write_onnx(tmp_path / "it.onnx", model)
    texts = ["Good day, sun!", "rain", "good bad good bad good bad good bad"]
    with serving(tmp_path / "it.onnx", monkeypatch) as port:
        for given, asked in ((texts, texts), (ids := samples(model, 3), ids.tolist())):
            found, expected = ask(port, {"samples": asked})[1], np.exp(model.logits(given))
            np.testing.assert_allclose(found["probabilities"], expected / expected.sum(1, keepdims=True), rtol=1e-4)
            assert found["label"] == model.predict(given)


@pytest.mark.full
def test_rows_of_a_table_numbers_and_several_labels(tmp_path, monkeypatch):
    lines = [f"{'' if i % 7 == 3 else i},{('nurse', 'cook')[i % 3 == 0]},{i % 2},{i % 2}" for i in range(30)]
    (tmp_path / "table.csv").write_text("\n".join(["age,job,label,client", *lines]) + "\n")
    federation = pfedbred.load(str(tmp_path / "table.csv"))
    run = pfedbred.run(federation=federation, algorithm="local", rounds=1, settings={"R": 2})
    write_models(tmp_path, run.experiment.plain(), run.backend, run.state, run.round)
    model = pfedbred.load_model(pfedbred.export(tmp_path, client=1))
    rows = [{"age": 25, "job": "nurse"}, {"age": None, "job": " cook "}, {"age": 3.5, "job": None}]
    with serving(pfedbred.export(tmp_path, client=1, format="onnx"), monkeypatch) as port:
        assert ask(port, {"samples": rows})[1]["label"] == model.predict(rows)
        assert "a sample has no 'job'" in ask(port, {"samples": [{"age": 1}]})[1]["error"]
    for facts in ({"task": "regression", "classes": 1, "target": {"mean": 9.0, "std": 2.0}}, {"task": "multi-label"}):
        model = trained("mclr", **facts)
        onnx_model.write_onnx(tmp_path / "it.onnx", model)
        x = samples(model, 4)
        with serving(tmp_path / "it.onnx", monkeypatch) as port:
            (_, found), expected = ask(port, {"samples": x.tolist()}), model.predict(x)
        if "prediction" in found:
            np.testing.assert_allclose(found["prediction"], expected, rtol=1e-4)
        else:
            assert list(map(tuple, found["labels"])) == expected


@pytest.mark.full
def test_the_server_as_a_process(finished, tmp_path):
    """As the page starts it."""
    path = pfedbred.export(finished / "run", client=2, out=tmp_path / "two.onnx")
    command = [sys.executable, str(DOCS / "serve.py"), str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            port = int(running.stdout.readline().split(":")[2].split("/")[0])
            assert ask(port, {"samples": [[0.1, 0.2, 0.3]]})[0] == 200
        finally:
            running.terminate()
