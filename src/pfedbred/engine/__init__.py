"""The engine: executors, the compiled round, evaluation."""

from pfedbred.engine.devices import join_processes, keep_programs, use_all_cores
from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.simulation import Plan, Simulation, State

__all__ = ["Evaluation", "Plan", "Simulation", "State", "join_processes", "keep_programs", "use_all_cores"]
