"""The calibration of a run's models: what summary.json says about it, and what is kept with the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pfedbred.engine.calibration import Calibration, calibrate, own_samples
from pfedbred.engine.evaluation import Outputs
from pfedbred.engine.history import Which
from pfedbred.engine.metrics.ece import BINS
from pfedbred.engine.reliability import Bins, Reliability, measure
from pfedbred.engine.scores import worst_tenth
from pfedbred.errors import SettingError
from pfedbred.io.shapes import COUNT, FRACTION, NUMBER, Each, Maybe, expect
from pfedbred.io.strict import finite_or_none
from pfedbred.runs.summary import over_seeds

_VERSION = 1
_MODELS: tuple[Which, ...] = ("global", "personal")


class FigureInfo(NamedTuple):
    """How to show a figure; ``before`` is whether there is one before calibration too."""

    title: str
    percent: bool
    higher_is_better: bool = False
    before: bool = False


FIGURES = {
    "nll": FigureInfo("NLL", False, before=True),
    "brier": FigureInfo("Brier score", False, before=True),
    "ece": FigureInfo("ECE", True, before=True),
    "coverage": FigureInfo("coverage", True, higher_is_better=True),
    "size": FigureInfo("labels in a set", False),
    "width": FigureInfo("interval width", False),
}
"""The figures of :class:`pfedbred.engine.reliability.Reliability`; those before calibration end in ``_before``."""

_OF_CLASSES, _OF_NUMBERS = ("nll", "brier", "ece", "coverage", "size"), ("coverage", "width")


@dataclass(frozen=True)
class RunCalibration:
    """The calibration of all seeds of a run.

    Attributes:
      coverage: the requested level.
      own: for each client, whether it has enough validation samples to be calibrated alone.
      fitted: by model, its calibration for each seed.
      measured: by model, what was measured on test samples for each seed.
    """

    coverage: float
    own: np.ndarray
    fitted: Mapping[Which, Sequence[Calibration]]
    measured: Mapping[Which, Sequence[Reliability]]

    def values(self, model: Which, figure: str) -> np.ndarray:
        """A figure on the test samples, by seed and client."""
        return np.stack([each.figures[figure] for each in self.measured[model]])

    def content(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "version": _VERSION,
            "coverage": self.coverage,
            "own_samples": own_samples(self.coverage),
            "own": self.own.tolist(),
            **{model: self._model_content(model) for model in _MODELS},
        }

    def _model_content(self, model: Which) -> dict[str, Any]:
        first = self.measured[model][0]
        return {
            "figures": {name: self._figure_content(model, name) for name in first.figures},
            "temperatures": _by_client(np.stack([each.temperature[:-1] for each in self.fitted[model]])),
            "reliability": None
            if first.before is None
            else {when: _diagram([getattr(each, when) for each in self.measured[model]]) for when in _WHEN},
        }

    def _figure_content(self, model: Which, name: str) -> dict[str, Any]:
        """Mean over the clients that have test samples, mean over the worst tenth of them, and each client's."""
        values = self.values(model, name)
        tested = values[:, np.isfinite(self.values(model, "coverage")).any(0)]
        if not tested.size:
            tested = np.full((len(values), 1), np.nan)
        return {
            "mean": over_seeds(tested.mean(-1)),
            "worst_tenth": over_seeds(worst_tenth(tested, figure_info(name).higher_is_better)),
            "clients": _by_client(values),
        }

    def facts(self) -> dict[str, Any]:
        """For the file of the run's models: for G by seed, for P by seed and client."""

        def plain(kind: str, clients: bool) -> list[Any]:
            model: Which = "personal" if clients else "global"
            found = [getattr(each, kind) for each in self.fitted[model]]
            return [_finite(each[:-1]) if clients else finite_or_none(each[-1]) for each in found]

        return {
            "coverage": self.coverage,
            "own": self.own.tolist(),
            "global": {kind: plain(kind, clients=False) for kind in Calibration._fields},
            "personal": {kind: plain(kind, clients=True) for kind in Calibration._fields},
        }


_WHEN = ("before", "after")


def figure_info(name: str) -> FigureInfo:
    """How to show a figure, also one before calibration."""
    return FIGURES[name.removesuffix("_before")]


def calibrated(validation: Outputs, test: Outputs, coverage: float) -> RunCalibration:
    """Calibrates both models by their outputs for the validation samples, and measures them on the test samples."""
    fitted: dict[Which, list[Calibration]] = {}
    measured: dict[Which, list[Reliability]] = {}
    for place, model in enumerate(_MODELS):
        fitted[model] = [
            calibrate(outputs, validation.labels, validation.offsets, coverage) for outputs in validation[place]
        ]
        measured[model] = [
            measure(outputs, test.labels, test.offsets, each)
            for outputs, each in zip(test[place], fitted[model], strict=True)
        ]
    own = np.diff(validation.offsets) >= own_samples(coverage)
    return RunCalibration(coverage, own, fitted, measured)


