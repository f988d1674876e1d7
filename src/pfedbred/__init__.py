"""pfedbred: personalised federated learning with Bregman-divergence priors, compiled with JAX."""

from pfedbred import models
from pfedbred._version import __version__
from pfedbred.algorithms import ALGORITHMS, make
from pfedbred.algorithms.base import Algorithm, Client, Server, Task
from pfedbred.bregman import means, priors
from pfedbred.bregman import proximal as prox
from pfedbred.data import DATASETS, Federation, from_arrays, from_clients, from_dataset, load
from pfedbred.engine import Evaluation, Plan, Simulation, State, use_all_cores
from pfedbred.errors import SettingError
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.loop import Run, run
from pfedbred.experiment.sweep import Sweep, sweep
from pfedbred.runs.saved_models import load_model

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "Algorithm",
    "Client",
    "Evaluation",
    "Experiment",
    "Federation",
    "Plan",
    "Run",
    "Server",
    "SettingError",
    "Simulation",
    "State",
    "Sweep",
    "Task",
    "__version__",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "load",
    "load_model",
    "make",
    "means",
    "models",
    "priors",
    "prox",
    "run",
    "sweep",
    "use_all_cores",
]
