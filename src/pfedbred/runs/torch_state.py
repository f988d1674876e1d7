"""A trained model as a PyTorch state dict: names and layouts of torch.nn's own layers.

Kernels are (outputs, inputs, height, width) there, and images (channels, height, width), so that a linear layer behind
convolutions reads its features in another order. Networks that torch.nn or torchvision have too get their names.
Modules to load them into are in docs/torch_networks.py.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pfedbred import models
from pfedbred.errors import SettingError
from pfedbred.io.atomic import replacing
from pfedbred.models.base import WithStatistics
from pfedbred.runs.trained_model import TrainedModel
from pfedbred.types import Tree

StateDict = dict[str, np.ndarray]


def write_torch(path: Path, trained: TrainedModel) -> None:
    """Writes a dict that ``torch.load(path, weights_only=True)`` reads.

    ``state_dict`` is for ``load_state_dict``; ``input`` has the arrays by which samples are normalised or encoded, by
    the names of :meth:`TrainedModel.input_arrays`; ``about`` says what the model is and what its labels are called.
    """
    torch = _library()
    arrays = {"state_dict": state_dict(trained), "input": trained.input_arrays()}
    whole: dict[str, Any] = {
        key: {name: torch.from_numpy(np.array(array)) for name, array in each.items()} for key, each in arrays.items()
    }
    whole["about"] = dict(trained.about)
    with replacing(path) as file:
        torch.save(whole, file)


def state_dict(trained: TrainedModel) -> StateDict:
    """The params and batch statistics of a model by the names that they have in PyTorch."""
    name, network = trained.about["model"], _network(trained)
    params, statistics = network if isinstance(network, WithStatistics) else (network, {})
    found: StateDict = {}
    for path, layer in _layers(params):
        found |= _LAYERS.get(name, _plain)(path, layer)
    if trained.text is not None and trained.text.vectors is not None:
        found["embedding.weight"] = trained.text.vectors
    for path, each in statistics.items():
        norm = _unit(name, path)[1]
        found[f"{norm}.running_mean"], found[f"{norm}.running_var"] = each["mean"], each["variance"]
        found[f"{norm}.num_batches_tracked"] = np.array(0, np.int64)
    behind = _FLATTENED.get(name)
    if behind is not None:
        key = f"{behind}.weight"
        found[key] = _channels_first(found[key], trained.about["shape"], params["conv2"]["weight"].shape)
    return {key: np.ascontiguousarray(array) for key, array in found.items()}


def _library() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise SettingError("the format torch needs PyTorch: pip install torch") from None


def _network(trained: TrainedModel) -> Tree:
    """The params of the one network that the model is, with those that were not trained."""
    about, task, networks = trained.about, trained.task, trained.algorithm.networks
    if about["model"] not in models.MODELS:
        raise SettingError(
            "the format torch is for the library's own networks, not a custom one: use safetensors or onnx"
        )
    network = None if networks.several else networks.get(trained.params)
    expected: Any = jax.tree.structure(task.model.starting(jax.eval_shape(task.model.init, jax.random.key(0))))
    if network is None or jax.tree.structure(network) != expected:
        whose = "G" if about["kind"] == "global" else "P"
        raise SettingError(
            f"{whose} of {about['algorithm']} is not the params of one network alone: use safetensors or onnx"
        )
    return jax.device_get(task.model.whole(network))


# Layers -------------------------------------------------------------------------------------------------------------


def _layers(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """The layers of a network by their paths: dicts of arrays, possibly with a norm, or single arrays."""
    for key, each in tree.items():
        here = f"{path}.{key}" if path else key
        if not isinstance(each, Mapping) or any(not isinstance(part, Mapping) for part in each.values()):
            yield here, each
        else:
            yield from _layers(each, here)


def _plain(path: str, layer: Any, conv: str | None = None, norm: str | None = None) -> StateDict:
    """A linear layer, a convolution, a convolution with its norm, or a norm."""
    if "scale" in layer:
        return {f"{path}.weight": layer["scale"], f"{path}.bias": layer["shift"]}
    if "norm" not in layer:
        return {f"{path}.weight": _kernel(layer["weight"]), f"{path}.bias": layer["bias"]}
    conv, norm = conv or f"{path}.conv", norm or f"{path}.norm"
    return {f"{conv}.weight": _kernel(layer["weight"]), **_plain(norm, layer["norm"])}


def _kernel(weight: np.ndarray) -> np.ndarray:
    """(outputs, inputs, ...) of (outputs, ..., inputs); a matrix stays as it is."""
    return np.moveaxis(weight, -1, 1)


def _channels_first(weight: np.ndarray, shape: list[int], before: tuple[int, ...]) -> np.ndarray:
    """The weight of a linear layer on flattened features, which were (..., channels) and become (channels, ...).

    ``shape`` is that of a sample, and ``before`` that of the kernels of the last of two convolutions with pooling.
    """
    channels, size, *_ = before
    sides = [((side - size + 1) // 2 - size + 1) // 2 for side in shape[: len(before) - 2]]
    return np.moveaxis(weight.reshape(len(weight), *sides, channels), -1, 1).reshape(len(weight), -1)


_FLATTENED = {"cnn": "hidden1", "pfllib-cnn": "hidden", "cnn1d": "hidden"}
"""The linear layer behind the convolutions."""


def _unit(model: str, path: str) -> tuple[str, str]:
    """The names of a convolution and its norm: in residual networks torchvision's."""
    if not model.startswith("resnet"):
        return f"{path}.conv", f"{path}.norm"
    if path == "stem":
        return "conv1", "bn1"
    found = re.fullmatch(r"stage(\d+)\.block(\d+)\.(?:unit(\d)|skip)", path)
    assert found is not None
    stage, block, unit = found.groups()
    where = f"layer{stage}.{int(block) - 1}"
    return (f"{where}.conv{unit}", f"{where}.bn{unit}") if unit else (f"{where}.downsample.0", f"{where}.downsample.1")


