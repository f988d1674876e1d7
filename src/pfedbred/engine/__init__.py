"""The engine: executors, the compiled round, evaluation."""

from pfedbred.engine.devices import join_processes, keep_programs, use_all_cores
from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.round import Plan
from pfedbred.engine.simulation import Simulation, State

__all__ = ["Evaluation", "Plan", "Simulation", "State", "join_processes", "keep_programs", "use_all_cores"]
