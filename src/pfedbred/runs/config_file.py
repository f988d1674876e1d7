"""config.yaml: the options of a run, as an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pfedbred._version import __version__
from pfedbred.errors import SettingError
from pfedbred.io.atomic import write_text
from pfedbred.io.strict import read_yaml


class _WithoutAliases(yaml.SafeDumper):
    """Writes a repeated list out in full: experiment files have no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_config(path: Path, options: Mapping[str, Any], command: str | None) -> None:
    """Writes an experiment file; ``command`` is the one that runs it, None if it holds an object that has no name."""
    how = f"with: pfedbred {command} {path}" if command else "from the program that made it"
    head = f"# pfedbred {__version__}. Run it again {how}\n"
    write_text(path, head + yaml.dump(dict(options), Dumper=_WithoutAliases, sort_keys=False))


def read_config(path: Path) -> dict[str, Any]:
    """The options in an experiment file."""
    loaded = read_yaml(path)
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise SettingError(f"cannot read {path}: expected a mapping of names to values, such as 'algorithm: pfedme'")
    return loaded
