"""Export of trained models: as safetensors, for ONNX runtimes, or for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pfedbred.errors import SettingError, nearest
from pfedbred.runs import model_file, saved_models, trained_model
from pfedbred.runs.layout import EXPORTED
from pfedbred.runs.onnx_model import write_onnx
from pfedbred.runs.torch_state import write_torch
from pfedbred.runs.trained_model import TrainedModel


class Format(NamedTuple):
    """A kind of file.

    Attributes:
      suffixes: of its files, the usual one first.
      write: writes a model to a path; None for safetensors, which are written without making the model.
    """

    suffixes: tuple[str, ...]
    write: Callable[[Path, TrainedModel], None] | None


FORMATS = {
    "safetensors": Format((".safetensors",), None),
    "onnx": Format((".onnx",), write_onnx),
    "torch": Format((".pt", ".pth"), write_torch),
}


def export(
    source: str | Path,
    *,
    client: int | str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    format: str | None = None,
    model: Any = None,
    algorithm: Any = None,
) -> Path:
    """Writes one model of a finished run: a client's P, or G if no client is given. Returns the file.

    Args:
      source: the folder of the run, or a model that was exported as safetensors, to have it in another format.
      client: by its number, or as a text by its name or number.
      seed: one of the run's; by default the first.
      out: the file to write; by default in the folder of the source.
      format: ``safetensors``, ``onnx`` (needs the extra ``onnx``) or ``torch`` (needs PyTorch); by default that of
        the file's suffix, else safetensors.
      model: a custom network, as given to ``run``; not needed for safetensors.
      algorithm: a custom algorithm, as given to ``run``.
    """
    return written(source, client, seed, out, format, model, algorithm)[0]


def written(
    source: str | Path,
    client: int | str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    format: str | None = None,
    model: Any = None,
    algorithm: Any = None,
) -> tuple[Path, Mapping[str, Any]]:
    """The file that :func:`export` writes, and facts about the model."""
    source, chosen = Path(source), chosen_format(format, out)
    suffixes, write = FORMATS[chosen]
    if source.is_file():
        if client is not None or seed is not None:
            raise SettingError(f"{source} holds one model: choose a client or a seed of a run's folder")
        if write is None:
            raise SettingError(f"{source} is in the format safetensors already: choose onnx or torch")
        arrays, about = saved_models.read_model(source)
        path = Path(out or source.with_suffix(suffixes[0]))
    elif not source.exists():
        raise SettingError(f"there is no {'file' if source.suffix in EXPORTED else 'folder'} {source}")
    else:
        arrays, about = saved_models.extracted(source, client=client, seed=seed)
        path = Path(out or saved_models.default_path(source, about, suffixes[0]))
    if write is None:
        model_file.save(path, arrays, about)
    else:
        write(path, trained_model.restored_model(arrays, about, source, model, algorithm))
    return path, about


def chosen_format(format: str | None, out: str | Path | None) -> str:
    """The requested format, or else that of the file's name."""
    if format is not None and format not in FORMATS:
        raise SettingError(f"unknown format {format!r}{nearest(format, FORMATS)}")
    suffix = Path(out).suffix.lower() if out else ""
    named = next((name for name, each in FORMATS.items() if suffix in each.suffixes), None)
    if format is not None and named not in (None, format):
        raise SettingError(
            f"{out} has the suffix of the format {named}, but the format is {format}: name it "
            f"{Path(str(out)).with_suffix(FORMATS[format].suffixes[0])}"
        )
    return format or named or "safetensors"
