"""The command line: ``pfedbred run``, ``compare``, ``sweep``, ``list``, ``export``, ``adapt``, ``predict``, ``report``,
``data``, ``paper``, ``flower``."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import jax
import numpy as np
import typer

from pfedbred._version import __version__
from pfedbred.cli import data as data_commands
from pfedbred.cli import flower as flower_commands
from pfedbred.cli import options
from pfedbred.cli.compare import compare_command
from pfedbred.cli.help_pages import Grouped
from pfedbred.cli.listing import list_command
from pfedbred.cli.paper import paper_command
from pfedbred.cli.run import run_command
from pfedbred.cli.streams import lasting_streams
from pfedbred.cli.sweep import sweep_command
from pfedbred.data.sources.hub import cache_folder
from pfedbred.engine import join_processes, keep_programs, use_all_cores
from pfedbred.engine.devices import is_no_device, is_out_of_memory
from pfedbred.errors import SettingError, nearest, printable
from pfedbred.experiment import references
from pfedbred.experiment.command import command as reproducing_command
from pfedbred.experiment.newcomer import adapt
from pfedbred.experiment.run import OutOfMemory
from pfedbred.io.atomic import write_text
from pfedbred.paper.page import section as paper_section
from pfedbred.report import page
from pfedbred.report.console import counted
from pfedbred.runs import exporting, layout, prediction, saved_models

typer.core.HAS_RICH = False  # with it, typer puts a backslash before every bracket of a plain help page

app = typer.Typer(
    help="Personalised federated learning with Bregman-divergence priors.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="run as one of several processes that share the clients")
    ] = False,
) -> None:
    """Personalised federated learning with Bregman-divergence priors."""
    if distributed and not join_processes():
        options.write_to_scratch()
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (until the process ends)
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


app.command("run", cls=Grouped)(run_command)
app.command("compare", cls=Grouped)(compare_command)
app.command("sweep", cls=Grouped)(sweep_command)
app.command("list")(list_command)


@app.command("export")
def export_command(
    source: Annotated[
        Path, typer.Argument(help="a run folder, or an exported safetensors file to convert", metavar="RUN")
    ],
    client: Annotated[
        str | None,
        typer.Option(help="name or number of the client whose personal model to write; by default the global model"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="which of the run's seeds; by default the first")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="the file to write; by default in the run folder", parser=options.path)
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"{', '.join(exporting.FORMATS)}; by default that of the suffix of --out, else safetensors",
            metavar="NAME",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            "--model", help="for onnx, the network of a custom model, as given to 'pfedbred run': module:name"
        ),
    ] = None,
) -> None:
    """Write one model of a finished run.

    As safetensors: named tensors, which 'pfedbred predict' reads. As onnx: a graph that takes samples as the data holds
    them and gives logits, probabilities and labels, or numbers; it encodes the columns of a table, but a model for
    texts takes ids of words. As torch: a state dict with the names and layouts of PyTorch.

    \b
    pfedbred export runs/digits-mclr-mg-meta
    pfedbred export runs/digits-mclr-mg-meta --client 3 --out client3.onnx
    """
    custom = network and references.resolve(network, "model")
    path, about = exporting.written(source, client, seed, out, format_, custom)
    personal = about["kind"] == "personal"
    whose = f"client {about['client']} ({about['client_name']})" if personal else "the global model"
    of_seed = "" if about.get("members") else f"seed {about['seed']}, "
    print(printable(f"model: {path}, {whose}, {of_seed}{_when(about)}"))


@app.command("adapt")
def adapt_command(
    model: Annotated[Path, typer.Argument(help="a run folder, or a global model that 'pfedbred export' wrote")],
    samples: Annotated[Path, typer.Argument(help="the client's samples with labels: .npz, .csv or .parquet")],
    out: Annotated[
        Path, typer.Option("--out", help="file for the client's personal model", parser=options.path)
    ] = Path("personal.safetensors"),
    rounds: Annotated[int, typer.Option(min=1, help="rounds of training on these samples")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="samples in a minibatch")] = 20,
    name: Annotated[str, typer.Option(help="name of the client")] = "new",
    label_column: Annotated[
        str | None, typer.Option(help="column with the labels [default: label or y]", show_default=False)
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--model", help="the network of a custom model, as given to 'pfedbred run': module:name"),
    ] = None,
) -> None:
    """Give a new client its own personal model.

    It is trained on the client's samples alone, from the global model of a finished run.

    \b
    pfedbred adapt runs/hospitals new-hospital.csv --label-column disease --out new.safetensors
    pfedbred predict new.safetensors patients.csv
    """
    own = network and references.resolve(network, "model")
    with tempfile.TemporaryDirectory() as folder:
        path = saved_models.export(model, out=Path(folder) / "global.safetensors") if layout.finished(model) else model
        trained = prediction.find_model(path, own)
        columns = trained.about["columns"] and [each["name"] for each in trained.about["columns"]]
        given = prediction.read_samples(samples, label_column, trained.about["features"], None, columns)
        if given.labels is None:
            raise SettingError(f"{samples} has no labels: name their column with --label-column")
        made = adapt(
            path,
            given.x,
            given.labels,
            rounds=rounds,
            batch_size=batch_size,
            name=name,
            out=out,
            encoded=given.encoded,
            network=own,
        )
    before, after = (
        prediction.agreement(each, prediction.predict(each, given, samples), given.labels) for each in (trained, made)
    )
    print(printable(f"model: {out}, personal model of {name}, {counted(rounds, 'round')} from the global model"))
    print(f"on these samples, before: {before}; after: {after}")
    leaves = [jax.tree.leaves(each.params) for each in (trained, made)]
    if len(leaves[0]) == len(leaves[1]) and all(map(np.array_equal, *leaves)):
        options.note(f"P of {trained.about['algorithm']} is the global model itself: nothing was adapted")


@app.command("predict")
def predict_command(
    model: Annotated[Path, typer.Argument(help="an exported model, or a client's home folder in a real federation")],
    samples: Annotated[Path, typer.Argument(help="samples: .npz, .npy, .csv, .parquet, or a .fed's test samples")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="file to write the labels to, one per line; by default they are printed", parser=options.path
        ),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="column with the true labels, if there is one [default: label or y]", show_default=False),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="also the probability of each label, calibrated if the run was")
    ] = False,
    sets: Annotated[
        bool, typer.Option("--sets", help="also the calibrated set of labels that covers the true one")
    ] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="also the calibrated interval that covers the true number")
    ] = False,
    network: Annotated[
        str | None,
        typer.Option("--model", help="the network of a custom model, as given to 'pfedbred run': module:name"),
    ] = None,
) -> None:
    """Predict labels or numbers with a trained model.

    With --probabilities, --sets or --intervals, the output is a table in CSV. Sets and intervals need a model of a run
    with --coverage, which also calibrates probabilities.

    \b
    pfedbred predict client3.safetensors patients.csv
    pfedbred predict client3.safetensors patients.csv --probabilities --sets --out predictions.csv
    """
    trained = prediction.find_model(model, network and references.resolve(network, "model"))
    several = trained.about["labels"] if trained.about["task"] == "multi-label" else None
    columns = trained.about["columns"] and [each["name"] for each in trained.about["columns"]]
    given = prediction.read_samples(samples, label_column, trained.about["features"], several, columns)
    labels = prediction.predict(trained, given, samples)
    asked = prediction.Asked(probabilities, sets, intervals)
    text = "".join(f"{printable(label)}\n" for label in labels)
    if any(asked):
        text = _csv(prediction.detailed(trained, given, labels, asked))
    if out:
        write_text(out, text)
        print(f"labels: {out}")
    else:
        print(text, end="")
    about = trained.about
    personal = about["kind"] == "personal"
    whose = f"personal model of client {about.get('client_name')}" if personal else "global model"
    line = f"{whose}, {about['algorithm']}, {_when(about)}"
    if any(asked):
        line += f", {prediction.coverage_words(about)}"
    if given.labels is not None:
        line += f": {prediction.agreement(trained, labels, given.labels)}"
    print(printable(line), file=sys.stderr)


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([printable(cell) for cell in row] for row in rows)
    return text.getvalue()


def _when(about: Mapping[str, Any]) -> str:
    chosen = f", chosen on {about['chosen_on']} samples" if "chosen_on" in about else ""
    if about.get("members"):
        return f"ensemble of {len(about['members'])} seeds, after round {about['round']} at most{chosen}"
    return f"after round {about['round']}{chosen}"


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(help="folders of runs, comparisons, sweeps, or 'pfedbred paper'", metavar="RUN...")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="the file to write; by default in the first folder", parser=options.path),
    ] = None,
) -> None:
    """Write one self-contained HTML page of finished runs.

    \b
    pfedbred report runs/digits-mclr-mg-meta
    pfedbred report runs/first runs/second --out both.html
    """
    path = out or folders[0] / "report.html"
    page.write_page(folders, path, [paper_section()], reproducing_command)
    print(f"page: {path}")


app.add_typer(data_commands.app, name="data")
app.command("paper")(paper_command)
app.add_typer(flower_commands.app, name="flower")


def main() -> None:
    """Runs the command line. A user's mistake gets one line and exit code 2, never a traceback."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # see pfedbred/__init__.py
        signal.signal(signal.SIGINT, _stop)
    for stream in (sys.stdout, sys.stderr):  # a path may hold bytes that are not valid text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.path.append(str(Path.cwd()))  # import paths in experiment files may name the user's own modules
    except OSError as problem:  # it has been removed
        sys.exit(_complain(f"cannot use the current folder: {problem.strerror}; change to another one"))
    use_all_cores()
    keep_programs(cache_folder() / "compiled")
    with lasting_streams() as output:
        code = _run_command()
        output.flush()
        if output.problem:
            reason = output.problem.strerror or output.problem
            code = code or _complain(
                f"cannot write to standard output: {reason}; the command completed, but its output was lost"
            )
    sys.exit(code)


def _stop(*_: Any) -> NoReturn:
    """Ends the process at Ctrl-C. An exception would be lost in a callback of the garbage collector, such as JAX's."""
    with suppress(OSError):  # standard error may be closed
        os.write(2, b"pfedbred: stopped\n")
    os._exit(130)


def _run_command() -> int:
    """Runs the command that was given; returns its exit code."""
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
    except SettingError as mistake:
        return _complain(mistake.in_shell)
    except Exception as problem:
        if is_out_of_memory(problem):
            return _complain(str(OutOfMemory()))
        if is_no_device(problem):
            return _complain(str(problem))
        if not hasattr(problem, "format_message"):  # not an error of the option parser, which has its own message
            raise
        message = problem.format_message()
        unknown = re.match(r"No such command '(.*?)'", message)
        if unknown:
            commands = problem.ctx.command.commands  # type: ignore[attr-defined]
            message = f"no such command {unknown[1]!r}{nearest(unknown[1], commands)}"
        return _complain(message)
    return code if isinstance(code, int) else 0


def _complain(message: str) -> int:
    print(f"pfedbred: {printable(' '.join(message.split()))}", file=sys.stderr)
    return 2
