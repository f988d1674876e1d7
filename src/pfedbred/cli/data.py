"""``pfedbred data``: prepare a federation as one file, and inspect one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pfedbred import data
from pfedbred.data.federation import Federation
from pfedbred.errors import SettingError, file_name, printable
from pfedbred.report.distribution import draw_distribution
from pfedbred.report.terminal import console

app = typer.Typer(help="Prepare data as one file, and inspect it.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="a dataset by name, or your own file: .npz, .csv, .parquet, .fed, a folder")]
Out = Annotated[Path | None, typer.Option("--out", help="the file to write")]

_OPTIONS: dict[str, Any] = {
    "split": Annotated[str | None, typer.Option(help="paper, column, iid, dirichlet(0.5), labels(3) or quantity(0.5)")],
    "clients": Annotated[int | None, typer.Option(min=1, help="clients to split the data over")],
    "labels_per_client": Annotated[
        int | None, typer.Option(min=1, help="labels each client holds in the paper's split")
    ],
    "seed": Annotated[int | None, typer.Option("--split-seed", min=0, max=2**32 - 1, help="seed of the split")],
    "data_dir": Annotated[
        str | None, typer.Option(help="folder with the data; by default $PFEDBRED_DATA, the cache, or a download")
    ],
    "glove": Annotated[str | None, typer.Option(help="a GloVe file of word vectors, for texts")],
    "test_fraction": Annotated[
        float | None, typer.Option(help="fraction of each client's samples for testing [default: 0.25]")
    ],
    "client_column": Annotated[str | None, typer.Option(help="the column with each sample's client [default: client]")],
    "label_column": Annotated[str | None, typer.Option(help="the column with the labels [default: label or y]")],
    "features": Annotated[
        str | None, typer.Option(help="the columns that are inputs, separated by commas; by default all others")
    ],
}
"""The options of both commands: those of :func:`pfedbred.load`."""


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options above, in place of its ``**options``."""
    own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "options"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    signature = inspect.Signature([*own, *added])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return command


@app.command("prepare")
@_with_options
def prepare_command(name: Name, *, out: Out = None, **options: Any) -> None:
    """Write a federation as one self-contained file."""
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
    """Print clients, samples and label counts, and draw the data distribution."""
    path = out or Path(f"{_stem(name)}.png")
    path = path if path.suffix else path.with_suffix(".png")
    federation = _load(name, **options)
    describe(federation)
    try:
        draw_distribution(federation, path)
    except (OSError, ValueError) as problem:
        raise SettingError(f"cannot write {path}: {problem}") from None
    print(f"picture: {path}")


def _stem(name: str) -> str:
    return file_name(Path(name).stem if data.is_file(name) else name)


def _load(name: str, features: str | None, **options: Any) -> Federation:
    chosen = [each.strip() for each in features.split(",")] if features else None
    with console.status(f"reading {name}") if console.is_terminal else nullcontext():
        return data.load(name, features=chosen, **options)


def describe(federation: Federation) -> None:
    """Prints clients, samples and labels."""
    train, test = federation.train, federation.test
    shape = " x ".join(map(str, federation.shape))
    kind = f"{shape} word ids of {federation.text.count:,}" if federation.text else f"{shape} {train.x.dtype} values"
    clients = f"{federation.clients:,} clients, {federation.classes} labels"
    print(printable(f"{federation.name}: {clients}, samples of {kind}"))
    if federation.about:
        print(printable("  " + ", ".join(f"{key} {value}" for key, value in federation.about.items())))
    for word, split in (("training", train), ("test", test)):
        sizes = split.sizes
        print(
            f"  {word + ' samples':<17} {len(split.y):>9,}   per client: {sizes.min():,} to {sizes.max():,}, "
            f"median {int(np.median(sizes)):,}"
        )
    counts = [split.label_counts(federation.classes) for split in (train, test)]
    holders = (counts[0] > 0).sum(axis=1)
    print(f"  labels per client {'':>9}   {holders.min()} to {holders.max()}, median {int(np.median(holders))}")
    names = tuple(map(printable, federation.labels or map(str, range(federation.classes))))
    width = max(5, *(min(len(name), 20) for name in names))
    print(f"  {'label':<{width}} {'training':>10} {'test':>8} {'clients':>8}")
    for label, name in enumerate(names):
        mine, tested = counts[0][:, label], counts[1][:, label]
        print(f"  {name[:20]:<{width}} {mine.sum():>10,} {tested.sum():>8,} {(mine > 0).sum():>8,}")
