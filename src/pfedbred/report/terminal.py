"""What a person sees while a run goes on: colour and a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pfedbred.data.federation import Federation
from pfedbred.engine import StreamedSimulation
from pfedbred.engine.screening import astray, stalled
from pfedbred.errors import printable
from pfedbred.experiment.configuration import Experiment, Prepared
from pfedbred.experiment.loop import Point, Run
from pfedbred.experiment.sweep import Sweep

_LITERAL = {"highlight": False, "markup": False, "emoji": False}  # names from data may look like rich's markup
console = Console(**_LITERAL)  # type: ignore[arg-type]


class Watcher(Protocol):
    """Told of every evaluation."""

    def __call__(self, point: Point) -> None:
        """Shows it."""


@contextmanager
def watching(experiments: Sequence[Experiment]) -> Iterator[list[Watcher]]:
    """One watcher for each experiment."""
    if not console.is_terminal:
        yield [_lines(experiment) for experiment in experiments]
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress:
        width = max(len(experiment.algorithm) for experiment in experiments)
        yield [_bar(progress, experiment, width) for experiment in experiments]


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """``advance(done, total)``: a bar on a terminal, a line every ten seconds in a pipe."""
    if console.is_terminal:
        columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = [time.monotonic()]

    def advance(done: int, total: int) -> None:
        if done == total or time.monotonic() - shown[0] > 10:
            shown[0] = time.monotonic()
            print(f"{what}: round {done}/{total}", flush=True)

    yield advance


def show_sweep(sweep: Sweep, most: int = 10) -> None:
    """The best points, the best personal models first."""
    g, p = sweep.best_accuracy("global"), sweep.best_accuracy("personal")
    order = np.argsort(-np.nan_to_num(p, nan=-1.0))[:most]
    points = f"the best {len(order)} of {len(p)} points" if len(p) > len(order) else f"{len(p)} points"
    table = _table(
        f"{sweep.experiment.algorithm}, {sweep.experiment.rounds} rounds: {points}, best test accuracy in %",
        f"{sweep.total_seconds:.1f} s in all, {sweep.compile_seconds:.1f} s of it compiling",
    )
    for name in (*sweep.names, "global (G)", "personal (P)"):
        table.add_column(name, justify="right")
    for i in order:
        cells = (f"{each:.4g}" for each in sweep.points[i])
        table.add_row(*cells, *("-" if np.isnan(each[i]) else f"{100 * each[i]:.2f}" for each in (g, p)))
    _print(table)


def _table(title: str, caption: str) -> Table:
    frame = box.ROUNDED if console.is_terminal else box.ASCII2
    return Table(title=printable(title), caption=caption, title_justify="left", caption_justify="left", box=frame)


def _print(table: Table) -> None:
    """In a file nothing is too wide."""
    (console if console.is_terminal else Console(width=120, **_LITERAL)).print(table)  # type: ignore[arg-type]


def show_federation(prepared: Prepared) -> None:
    """One line on the data."""
    simulation = prepared.simulation
    federation = simulation.federation
    words = f", word vectors {federation.about.get('embedding', 'given')}" if federation.text else ""
    held = f"; {prepared.newcomers.clients} more clients held out" if prepared.newcomers else ""
    samples = "samples made on demand"
    if isinstance(federation, Federation):
        samples = f"{len(federation.train.y):,} training and {len(federation.test.y):,} test samples"
    line = f"{federation.name}: {federation.clients:,} clients, {samples}, {federation.classes} labels{words}{held}"
    print(printable(line))
    if isinstance(simulation, StreamedSimulation):
        where = "in memory" if simulation.store == "memory" else "in a file"
        print(f"  the sampled clients' states are kept {where}; {len(simulation.scored):,} clients are scored")
    sys.stdout.flush()


def _bar(progress: Progress, experiment: Experiment, width: int) -> Watcher:
    name = experiment.algorithm.ljust(width)
    task = progress.add_task(name, total=experiment.rounds, status="[dim]waiting", start=False)

    def watch(point: Point) -> None:
        progress.start_task(task)
        progress.update(
            task,
            completed=point.round,
            status=_accuracies(point, "[cyan]G[/] {:>5} %  [magenta]P[/] {:>5} %"),
        )

    return watch


def _lines(experiment: Experiment) -> Watcher:
    """About ten lines for a run, and one at least every ten seconds: a log is read, not watched."""
    every = max(1, experiment.rounds // 10)
    shown: dict[str, float] = {"round": 0}

    def watch(point: Point) -> None:
        shown.setdefault("at", time.monotonic())
        due = point.round // every > shown["round"] // every or time.monotonic() - shown["at"] > 10
        if due or point.round == experiment.rounds:
            shown.update(round=point.round, at=time.monotonic())
            accuracies = _accuracies(point, "G {:>5} %  P {:>5} %")
            print(f"{experiment.algorithm}: round {point.round}/{experiment.rounds}  {accuracies}", flush=True)

    return watch


def warn_of_divergence(runs: Sequence[Run]) -> None:
    """A line for each run that stopped because it diverged, or of which a part did: it is not worth reading."""
    for run in runs:
        name, rounds = run.experiment.algorithm, run.experiment.rounds
        for point in run.points:
            lost = astray(point.scores, point.health.in_row, rounds)
            if np.any(lost):
                stuck = np.all(stalled(point.health.in_row, rounds)[lost])
                why = "hardly any client's update can be used" if stuck else "its loss is not finite"
                if run.diverged is None:
                    print(f"warning: {name} diverged: {why} from round {point.round} on; try smaller steps")
                else:
                    print(f"{name} diverged: {why}; stopped at round {run.diverged} of {rounds}; try smaller steps")
                break


def tell_of_sick_clients(summaries: Sequence[dict[str, Any]], most: int = 5) -> None:
    """Who was left out of rounds, and how many rounds were skipped; nothing if all were sound."""
    for summary in summaries:
        times: Counter[str] = Counter()
        for seed in summary["left_out"]:
            times.update(seed)
        whose = f"{summary['algorithm']}: " if len(summaries) > 1 else ""
        if times:
            clients = "1 client was" if len(times) == 1 else f"{len(times):,} clients were"
            named = [f"{name} ({'once' if n == 1 else f'{n} times'})" for name, n in times.most_common(most)]
            more = f" and {len(times) - most:,} more" if len(times) > most else ""
            print(
                f"{whose}{clients} left out of rounds because their updates were not finite or far too large: "
                f"{', '.join(named)}{more}"
            )
        skipped = sum(summary["skipped_rounds"])
        if skipped:
            rounds = "1 round was" if skipped == 1 else f"{skipped:,} rounds were"
            print(f"{whose}{rounds} skipped: too few sound clients")


def _accuracies(point: Point, form: str) -> str:
    means = (float(np.mean(model.test.accuracy)) for model in (point.scores.global_, point.scores.personal))
    return form.format(*("-" if np.isnan(mean) else f"{100 * mean:.2f}" for mean in means))


def show_outcome(summaries: Sequence[dict[str, Any]]) -> None:
    """One row for each run: the best accuracy of G and of P, the worst-off clients, and the time of a round."""
    first = summaries[0]
    seeds = "mean ± standard deviation over seeds; " if first["seeds"] > 1 else ""
    table = _table(
        f"{first['data']['name']}, {first['model']}, {first['rounds']} rounds: best test accuracy in %",
        f"{seeds}worst tenth: mean P of the worst-off tenth of the clients, at the end{_explained(first)}",
    )
    newcomers = first["newcomers"]
    joined = ("new: G", "new: P at once", f"new: P after {len(newcomers['personal']) - 1}") if newcomers else ()
    for name in ("algorithm", "global (G)", "personal (P)", "worst tenth", *joined, "ms/round"):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    means = [summary["personal"]["best_accuracy"]["mean"] for summary in summaries]
    best = max((mean for mean in means if mean is not None), default=None)
    for summary in summaries:
        g, p = summary["global"], summary["personal"]
        leads = len(summaries) > 1 and best is not None and p["best_accuracy"]["mean"] == best
        table.add_row(
            summary["algorithm"],
            *(
                _percent(cell, summary["seeds"])
                for cell in (g["best_accuracy"], p["best_accuracy"], p["final_worst_decile"], *_joined(summary))
            ),
            f"{1000 * summary['seconds']['round']:.1f}",
            style="bold" if leads else None,
        )
    _print(table)


def _joined(summary: dict[str, Any]) -> list[dict[str, Any]]:
    newcomers = summary["newcomers"]
    return [newcomers["global"], newcomers["personal"][0], newcomers["personal"][-1]] if newcomers else []


def _explained(summary: dict[str, Any]) -> str:
    newcomers, scored = summary["newcomers"], summary["scored"]
    words = ""
    if scored:
        took_part = round(sum(scored["took_part"]) / len(scored["took_part"]))
        words += f"\n{took_part:,} of the {scored['clients']:,} clients scored have taken part; "
        words += "P of the others is where they would begin"
    if newcomers:
        rounds = len(newcomers["personal"]) - 1
        words += f"\nnew: the {newcomers['clients']} held-out clients at the end, and after {rounds} rounds alone"
    return words


def _percent(cell: dict[str, Any], seeds: int) -> str:
    if cell["mean"] is None:
        return "-"
    spread = f" ± {100 * cell['std']:.2f}" if seeds > 1 and cell["std"] is not None else ""
    return f"{100 * cell['mean']:.2f}{spread}"
