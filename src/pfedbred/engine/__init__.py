"""The engine: backends, the compiled round, executors, evaluation."""

from typing import TypeAlias

from pfedbred.engine.backend import Backend
from pfedbred.engine.devices import join_processes, keep_programs, use_all_cores
from pfedbred.engine.plan import Plan
from pfedbred.engine.resident import ResidentBackend, ResidentState
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.streamed import StreamedBackend, StreamedState

__all__ = [
    "Backend",
    "Evaluation",
    "Plan",
    "ResidentBackend",
    "ResidentState",
    "Simulated",
    "StreamedBackend",
    "join_processes",
    "keep_programs",
    "use_all_cores",
]

Simulated: TypeAlias = ResidentState | StreamedState
"""The state of a simulation between two rounds."""
