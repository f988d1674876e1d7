"""Any settings are either rejected before any work begins, or run to the end."""

import json
import math
import typing
import warnings

import numpy as np
import pytest
from conftest import small_federation
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import pfedbred
from pfedbred import algorithms
from pfedbred import settings as settings_
from pfedbred.experiment.building import build
from pfedbred.experiment.configuration import Experiment
from pfedbred.experiment.loop import train

COUNTS = [1, 2, 3, 2.0, "2"]
NUMBERS = [1, 0.5, 0.01, 0.1, 1.0, "1e-2"]
STRANGE = [
    0, -1, 5, 64, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 10**400, 1e-320, 1e-30, 1e30, 1e300, -0.5, 1.5, True,
    False, math.nan, math.inf, -math.inf, "", "x", "nan", "0", "all", "global", "gaussian", "../../x", "\0", "\ud800",
    "fedavg+x", None, [], [1], [0, 1], [0, 0], [-1], [9], ["a"], [[1], [2, 3]], [1.0], [None], {}, {"a": 1}, "0 1 2 3",
    np.float32(0.5), np.int64(2), "0,1", "9" * 5000,
]  # fmt: skip
OWN = {  # what a field can sensibly be
    "algorithm": [*algorithms.ALGORITHMS, "fedavg+am", "pfedme+ft", "mg-meta+ft+am", "local+am+ft"],
    "model": ["mclr", "dnn", "cnn", "lstm"],
    "rounds": [1, 2, 3],
    "participation": ["all", "sample"],
    "aggregated": [1, 2, 4, None],
    "select": ["uniform", "by-data", [0, 2], "1,3", "2"],
    "store": ["auto", "device", "memory", "file"],
    "weights": ["data", "uniform"],
    "executor": ["auto", "vmap", "in-turn", "loop"],
    "chunk": [None, 1, 3, 100],
    "eval_every": [1, 2, 100],
    "batch_size": [1, 2, 20, 64],
    "held_out_clients": [None, 0.25, 0.5, 0, 1],
    "joining_rounds": [1, 2],
    "seeds": [1, 2],
    "seed": [0, 7, 2**32 - 1],
    "scored_clients": [None, 1, 2, 100],
    "clients": [None, 4],
    "dataset": ["small"],
}
CHOICES = {
    "prior": ["gaussian", "bernoulli", "poisson", "exponential"],
    "mean": ["fo", "mfo", "mg", "mg-meta"],
    "prox_solver": ["gradient", "mirror", "adam"],
    "sigma": [None, 2.0, [1.0] * 15],
}


def federations():
    """Numbers, images and words; four clients each, one of them without test samples."""
    rng = np.random.default_rng(0)
    texts = np.array(["good day", "bad day", "good sun", "bad rain"] * 4, object)
    owner = np.repeat(np.arange(4), 4)
    picture = rng.integers(0, 256, (16, 28, 28), dtype=np.uint8)
    return {
        "numbers": small_federation(sizes=(5, 1, 7, 2), features=4),
        "images": pfedbred.from_arrays(picture, np.arange(16) % 3, owner),
        "words": pfedbred.from_arrays(texts, np.arange(16) % 2, owner),
    }


FEDERATIONS = federations()


def value(sensible, strange):
    """Mostly what is sensible."""
    return rarely(strange).flatmap(lambda is_strange: st.sampled_from(STRANGE if is_strange else sensible))


def rarely(percent):
    """True so often. (Hypothesis prefers small numbers, so that they do not count.)"""
    return st.integers(0, 99).map(lambda i: i >= 100 - percent)


@st.composite
def experiments(draw, strange):
    """Options of an experiment, and the data to run it on; ``strange`` percent of the values are."""
    chosen = draw(st.sets(st.sampled_from(sorted(OWN)), max_size=7)) | {"algorithm", "rounds"}
    options = {name: draw(value(OWN[name], strange)) for name in sorted(chosen)}
    try:
        known = settings_.declared(algorithms.builder(options["algorithm"]))
    except (pfedbred.SettingError, AttributeError):  # the algorithm is strange itself
        known = {}
    own = {}
    for name in draw(st.sets(st.sampled_from(sorted(known)), max_size=4)) if known else ():
        allowed = typing.get_args(known[name].annotation)
        words = [each for each in allowed if isinstance(each, str)] or CHOICES.get(name)
        words = words or (COUNTS if settings_.is_whole_number(known[name].annotation) else NUMBERS)
        own[name] = draw(value(words, strange))
    for name, steps in (("R", 1), ("K", 1)):
        if name in known:
            own.setdefault(name, steps)
    options["settings"] = draw(st.sampled_from(STRANGE)) if draw(rarely(strange)) else own
    kind = {"cnn": "images", "lstm": "words"}.get(str(options.get("model")), "numbers")
    return options, draw(st.sampled_from(sorted(FEDERATIONS))) if draw(rarely(strange)) else kind


