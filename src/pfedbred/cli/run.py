"""``pfedbred run``, and what ``compare`` shares with it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml

from pfedbred.cli import options as options_
from pfedbred.cli.options import File, RunOptions
from pfedbred.engine import Simulated
from pfedbred.errors import SettingError
from pfedbred.experiment.building import Built, build
from pfedbred.experiment.callbacks import Callback, Interruption, Patience, trackers
from pfedbred.experiment.callbacks.display import showing_progress
from pfedbred.experiment.callbacks.stopping import EXIT_CODES, parse_seconds, process_started
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.resume import check_unchanged, has_more_rounds, open_folder
from pfedbred.experiment.run import FolderOptions, run_into
from pfedbred.report.terminal import show_federation, show_network, show_outcome, show_rejections, warn_of_divergence
from pfedbred.runs import checkpoints, layout
from pfedbred.runs.config_file import read_config
from pfedbred.runs.record import RunRecord


@options_.with_options([*options_.options_of(RunOptions), *options_.experiment_options()])
def run_command(file: File = None, **options: Any) -> None:
    """Run one algorithm and write a run folder.

    \b
    pfedbred run --dataset digits --algorithm mg-meta --rounds 100
    pfedbred run --dataset patients.csv --client-column hospital --validation 0.2 --set lam=5
    pfedbred run --resume --out runs/digits-mclr-mg-meta --rounds 200
    """
    how, around, given = read_options(file, options)
    asked = Experiment.from_mapping(given)
    built = build(asked)
    options_.note_ignored(asked, built.experiment)
    plain = built.experiment.plain()
    if how.dry_run:
        print(yaml.safe_dump(plain, sort_keys=False), end="")
        return
    with opened(how, built, plain, built.experiment.algorithm_name) as folder:
        records = run_each(folder, {"": built}, how, around, "run")
        show(records)
    finish(folder, records)


class Around(NamedTuple):
    """What is around every run of a command, made from options that are rejected before the data is read."""

    interruption: Interruption
    recording: list[trackers.Tracker]

    @staticmethod
    def read(time_limit: str | None, track: str | None) -> Around:
        """From the text of these options."""
        limit = None if time_limit is None else parse_seconds(time_limit)
        return Around(Interruption(limit, process_started()), trackers.named(trackers.parse(track)))


def read_options(file: Path | None, options: dict[str, Any]) -> tuple[RunOptions, Around, dict[str, Any]]:
    """The options and the experiment: from the file, the command line and, to resume, the run in the folder."""
    how = RunOptions(**{name: options.pop(name) for name in RunOptions._fields})
    around = Around.read(how.time_limit, how.track)
    return how, around, options_.with_recorded(how.out, how.resume, options_.merged(file, options, how.set_))


@contextmanager
def opened(how: RunOptions, built: Built[Simulated], plain: Mapping[str, Any], what: str) -> Iterator[Path]:
    """The folder to run into, if the run in it may be resumed or replaced."""
    if how.overwrite and how.resume:
        raise SettingError("--overwrite starts again and --resume continues: give one of them")
    if how.resume and how.out and layout.started(how.out):
        check_unchanged(how.out, plain, more_rounds=True)
    folder = options_.chosen_folder(how.out, options_.run_name(built.experiment, what))
    with open_folder(folder, overwrite=how.overwrite, resume=how.resume):
        held_out = built.newcomers.names or () if built.newcomers else ()
        show_federation(built.backend, held_out, built.experiment.aggregated or 0)
        show_network(built.experiment.plain(), built.backend.task.model.statistics is not None)
        yield folder


def run_each(
    folder: Path, built: Mapping[str, Built[Simulated]], how: RunOptions, around: Around, command: str, below: str = ""
) -> list[RunRecord]:
    """Runs one experiment after another, each into its folder below; those finished before are read.

    With ``below``, these folders are in one of that name. ``command`` resumes all of it.
    """
    records = []
    whole = how.out if options_.scratch_folder() and how.out else folder
    group = None if "" in built else trackers.Group(folder.name, folder)
    folder, source = folder / below, whole / below
    saving = "" if how.checkpoint_every == 0 else ", then saving"
    interruption, recording = around
    experiments = [each.experiment for each in built.values()]
    with interruption.listening(saving), showing_progress(experiments) as displays:
        for (name, each), display in zip(built.items(), displays, strict=True):
            if how.resume and layout.finished(source / name) and not _has_more_rounds(source / name, each.experiment):
                check_unchanged(source / name, each.experiment.plain())
                print(f"{source / name}: already finished")
                records.append(RunRecord.read(source / name))
                continue
            callbacks: list[Callback] = [display, interruption, *([Patience(how.patience)] if how.patience else [])]
            callbacks += trackers.placed(recording, group, f"{below} {name}".strip() or None)
            kept = FolderOptions(how.checkpoint_every, how.resume, how.keep_models, source=source / name)
            with open_folder(folder / name, overwrite=how.overwrite, resume=how.resume) if name else nullcontext():
                done = run_into(folder / name, each, callbacks, kept)
            chunk = done.backend.plan.chunk
            if chunk != done.experiment.chunk:
                print(f"{done.experiment.algorithm_name} ran {chunk} clients at a time: more would not fit into memory")
            if done.finished_early:
                print(f"{done.experiment.algorithm_name} finished after round {done.round}: {done.finished_early}")
            if done.stopped is not None:
                print(f"stopped ({done.stopped}) after round {done.round} of {done.experiment.rounds}")
                if how.checkpoint_every != 0:
                    print(f"to resume: pfedbred {command} --resume --out {shlex.quote(str(whole))}{_repeated(how)}")
                raise typer.Exit(EXIT_CODES.get(done.stopped, 1))
            if done.diverged is not None and checkpoints.files(folder / name):
                print(f"the last checkpoint before that: {checkpoints.files(folder / name)[0]}")
            records.append(done.record())
    return records


def _has_more_rounds(folder: Path, experiment: Experiment) -> bool:
    """Whether the finished run in a folder is given more rounds."""
    plain, before = experiment.plain(), read_config(folder / layout.CONFIG)
    if not has_more_rounds(before, plain):
        return False
    check_unchanged(folder, plain, before, more_rounds=True)
    print(f"{folder}: {plain['rounds']} rounds in place of {before['rounds']}")
    return True


def _repeated(how: RunOptions) -> str:
    """The options that no file records, to be given again when the run is resumed."""
    text = "" if how.checkpoint_every is None else f" --checkpoint-every {how.checkpoint_every}"
    text += "" if how.patience is None else f" --patience {how.patience}"
    text += "" if how.track is None else f" --track {shlex.quote(how.track)}"
    return text + {None: "", True: " --keep-models", False: " --no-models"}[how.keep_models]


def show(records: Sequence[RunRecord]) -> None:
    """The outcome of runs, what was rejected and what diverged."""
    summaries = [record.summary for record in records]
    show_outcome(summaries)
    show_rejections(summaries)
    warn_of_divergence(records)
    sys.stdout.flush()


def finish(folder: Path, records: Sequence[RunRecord]) -> None:
    """Prints where the results are; the exit code is 1 if all runs diverged."""
    print(f"run:     {folder}\npicture: {folder / layout.CURVES}")
    if all(record.diverged is not None for record in records):
        raise typer.Exit(1)
