"""The backend protocol: every backend has all of it, and the same run gives the same results and checkpoints."""

import inspect

import jax
import numpy as np
import pytest
from support.backends import assert_close, backend, federation, numbers, trained

import pfedbred
from pfedbred.engine import Backend, ResidentBackend
from pfedbred.engine.backend import Pending, Saved
from pfedbred.engine.scores import Evaluation
from pfedbred.engine.screening import Rejections

SIZES = (7, 12, 5, 20, 9, 3)
OPTIONS = {"data": federation(SIZES), "participation": "sample"}


def missing_members(made):
    """What a backend lacks of the protocol: attributes, properties, or methods that take the same arguments."""
    problems = [name for name in Backend.__annotations__ if not hasattr(made, name)]
    for name, member in vars(Backend).items():
        if name.startswith("_"):
            continue
        if not hasattr(made, name):
            problems.append(name)
        elif inspect.isfunction(member):
            wanted = list(inspect.signature(member).parameters.values())[1:]
            named = {each.name: each for each in wanted if each.kind is each.KEYWORD_ONLY}
            try:
                inspect.signature(getattr(made, name)).bind(
                    *(each for each in wanted if each.name not in named), **named
                )
            except TypeError:
                problems.append(f"{name} does not take {len(wanted)} arguments")
    return problems


@pytest.fixture(scope="module")
def runs():
    """The same run in both backends: each with its state."""
    return [trained("mg-meta", streamed=streamed, **OPTIONS) for streamed in (False, True)]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_backend_has_every_member_of_the_protocol(streamed):
    assert missing_members(backend("mg-meta", streamed=streamed, **OPTIONS)) == []


def test_a_missing_member_is_noticed():
    class Partial(ResidentBackend):
        def __getattribute__(self, name):
            if name in ("save", "plan", "store"):
                raise AttributeError(name)
            return super().__getattribute__(name)

        def advance(self, states):
            return states

    problems = missing_members(object.__new__(Partial))
    assert {"plan", "save", "store", "advance does not take 2 arguments"} <= set(problems)
    assert "evaluate" not in problems


@pytest.mark.broad
@pytest.mark.broad
def test_backends_give_the_same_evaluations(runs):
    (resident, expected), (streamed, found) = runs
    assert_close(numbers(resident.evaluate(expected)), numbers(streamed.evaluate(found)))
    assert_close(resident.models(expected), streamed.models(found))
    assert resident.rejections(expected) == streamed.rejections(found) == Rejections([{}], [0], [0])


def test_results_have_the_types_of_the_protocol(runs):
    for made, state in runs:
        pending = made.start_evaluation(state)
        assert isinstance(pending, Pending)
        assert isinstance(pending.result, Evaluation)
        assert isinstance(made.save(state), Saved)
        assert made.diagnostics(state) == {}
        assert made.federation.clients == len(SIZES)
        assert made.samples is made.federation
        assert made.state_bytes() > 0
        assert made.model_bytes() == sum(leaf.nbytes for leaf in jax.tree.leaves(made.models(state)))
    (resident, on_device), (streamed, stored) = runs
    assert (resident.store, streamed.store) == ("device", "memory")
    assert resident.participated(on_device) is None
    assert streamed.participated(stored) == np.asarray(on_device.clients.participated).sum(axis=1).tolist()


def read_back(saved):
    """The arrays as a checkpoint's file returns them."""
    return {
        name: array if isinstance(array, np.ndarray) else np.concatenate([*array.pieces()])
        for name, array in saved.arrays.items()
    }


@pytest.mark.parametrize("streamed", [False, True])
def test_a_loaded_state_continues_as_the_saved_one(streamed):
    made, state = trained("mg-meta", streamed=streamed, rounds=2, **OPTIONS)
    saved = made.save(state)
    loaded = made.load(Saved(read_back(saved), saved.facts), 1)
    expected, found = made.advance(state, 1), made.advance(loaded, 1)
    assert_close(expected.server, found.server)
    assert_close(made.models(expected), made.models(found))


def test_checkpoints_of_version_1_are_loaded():
    """They call the count of rejected updates ``sick``, and ``met`` what is ``participated`` now."""
    made, state = trained("mg-meta", rounds=1, **OPTIONS)
    rejected = jax.numpy.arange(len(SIZES), dtype=np.uint32)[None]
    state = state._replace(clients=state.clients._replace(rejected=rejected))
    arrays = read_back(made.save(state))
    earlier = {"clients.rejected": "clients.sick", "clients.participated": "clients.met"}
    assert earlier.keys() < arrays.keys()
    old = {earlier.get(name, name): array for name, array in arrays.items()}
    loaded = made.load(Saved(old, {}), 1)
    assert made.rejections(loaded) == made.rejections(state)
    assert made.rejections(loaded).rejected == [{str(i): i for i in range(1, len(SIZES))}]
    assert made.participated(loaded) == made.participated(state) != [0]
    assert_close(loaded.server, state.server)


def test_streamed_checkpoints_of_earlier_versions_are_loaded():
    """They call the counts of rejected updates ``left_out``."""
    made, state = trained("mg-meta", streamed=True, rounds=1, **OPTIONS)
    state.clients[0].rejected.update([2, 4, 4])
    arrays = read_back(made.save(state))
    assert arrays["rejected.0"].tolist() == [[2, 1], [4, 2]]
    old = {name.replace("rejected.", "left_out."): array for name, array in arrays.items()}
    assert old.keys() != arrays.keys()
    loaded = made.load(Saved(old, {}), 1)
    assert made.rejections(loaded).rejected == [{"2": 1, "4": 2}]


def test_a_checkpoint_of_another_run_is_rejected():
    made, state = trained("mg-meta", rounds=1, **OPTIONS)
    arrays = read_back(made.save(state))
    with pytest.raises(pfedbred.SettingError, match="the checkpoint"):
        made.load(Saved({**arrays, "round": np.zeros(3, np.int32)}, {}), 1)
    del arrays["clients.rejected"]
    with pytest.raises(pfedbred.SettingError, match="the checkpoint"):
        made.load(Saved(arrays, {}), 1)
