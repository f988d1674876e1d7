"""Models as (init, apply) pairs, sized by the shape of the data and the number of classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from pfedbred.errors import SettingError, nearest
from pfedbred.models.adapters import from_equinox, from_flax
from pfedbred.models.base import Model
from pfedbred.models.charlstm import charlstm
from pfedbred.models.cnn import cnn
from pfedbred.models.cnn1d import cnn1d
from pfedbred.models.convolution import with_fast_convolutions
from pfedbred.models.linear import dnn, mclr
from pfedbred.models.lstm import lstm
from pfedbred.types import Words

__all__ = [
    "MODELS",
    "Model",
    "charlstm",
    "cnn",
    "cnn1d",
    "dnn",
    "from_equinox",
    "from_flax",
    "get",
    "lstm",
    "mclr",
    "with_fast_convolutions",
]

MODELS: dict[str, Callable[..., Model]] = {
    "mclr": mclr,
    "dnn": dnn,
    "cnn": cnn,
    "cnn1d": cnn1d,
    "lstm": lstm,
    "charlstm": charlstm,
}
"""Every named model, built from (shape of one sample, classes). To add one, write a function and add a line here.

A model that reads word ids has a keyword-only parameter ``words``, which receives a :class:`pfedbred.types.Words`.
"""


Build = Callable[..., Model]


def check(model: str | Model | Build) -> None:
    """Rejects what cannot be a model: an unknown name, or something that is neither a Model nor a function."""
    if isinstance(model, str) and model not in MODELS:
        raise SettingError(f"unknown model {model!r}{nearest(model, MODELS)}")
    if not isinstance(model, str | Model) and not callable(model):
        raise SettingError(f"model must be a name, a Model or a function that builds one, not {model!r}")


def get(model: str | Model | Build, shape: tuple[int, ...], classes: int, words: Words | None = None) -> Model:
    """The model for samples of that shape: by name, as a Model, or from a function ``(shape, classes) -> Model``.

    ``words`` is given if the samples are word ids.
    """
    if isinstance(model, Model):
        return _fast(model)
    check(model)
    build = MODELS[model] if isinstance(model, str) else model
    if _reads_words(build) != (words is not None):
        others = " or ".join(name for name, each in MODELS.items() if _reads_words(each) != _reads_words(build))
        name = model if isinstance(model, str) else getattr(model, "__name__", "this model")
        reads, holds = ("word ids", "numbers") if words is None else ("numbers", "word ids")
        raise SettingError(f"{name} reads {reads}, but the data holds {holds}: use {others}")
    made = build(shape, classes) if words is None else build(shape, classes, words=words)
    if not isinstance(made, Model):
        raise SettingError(f"a function given as model must return a Model, not a {type(made).__name__}")
    return made if isinstance(model, str) else _fast(made)


def _fast(model: Model) -> Model:
    """A user's own functions may have convolutions; those of named models are fast as they are written."""
    rest = None if model.rest is None else with_fast_convolutions(model.rest)
    return model._replace(apply=with_fast_convolutions(model.apply), rest=rest)


def _reads_words(build: Build) -> bool:
    parameter = inspect.signature(build).parameters.get("words")
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY
