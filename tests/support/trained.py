"""Trained models of any network without training: random params and batch statistics, as if read from a file."""

from pathlib import Path

import jax
import numpy as np

from pfedbred import models, tasks
from pfedbred.io import tensors
from pfedbred.runs import trained_model
from pfedbred.types import Words

VOCABULARY = ["good", "bad", "day", "sun", "rain"]
SHAPES = {
    "mclr": (5,),
    "dnn": (4, 3),
    "cnn": (17, 20, 3),
    "pfllib-cnn": (16, 18),
    "resnet8": (9, 8, 3),
    "resnet18": (8, 8, 3),
    "mobilenet": (8, 8),
    "vit": (10, 9, 3),
    "cnn1d": (30, 2),
    "lstm": (6,),
    "charlstm": (6,),
    "transformer": (6,),
}
"""Of a sample, by network: the smallest that show an axis in the wrong place."""
NORMALISED = ("resnet8", "resnet18", "mobilenet")


def trained(model, *, batch_norm="local", vectors=None, seed=0, **facts):
    """A model with random params; samples are normalised by random numbers if they are not ids."""
    rng, shape = np.random.default_rng(seed), SHAPES.get(model, (5,))
    reads_words = model in ("lstm", "charlstm", "transformer")
    about = {
        "format": "pfedbred model 1",
        "dataset": "random",
        "model": model,
        "batch_norm": batch_norm,
        "algorithm": "fedavg",
        "settings": {},
        "round": 1,
        "shape": list(shape),
        "classes": 3,
        "labels": None,
        "features": None,
        "vocabulary": VOCABULARY if reads_words else None,
        "task": "classification",
        "target": None,
        "columns": None,
        "precision": "float32",
        "train_only": None,
        "posterior": None,
        "kind": "global",
        "seed": 0,
        "calibration": None,
        **facts,
    }
    words = Words(len(VOCABULARY) + 2, vectors) if reads_words else None
    outputs = tasks.get(about["task"]).outputs(about["classes"])
    network = models.get(model, tuple(about["shape"]), outputs, words, batch_norm)
    shapes = tensors.named(jax.eval_shape(lambda: network.starting(network.init(jax.random.key(0)))))
    arrays = {name: drawn(rng, name, leaf.shape) for name, leaf in shapes.items()}
    if vectors is not None:
        arrays["input.vectors"] = vectors
    if not reads_words:
        arrays["input.shift"] = rng.normal(size=about["shape"][-1:]).astype(np.float32)
        arrays["input.scale"] = rng.uniform(0.5, 2, about["shape"][-1:]).astype(np.float32)
    return trained_model.restored_model(arrays, about, Path("random"))


def drawn(rng, name, shape):
    """An array that keeps activations about as large as they are, so that answers depend on the samples."""
    part = name.rpartition(".")[2]
    if part in ("scale", "variance"):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    inputs = {"input": shape[-1], "recurrent": shape[-1], "embedding": 1}.get(part, np.prod(shape[1:]))
    spread = np.sqrt(2 / inputs) if len(shape) > 1 else 0.2
    return (spread * rng.normal(size=shape)).astype(np.float32)


def samples(model, count, seed=1):
    """Samples for it, as the data would hold them; of ids each begins with a word, and some end with padding."""
    rng, shape = np.random.default_rng(seed), tuple(model.about["shape"])
    if model.text is None:
        return rng.normal(size=(count, *shape)).astype(np.float32)
    ids = rng.integers(1, model.text.count, (count, *shape)).astype(np.int32)
    ids[:, 2] = 0  # a zero among words is no padding
    for row, length in enumerate(rng.integers(1, shape[0] + 1, count)):
        ids[row, length:] = 0
    return ids
