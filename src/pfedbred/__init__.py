"""pfedbred: personalised federated learning with Bregman-divergence priors, compiled with JAX."""

import signal
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

# Ctrl-C while the command line is still being imported ends it without a traceback; its main() takes over from there.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler and (
    PurePath(*sys.argv[:1]).stem == "pfedbred" or sys.orig_argv[1:3] == ["-m", "pfedbred"]
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from pfedbred import models, tasks
from pfedbred._version import __version__
from pfedbred.aggregation import RULES, Gathered, Rule, weighted_mean
from pfedbred.algorithms import ALGORITHMS, body_and_head, make
from pfedbred.algorithms.base import (
    Algorithm,
    Client,
    Info,
    Networks,
    Server,
    ServerState,
    Task,
    Uploads,
    averaging_server,
    method,
)
from pfedbred.algorithms.local_steps import LocalResult, Step, Work, descend, draws, local_steps
from pfedbred.bregman import means, priors
from pfedbred.bregman import proximal as prox
from pfedbred.bregman.families.base import Family
from pfedbred.bregman.means import Chosen, Context, Mean
from pfedbred.data import (
    DATASETS,
    Assignment,
    Dataset,
    Federation,
    Pool,
    Population,
    from_arrays,
    from_clients,
    from_dataset,
    load,
)
from pfedbred.data.columns import Encoding
from pfedbred.data.minibatches import Batch, ClientData
from pfedbred.data.text import Text
from pfedbred.engine import Backend, Evaluation, Plan, ResidentBackend, ResidentState, StreamedBackend, use_all_cores
from pfedbred.engine.backend import DataInfo, Pending, Saved
from pfedbred.engine.evaluation import Outputs
from pfedbred.engine.history import Point
from pfedbred.engine.metrics import METRICS, Metric, Predictions
from pfedbred.engine.round import Servers
from pfedbred.engine.screening import Rejections
from pfedbred.engine.selection import SELECTIONS, Select
from pfedbred.engine.streamed import StreamedState
from pfedbred.errors import SettingError
from pfedbred.experiment.callbacks import Callback, Interruption, Patience, Stopped, trackers
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.newcomer import adapt
from pfedbred.experiment.progress import Progress
from pfedbred.experiment.result import Run
from pfedbred.experiment.run import run
from pfedbred.experiment.space import Range
from pfedbred.experiment.sweep import sweep
from pfedbred.experiment.sweep_result import Sweep
from pfedbred.experiment.sweeping import Sweeping
from pfedbred.models import MODELS, Model
from pfedbred.runs.exporting import export
from pfedbred.runs.record import RunRecord
from pfedbred.runs.trained_model import TrainedModel, load_model
from pfedbred.settings import Count, Fraction, NonNegative, Positive
from pfedbred.tasks import TASKS, Target, TaskKind
from pfedbred.types import Array, Key, Tree, Words

if TYPE_CHECKING:
    from pfedbred.estimators import PersonalizedClassifier, PersonalizedRegressor

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "METRICS",
    "MODELS",
    "RULES",
    "SELECTIONS",
    "TASKS",
    "Algorithm",
    "Array",
    "Assignment",
    "Backend",
    "Batch",
    "Callback",
    "Chosen",
    "Client",
    "ClientData",
    "Context",
    "Count",
    "DataInfo",
    "Dataset",
    "Encoding",
    "Evaluation",
    "Experiment",
    "Family",
    "Federation",
    "Fraction",
    "Gathered",
    "Info",
    "Interruption",
    "Key",
    "LocalResult",
    "Mean",
    "Metric",
    "Model",
    "Networks",
    "NonNegative",
    "Outputs",
    "Patience",
    "Pending",
    "PersonalizedClassifier",
    "PersonalizedRegressor",
    "Plan",
    "Point",
    "Pool",
    "Population",
    "Positive",
    "Predictions",
    "Progress",
    "Range",
    "Rejections",
    "ResidentBackend",
    "ResidentState",
    "Rule",
    "Run",
    "RunRecord",
    "Saved",
    "Select",
    "Server",
    "ServerState",
    "Servers",
    "SettingError",
    "Step",
    "Stopped",
    "StreamedBackend",
    "StreamedState",
    "Sweep",
    "Sweeping",
    "Target",
    "Task",
    "TaskKind",
    "Text",
    "TrainedModel",
    "Tree",
    "Uploads",
    "Words",
    "Work",
    "__version__",
    "adapt",
    "averaging_server",
    "body_and_head",
    "descend",
    "draws",
    "export",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "load",
    "load_model",
    "local_steps",
    "make",
    "means",
    "method",
    "models",
    "priors",
    "prox",
    "run",
    "sweep",
    "tasks",
    "trackers",
    "use_all_cores",
    "weighted_mean",
]


def __getattr__(name: str) -> Any:
    """Imports the estimators on first use: scikit-learn takes a second to import."""
    if name not in ("PersonalizedClassifier", "PersonalizedRegressor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pfedbred import estimators

    return getattr(estimators, name)
