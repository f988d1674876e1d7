"""``pfedbred list``: the names that options accept, and the settings of an algorithm."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax.numpy as jnp
import typer

from pfedbred import aggregation, algorithms, data, models, tasks
from pfedbred import settings as settings_
from pfedbred.algorithms import local_optimizers
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.exchange import costs
from pfedbred.algorithms.guidance import guidance
from pfedbred.algorithms.wrappers import WRAPPERS
from pfedbred.bregman import means, priors
from pfedbred.data import augmentation
from pfedbred.data.minibatches import Batch
from pfedbred.engine import metrics, selection
from pfedbred.errors import SettingError, nearest
from pfedbred.experiment import names, references
from pfedbred.experiment.callbacks import trackers
from pfedbred.settings import schedules

_LISTS: dict[str, Mapping[str, Any]] = {
    "algorithms": algorithms.ALGORITHMS,
    "priors": {**priors.PRIORS, **priors.LONG_TAILED},
    "means": means.MEANS,
    "optimizers": local_optimizers.builders(),
    "schedules": schedules.SCHEDULES,
    "models": models.MODELS,
    "datasets": data.DATASETS,
    "augmentations": augmentation.AUGMENTATIONS,
    "splits": {"paper": data.paper_split, **data.SPLITS},
    "selections": selection.SELECTIONS,
    "rules": aggregation.RULES,
    "metrics": metrics.METRICS,
    "tasks": {name: kind.losses for name, kind in tasks.TASKS.items()},
    "losses": tasks.LOSSES,
    "trackers": trackers.TRACKERS,
}

_SETTINGS: dict[str, Callable[[str], Sequence[str]]] = {
    "optimizers": local_optimizers.settings,
    "schedules": schedules.settings,
}
"""Of these, the settings too: they are named nowhere else in the shell."""


def list_command(
    what: Annotated[
        str | None,
        typer.Argument(
            help=f"one of {', '.join(_LISTS)}, by default all; or an algorithm, by name or import path, to describe "
            "its settings"
        ),
    ] = None,
) -> None:
    """List algorithms, datasets and so on, or describe one algorithm.

    \b
    pfedbred list algorithms
    pfedbred list mg-meta
    """
    if what is not None and what not in _LISTS:
        if what.partition("+")[0] not in algorithms.ALGORITHMS and not references.is_reference(what):
            raise SettingError(f"cannot list {what!r}{nearest(what, [*_LISTS, *algorithms.ALGORITHMS])}")
        _describe(what)
        return
    for kind in [what] if what else _LISTS:
        if kind == "algorithms":
            _list_algorithms()
            continue
        print(f"{kind}:")
        for name, entry in _LISTS[kind].items():
            own = f" Settings: {', '.join(_SETTINGS[kind](name))}." if kind in _SETTINGS else ""
            print(f"  {name:<{max(16, *map(len, _LISTS[kind]))}} {_line(entry)}{own}")


def _list_algorithms() -> None:
    """Each algorithm's source, models, cost and settings."""
    print("algorithms (down, up, keeps: what a client receives, sends and keeps in a round, in models of the dnn):")
    federation_shape, classes = (64,), 10
    task = Task(models.dnn(federation_shape, classes)._replace(norms=("none",)))  # it has none for fedbn to keep
    sample = Batch(jnp.zeros((1, *federation_shape)), jnp.zeros(1, int))
    for name, build in algorithms.ALGORITHMS.items():
        about = getattr(build, "about", None)
        cost = costs(algorithms.make(name, task), task, sample)
        source = f"{about.year or '-':<4}  {about.paper}" if about else _first_line(build)
        print(f"  {name:<16} {source}")
        kinds = f"G: {about.global_}; P: {about.personal}; " if about else ""
        print(f"  {'':<16} {kinds}down {cost.download:.2g}, up {cost.upload:.2g}, keeps {cost.state:.2g}")
        print(textwrap.fill(_defaults(build), 118, initial_indent=" " * 19, subsequent_indent=" " * 19))
    print("  with the suffixes:")
    for suffix, wrapper in WRAPPERS.items():
        print(f"  {'+' + suffix:<16} {_first_line(wrapper)}")


def _describe(name: str) -> None:
    """An algorithm, by name or import path: what it does, and its settings in words."""
    given = names.named(references.resolve(name, "algorithm"), "algorithm")
    if isinstance(given, Algorithm):
        raise SettingError(f"{name} is an Algorithm object, which is built: it has no settings to list")
    build = algorithms.builder(given)
    base, *suffixes = given.split("+") if isinstance(given, str) else [name]
    wrappers = {f"+{each}": WRAPPERS[each.partition("(")[0]] for each in suffixes}
    functions = {base: algorithms.ALGORITHMS[base] if isinstance(given, str) else build, **wrappers}
    words = settings_.described(build)
    for each, function in functions.items():
        print(f"{each}: {settings_.plain(_about(function))}\n")
    about = getattr(functions[base], "about", None)
    if about:
        print(f"{about.paper}, {about.year}. G: {about.global_}; P: {about.personal}.\n")
    print("settings, as in --set alpha=0.05:")
    for key, parameter in settings_.declared(build).items():
        needed = parameter.default is inspect.Parameter.empty
        print(f"  {key}, which must be given" if needed else f"  {key} = {parameter.default}")
        # A user's own setting of the same name may be something else.
        advice = guidance(base, key) if isinstance(given, str) else ""
        allowed = settings_.allowed(parameter.annotation)
        meaning = f"{words[key]} [{allowed}]".strip() if allowed else words[key]
        for text in (meaning, f"sensible: {advice}" if advice else ""):
            if text:
                print(textwrap.fill(text, 100, initial_indent=" " * 6, subsequent_indent=" " * 8))


def _about(function: Callable[..., Any]) -> str:
    """The docstring up to its sections."""
    return re.split(r"\n(?:Args|References):", inspect.getdoc(function) or "")[0].strip()


def _line(entry: Any) -> str:
    if isinstance(entry, metrics.Metric):
        return _metric_line(entry)
    if isinstance(entry, data.Dataset):
        return _first_line(entry.pool) + (f" Usually with {_either(entry.models)}." if entry.models else "")
    return _first_line(entry)


def _either(names: Sequence[str]) -> str:
    """The names in words: a, b or c."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _first_line(entry: Callable[..., Any]) -> str:
    return (inspect.getdoc(entry) or "").split("\n", 1)[0].replace("``", "")


def _metric_line(metric: metrics.Metric) -> str:
    task = "any task" if metric.task == "any" else metric.task
    return f"{metric.title}, for {task}; {'higher' if metric.higher_is_better else 'lower'} is better"


def _defaults(entry: Callable[..., Any]) -> str:
    return "  ".join(f"{name}={each.default}" for name, each in settings_.declared(entry).items())