def _by_client(values: np.ndarray) -> list[float | None]:
    """Means over seeds, with six digits."""
    return [None if each is None else float(f"{each:.6g}") for each in _finite(values.mean(axis=0))]


def _finite(values: np.ndarray) -> list[float | None]:
    return [finite_or_none(each) for each in values.tolist()]


def _diagram(seeds: Sequence[Bins]) -> dict[str, list[Any]]:
    """For each bin, its samples over all seeds, their mean confidence and accuracy; null if there are none."""
    samples, confidence, correct = (np.sum(part, axis=0) for part in zip(*seeds, strict=True))
    some = np.maximum(samples, 1)
    return {
        "samples": samples.astype(int).tolist(),
        "confidence": _finite(np.where(samples > 0, confidence / some, np.nan)),
        "accuracy": _finite(np.where(samples > 0, correct / some, np.nan)),
    }


# What readers expect ---------------------------------------------------------------------------------------------

_ESTIMATE = {"mean": Maybe(NUMBER), "std": Maybe(NUMBER)}
_FIGURE = {"mean": _ESTIMATE, "worst_tenth": _ESTIMATE, "clients": [Maybe(NUMBER)]}
_DIAGRAM = {"samples": [COUNT], "confidence": [Maybe(FRACTION)], "accuracy": [Maybe(FRACTION)]}
_OF_MODEL = {"figures": Each(_FIGURE), "reliability": Maybe({"before": _DIAGRAM, "after": _DIAGRAM})}
_CONTENT = {
    "version": COUNT,
    "coverage": FRACTION,
    "own_samples": COUNT,
    "own": [bool],
    "global": _OF_MODEL,
    "personal": _OF_MODEL,
}

_KINDS = Calibration._fields
KEPT = {
    "coverage": FRACTION,
    "own": [bool],
    "global": {kind: [Maybe(NUMBER)] for kind in _KINDS},
    "personal": {kind: [[Maybe(NUMBER)]] for kind in _KINDS},
}
"""The calibration of a run, in the file of its models."""

EXPORTED = {"coverage": FRACTION, "own": bool, **dict.fromkeys(_KINDS, Maybe(NUMBER))}
"""The calibration of one model, in its own file."""


def shown_figures(content: Mapping[str, Any]) -> dict[str, FigureInfo]:
    """The figures that the calibration in a summary has."""
    names = _OF_NUMBERS if content["global"]["reliability"] is None else _OF_CLASSES
    return {name: FIGURES[name] for name in names}


def check_content(content: Any, where: Any) -> None:
    """Rejects what is not the calibration in a summary.json; most runs have none."""
    expect(content, Maybe(_CONTENT), where, "'calibration'")
    if content is None:
        return
    shown = shown_figures(content)
    needed = [*shown, *(f"{name}_before" for name, info in shown.items() if info.before)]
    for model in _MODELS:
        figures, diagrams = content[model]["figures"], content[model]["reliability"]
        expect(figures, dict.fromkeys(needed, _FIGURE), where, "'figures'")
        sizes = {len(figures[name]["clients"]) for name in needed}
        bins = [len(part) for each in (diagrams or {}).values() for part in (each[name] for name in _DIAGRAM)]
        if sizes != {len(content["own"])} or (diagrams is None) != ("width" in shown) or set(bins) - {BINS}:
            raise SettingError(f"{where} is damaged: its calibration is not of one kind, or not of all clients")


def of_one(kept: Mapping[str, Any], seed: int, client: int | None) -> dict[str, Any]:
    """The calibration of G or of a client's P, from that of a run, for the seed at that position."""
    found = kept["global" if client is None else "personal"]
    each = {kind: found[kind][seed] if client is None else found[kind][seed][client] for kind in _KINDS}
    return {"coverage": kept["coverage"], "own": client is not None and kept["own"][client], **each}


def check_kept(kept: Mapping[str, Any], seeds: int, clients: int, where: Any) -> None:
    """Rejects a calibration for other numbers of seeds and clients."""
    sizes = {len(kept["own"]), *(len(row) for kind in _KINDS for row in kept["personal"][kind])}
    rows = {len(kept[model][kind]) for model in _MODELS for kind in _KINDS}
    if rows != {seeds} or sizes != {clients}:
        raise SettingError(f"{where} is damaged: its calibration is not of these seeds and clients")
