"""Tracing is most of a short run's start: a client's training is traced once, whatever runs it."""

import pytest
from conftest import small_federation

import pfedbred

OPTIONS = {"rounds": 2, "aggregated": 2, "batch_size": 3, "executor": "in-turn"}
SAMPLED = {"participation": "sample"}


def counting(calls):
    """FedAvg whose training notes each time it is traced."""

    def build(task, *, alpha: pfedbred.Positive = 0.01):
        fedavg = pfedbred.make("fedavg", task, {"R": 1})

        def train(message, state, data):
            calls.append(alpha)
            return fedavg.client.train(message, state, data)

        return fedavg._replace(client=fedavg.client._replace(train=train))

    return build


@pytest.mark.parametrize(
    "options",
    [
        {"diagnostics": True},  # whose names and types have to be known before the round is traced
        *(
            pytest.param(options, marks=pytest.mark.full)
            for options in [
                {},
                {"seeds": 2},
                {"seeds": 2, "diagnostics": True, "model": "dnn"},  # whose responses are kept
                {**SAMPLED, "store": "device"},
                {**SAMPLED, "store": "device", "diagnostics": True, "executor": "vmap"},
                {**SAMPLED, "store": "memory"},
                {**SAMPLED, "store": "memory", "diagnostics": True},
            ]
        ),
    ],
)
@pytest.mark.few_cases
def test_a_run_traces_training_once(options):
    calls = []
    # Clients of one size: another number of rows, rounded up to a power of two, is another program.
    federation = small_federation((8, 8, 8, 8))
    pfedbred.run(federation=federation, algorithm=counting(calls), **{**OPTIONS, **options})
    assert len(calls) == 1


@pytest.mark.full
def test_a_sweep_traces_training_once():
    """Though its two points run one after the other."""
    calls = []
    experiment = pfedbred.Experiment(algorithm=counting(calls), **OPTIONS)
    pfedbred.sweep(experiment, {"alpha": [0.01, 0.1]}, federation=small_federation((8, 8, 8, 8)), memory=1)
    assert len(calls) == 1
