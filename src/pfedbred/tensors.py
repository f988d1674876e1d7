"""Writing safetensors files: whole or not at all, with the permissions that any other file would get."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pfedbred.errors import SettingError


def write(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes beside the place and then into it, so that no half of a file is ever found there."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, partial, dict(metadata))
        partial.chmod(mode)  # safetensors makes it readable to its owner alone
        partial.replace(path)
    except OSError as problem:
        raise SettingError(f"cannot write {path}: {problem.strerror or problem}") from None
    except SafetensorError as problem:
        raise SettingError(f"cannot write {path}: {problem}") from None
    finally:
        partial.unlink(missing_ok=True)
