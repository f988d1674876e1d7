"""The ServerApp: opens the run folder, gathers the clients, and runs the experiment with a deployed backend."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pfedbred.engine import Backend
from pfedbred.errors import SettingError
from pfedbred.experiment import sigma
from pfedbred.experiment.building import Built
from pfedbred.experiment.callbacks import trackers
from pfedbred.experiment.callbacks.display import showing_progress
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.result import Run
from pfedbred.experiment.resume import latest_checkpoint, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.flower import messaging, wire
from pfedbred.flower.backend import DeployedBackend
from pfedbred.flower.gathering import Gathering
from pfedbred.flower.messaging import log
from pfedbred.flower.roster import Roster
from pfedbred.flower.run_config import ServerOptions, parse
from pfedbred.flower.server_half import ServerHalf
from pfedbred.flower.server_state import DeployedState, check_facts
from pfedbred.io.folders import ensure_folder
from pfedbred.report.terminal import show_outcome, show_rejections, warn_of_divergence
from pfedbred.runs import layout
from pfedbred.runs.checkpoints import Checkpoint
from pfedbred.runs.record import RunRecord

_TIMEOUT = 60.0  # seconds for an earlier server to notice that it should stop


class Coordinator:
    """Runs an experiment over a grid, into a run folder."""

    def __init__(self, grid: messaging.Grid, options: ServerOptions, fields: Mapping[str, Any]) -> None:
        """``fields`` are the fields of the experiment."""
        wire.refuse_objects(fields)
        if sigma.is_path(fields["settings"].get("sigma")):
            raise SettingError("sigma cannot be a file on a federation: the clients do not have it")
        self._options, self._fields, self._folder = options, dict(fields), options.out
        self._recording = trackers.named(options.track)
        if fields.get("class_weights") == "balanced":
            raise SettingError(
                "class-weights must be numbers on a federation, such as 1,5: the server cannot count labels"
            )
        roster = Roster(options.clients, log, options.agreeing, options.min_samples)
        self._gathering = Gathering(grid, options, roster, task=fields.get("task"), validation=fields.get("validation"))

    def run(self) -> dict[str, Any]:
        """Runs to the end, from the start or the last saved round. Returns the summary."""
        folder = self._folder
        if not layout.started(ensure_folder(folder)) and not layout.is_free(folder):
            raise SettingError(f"{folder} is not empty and holds no run: choose another folder for out")
        with open_folder(folder, resume=True, patience=_TIMEOUT):
            if layout.finished(folder):
                raise SettingError(f"{folder} holds a finished run: choose another folder for out")
            self._admit_clients()
            built = self._build()
            how = FolderOptions(
                checkpoint_every=1,
                resume=True,
                keep_models=True,
                warn=log,
                extra=self._federation_facts,
            )
            with showing_progress([built.experiment]) as callbacks:
                run_into(folder, built, [*callbacks, *self._recording], how)
        return self._show()

    def _admit_clients(self) -> None:
        """Admits the clients of the run in the folder, or else those that are connected.

        A resumed run admits new clients only after resuming, so that the data matches the checkpoint.
        """
        roster = self._gathering.roster
        found = latest_checkpoint(self._folder, lambda _: None)  # loading it will warn
        if found is None:
            self._gathering.wait()
        else:
            check_facts(found)
            self._check_given(found)
            roster.restore(found.facts["roster"])
            log(f"resuming after round {found.round}")
        roster.close()

    def _check_given(self, found: Checkpoint) -> None:
        before, now = found.facts["given"], self._options.given()
        changed = [f"{name} {before.get(name)!r}, now {now[name]!r}" for name in now if before.get(name) != now[name]]
        if changed:
            raise SettingError(f"{self._folder} was run with other settings: {'; '.join(changed)}")

    def _build(self) -> Built[DeployedState]:
        data = self._gathering.roster.description()
        experiment = Experiment(dataset=data.name, **self._fields).for_data(data, data_elsewhere=True)
        half = ServerHalf(experiment, data)
        backend: Backend[DeployedState] = DeployedBackend(half, self._gathering, self._options)
        return Built(experiment, backend)

    def _federation_facts(self, run: Run[DeployedState]) -> dict[str, Any]:
        """What the summary of a federation's run adds to the usual."""
        seconds, roster = run.state.client_seconds, self._gathering.roster
        # From the end: a resumed run has one typical time for all earlier rounds.
        beyond = [whole - own for whole, own in zip(reversed(run.round_seconds), reversed(seconds), strict=False)]
        facts = {
            "run": run.state.run,
            "clients": [roster.name(number) for number in sorted(roster.members)],
            "client_seconds": round(float(np.median(seconds)), 3),
            "seconds_beyond_clients": round(float(np.median(beyond)), 3),
        }
        return {"federation": facts}

    def _show(self) -> dict[str, Any]:
        record = RunRecord.read(self._folder)
        show_outcome([record.summary])
        show_rejections([record.summary])
        warn_of_divergence([record])
        beyond = record.summary["federation"]["seconds_beyond_clients"]
        print(f"overhead per round: {beyond:.1f} s on top of the slowest client\nrun:     {self._folder}", flush=True)
        return dict(record.summary)


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the experiment of the run config."""
    logging.getLogger("flwr").addFilter(_in_one_line)
    Coordinator(grid, *parse(context.run_config)).run()


def _in_one_line(record: logging.LogRecord) -> bool:
    """Flower logs a traceback for any error that ends a run; a user's mistake needs none."""
    mistake = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(mistake, SettingError):
        record.msg, record.args, record.exc_info = f"pfedbred: {mistake}", (), None
    return True