def built(options, federation):
    """The experiment ready to run; None if it is rejected."""
    try:
        ready = build(Experiment.from_mapping({**options, "dataset": federation}))
    except pfedbred.SettingError as rejected:
        message = str(rejected)
    else:
        return ready
    assert message.isprintable()
    assert message
    return None


def is_small(experiment):
    """Whether it is done in seconds: a million local steps run, but not in a test."""
    counts = [experiment.rounds, experiment.seeds, experiment.joining_rounds]
    counts += [each for each in experiment.settings.values() if isinstance(each, int)]
    return max(counts) <= 5 and experiment.batch_size <= 64


def run_through(options, kind):
    federation = FEDERATIONS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", "overflow encountered"
        )  # lam / alpha_k, say: the run diverges, and reports it
        ready = built(options, federation)
        event("rejected" if ready is None else "ready")
        if ready is None or not is_small(ready.experiment):
            return False
        finished = train(ready)
        summary = finished.record().summary
    json.dumps(summary, allow_nan=False)
    assert finished.points[-1].round == ready.experiment.rounds
    return True


PATIENT = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def reject_or_build(asked):
    options, kind = asked
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", "overflow encountered"
        )  # lam / alpha_k, say: the run diverges, and reports it
        built(options, FEDERATIONS[kind])


@settings(max_examples=8, **PATIENT)
@given(experiments(strange=12))
def test_strange_settings_are_rejected_before_any_work(asked):
    reject_or_build(asked)


@pytest.mark.full
@settings(max_examples=60, **PATIENT)
@given(experiments(strange=12))
def test_more_strange_settings_are_rejected_before_any_work(asked):
    reject_or_build(asked)


@settings(max_examples=3, **PATIENT)
@given(experiments(strange=1))
def test_what_is_not_rejected_runs(asked):
    event(f"ran: {run_through(*asked)}")


@pytest.mark.full
@settings(max_examples=20, **PATIENT)
@given(experiments(strange=2))
def test_more_of_what_is_not_rejected_runs(asked):
    run_through(*asked)


@pytest.mark.slow
@settings(max_examples=1000, **PATIENT)
@given(experiments(strange=5))
def test_what_is_not_rejected_runs_many_times(asked):
    run_through(*asked)


HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": HUGE}, "85,899,345,880 samples in a round"),
        ({"settings": {"R": HUGE}}, "take fewer local steps"),
        ({"seeds": HUGE}, "the run needs .* GB for models"),
        ({"algorithm": "fedem", "settings": {"M": HUGE}}, "M must be a whole number from 1 to 1000"),
        ({"algorithm": "fedavg", "settings": {"alpha": 1e300}}, "alpha must be a number that 32 bits can hold"),
        ({"algorithm": "fedavg", "settings": {"alpha": 10**400}}, "alpha must be a number > 0"),
        ({"settings": {"sigma": 1e300}}, "sigma must hold finite real numbers"),
        ({"settings": {"sigma": []}}, "sigma must hold finite real numbers"),
        ({"select": ["a"]}, "a selection must be client numbers from 0 to 3"),
        ({"select": [[1], [2, 3]]}, "a selection must be client numbers from 0 to 3"),
        ({"select": [True]}, "a selection must be client numbers from 0 to 3"),
        ({"select": "9" * 5000}, "unknown selection"),
        ({"model": "../x"}, "unknown model"),
    ],
)
def test_what_does_not_fit_is_rejected(options, words):
    with pytest.raises(pfedbred.SettingError, match=words):
        build(Experiment.from_mapping({"algorithm": "mg-meta", "dataset": FEDERATIONS["numbers"], **options}))


@pytest.mark.parametrize("dataset", ["x" * 300, "a/\0", "\0", "x" * 300 + ".npz", "x" * 5000, "../../x.fed", "/"])
def test_strange_datasets_are_rejected(dataset):
    with pytest.raises(pfedbred.SettingError):
        build(Experiment.from_mapping({"dataset": dataset}))
    with pytest.raises(pfedbred.SettingError, match="is not a valid path"):
        Experiment.from_mapping({"data_dir": "a\0"})
