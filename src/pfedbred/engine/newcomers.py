"""Clients that come when training is over: how well does a method personalise to someone it has never met?

A newcomer receives what the server sends to strangers, starts from it, and trains alone for some rounds. The server
does not learn from it.
"""

from __future__ import annotations

from pfedbred.algorithms.base import Algorithm
from pfedbred.data.federation import Federation
from pfedbred.engine.evaluation import Evaluation
from pfedbred.engine.resident import Simulation, State
from pfedbred.engine.round import Plan
from pfedbred.engine.selection import fixed
from pfedbred.engine.streamed import StreamedSimulation


def join(
    simulation: Simulation | StreamedSimulation, states: State, newcomers: Federation, rounds: int
) -> list[Evaluation]:
    """The newcomers' G and P after 0, 1, ..., ``rounds`` rounds of training on their own."""
    plan = simulation.plan
    everyone = fixed(range(newcomers.clients))
    own = Plan(everyone, "all", plan.weights, plan.batch_size, plan.executor, plan.chunk)
    arrival = Simulation(settled(simulation.algorithm), simulation.task, newcomers, own)
    joined = arrival.meet(states)
    evaluations = [arrival.evaluate(joined)]
    for _ in range(rounds):
        joined = arrival.advance(joined, 1)
        evaluations.append(arrival.evaluate(joined))
    simulation.compile_seconds += arrival.compile_seconds
    return evaluations


def settled(algorithm: Algorithm) -> Algorithm:
    """The algorithm with a server that sends to strangers and learns no more."""
    server, client = algorithm.server, algorithm.client
    welcome = server.welcome
    return algorithm._replace(
        client=client._replace(prepare=None),
        server=server._replace(
            send=(lambda state, i: welcome(state)) if welcome else server.send,
            aggregate=lambda state, uploads: state,
            prepare=None,
        ),
    )
