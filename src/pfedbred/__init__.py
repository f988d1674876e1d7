"""pfedbred: personalised federated learning with Bregman-divergence priors, compiled with JAX."""

from pfedbred import means, models, priors, prox
from pfedbred._version import __version__
from pfedbred.algorithm import Algorithm, Client, Server, Task
from pfedbred.algorithms import ALGORITHMS, make
from pfedbred.data import DATASETS, Federation, from_arrays, from_clients, from_dataset, load
from pfedbred.engine import Evaluation, Plan, Simulation, State, use_all_cores
from pfedbred.errors import SettingError
from pfedbred.experiment import Experiment
from pfedbred.exports import load_model
from pfedbred.running import Run, run
from pfedbred.sweep import Sweep, sweep

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
