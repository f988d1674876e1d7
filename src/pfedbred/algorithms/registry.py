"""The table of algorithms by name, and building one from its name and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pfedbred import settings as settings_
from pfedbred.algorithms.apfl import apfl
from pfedbred.algorithms.base import Algorithm, Task
from pfedbred.algorithms.ditto import ditto
from pfedbred.algorithms.fedamp import fedamp, heurfedamp
from pfedbred.algorithms.fedavg import fedavg
from pfedbred.algorithms.fedbabu import fedbabu
from pfedbred.algorithms.fedbn import fedbn
from pfedbred.algorithms.fedem import fedem
from pfedbred.algorithms.fedper import fedper
from pfedbred.algorithms.fedprox import fedprox
from pfedbred.algorithms.fedrep import fedrep
from pfedbred.algorithms.fedu import fedu
from pfedbred.algorithms.fo import fo
from pfedbred.algorithms.learned_prior import learned_prior
from pfedbred.algorithms.local import local
from pfedbred.algorithms.mfo import mfo
from pfedbred.algorithms.mg import mg
from pfedbred.algorithms.mg_meta import mg_meta, mg_meta_literal
from pfedbred.algorithms.mime import mime
from pfedbred.algorithms.mr_mtl import mr_mtl
from pfedbred.algorithms.per_fedavg import per_fedavg
from pfedbred.algorithms.pfedbayes import pfedbayes
from pfedbred.algorithms.pfedbred import pfedbred
from pfedbred.algorithms.pfedme import pfedme
from pfedbred.algorithms.pfedvem import pfedvem
from pfedbred.algorithms.reptile import reptile
from pfedbred.algorithms.scaffold import scaffold
from pfedbred.algorithms.server_optimizers import fedadagrad, fedadam, fedavgm, fedyogi
from pfedbred.algorithms.shifted_prior import shifted_prior
from pfedbred.algorithms.wrappers import WRAPPERS
from pfedbred.errors import SettingError, nearest
from pfedbred.settings.signatures import building

Builder = Callable[..., Algorithm]

ALGORITHMS: dict[str, Builder] = {
    "apfl": apfl,
    "ditto": ditto,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedamp": fedamp,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedbabu": fedbabu,
    "fedbn": fedbn,
    "fedem": fedem,
    "fedper": fedper,
    "fedprox": fedprox,
    "fedrep": fedrep,
    "fedu": fedu,
    "fedyogi": fedyogi,
    "fo": fo,
    "heurfedamp": heurfedamp,
    "learned-prior": learned_prior,
    "local": local,
    "mfo": mfo,
    "mg": mg,
    "mg-meta": mg_meta,
    "mg-meta-literal": mg_meta_literal,
    "mime": mime,
    "mr-mtl": mr_mtl,
    "per-fedavg": per_fedavg,
    "pfedbayes": pfedbayes,
    "pfedbred": pfedbred,
    "pfedme": pfedme,
    "pfedvem": pfedvem,
    "reptile": reptile,
    "scaffold": scaffold,
    "shifted-prior": shifted_prior,
}
"""Every named algorithm. A new one is a function ``(task, *, settings...) -> Algorithm``, and a line here."""


def builder(algorithm: str | Builder) -> Builder:
    """The function that builds the algorithm of that name, wrappers included (``pfedme+am``); or the one given."""
    if not isinstance(algorithm, str):
        if not callable(algorithm):
            raise SettingError(
                f"algorithm must be a name, an Algorithm or a function that builds one, not {algorithm!r}"
            )
        return algorithm
    name = algorithm
    base, *calls = name.split("+")
    parsed = [settings_.parse_call("a suffix", call) if call.strip() else ("", []) for call in calls]
    suffixes = [suffix for suffix, _ in parsed]
    if base not in ALGORITHMS:
        raise SettingError(f"unknown algorithm {base!r}{nearest(base, ALGORITHMS)}")
    for suffix in suffixes:
        if suffix not in WRAPPERS:
            raise SettingError(f"unknown suffix {'+' + suffix!r} in {name!r}{nearest(suffix, WRAPPERS)}")
    if len(set(suffixes)) != len(suffixes):
        raise SettingError(f"a suffix appears twice in {name!r}")
    if not suffixes:
        return ALGORITHMS[base]
    return _wrapped(ALGORITHMS[base], [_with_defaults(suffix, values) for suffix, values in parsed])


def declared(algorithm: str | Builder | Algorithm) -> dict[str, inspect.Parameter]:
    """The settings of an algorithm, by name or from its builder; an Algorithm object, which is built, has none."""
    return {} if isinstance(algorithm, Algorithm) else settings_.declared(builder(algorithm))


def _with_defaults(suffix: str, values: list[str]) -> Builder:
    """The wrapper with other defaults for its first settings: those in parentheses, as in ``+server(yogi)``."""
    wrapper = WRAPPERS[suffix]
    if not values:
        return wrapper
    chosen = settings_.resolve_call(f"+{suffix}", wrapper, values)

    def build(algorithm: Algorithm, task: Task, **settings: Any) -> Algorithm:
        return wrapper(algorithm, task, **settings)

    signature = inspect.signature(wrapper, eval_str=True)
    parameters = [each.replace(default=chosen.get(name, each.default)) for name, each in signature.parameters.items()]
    build.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    build.settings_of = (wrapper,)  # type: ignore[attr-defined]
    return build


def _wrapped(base: Builder, wrappers: list[Builder]) -> Builder:
    """The base and then its wrappers, from left to right, with the settings of all of them."""
    layers = [base, *wrappers]

    def build(task: Task, **settings: Any) -> Algorithm:
        parts = [{key: settings[key] for key in settings_.declared(layer) if key in settings} for layer in layers]
        algorithm = base(task, **parts[0])
        for wrapper, own in zip(layers[1:], parts[1:], strict=True):
            algorithm = wrapper(algorithm, task, **own)
        return algorithm

    parameters = [each for layer in layers for each in settings_.declared(layer).values()]
    names = [each.name for each in parameters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SettingError(f"the algorithm already has {', '.join(twice)}: this suffix cannot be added to it")
    task = inspect.Parameter("task", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    build.__signature__ = inspect.Signature([task, *parameters])  # type: ignore[attr-defined]
    build.__doc__ = base.__doc__
    build.settled = getattr(base, "settled", {})  # type: ignore[attr-defined]
    build.settings_of = tuple(layers)  # type: ignore[attr-defined]
    return build


def make(algorithm: str | Builder | Algorithm, task: Task, settings: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm, by name or from a function ``(task, *, settings...) -> Algorithm``, its settings checked."""
    if isinstance(algorithm, Algorithm):
        if settings:
            raise SettingError(f"an Algorithm object is already built: it takes no settings, not {dict(settings)!r}")
        return algorithm
    return build(algorithm, task, settings_.resolve(builder(algorithm), settings or {}))


def build(algorithm: str | Builder | Algorithm, task: Task, settings: Mapping[str, Any]) -> Algorithm:
    """The same, from a complete set of settings that have been checked."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    with building("algorithm", algorithm):
        made = builder(algorithm)(task, **settings)
    if not isinstance(made, Algorithm):
        raise SettingError(f"a function given as algorithm must return an Algorithm, not a {type(made).__name__}")
    return made
