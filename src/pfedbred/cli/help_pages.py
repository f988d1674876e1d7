"""Help pages whose options are in groups.

Typer has such groups in rich's boxes only, and rich is off here: it escapes brackets on plain pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import click  # newer versions of typer bring their own

DATA, MODEL, METHOD = "Data", "Task and model", "Method"
SWEEP = "Points of the sweep"
TRAINING, EXECUTION, OUTPUT = "Training and evaluation", "Execution", "Output and control"
_OTHERS = "Options"
_ORDER = ("Arguments", SWEEP, DATA, MODEL, METHOD, TRAINING, OUTPUT, EXECUTION)


class Grouped(typer.core.TyperCommand):
    """A command whose help page has a heading for each group of options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments first, then the groups, then the options in no group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            panel = getattr(parameter, "rich_help_panel", None) or _OTHERS
            group = "Arguments" if parameter.param_type_name == "argument" else panel
            groups.setdefault(group, []).append(row)
        for name in (*_ORDER, *(each for each in groups if each not in (*_ORDER, _OTHERS)), _OTHERS):
            if name in groups:
                with formatter.section(name):
                    formatter.write_dl(groups[name])
