"""Models as (init, apply) pairs, sized by the shape of the data and the number of classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

from pfedbred.errors import SettingError, nearest
from pfedbred.models.adapters import from_equinox, from_flax
from pfedbred.models.base import Model, Statistics, WithStatistics
from pfedbred.models.charlstm import charlstm
from pfedbred.models.cnn import cnn
from pfedbred.models.cnn1d import cnn1d
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.models.given_params import keys_of, starting_from, training_only
from pfedbred.models.linear import dnn, mclr
from pfedbred.models.lstm import lstm
from pfedbred.models.mobilenet import mobilenet
from pfedbred.models.pfllib_cnn import pfllib_cnn
from pfedbred.models.precision import with_precision
from pfedbred.models.resnet import resnet8, resnet18
from pfedbred.models.transformer import transformer
from pfedbred.models.vit import vit
from pfedbred.settings.signatures import building
from pfedbred.types import Words

__all__ = [
    "MODELS",
    "Model",
    "Statistics",
    "WithStatistics",
    "charlstm",
    "cnn",
    "cnn1d",
    "dnn",
    "from_equinox",
    "from_flax",
    "get",
    "keys_of",
    "lstm",
    "mclr",
    "mobilenet",
    "pfllib_cnn",
    "resnet8",
    "resnet18",
    "starting_from",
    "training_only",
    "transformer",
    "vit",
    "with_fast_convolutions",
    "with_precision",
]

MODELS: dict[str, Callable[..., Model]] = {
    "mclr": mclr,
    "dnn": dnn,
    "cnn": cnn,
    "pfllib-cnn": pfllib_cnn,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "mobilenet": mobilenet,
    "vit": vit,
    "cnn1d": cnn1d,
    "lstm": lstm,
    "charlstm": charlstm,
    "transformer": transformer,
}
"""Every named model, built from (shape of one sample, classes). To add one, write a function and add a line here.

A model that reads word ids has a keyword-only parameter ``words``, which receives a :class:`pfedbred.types.Words`; one
with a choice of batch or group normalisation has a keyword-only parameter ``norm``, which receives the choice.
"""


Builder = Callable[..., Model]


def check(model: str | Model | Builder) -> None:
    """Rejects an unknown name, and anything that is neither a Model nor a function."""
    if isinstance(model, str) and model not in MODELS:
        raise SettingError(f"unknown model {model!r}{nearest(model, MODELS)}")
    if not isinstance(model, str | Model) and not callable(model):
        raise SettingError(f"model must be a name, a Model or a function that builds one, not {model!r}")


def get(
    model: str | Model | Builder,
    shape: tuple[int, ...],
    classes: int,
    words: Words | None = None,
    batch_norm: Literal["local", "average", "group"] = "local",
) -> Model:
    """The model for samples of that shape: by name, as a Model, or from a function ``(shape, classes) -> Model``.

    ``words`` is given if the samples are word ids. If ``batch_norm`` is ``group``, group normalisation takes the place
    of batch normalisation; the other choices concern its statistics, not the network.
    """
    grouped = batch_norm == "group"
    if isinstance(model, Model):
        return _fast(_grouped(model) if grouped else model)
    check(model)
    build = MODELS[model] if isinstance(model, str) else model
    reads_words = _takes(build, "words")
    if reads_words != (words is not None):
        others = " or ".join(name for name, each in MODELS.items() if _takes(each, "words") != reads_words)
        name = model if isinstance(model, str) else getattr(model, "__name__", "this model")
        reads, holds = ("word ids", "numbers") if words is None else ("numbers", "word ids")
        raise SettingError(f"{name} reads {reads}, but the data holds {holds}: use {others}")
    given: dict[str, Any] = {} if words is None else {"words": words}
    if _takes(build, "norm"):
        given["norm"] = "group" if grouped else "batch"
    with building("model", model):
        made = build(shape, classes, **given)
    if not isinstance(made, Model):
        raise SettingError(f"a function given as model must return a Model, not a {type(made).__name__}")
    made = _grouped(made) if grouped else made
    return made if isinstance(model, str) else _fast(made)


def _grouped(model: Model) -> Model:
    """The model with group normalisation instead of batch normalisation, if it has that."""
    if model.grouped is not None:
        return model.grouped()
    if model.statistics is not None:
        raise SettingError(
            "batch_norm group needs a model that can replace its batch norm: one made by from_flax or from_equinox, or "
            "a function with a keyword-only parameter norm, which receives 'batch' or 'group'"
        )
    return model


def _fast(model: Model) -> Model:
    """Speeds up convolutions in a user's own functions; named models are written to be fast."""
    rest = None if model.rest is None else with_fast_convolutions(model.rest)
    train = None if model.train is None else with_fast_convolutions(model.train)
    statistics = model.statistics and model.statistics._replace(of=with_fast_convolutions(model.statistics.of))
    apply = with_fast_convolutions(model.apply)
    return model._replace(apply=apply, rest=rest, train=train, statistics=statistics)


def _takes(build: Builder, name: str) -> bool:
    """Whether the function has a keyword-only parameter of that name."""
    parameter = inspect.signature(build).parameters.get(name)
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY
