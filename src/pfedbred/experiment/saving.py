"""A run that was kept in memory as a folder, and its models as ``pfedbred predict`` would load them."""

from __future__ import annotations

import base64
import shutil
import tempfile
import weakref
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any

from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks.model_writer import ModelWriter
from pfedbred.experiment.callbacks.outcome import OutcomeFiles
from pfedbred.experiment.callbacks.pictures import Pictures
from pfedbred.experiment.references import write_experiment
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import open_folder
from pfedbred.report import curves
from pfedbred.runs import layout, saved_models, trained_model
from pfedbred.runs.metrics_file import MetricsFile


def save(run: Run[Any], folder: Path, overwrite: bool = False) -> Path:
    """Writes the folder that ``pfedbred run`` would have written; without checkpoints, it cannot be resumed."""
    if run.stopped:
        raise SettingError(
            f"the run was interrupted ({run.stopped}) and has no outcome to save: give run() a folder, out"
        )
    with open_folder(folder, overwrite=overwrite):
        write_experiment(folder / layout.CONFIG, run.experiment.plain(), "run")
        with closing(MetricsFile(folder)) as metrics:
            for point in run.points:
                metrics.write(point)
        for each in (ModelWriter(folder, keep=True), Pictures(folder), OutcomeFiles(folder)):
            each.on_end(run)
    return folder


class Models:
    """The trained models of a run, loaded when first needed."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._folder = Path(tempfile.mkdtemp(prefix="pfedbred-models-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._loaded: dict[tuple[int | str | None, int | None], trained_model.TrainedModel] = {}
        ModelWriter(self._folder, keep=True).on_end(run)

    def get(self, client: int | str | None, seed: int | None) -> trained_model.TrainedModel:
        """A client's P, or G; for the seed at that position, or as :func:`saved_models.extracted` chooses."""
        if (client, seed) not in self._loaded:
            experiment, out = self._run.experiment, self._folder / "model.safetensors"
            number = None if seed is None else experiment.seed_list[seed]
            saved_models.export(self._folder, client=client, seed=number, out=out)
            network = None if isinstance(experiment.model, str) else experiment.model
            algorithm = None if isinstance(experiment.algorithm, str) else experiment.algorithm
            self._loaded[client, seed] = trained_model.load_model(out, network, algorithm)
        return self._loaded[client, seed]


def as_html(run: Run[Any]) -> str:
    """A line, and the picture of the run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / layout.CURVES
        curves.draw_run(run.record(), path)
        picture = base64.b64encode(path.read_bytes()).decode()
    return f'<p>{escape(repr(run))}</p><img alt="curves" style="max-width: 100%" src="data:image/png;base64,{picture}">'
