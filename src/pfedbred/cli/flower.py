"""``pfedbred flower``: a real federation. Flower itself is an extra, imported where it is used."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Optional

import typer

from pfedbred.cli.options import path
from pfedbred.errors import SettingError, is_file_name
from pfedbred.report.terminal import show_outcome
from pfedbred.runs import layout
from pfedbred.settings.assignments import assignment

app = typer.Typer(
    help="Run on a real federation, with Flower: see docs/deploy.md.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _needs_flower() -> None:
    """Run on a real federation, with Flower: see docs/deploy.md."""
    if find_spec("flwr") is None:
        raise SettingError("a real federation needs Flower: pip install 'pfedbred[flower]'")


@app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="folder to write them into", parser=path)],
    node: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--node", help="name of a node that needs a key; can be repeated"),
    ] = None,
    host: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--host", help="name or address by which the SuperLink is reached; can be repeated"),
    ] = None,
) -> None:
    """Create certificates and keys for development.

    \b
    pfedbred flower keys keys --node north --node south
    """
    from pfedbred.flower import certificates

    for name in node or ():
        if not is_file_name(name) or name in certificates.FILES:
            raise SettingError(f"the name of a node must be of letters, digits and '-', not {name!r}")
    if host or not any((folder / name).exists() for name in certificates.FILES):
        made = certificates.make(folder, host or ("127.0.0.1", "localhost"))
        print(f"authority:  {made.ca} (everyone needs it)\nsuperlink:  {made.certificate}, {made.key}")
    else:
        certificates.check(folder)
    for name in node or ():
        public = certificates.node_key(folder / name)
        print(f"node:       {folder / name} (stays on the node), {public} (for flwr supernode register)")


@app.command("gateway")
def gateway_command(
    keys: Annotated[Path, typer.Argument(help="the folder with ca.crt, superlink.crt and superlink.key")],
    superlink: Annotated[str, typer.Option(help="the SuperLink's own address, HOST:PORT")] = "127.0.0.1:9093",
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="the port to listen on")] = 9092,
) -> None:
    """Expose only a SuperLink's SuperNode API.

    \b
    pfedbred flower gateway keys --host 0.0.0.0
    """
    from pfedbred.flower import certificates, gateway

    authority = certificates.Authority(*(keys / name for name in certificates.FILES))
    gateway.serve(authority, superlink, host, port)


@app.command("app")
def app_command(
    folder: Annotated[Path, typer.Argument(help="folder to write the app into", parser=path)],
    out: Annotated[Path, typer.Option("--out", help="the run folder, on the server's machine", parser=path)],
    set_: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", help="a key of the run config, such as algorithm=pfedme; can be repeated"),
    ] = None,
) -> None:
    """Write a Flower app, for flwr run.

    \b
    pfedbred flower app app --out runs/hospitals --set algorithm=ditto --set rounds=50
    """
    from pfedbred.flower import processes, run_config

    given = dict(map(assignment, set_ or ()))
    wanted = {**run_config.DEFAULTS, **given, "out": str(out.expanduser().absolute())}
    run_config.check(run_config.parse(wanted)[1])
    processes.write_app(folder, wanted)
    print(f"app: {folder / 'pyproject.toml'}\nrun it with: flwr run {folder} {processes.CONNECTION} --stream")


@app.command("demo")
def demo_command(
    algorithm: Annotated[str, typer.Option(help="algorithm by name")] = "mg-meta",
    model: Annotated[str, typer.Option(help="model by name")] = "mclr",
    dataset: Annotated[str, typer.Option(help="dataset by name")] = "digits",
    nodes: Annotated[int, typer.Option(min=2, max=20, help="number of clients")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of training")] = 5,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder for all files; by default a new one under runs/", parser=path)
    ] = None,
) -> None:
    """Run a whole federation on this machine.

    It is started, run and stopped again.

    \b
    pfedbred flower demo --nodes 4 --rounds 5
    """
    from pfedbred.flower.demo import demo

    folder = out or layout.free_name(Path("runs"), "flower-demo")
    options = {"algorithm": algorithm, "model": model, "dataset": dataset, "nodes": nodes, "rounds": rounds}
    summary = demo(folder.absolute(), **options, show=_flushed)  # type: ignore[arg-type]
    show_outcome([summary])
    beyond = summary["federation"]["seconds_beyond_clients"]
    print(f"overhead per round: {beyond:.1f} s on top of the slowest client; all processes are stopped")
    first = folder / summary["federation"]["clients"][0]
    print(f"run:     {folder / 'run'}\nlogs:    {folder / 'logs'}")
    print(f"a client's personal model: pfedbred predict {first / 'home'} {first / 'data.fed'}")


def _flushed(line: str) -> None:
    print(line, flush=True)
