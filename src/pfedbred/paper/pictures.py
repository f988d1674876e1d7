"""The paper's figures: curves, hyperparameters, deviation, data distribution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pfedbred.errors import SettingError
from pfedbred.experiment.building import build
from pfedbred.experiment.loop import train
from pfedbred.paper.cells import CELL, best_of
from pfedbred.paper.columns import ALL, COLUMNS, Column, Facts
from pfedbred.paper.deviation import DEVIATION, deviation
from pfedbred.paper.records import (
    Request,
    chosen,
    fingerprint,
    load_or_measure,
    load_or_sweep,
    read_measured,
    read_swept,
    record_file,
    rounded,
)
from pfedbred.paper.running import run_cell
from pfedbred.paper.tables import TABLE2
from pfedbred.report import curves as curves_
from pfedbred.report import heatmap, parallel
from pfedbred.report.curves import literal
from pfedbred.report.distribution import draw_distribution
from pfedbred.runs.data_file import write_data

_ETAS = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2]
_LAMBDAS = [1.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 100.0]
HYPER_GRID = {"eta": [*_ETAS, 0.5, 1.0], "lam": _LAMBDAS}
HYPER_GRIDS: dict[str, dict[str, list[float]]] = {
    "cifar10-cnn": {"eta": [*_ETAS, 0.3, 0.4, 0.5]},
    "sent140-lstm": {"eta": [*_ETAS, 0.3, 0.4], "lam": _LAMBDAS},
}
"""The grids of columns for which the paper uses other ranges."""

_TO_RUN = "--run runs what is missing"
_DEVIATING = ("pfedme", "per-fedavg", "fedamp", "fo", "mfo", "mg-meta")


def draw_curves(request: Request) -> None:
    """Draws accuracy by round of the methods of Table 2, one picture per column."""
    rows, drawn = chosen("row", TABLE2.rows, request.rows), []
    for column in _columns(request, TABLE2.columns):
        found = _records(
            f"curves {column}",
            rows,
            request,
            partial(run_cell, TABLE2, column, request=request),
            partial(TABLE2.record_file, request.out, column),
            CELL,
        )
        if found:
            _curves_picture(found, column, request)
            drawn.append(column)
    _say_missing("curves", request, TABLE2.columns, drawn)


def _columns(request: Request, usual: Collection[str]) -> list[str]:
    """The columns asked for; else the usual ones if they are to be run, or any that may be recorded."""
    return chosen("column", ALL, request.columns or (list(usual) if request.run else None))


def _records(
    name: str,
    rows: Sequence[str],
    request: Request,
    run: Callable[[str], dict[str, Any]],
    file: Callable[[str], Path],
    shape: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """A record for each row, run if need be; or those that exist, if nothing is to be run."""
    if request.run:
        return {row: run(row) for row in rows}
    read = {row: read_measured(file(row), shape) for row in rows}
    found = {row: record for row, record in read.items() if record is not None}
    missing = [row for row in rows if row not in found]
    if found and missing:
        request.say(f"{name}: no records of {', '.join(missing)} ({_TO_RUN})")
    return found


def _say_missing(name: str, request: Request, usual: Collection[str], drawn: Sequence[str]) -> None:
    """Names the columns asked for, or the usual ones, that have no picture because nothing of them is recorded."""
    if not drawn:
        raise SettingError(f"{request.out} has no records of these cells: run them with --run")
    missing = [column for column in request.columns or usual if column not in drawn]
    if missing:
        request.say(f"{name}: no records of {', '.join(missing)} ({_TO_RUN})")


def _title(column: Column, facts: Facts | None, words: str, notes: Sequence[str] = ()) -> str:
    """A picture's title; a second line says how its data differs from the paper's."""
    clients = f", {facts['clients']} clients" if facts else ""
    about = "; ".join(filter(None, [column.not_compared, *notes]))
    return "\n".join(map(literal, [f"{column.title}{clients}: {words}", *([f"({about})"] if about else [])]))


def _facts(records: Iterable[Mapping[str, Any]]) -> Facts | None:
    """What one of the records says about its data; those of earlier versions say nothing."""
    return next((record["data"] for record in records if record.get("data")), None)


def _curves_picture(found: Mapping[str, Any], column_name: str, request: Request) -> None:
    path, column = request.out / f"curves-{column_name}.png", ALL[column_name]
    data: dict[str, Facts | None] = {row: record.get("data") for row, record in found.items()}
    marks, footnotes = _marks(column, data)
    first = [base for base, *_ in TABLE2.trainings(list(found))]
    figure, panels = curves_.new_figure(2, 5.0, width=6.8)
    for axes, model, title in zip(panels, "GP", curves_.NAMES.values(), strict=True):
        # +ft changes P in evaluations but not training, so its G would hide under that of its method.
        rows = first if model == "G" else list(found)
        same = ", the same with +ft" if len(rows) < len(found) else ""
        _curves_panel(axes, model, f"{title}{same}", {row: found[row] for row in rows}, marks)
    seeds = " or ".join(map(str, sorted({len(record["G"]["best"]) for record in found.values()})))
    notes = [] if footnotes else column.notes(data)
    figure.suptitle(_title(column, _facts(found.values()), f"mean and range of {seeds} seeds", notes), fontsize=11)
    if footnotes:
        figure.supxlabel("\n".join(map(literal, footnotes)), fontsize=9, x=0.01, ha="left")
    curves_.save(figure, path)
    request.say(f"picture: {path}")


def _marks(column: Column, data: Mapping[str, Facts | None]) -> tuple[dict[str, str], list[str]]:
    """Asterisks for rows that were measured on different data than most, and footnotes that explain them."""
    kinds = column.different_data(data)
    most = max((rows for rows, _ in kinds), key=len, default=[])
    marks, footnotes = dict.fromkeys(data, ""), list[str]()
    for rows, words in kinds:
        if rows is not most:
            mark = "*" * (len(footnotes) + 1)
            marks |= dict.fromkeys(rows, mark)
            footnotes.append(f"{mark} measured on different data, not to be compared with the others ({words})")
    return marks, footnotes


def _curves_panel(axes: Any, model: str, title: str, found: Mapping[str, Any], marks: Mapping[str, str]) -> None:
    """The curves of G or P: moving averages where many noisy lines would be unreadable, which the title says."""
    shown = {row: record for row, record in found.items() if model in TABLE2.models.get(row, "PG")}
    curves = {row: np.array(record[model]["curve"], float) for row, record in shown.items()}
    crowded = len(shown) > 6
    smooth = crowded and _noisy(list(curves.values()))
    methods = list(dict.fromkeys(row.partition("+")[0] for row in TABLE2.rows))
    drawn = list(curves.values())
    for row, record in shown.items():
        mean, (low, high) = curves[row], (np.array(record[model][name], float) for name in ("low", "high"))
        best, _ = best_of(record[model])
        label = f"{row}{marks[row]}  {'diverged' if best is None else f'{best:.1f}'}"
        method, _, variant = row.partition("+")
        style = curves_.Style(methods.index(method), ("", "ft", "am").index(variant))
        line = _moving_average(mean) if smooth else mean
        curves_.draw_band(axes, record["rounds"], line, low, high, label, style, crowded=crowded)
        drawn.append(high)
    curves_.settle(axes, drawn)
    if shown:
        beside = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        axes.legend(**beside, frameon=False, fontsize=8, title="best (%)", alignment="left")
    if smooth:
        longest = max((record["rounds"] for record in shown.values()), key=len)
        title += f"\n(lines: moving average over {round(_SMOOTHED * longest[-1] / len(longest))} rounds)"
    axes.set_title(title, fontsize=11)


_SMOOTHED = 5  # points, of the hundred that a record has


def _noisy(curves: Sequence[np.ndarray]) -> bool:
    """Whether some curve, once settled, typically jumps by more than a thirtieth of what the panel shows."""
    settled = [values[len(values) // 20 :] for values in curves]
    settled = [values for values in settled if np.isfinite(values).all()]
    if not settled or min(map(len, curves)) <= _SMOOTHED:
        return False
    steps = max(float(np.median(np.abs(np.diff(values)))) for values in settled)
    return steps > float(np.ptp(np.concatenate(settled))) / 30


def _moving_average(values: np.ndarray) -> np.ndarray:
    """The mean of the points around each one, of fewer at the ends."""
    ones = np.ones(_SMOOTHED)
    return np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")


def draw_hyper(request: Request) -> None:
    """Draws the accuracy of mg-meta by eta and lambda, over a grid: as parallel coordinates and as a map."""
    drawn = []
    for name in _columns(request, COLUMNS):
        facts = _hyper(name, request)
        if facts is None:
            continue
        drawn.append(name)
        pictures = [request.out / f"hyper-{name}-{kind}.png" for kind in ("map", "parallel")]
        title = _title(ALL[name], None, heatmap.heading(facts))
        heatmap.draw_points(facts, pictures[0], title)
        parallel.draw_points(facts, pictures[1], title)
        best = ", ".join(f"{setting} = {value:.4g}" for setting, value in facts["best"].items())
        highest = 100 * max(point["personal"] or 0.0 for point in facts["points"])
        request.say(f"hyper {name}: best P {highest:.2f} at {best}")
        request.say(f"pictures: {pictures[0]}, {pictures[1]}")
    _say_missing("hyper", request, COLUMNS, drawn)


def _hyper(name: str, request: Request) -> dict[str, Any] | None:
    """The record of a column's sweep, run if need be; None if nothing is to be run and there is none."""
    column, path = ALL[name], request.out / f"hyper-{name}.json"
    if not request.run:
        return read_swept(path)
    experiment = column.experiment("mg-meta", seeds=request.seeds, rounds=request.rounds, eval_every=10)
    grid, federation = HYPER_GRIDS.get(name, HYPER_GRID), partial(request.federations.of, column)
    facts, _ = load_or_sweep(path, f"hyper {name}", column, experiment, grid, federation, request, choose_on_test=True)
    return facts


