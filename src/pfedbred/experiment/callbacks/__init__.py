"""Callbacks: everything that happens around rounds."""

from pfedbred.experiment.callbacks.base import Callback
from pfedbred.experiment.callbacks.checkpointing import Checkpoints
from pfedbred.experiment.callbacks.metrics_writer import MetricsWriter
from pfedbred.experiment.callbacks.stopping import Interruption, Patience, Stopped

__all__ = ["Callback", "Checkpoints", "Interruption", "MetricsWriter", "Patience", "Stopped"]
