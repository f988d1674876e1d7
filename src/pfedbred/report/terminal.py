"""Progress and tables in the shell: colour and a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pfedbred.data.labels import in_words
from pfedbred.engine.backend import Backend
from pfedbred.engine.plan import weight_cap
from pfedbred.engine.screening import diverged, stalled
from pfedbred.errors import printable
from pfedbred.report.console import console, counted, new_table, print_table, shown_estimate
from pfedbred.report.outcomes import show_figures
from pfedbred.report.uncertainty import show_calibration, show_ensembles
from pfedbred.runs.figures import EXPLAINED, Figure
from pfedbred.runs.record import RunRecord
from pfedbred.runs.schema import primary_info, primary_metric


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """``advance(done, total)``: a bar on a terminal, a line every ten seconds in a pipe."""
    if console.is_terminal:
        columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    with progress_lines(what) as advance:
        yield advance


@contextmanager
def progress_lines(what: str) -> Iterator[Callable[[int, int], None]]:
    """The same, a line every ten seconds in any case."""
    shown = [time.monotonic()]

    def advance(done: int, total: int) -> None:
        if done == total or time.monotonic() - shown[0] > 10:
            shown[0] = time.monotonic()
            print(f"{what}: round {done}/{total}", flush=True)

    yield advance


_BATCH_NORM = {
    "local": "batch norm with each client's own statistics (local)",
    "average": "batch norm with averaged statistics (average)",
    "group": "group norm in place of batch norm (group)",
}


def show_network(options: Mapping[str, Any], batch_norm: bool = False) -> None:
    """One line on a network that has ``batch_norm``, or that is not trained as a whole, from random params, in float32.

    A network with group norm in place of its batch norm has no batch norm left, but the options say so.
    """
    start, parts, trained = options["start_from"], options["start_parts"], options["train_only"]
    said = []
    if batch_norm or options["batch_norm"] == "group":
        said.append(_BATCH_NORM[options["batch_norm"]])
    if options["precision"] != "float32":
        said.append(f"products in {options['precision']}")
    if start:
        others = f" ({', '.join(parts)}; other parts are drawn at random)" if parts else ""
        said.append(f"starts from {start.partition('#')[0]}{others}")
    if trained:
        said.append(f"only {', '.join(trained)} trained")
    if said:
        print(printable(f"{options['model']}: {', '.join(said)}"))


def show_federation(backend: Backend[Any], held_out: Sequence[str] = (), aggregated: int = 0) -> None:
    """One line on the data, and a note if some clients hold more samples than their weight in an average is capped at.

    ``held_out`` are the names of clients that do not train; ``aggregated`` is how many are averaged in a round.
    """
    data, samples = backend.federation, "samples generated on demand"
    words = f", word vectors {data.about.get('embedding', 'given')}" if data.words else ""
    held = ""
    if held_out:
        named = ", ".join(held_out[:5]) + (", ..." if len(held_out) > 5 else "")
        held = f"; {counted(len(held_out), 'more client')} held out: {named}"
    if backend.samples is not None:
        counts = {part: f"{len(split.y):,}" for part, split in backend.samples.parts.items()}
        kept = f", {counts['validation']} validation" if "validation" in counts else ""
        samples = f"{counts['train']} training{kept} and {counts['test']} test samples"
    labels = in_words(data.task, data.classes)
    number = "all" if aggregated == data.clients else f"{aggregated:,}"
    averages = f" ({number} averaged in a round)" if aggregated else ""
    print(printable(f"{data.name}: {data.clients:,} clients{averages}, {samples}, {labels}{words}{held}"))
    if "columns" in data.about:
        print(printable(f"  {data.about['columns']}"))
    if "inputs" in data.about:
        print(printable(f"  inputs {data.about['inputs']}"))
    if backend.samples is not None and backend.plan.weights == "data":
        sizes = backend.samples.train.sizes
        limit = float(weight_cap(sizes).samples(aggregated))
        if large := int(np.sum(sizes > limit)):
            who = "1 client holds" if large == 1 else f"{large:,} clients hold"
            print(f"  {who} more samples than the averaging-weight cap, about {limit:,.0f}; see --weights")
    if backend.evaluated is not None:
        where = "in memory" if backend.store == "memory" else "in a file"
        print(f"  client states are kept {where}; {len(backend.evaluated):,} clients are evaluated")
    sys.stdout.flush()


def warn_of_divergence(runs: Sequence[RunRecord]) -> None:
    """A line for each run that diverged, in all of its seeds or in some."""
    for run in runs:
        for point in run.points:
            in_row = point.rejections.skipped_in_row
            lost = diverged(point.scores, in_row, run.rounds)
            if np.any(lost):
                stuck = np.all(stalled(in_row, run.rounds)[lost])
                why = "hardly any client's update is valid" if stuck else "its loss is not finite"
                if run.diverged is None:
                    print(f"warning: {run.algorithm} diverged: {why} from round {point.round} on; try smaller steps")
                else:
                    ended = f"stopped at round {run.diverged} of {run.rounds}"
                    print(f"{run.algorithm} diverged: {why}; {ended}; try smaller steps")
                break


def show_rejections(summaries: Sequence[Mapping[str, Any]], most: int = 5) -> None:
    """Whose updates were rejected, and how many rounds were skipped; nothing if all were valid."""
    for summary in summaries:
        times: Counter[str] = Counter()
        for seed in summary["rejected"]:
            times.update(seed)
        whose = f"{summary['algorithm']}: " if len(summaries) > 1 else ""
        if times:
            clients = "1 client" if len(times) == 1 else f"{len(times):,} clients"
            named = [f"{name} ({'once' if n == 1 else f'{n} times'})" for name, n in times.most_common(most)]
            more = f" and {len(times) - most:,} more" if len(times) > most else ""
            print(
                f"{whose}updates of {clients} were rejected because they were not finite or out of line: "
                f"{', '.join(named)}{more}"
            )
        skipped = sum(summary["skipped_rounds"])
        if skipped:
            rounds = "1 round was" if skipped == 1 else f"{skipped:,} rounds were"
            print(f"{whose}{rounds} skipped: too few valid updates")


def show_outcome(summaries: Sequence[Mapping[str, Any]]) -> None:
    """The outcome of runs: figures of G and P, other metrics, ensembles, clients that joined, and the calibration."""
    show_figures(summaries, _explained(summaries[0]))
    _show_other_metrics(summaries, "chosen" if "chosen_round" in summaries[0]["personal"] else "best")
    show_ensembles(summaries)
    _show_newcomers(summaries)
    show_calibration(summaries)


def _show_other_metrics(summaries: Sequence[Mapping[str, Any]], figure: Figure) -> None:
    """The metrics besides the primary one and the loss: a row for each run and model."""
    infos = summaries[0].get("metric_info", {})
    others = {name: info for name, info in infos.items() if name not in (primary_metric(summaries[0]), "loss")}
    if not others:
        return
    table = new_table(f"on the test samples, {EXPLAINED[figure]}", "")
    table.add_column("algorithm")
    table.add_column("model")
    for info in others.values():
        table.add_column(f"{info['title']} (%)" if info["percent"] else info["title"], justify="right")
    for summary in summaries:
        for letter, model in (("G", "global"), ("P", "personal")):
            found = summary[model].get("metrics", {})
            cells = (
                shown_estimate(found[name][figure], summary["seeds"], info["percent"]) if name in found else "-"
                for name, info in others.items()
            )
            table.add_row(summary["algorithm"], letter, *cells)
    print_table(table)


def _show_newcomers(summaries: Sequence[Mapping[str, Any]]) -> None:
    """The scores of clients that joined at the end, if there are any: the primary metric, and any but the loss."""
    names = _joined_names(summaries[0])
    if not names:
        return
    first = primary_metric(summaries[0])
    others = {name: info for name, info in summaries[0].get("metric_info", {}).items() if name not in (first, "loss")}
    for metric, info in {first: primary_info(summaries[0]), **others}.items():
        rows = [(summary, _joined(summary, metric)) for summary in summaries]
        if not any(
            scores for _, scores in rows
        ):  # a run of an earlier version, which recorded the primary metric alone
            continue
        what = f"test {info['title']}{' in %' if info['percent'] else ''}"
        table = new_table(f"held-out clients that joined after the last round: {what}", "")
        for name in ("algorithm", *names):
            table.add_column(name, justify="left" if name == "algorithm" else "right")
        for summary, scores in rows:
            cells = (shown_estimate(each, summary["seeds"], info["percent"]) for each in scores)
            table.add_row(summary["algorithm"], *cells)
        print_table(table)


def _joined_names(summary: Mapping[str, Any]) -> tuple[str, ...]:
    newcomers = summary["newcomers"]
    return ("new: G", "new: P at once", f"new: P after {len(newcomers['personal']) - 1}") if newcomers else ()


def _joined(summary: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """The scores in a metric; none if it was not recorded."""
    newcomers = summary["newcomers"] or {}
    found = newcomers if metric == primary_metric(summary) else newcomers.get("metrics", {}).get(metric)
    return [found["global"], found["personal"][0], found["personal"][-1]] if found else []


def _explained(summary: Mapping[str, Any]) -> str:
    newcomers, scored = summary["newcomers"], summary["scored"]
    words = ""
    if scored:
        took_part = round(sum(scored["took_part"]) / len(scored["took_part"]))
        words += f"\n{took_part:,} of the {scored['clients']:,} evaluated clients have taken part; "
        words += "P of the others is the model they would start from"
    if newcomers:
        rounds = len(newcomers["personal"]) - 1
        words += (
            f"\nnew: the {counted(newcomers['clients'], 'held-out client')} at once, "
            f"and after {counted(rounds, 'local round')}"
        )
    return words