def draw_deviation(request: Request) -> None:
    """Draws Delta G and Delta L of the first client by label, over the histogram of its labels."""
    rows, drawn = chosen("row", _DEVIATING, request.rows), []
    for column in _columns(request, COLUMNS):
        name, file = f"deviation {column}", partial(record_file, request.out, "deviation", column)
        found = _records(name, rows, request, partial(_run_deviation, column, request, file), file, DEVIATION)
        if found:
            path = request.out / f"deviation-{column}.png"
            _deviation_picture(found, ALL[column], _deviation_facts(found, column, request), path)
            request.say(f"picture: {path}")
            drawn.append(column)
    _say_missing("deviation", request, COLUMNS, drawn)


def _run_deviation(column: str, request: Request, file: Callable[[str], Path], row: str) -> dict[str, Any]:
    """The record of a method's deviation; its data is read only if it is to be run."""
    experiment = ALL[column].experiment(row, seeds=1, rounds=request.rounds)

    def measure() -> dict[str, Any]:
        request.stop_if_wanted(f"deviation {column} {row}")
        federation = request.federations.of(ALL[column])
        of_all = deviation(train(build(ALL[column].fitted(experiment, federation), federation)))
        first = {"global": of_all.global_[0], "local": of_all.local[0]}
        counts = federation.test.label_counts(federation.classes)
        return {
            "client": 0,
            "data": federation.facts,
            **{kind: rounded(values, 4) for kind, values in first.items()},
            "samples": {"global": counts.sum(axis=0).tolist(), "local": counts[0].tolist()},
        }

    record, new = load_or_measure(file(row), fingerprint(experiment.checked()), measure, DEVIATION)
    request.say(f"deviation {column} {row}: {'done' if new else 'already done'}")
    return record


