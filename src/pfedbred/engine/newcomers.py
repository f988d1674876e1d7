"""Clients that join when training is over: how well does a method personalise to clients it has not seen?

A newcomer receives the message that the server sends to new clients, starts from it, and trains alone for some rounds.
The server does not learn from it, so its updates are not compared with those of other newcomers.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from pfedbred.algorithms.base import Algorithm
from pfedbred.data.federation import Federation
from pfedbred.engine.backend import Backend
from pfedbred.engine.resident import ResidentBackend
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.selection import fixed

S = TypeVar("S")


def join(
    backend: Backend[S], state: S, newcomers: Federation, rounds: int, algorithm: Algorithm | None = None
) -> list[Evaluation]:
    """The newcomers' G and P after 0, 1, ..., ``rounds`` rounds of training on their own.

    ``algorithm`` is how they train, by default as in the backend's first round.
    """
    alone = dataclasses.replace(
        backend.plan, select=fixed(range(newcomers.clients)), participation="all", screening="finite"
    )
    arrival = ResidentBackend(frozen(algorithm or backend.algorithm), backend.task, newcomers, alone)
    joined = arrival.init_from(backend.servers(state))
    evaluations = [arrival.evaluate(joined)]
    for _ in range(rounds):
        joined = arrival.advance(joined, 1)
        evaluations.append(arrival.evaluate(joined))
    backend.compile_seconds += arrival.compile_seconds
    return evaluations


def frozen(algorithm: Algorithm) -> Algorithm:
    """The algorithm with a server that treats every client as new and never changes."""
    server, client = algorithm.server, algorithm.client
    welcome = server.welcome
    return algorithm._replace(
        client=client._replace(prepare=None, synced=False),
        server=server._replace(
            send=(lambda state, i: welcome(state)) if welcome else server.send,
            aggregate=lambda state, uploads: state,
            prepare=None,
        ),
    )
