"""Models as (init, apply) pairs, sized by the shape of the data and the number of classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from pfedbred.errors import SettingError, nearest
from pfedbred.models.adapters import from_equinox, from_flax
from pfedbred.models.base import Model
from pfedbred.models.cnn import cnn
from pfedbred.models.linear import dnn, mclr
from pfedbred.models.lstm import lstm
from pfedbred.types import Words

__all__ = ["MODELS", "Model", "cnn", "dnn", "from_equinox", "from_flax", "get", "lstm", "mclr"]

MODELS: dict[str, Callable[..., Model]] = {"mclr": mclr, "dnn": dnn, "cnn": cnn, "lstm": lstm}
"""Every named model, built from (shape of one sample, classes). To add one, write a function and add a line here.

A model that reads word ids has a keyword-only parameter ``words``, which receives a :class:`pfedbred.types.Words`.
"""


def check_name(model: str | Model) -> None:
    """Raises SettingError for an unknown model name."""
    if isinstance(model, str) and model not in MODELS:
        raise SettingError(f"unknown model {model!r}{nearest(model, MODELS)}")


def get(model: str | Model, shape: tuple[int, ...], classes: int, words: Words | None = None) -> Model:
    """The model of that name for samples of that shape; ``words`` is needed if samples are word ids."""
    if isinstance(model, Model):
        return model
    check_name(model)
    if _reads_words(model) != (words is not None):
        others = " or ".join(name for name in MODELS if _reads_words(name) != _reads_words(model))
        reads, holds = ("word ids", "numbers") if words is None else ("numbers", "word ids")
        raise SettingError(f"{model} reads {reads}, but the data holds {holds}: use {others}")
    return MODELS[model](shape, classes) if words is None else MODELS[model](shape, classes, words=words)


def _reads_words(name: str) -> bool:
    parameter = inspect.signature(MODELS[name]).parameters.get("words")
    return parameter is not None and parameter.kind is inspect.Parameter.KEYWORD_ONLY
