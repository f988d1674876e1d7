"""TensorBoard: event files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pfedbred.errors import file_name
from pfedbred.experiment.callbacks.trackers.base import Ending, Start, Tracker, imported
from pfedbred.experiment.callbacks.trackers.content import Flat, Measured
from pfedbred.runs import layout

_BINS = 30
_TEXTS = (layout.CONFIG, layout.SUMMARY)


class TensorBoard(Tracker):
    """TensorBoard: event files, to be seen with ``tensorboard --logdir FOLDER``.

    The folder has the means over seeds; of several seeds, each has a folder below, which TensorBoard draws as curves in
    the same charts. In a comparison or a sweep each run has a folder.

    Example:
      >>> import pfedbred, tempfile
      >>> board = pfedbred.trackers.TensorBoard(tempfile.mkdtemp())
      >>> result = pfedbred.run(rounds=2, clients=10, callbacks=[board])
    """

    name: ClassVar[str] = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        """``folder`` is for the event files; by default ``tracking/tensorboard`` in the run folder."""
        super().__init__(folder)
        # Not its SummaryWriter, whose thread writes when it likes and keeps its errors to itself.
        self._files, self._summary, self._events = imported(
            "tensorboard", "tensorboardX.event_file_writer", "tensorboardX.summary", "tensorboardX.proto.event_pb2"
        )
        self._writers: list[Any] = []
        self._seeds: list[Any] = []
        self._round = 0
        self._hparams: tuple[Flat, dict[str, float]] = ({}, {})

    def open(self, start: Start) -> str:
        """Starts another event file in each folder, as TensorBoard expects of a resumed run."""
        assert start.folder is not None
        folder = start.folder if start.group is None else start.folder / file_name(start.name)
        below = [folder / f"seed-{seed}" for seed in start.seeds] if len(start.seeds) > 1 else []
        self._writers = [self._writer(each) for each in (folder, *below)]
        self._seeds, self._round = self._writers[1:], start.round
        self._hparams = (start.settings, dict.fromkeys(start.figures, 0.0))
        if start.id is None:
            experiment, session, _ = self._summary.hparams(*self._hparams)
            self._write(self._writers[0], experiment, 0)
            self._write(self._writers[0], session, 0)
        else:  # TensorBoard forgets what the files before have of later rounds
            again = self._events.SessionLog(status=self._events.SessionLog.START)
            for writer in self._writers:
                writer.write_event(self._events.Event(wall_time=time.time(), step=start.round + 1, session_log=again))
        return start.name

    def record(self, evaluation: Measured) -> None:
        """Scalars, and histograms over clients."""
        self._round = evaluation.round
        numbers = [evaluation.means(), *(evaluation.of_seed(i) for i in range(len(self._seeds)))]
        for writer, each in zip(self._writers, numbers, strict=True):
            for name, number in each.items():
                self._write(writer, self._summary.scalar(name, number), evaluation.round)
        for name, values in evaluation.clients.items():
            if values.size:
                self._write(self._writers[0], self._summary.histogram(name, values, _BINS), evaluation.round)
        for writer in self._writers:
            writer.flush()

    def finish(self, figures: Mapping[str, float], files: Sequence[Path]) -> None:
        """The figures, the picture, and the two files that are short enough to be read there."""
        from matplotlib.image import imread

        for name, number in figures.items():
            self._write(self._writers[0], self._summary.scalar(name, number), self._round)
        for file in files:
            if file.name == layout.CURVES:
                pixels = np.round(255 * imread(file)).astype(np.uint8)
                picture = self._summary.image(file.stem, pixels, dataformats="HWC")
                self._write(self._writers[0], picture, self._round)
            elif file.name in _TEXTS:
                indented = "".join(
                    f"    {line}\n" for line in file.read_text("utf-8").splitlines()
                )  # code, in Markdown
                self._write(self._writers[0], self._summary.text(file.name, indented), self._round)

    def close(self, ending: Ending) -> None:
        """Closes the files."""
        if ending == "finished":
            self._write(self._writers[0], self._summary.hparams(*self._hparams)[2], self._round)
        for writer in self._writers:
            writer.close()

    def _writer(self, folder: Path) -> Any:
        folder.mkdir(0o700, exist_ok=True)
        part = len(list(folder.glob("events.*")))  # two files of one second would have the same name
        return self._files.EventsWriter(str(folder / "events"), f".{part}")

    def _write(self, writer: Any, summary: Any, step: int) -> None:
        writer.write_event(self._events.Event(wall_time=time.time(), step=step, summary=summary))
