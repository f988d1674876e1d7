"""pfedbred: personalised federated learning with Bregman-divergence priors, compiled with JAX."""

import signal
import sys
from pathlib import PurePath

# Ctrl-C while the command line is still being imported ends it without a traceback; its main() takes over from there.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler and (
    PurePath(*sys.argv[:1]).stem == "pfedbred" or sys.orig_argv[1:3] == ["-m", "pfedbred"]
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from pfedbred import models
from pfedbred._version import __version__
from pfedbred.aggregation import RULES, Gathered, Rule
from pfedbred.algorithms import ALGORITHMS, make
from pfedbred.algorithms.base import (
    Algorithm,
    Client,
    Server,
    ServerState,
    Task,
    Uploads,
    averaging_server,
    descend,
    method,
)
from pfedbred.bregman import means, priors
from pfedbred.bregman import proximal as prox
from pfedbred.data import DATASETS, Federation, from_arrays, from_clients, from_dataset, load
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.engine import Backend, Evaluation, Plan, ResidentBackend, State, StreamedBackend, use_all_cores
from pfedbred.engine.history import Point
from pfedbred.engine.metrics import METRICS, Metric, Predictions
from pfedbred.engine.selection import SELECTIONS
from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks import Callback, Interruption, Patience
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.experiment.run import run
from pfedbred.experiment.sweep import sweep
from pfedbred.experiment.sweep_result import Sweep
from pfedbred.models import MODELS, Model
from pfedbred.runs.record import RunRecord
from pfedbred.runs.saved_models import TrainedModel, export, load_model
from pfedbred.settings import Count, Fraction, NonNegative, Positive

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "METRICS",
    "MODELS",
    "RULES",
    "SELECTIONS",
    "Algorithm",
    "Backend",
    "Batch",
    "Callback",
    "Client",
    "ClientData",
    "Count",
    "Evaluation",
    "Experiment",
    "Federation",
    "Fraction",
    "Gathered",
    "Interruption",
    "Metric",
    "Model",
    "NonNegative",
    "Patience",
    "Plan",
    "Point",
    "Positive",
    "Predictions",
    "Progress",
    "ResidentBackend",
    "Rule",
    "Run",
    "RunRecord",
    "Server",
    "ServerState",
    "SettingError",
    "State",
    "StreamedBackend",
    "Sweep",
    "Task",
    "TrainedModel",
    "Uploads",
    "__version__",
    "averaging_server",
    "descend",
    "export",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "load",
    "load_model",
    "make",
    "means",
    "method",
    "models",
    "priors",
    "prox",
    "run",
    "sweep",
    "use_all_cores",
]
