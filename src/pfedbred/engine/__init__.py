"""The engine: backends, the compiled round, executors, evaluation."""

from pfedbred.engine.backend import Backend
from pfedbred.engine.devices import join_processes, keep_programs, use_all_cores
from pfedbred.engine.plan import Plan
from pfedbred.engine.resident import ResidentBackend, State
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.streamed import StreamedBackend

__all__ = [
    "Backend",
    "Evaluation",
    "Plan",
    "ResidentBackend",
    "State",
    "StreamedBackend",
    "join_processes",
    "keep_programs",
    "use_all_cores",
]
