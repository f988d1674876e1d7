"""Serves an exported ONNX model over HTTP: JSON in, JSON out. It needs onnxruntime and no more.

    pip install onnxruntime
    python serve.py client-3.onnx --port 8000
    curl -d '{"samples": [[5.1, 3.5, 1.4, 0.2]]}' http://127.0.0.1:8000/predict

Samples are given as the data holds them: numbers in the model's shape, texts, or of a table with columns of texts one
object for each row, {"age": 54, "job": "nurse"}, where null is a gap.
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime

LARGEST = 2**24  # bytes of a request


class Model:
    """A model, and what its file says of it."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.about = self.session.get_modelmeta().custom_metadata_map
        self.labels, self.vocabulary = (json.loads(self.about[name]) for name in ("labels", "vocabulary"))
        self.shape = tuple(json.loads(self.about["shape"]))

    def predict(self, samples: list) -> dict:
        """The label of each sample and the probabilities of all labels, or numbers."""
        outputs = [each.name for each in self.session.get_outputs()]
        found = dict(zip(outputs, self.session.run(outputs, self.inputs(samples)), strict=True))
        if "prediction" in found:
            return {"prediction": found["prediction"].tolist()}
        probabilities = found["probabilities"].tolist()
        names = self.labels or list(range(len(probabilities[0])))
        if "labels" in found:  # any number of them for each sample
            chosen = [[names[i] for i in np.flatnonzero(row).tolist()] for row in found["labels"]]
            return {"labels": chosen, "probabilities": probabilities}
        return {"label": [names[i] for i in found["label"].tolist()], "probabilities": probabilities}

    def inputs(self, samples: list) -> dict:
        """Samples as the graph takes them."""
        wanted = self.session.get_inputs()
        if not isinstance(samples, list) or not samples:
            raise ValueError("samples must be a list of at least one sample")
        if json.loads(self.about["columns"]) is not None:  # a table: one input for each column
            texts = {each.name for each in wanted if each.type == "tensor(string)"}
            missing = [each.name for each in wanted if any(each.name not in row for row in samples)]
            if missing:
                raise ValueError(f"a sample has no {missing[0]!r}")
            return {each.name: self.column(samples, each.name, each.name in texts) for each in wanted}
        if self.vocabulary is not None and isinstance(samples[0], str):
            samples = [self.ids(text) for text in samples]
        x = np.array(samples, np.float32 if self.vocabulary is None else np.int32)
        if x.shape[1:] != self.shape:
            raise ValueError(f"samples have shape {x.shape[1:]}, the model is for {self.shape}")
        return {"x": x}

    def column(self, samples: list, name: str, is_text: bool) -> np.ndarray:
        """The cells of a column; null is a gap."""
        cells = [row[name] for row in samples]
        if is_text:
            return np.array(["" if each is None else str(each).strip() for each in cells], object)
        return np.array([np.nan if each is None else each for each in cells], np.float64)

    def ids(self, text: str) -> list[int]:
        """A text as ids: the vocabulary's words from 2 on, 1 for unknown ones, 0 for padding."""
        (length,), numbers = self.shape, {word: i for i, word in enumerate(self.vocabulary, 2)}
        by_character = " " in numbers  # a vocabulary with a blank is one of characters
        parts = list(text)[-length:] if by_character else re.findall(r"[\w']+|[.,!?;]", text.lower())[:length]
        return [numbers.get(part, 1) for part in parts] + [0] * (length - len(parts))


def server(path: str, port: int) -> ThreadingHTTPServer:
    """A server of that model, for this machine only; put it behind a web server that checks who asks."""
    model = Model(path)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answers a request."""
            try:
                size = int(self.headers.get("Content-Length", 0))
                if self.path != "/predict":
                    self.answer(404, {"error": "ask /predict"})
                elif not 0 < size <= LARGEST:
                    self.answer(413, {"error": f"a request has 1 to {LARGEST} bytes"})
                else:
                    self.answer(200, model.predict(json.loads(self.rfile.read(size))["samples"]))
            except (ValueError, TypeError, KeyError) as problem:
                self.answer(400, {"error": f"{type(problem).__name__}: {problem}"})

        def answer(self, status: int, body: dict) -> None:
            """Sends JSON."""
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve an exported ONNX model over HTTP.")
    parser.add_argument("model", help="a file that 'pfedbred export --format onnx' wrote")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with server(given.model, given.port) as running:
        print(f"http://127.0.0.1:{running.server_port}/predict", flush=True)
        running.serve_forever()
