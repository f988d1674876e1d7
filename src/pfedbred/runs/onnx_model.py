"""A trained model as an ONNX file: samples as the data holds them go in, and predictions come out.

Normalisation, and for a table of texts and numbers with gaps the encoding of its columns, are part of the graph. It
does not split texts into words: a model for texts takes word ids, and the vocabulary is in the file's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pfedbred.data.columns import MISSING, DataColumn, Encoding
from pfedbred.io.atomic import replacing
from pfedbred.models.platform import portable
from pfedbred.runs import model_file
from pfedbred.runs.onnx_graph import Graph
from pfedbred.runs.onnx_values import Value
from pfedbred.runs.trained_model import TrainedModel
from pfedbred.types import Array, Tree


def write_onnx(path: Path, trained: TrainedModel) -> None:
    """Writes a model.

    The inputs are ``x``, (n, ...) of the shape of samples, in float32, or ids in int32; of an encoded table one input,
    (n,), for each column by its name: numbers in float64, where NaN is a gap, or texts, where an empty one is a gap.

    The outputs are ``logits``, ``probabilities`` (calibrated if the model is) and ``label``, the number of the most
    likely one; or in its place ``labels``, where a sample has several. Of numbers there is only ``prediction``, in the
    units of the labels.
    """
    graph = Graph()
    encoding, shape = trained.encoding, trained.about["shape"]
    if encoding is None:
        x = graph.input("x", np.int32 if trained.text else np.float32, shape)
    else:
        x = _encoded(graph, encoding)
    names, answers = _answers(trained)
    with portable():
        found = graph.apply(answers, jax.device_get(trained.params), x)
    for name, each in zip(names, found, strict=True):
        graph.output(name, each)
    said = model_file.as_texts(trained.about)  # a name may come from a path, which need not be valid text
    said = {name: text.encode("utf-8", "backslashreplace").decode() for name, text in said.items()}
    whole = graph.model(trained.about["model"], said)
    with replacing(path) as file:
        file.write(whole.SerializeToString())


def _answers(trained: TrainedModel) -> tuple[Sequence[str], Any]:
    """The names of the outputs, and the JAX function of params and inputs that gives them."""
    kind, about = trained.task.kind, trained.about
    calibrated = about["calibration"] or {}
    temperature, classes = calibrated.get("temperature") or 1.0, about["classes"]

    def scores(params: Tree, x: Array) -> tuple[Array, Array]:
        if about["features"] is not None and trained.encoding is None:
            x = trained.filled(x)
        outputs = trained.outputs(params, x)
        return outputs, trained.task.scores(outputs)

    def number(params: Tree, x: Array) -> list[Array]:
        return [scores(params, x)[1]]

    def several(params: Tree, x: Array) -> list[Array]:
        outputs, each = scores(params, x)
        return [outputs, jax.nn.sigmoid(each), each > 0]

    def one(params: Tree, x: Array) -> list[Array]:
        outputs, each = scores(params, x)
        likely = jax.nn.softmax(each / temperature)[:, :classes]
        return [outputs, likely, jnp.argmax(each, axis=1).astype(jnp.int32)]

    if kind.labels == "numbers":
        return ("prediction",), number
    if kind.labels == "sets":
        return ("logits", "probabilities", "labels"), several
    return ("logits", "probabilities", "label"), one


def _encoded(graph: Graph, encoding: Encoding) -> Value:
    """The inputs of the network from the columns of a table, as :meth:`Encoding.encode` makes them."""
    cells = [graph.input(each.name, np.float64 if each.categories is None else str) for each in encoding.columns]
    parts: list[str] = []
    for place, (column, values) in enumerate(zip(encoding.columns, cells, strict=True)):
        own = graph.op("Unsqueeze", values.name, np.array([1], np.int64))
        gaps = _gaps(graph, column, own)
        if column.categories is None:
            fill, shift, scale = (np.asarray(each[0, place]) for each in encoding.own)
            filled = graph.op("Where", gaps, fill, own)
            parts.append(graph.op("Mul", graph.op("Sub", filled, shift), scale))
        elif column.categories:
            known = np.array([column.categories], object)
            parts.append(graph.cast(graph.op("Equal", own, known), np.float64))
        if column.indicator:
            parts.append(graph.cast(gaps, np.float64))
    inputs = graph.cast(graph.op("Concat", *parts, axis=1), np.float32)
    return graph.typed(inputs, np.float32, (graph.batch, len(encoding.names)))


def _gaps(graph: Graph, column: DataColumn, cells: str) -> str:
    """Where a column has no value."""
    if column.categories is None:
        return graph.op("IsNaN", cells)
    is_one = graph.cast(graph.op("Equal", cells, np.array([MISSING], object)), np.int32)
    return graph.cast(graph.op("ReduceMax", is_one, np.array([1], np.int64), keepdims=1), bool)
