"""``pfedbred data``: prepare a federation as one file, and inspect one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from pfedbred import data
from pfedbred import settings as settings_
from pfedbred.cli.options import experiment_options, options_of, with_options
from pfedbred.data.federation import Federation
from pfedbred.data.label_table import label_table
from pfedbred.data.labels import in_words
from pfedbred.errors import SettingError, file_name, printable
from pfedbred.experiment import references
from pfedbred.experiment.options import DataOptions
from pfedbred.io.atomic import write_json
from pfedbred.report.console import console
from pfedbred.report.distribution import draw_distribution

app = typer.Typer(help="Prepare data as one file, and inspect it.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str,
    typer.Argument(
        help="a dataset by name, hub:OWNER/NAME, pfllib:FOLDER, your own .npz, .csv, .parquet, .fed or folder, or a "
        "Dataset of your own as module:name"
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="the file to write")]


class FileOptions(NamedTuple):
    """How to divide the samples of the user's own file."""

    test_fraction: Annotated[
        float | None, typer.Option(help="fraction of each client's samples held out for testing [default: 0.25]")
    ] = None
    task: Annotated[
        str | None,
        typer.Option(help="classification, binary, multi-label or regression; by default inferred from the labels"),
    ] = None


# The dataset is the commands' argument, and which clients join later is a run's decision, not the data's.
_with_options = with_options(
    [*experiment_options(DataOptions, without=("dataset", "held_out_clients")), *options_of(FileOptions)]
)


@app.command("prepare")
@_with_options
def prepare_command(name: Name, *, out: Out = None, **options: Any) -> None:
    """Write a federation as one self-contained file.

    \b
    pfedbred data prepare patients.csv --client-column hospital --out patients.fed
    """
    path = out or Path(f"{_stem(name)}{data.prepared.SUFFIX}")
    if path.suffix != data.prepared.SUFFIX:
        raise SettingError(
            f"the name of a prepared federation must end in {data.prepared.SUFFIX}, not be {path.name!r}"
        )
    if not path.parent.is_dir():
        raise SettingError(f"there is no folder {path.parent}")
    federation = _load(name, **options)
    data.prepared.save(federation, path)
    describe(federation)
    print(f"file: {path} ({path.stat().st_size / 1e6:.1f} MB); use it with --dataset {path}")


@app.command("show")
@_with_options
def show_command(name: Name, *, out: Out = None, **options: Any) -> None:
    """Show clients and labels, and draw the data distribution.

    \b
    pfedbred data show digits --split 'dirichlet(0.1)' --clients 20
    """
    path = out or Path(f"{_stem(name)}.png")
    path = path if path.suffix else path.with_suffix(".png")
    federation = _load(name, **options)
    describe(federation)
    try:
        draw_distribution(federation, path)
    except (OSError, ValueError) as problem:
        raise SettingError(f"cannot write {path}: {problem}") from None
    print(f"picture: {path}")


@app.command("columns")
@_with_options
def columns_command(name: Name, *, out: Out = None, **options: Any) -> None:
    """Write a table's columns into a file for all clients.

    With it, all clients of a real federation have the same inputs.

    \b
    pfedbred data columns patients.csv --label-column disease --out columns.json
    """
    if options.get("split") is None and options.get("client_column") is None and options.get("clients") is None:
        options |= {"split": "iid", "clients": 1}  # the table of one client does not name it
    federation = _load(name, **{**options, "standardise": "none"})
    if federation.encoding is None:
        raise SettingError(f"{name} is not a table of numbers and texts")
    path = out or Path("columns.json")
    write_json(path, federation.encoding.facts())
    print(f"columns: {path}, {len(federation.encoding.columns)} of them as {len(federation.encoding.names)} inputs")


def _stem(name: str) -> str:
    return file_name(data.short_name(name))


def _load(name: str, *, split_seed: int | None, validation: Any, **options: Any) -> Federation:
    hints = settings_.hints(DataOptions)
    for option, value in {**options, "split_seed": split_seed}.items():
        settings_.check(option, value, hints.get(option, Any))
    held = settings_.check("validation", validation, hints["validation"])
    source = name if data.address(name)[0] else references.resolve(name, "dataset")
    with console.status(f"reading {name}") if console.is_terminal else nullcontext():
        federation = data.load(source, seed=split_seed, **options)
    if not isinstance(federation, Federation):
        raise SettingError(f"the clients of {name} are generated on demand: there is no data to show or to write")
    return federation.with_validation(held, federation.about.get("seed", 0)) if held else federation


def describe(federation: Federation) -> None:
    """Prints clients, samples and labels."""
    shape = " x ".join(map(str, federation.shape))
    kind = f"{shape} {federation.train.x.dtype} values"
    if federation.text:
        kind = f"{shape} {federation.text.unit} ids of {federation.text.count:,}"
    clients = f"{federation.clients:,} clients, {in_words(federation.task, federation.classes)}"
    print(printable(f"{federation.name}: {clients}, samples of {kind}"))
    about = dict(federation.about)
    columns = about.pop("columns", None)  # a sentence of its own
    for line in filter(None, (", ".join(f"{key} {value}" for key, value in about.items()), columns)):
        print(printable(f"  {line}"))
    for part, split in federation.parts.items():
        word, sizes = "training" if part == "train" else part, split.sizes
        print(
            f"  {word + ' samples':<17} {len(split.y):>9,}   per client: {sizes.min():,} to {sizes.max():,}, "
            f"median {int(np.median(sizes)):,}"
        )
    table = label_table(federation)
    what = "interval" if federation.label_kind == "numbers" else "label"
    holders = (table.counts["train"] > 0).sum(axis=1)
    print(f"  {what}s per client {'':>9}   {holders.min()} to {holders.max()}, median {int(np.median(holders))}")
    names = tuple(map(printable, table.names))
    width = max(len(what), *(min(len(name), 20) for name in names))
    print(f"  {what:<{width}} {'training':>10} {'test':>8} {'clients':>8}")
    for label, name in enumerate(names):
        mine, tested = (table.counts[part][:, label] for part in ("train", "test"))
        print(f"  {name[:20]:<{width}} {mine.sum():>10,} {tested.sum():>8,} {(mine > 0).sum():>8,}")