def _residual(path: str, layer: Any) -> StateDict:
    return _plain("fc", layer) if path == "output" else _plain(path, layer, *_unit("resnet", path))


def _recurrent(path: str, layer: Any) -> StateDict:
    """Layers as those of one ``torch.nn.LSTM`` called lstm; both directions if arrays have a first axis of two."""
    if path == "embedding":
        return {"embedding.weight": layer}
    if not path.startswith("layer"):
        return _plain(path, layer)
    names = {"input": "weight_ih", "recurrent": "weight_hh", "input_bias": "bias_ih", "recurrent_bias": "bias_hh"}
    number, found = int(path.removeprefix("layer")) - 1, {}
    for ours, theirs in names.items():
        directions = layer[ours][None] if layer["input_bias"].ndim == 1 else layer[ours]
        for each, ending in zip(directions, ("", "_reverse"), strict=False):
            found[f"lstm.{theirs}_l{number}{ending}"] = each
    return found


_ENCODER = {
    "attention.norm": "norm1",
    "attention.query_key_value": "self_attn.in_proj",
    "attention.back": "self_attn.out_proj",
    "feedforward.norm": "norm2",
    "feedforward.wide": "linear1",
    "feedforward.back": "linear2",
}
"""Parts of a layer as ``torch.nn.TransformerEncoderLayer`` names them."""


def _attentive(path: str, layer: Any) -> StateDict:
    """Layers as those of a ``torch.nn.TransformerEncoder`` called encoder; patches go through a convolution."""
    if path == "positions":
        return {path: layer}
    if path == "embedding":
        return {"embedding.weight": layer}
    if path == "patches":
        side = 4
        weight = layer["weight"].reshape(len(layer["weight"]), side, side, -1)
        return _plain(path, {**layer, "weight": weight})
    found = re.fullmatch(r"encoder\.layer(\d+)\.(.*)", path)
    if not found:
        return _plain(path, layer)
    theirs = f"encoder.layers.{int(found[1]) - 1}.{_ENCODER[found[2]]}"
    return {key.replace("in_proj.", "in_proj_"): array for key, array in _plain(theirs, layer).items()}


_LAYERS: dict[str, Callable[[str, Any], StateDict]] = {
    "resnet8": _residual,
    "resnet18": _residual,
    "lstm": _recurrent,
    "charlstm": _recurrent,
    "transformer": _attentive,
    "vit": _attentive,
}
"""How a layer is converted, by network; those of the others are plain."""