def _deviation_facts(found: Mapping[str, Any], column: str, request: Request) -> Facts | None:
    """What is known about the data: earlier records do not say it, but those of Table 2 for the same samples do."""
    of_table = (read_measured(TABLE2.record_file(request.out, column, row), CELL) for row in TABLE2.rows)
    facts = _facts([*found.values(), *filter(None, of_table)])
    tested = sum(next(iter(found.values()))["samples"]["global"])
    return facts if facts and facts["test_samples"] == tested else None


def _deviation_picture(found: Mapping[str, Any], column: Column, facts: Facts | None, path: Path) -> None:
    figure, panels = curves_.new_figure(2, 4.6)
    bars = next(iter(found.values()))["samples"]
    labels = np.arange(len(bars["global"]))
    titles = ["ΔG: on all clients' test samples", "ΔL: on its own test samples"]
    if 0 in bars["local"]:
        titles[1] += "\n(open circles: no samples of the label, so its loss counts as 0)"
    for axes, (kind, numbers), title in zip(panels, bars.items(), titles, strict=True):
        behind = axes.twinx()
        behind.bar(labels, numbers, color="#e3e3e3", width=0.85, zorder=0)
        behind.set_ylabel("test samples of the label", color="#777777")
        behind.yaxis.get_major_locator().set_params(integer=True)
        behind.spines["top"].set_visible(False)
        axes.set_zorder(behind.get_zorder() + 1)
        axes.patch.set_visible(False)
        for index, (row, record) in enumerate(found.items()):
            above = len(found) - 1 - index  # later lines are thinner, so that those below stay visible
            sizes = {"markersize": 3 + 0.8 * above, "linewidth": 1.2 + 0.45 * above}
            style = {"color": curves_.colour(index), "marker": "o", **sizes}
            values, none = np.array(record[kind], float), np.array(numbers) == 0
            axes.plot(labels, values, label=row, **style)
            axes.plot(labels[none], values[none], **{**style, "linestyle": "", "markerfacecolor": "white"})
        axes.axhline(0, color="#444444", linewidth=0.8)
        axes.set_xticks(labels if len(labels) <= 20 else labels[::5])
        axes.set_xlabel("label")
        axes.set_ylabel("loss of client 0's P minus the mean")
        axes.set_title(title, fontsize=11)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)
    words = "deviation of the first client's personal model"
    figure.suptitle(_title(column, facts, words), fontsize=11)
    curves_.save(figure, path)


def draw_noniid(request: Request) -> None:
    """Draws the data distribution by client and label, one picture per dataset, and writes its numbers."""
    names: Sequence[str] = chosen("column", ALL, request.columns or ("cifar10-cnn", "femnist-mclr", "sent140-lstm"))
    for dataset, column in {ALL[name].dataset: ALL[name] for name in names}.items():
        path = request.out / f"noniid-{dataset}.png"
        draw_distribution(request.federations.of(column), path)
        write_data(request.federations.of(column), path.with_suffix(".json"))  # for the page
        request.say(f"picture: {path}")
