"""The engine: executors, the compiled round, evaluation."""

from pfedbred.engine.devices import join_processes, keep_programs, use_all_cores
from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.resident import Simulation, State
from pfedbred.engine.round import Plan
from pfedbred.engine.streamed import StreamedSimulation

__all__ = [
    "Evaluation",
    "Plan",
    "Simulation",
    "State",
    "StreamedSimulation",
    "join_processes",
    "keep_programs",
    "use_all_cores",
]
