"""A sick client does not spread: it is left out, restored, counted and named, and the run goes on."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation
from hypothesis import given
from hypothesis import strategies as st
from support.poison import POISONS, numbered, poisoned

import pfedbred
from pfedbred.aggregation.rules import NAMES, Rule
from pfedbred.data.minibatches import ClientData, Inputs
from pfedbred.engine import StreamedSimulation, screening, selection
from pfedbred.paper import table

SIZES = (7, 12, 5, 20, 9)


def make(name, federation, dtype=jnp.float64):
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes, dtype=dtype))
    return pfedbred.make(name, task, {"R": 2}), task


def simulate(name, chosen, bad=(), *, seeds=(0,), what=None, **plan):
    """Of five clients, some of them sick while ``states.settings["sick"]`` is 1, as it is not at first."""
    federation = small_federation(SIZES)
    algorithm, task = make(name, federation)
    plan = pfedbred.Plan(selection.fixed(chosen), **{"batch_size": 4, "executor": "vmap", **plan})

    def vary(own):
        broken = lambda start, tree: jax.tree.map(lambda leaf: jnp.where(own["sick"] > 0, jnp.nan, leaf), tree)  # noqa: E731
        return poisoned(algorithm, bad, broken, **(what or {}))

    simulation = pfedbred.Simulation(algorithm, task, federation, plan, vary if bad else None)
    return simulation, simulation.init(seeds, {"sick": np.zeros(len(seeds))} if bad else None)


def sick(states, on=1.0):
    return states._replace(settings={"sick": jnp.full_like(states.settings["sick"], on)})


def copy(states):
    """On the host: a state is used up by going on from it."""
    return jax.tree.map(np.array, states._replace(key=()))


def arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def assert_close(one, other):
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


# Who is sick -----------------------------------------------------------------------------------------------

norms = st.one_of(st.sampled_from([0.0, np.nan, np.inf, 1.0, 100.0, 101.0]), st.floats(0, 1e6))


@given(st.lists(st.tuples(norms, st.sampled_from([0.0, 2.0, 1e4])), min_size=6, max_size=6))
def test_who_is_sick(clients):
    moved, size = (np.array(column) for column in zip(*clients, strict=True))
    finite = [m for m in moved if np.isfinite(m)]
    middle = np.median(finite) if finite else 0.0
    expected = [bool(np.isfinite(m) and not (middle > 0 and m > 100 * middle and m > s)) for m, s in clients]
    assert screening.sound(screening.Vitals(jnp.asarray(moved), jnp.asarray(size))).tolist() == expected


def test_vitals():
    start = {"a": jnp.array([1.0, 2.0]), "n": jnp.int32(5)}
    upload = {"a": jnp.array([4.0, -2.0]), "n": jnp.int32(900)}
    found = screening.examine(start, upload, ())
    assert (float(found.moved), float(found.size)) == pytest.approx((5.0, np.sqrt(5)))
    found = screening.examine(
        (start["a"],), upload, {"count": jnp.int32(3)}
    )  # another structure: the upload's own length
    assert (float(found.moved), float(found.size)) == pytest.approx((np.sqrt(20), 0.0))
    for broken in (jnp.nan, jnp.inf, -jnp.inf):
        assert not np.isfinite(screening.examine(start, {**upload, "a": jnp.array([0.0, broken])}, ()).moved)
        assert not np.isfinite(screening.examine(start, upload, [jnp.zeros(3), jnp.array(broken)]).moved)


def test_a_fedem_client_that_a_component_tells_nothing_of_is_sound():
    """The share of that component is 0 to the last digit; its logarithm would be -inf, and the client always sick."""
    algorithm, _ = make("fedem", small_federation())
    x, y = jnp.ones((4, 6)), jnp.zeros(4, int)
    server = algorithm.server.init(jax.random.key(0), 2)
    wrong = jax.tree.map(lambda leaf: leaf.at[1].set(0), server.model)
    wrong["output"]["bias"] = wrong["output"]["bias"].at[1].set(jnp.array([-1e4, 0.0, 0.0]))
    data = ClientData(Inputs(x), y, jnp.zeros((2, 4), int), jnp.int32(0), jnp.int32(4))
    _, log_weights = algorithm.client.train(wrong, algorithm.client.init(wrong), data)
    assert np.all(np.isfinite(log_weights))
    assert log_weights[1] < -500 < log_weights[0]


# Left out, and restored ------------------------------------------------------------------------------------

CASES = {
    "mg-meta": {},
    "scaffold": {},
    "mime's answers": {"answers_too": True},
    "fedem": {},
    "fedamp": {},
    "fedu": {},
    "local": {"state_too": True},
}


SAMPLED = ["mg-meta", "scaffold", "fedamp", "mime's answers"]  # the others have nothing of their own there


@pytest.mark.parametrize(
    ("case", "participation"),
    [
        pytest.param(case, "all", marks=[pytest.mark.slow] if case in ("fedem", "fedamp", "fedu", "local") else [])
        for case in CASES
    ]
    + [pytest.param(case, "sample", marks=[] if case == "scaffold" else [pytest.mark.slow]) for case in SAMPLED],
)
def test_the_others_go_on_as_if_it_were_not_there(case, participation):
    """Clients 0, 1 and 3 are selected, and 1 is sick: that is a round of 0 and 3. Its own state stays, to the bit."""
    name = case.split("'")[0]
    simulation, start = simulate(name, [0, 1, 3], [1], seeds=(0, 4), what=CASES[case], participation=participation)
    without, _ = simulate(name, [0, 3], participation=participation)
    start = simulation.advance(start, 2)
    kept = copy(start)
    expected = without.advance(jax.tree.map(jnp.copy, start._replace(settings={})), 2)
    found = simulation.advance(sick(start), 2)
    assert_close(found.server, expected.server)
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays(found.server))
    others = [0, 2, 3, 4]
    pick = lambda tree, who: jax.tree.map(lambda leaf: leaf[:, jnp.array(who)], tree)  # noqa: E731
    assert_close(pick(found.clients.state, others), pick(expected.clients.state, others))
    assert same(pick(found.clients.state, [1]), pick(kept.clients.state, [1]))
    drawn = np.asarray(found.clients.drawn) - np.asarray(kept.clients.drawn)
    assert np.all(drawn[:, 1] == drawn[:, 0])  # the next time it has other minibatches
    assert drawn[0, 0] > 0
    np.testing.assert_array_equal(found.clients.sick, [[0, 2, 0, 0, 0]] * 2)
    assert simulation.health(found) == screening.Health([{"1": 2}] * 2, [0, 0], [0, 0])


def test_a_client_that_is_sick_when_it_first_comes_has_not_taken_part():
    """Under sampling it begins with the first message after which it is sound."""
    simulation, start = simulate("mg-meta", [0, 1, 3], [1], participation="sample")
    states = simulation.advance(sick(start), 1)
    assert np.asarray(states.clients.met).tolist() == [[True, False, False, True, False]]
    assert same(simulation.personal_model(states, 1), simulation.global_model(states))


# Rounds that are skipped -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mg-meta", "scaffold", "mime"])
def test_with_too_few_the_round_is_skipped(name):
    """Of 0, 1 and 3 one is left: the server stays, to the bit; so do clients that mirror it; others keep their work."""
    simulation, start = simulate(name, [0, 1, 3], [0, 1])
    start = simulation.advance(start, 2)
    kept = copy(start)
    states = simulation.advance(sick(start), 2)
    found = copy(states)
    assert same(found.server, kept.server)
    assert (found.skipped.tolist(), found.skipped_in_row.tolist()) == ([2], [2])
    np.testing.assert_array_equal(found.clients.sick, [[2, 2, 0, 0, 0]])
    moved = [np.any((a != b).reshape(5, -1), 1) for a, b in zip(arrays(found.clients.state), arrays(kept.clients.state), strict=True)]  # fmt: skip # noqa: E501
    expected = [False, False, True, True, True] if name == "mg-meta" else [False] * 5
    assert all(each.tolist() == expected for each in moved)
    after = simulation.advance(sick(states, 0.0), 1)  # sound again
    assert (after.skipped.tolist(), after.skipped_in_row.tolist()) == ([2], [0])
    assert not same(after.server, found.server)


def test_half_of_the_selected_are_enough():
    simulation, start = simulate("fedavg", [0, 1, 2, 3], [0, 1])
    states = simulation.advance(sick(start), 1)
    assert states.skipped.tolist() == [0]
    without, start = simulate("fedavg", [2, 3])
    assert_close(states.server, without.advance(start, 1).server)


# However it runs -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_executors_agree_about_the_sick():
    """Two seeds of different clients, some rounds skipped and some not."""
    federation = small_federation((7, 12, 5, 20, 9, 8))
    algorithm, task = make("mg-meta", federation)
    sickly = poisoned(algorithm, [0, 2], POISONS["scaled"])
    found = []
    for options in ({"executor": "loop"}, {"executor": "in-turn"}, {"executor": "vmap", "chunk": 2}):
        plan = pfedbred.Plan(selection.uniform(2), batch_size=4, **options)
        simulation = pfedbred.Simulation(sickly, task, federation, plan)
        found.append(simulation.advance(simulation.init([1, 3]), 6)._replace(key=()))
    loop = found[0]
    for other in found[1:]:
        assert_close(loop, other)
    np.testing.assert_array_equal(loop.clients.sick, [[6, 0, 6, 0, 0, 0]] * 2)


def test_a_gpu_computes_both_and_chooses_alike(monkeypatch):
    """Sound rounds, rounds with one sick client and skipped ones; the branches of a CPU are left out."""

    def go_on(bad):
        simulation, states = simulate("scaffold", [1, 2, 3], bad)
        after = [copy(states := simulation.advance(states, 1))]
        after.append(copy(states := simulation.advance(sick(states), 1)))
        return [*after, copy(simulation.advance(sick(states, 0.0), 1))]

    by_branches = go_on([1]), go_on([1, 2])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for one, other in zip(by_branches, (go_on([1]), go_on([1, 2])), strict=True):
        assert_close(one, other)
    assert [each.skipped.tolist() for each in by_branches[1]] == [[0], [1], [1]]


@pytest.mark.parametrize("name", ["mg-meta", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_streamed_clients_are_left_out_alike(name):
    federation = small_federation((7, 12, 5, 20, 9, 3))
    algorithm, task = make(name, federation)
    sickly = poisoned(algorithm, [1, 4])
    plan = pfedbred.Plan(selection.uniform(3), participation="sample", batch_size=4)
    resident = pfedbred.Simulation(sickly, task, federation, plan)
    streamed = StreamedSimulation(sickly, task, federation, plan)
    expected, found = (each.advance(each.advance(each.init([0, 1]), 4), 3) for each in (resident, streamed))
    assert_close(expected.server, found.server)
    assert_close(resident.models(expected), streamed.models(found))
    assert resident.health(expected) == streamed.health(found)
    told = streamed.health(found)
    assert all(set(each) == {"1", "4"} for each in told.left_out)
    assert 0 < sum(told.skipped) < 14  # some of the rounds, not all
    met = np.asarray(expected.clients.met).sum(axis=1).tolist()
    assert streamed.took_part(found) == met == [4, 4]


# Attacks ---------------------------------------------------------------------------------------------------

CLEAN = len(POISONS)


def attacked(rule):
    """G on the digits by poison (none is the last), 2 of 20 clients being bad: accuracies in percent and losses.

    And who was left out. One program for all.
    """
    federation = pfedbred.load("digits", split="iid")
    task = pfedbred.Task(pfedbred.models.mclr(federation.shape, federation.classes))
    fedavg = pfedbred.make("fedavg", task, {"alpha": 0.05})
    plan = pfedbred.Plan(selection.uniform(10), rule=Rule(rule))
    vary = lambda own: poisoned(fedavg, [3, 11], numbered(own["poison"]))  # noqa: E731
    simulation = pfedbred.Simulation(fedavg, task, federation, plan, vary)
    states = simulation.init([0] * (CLEAN + 1), {"poison": np.arange(CLEAN + 1.0)})
    states = simulation.advance(states, 25)
    test = simulation.evaluate(states).global_.test
    accuracy, loss = (dict(zip([*POISONS, "none"], each, strict=True)) for each in (100 * test.accuracy, test.loss))
    return accuracy, loss, simulation.health(states).left_out


@pytest.fixture(scope="module")
def clean():
    return attacked("mean")


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.slow] if rule in ("median", "clipped") else []) for rule in NAMES]
)
def test_a_tenth_of_bad_clients_does_no_harm(rule, clean):
    """Against large updates of the wrong sign, that are not far enough out of line, the mean is no help."""
    found, _, left_out = clean if rule == "mean" else attacked(rule)
    reference = clean[0]["none"]
    assert reference > 90
    withstood = [*POISONS, "none"] if rule != "mean" else ["nan", "one infinity", "zeros", "flipped", "scaled", "none"]
    for poison in withstood:
        assert found[poison] >= reference - 2, poison
    for poison, each in zip([*POISONS, "none"], left_out, strict=True):
        bad = poison in ("nan", "one infinity", "scaled")
        assert each == ({"3": 25, "11": 25} if bad else {}), poison
    if rule == "mean":
        assert found["flipped ten times"] < reference - 20


def test_without_care_bad_clients_do_harm(clean, monkeypatch):
    """What the test above guards against: with nobody taken for sick, the same poisons ruin the mean.

    By their losses: a linear model a thousand times too large may still rank labels well, but is sure of its mistakes.
    """
    monkeypatch.setattr(screening, "sound", lambda vitals: jnp.ones(vitals.moved.shape, bool))
    ruined, reference = attacked("mean")[1], clean[1]["none"]
    for poison in ("nan", "one infinity", "scaled"):
        assert clean[1][poison] < 1.1 * reference, poison
        assert not ruined[poison] < 3 * reference, poison


# Told ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sickly(monkeypatch):
    """``sickly``: FedAvg whose client 3 sends NaN."""
    build = lambda task, *, R=2: poisoned(pfedbred.make("fedavg", task, {"R": R}), [3])  # noqa: E731
    monkeypatch.setitem(pfedbred.ALGORITHMS, "sickly", build)


def test_the_sick_are_named(call, sickly, tmp_path):
    code, out, _ = call("run", "--algorithm", "sickly", "--clients", 8, "--rounds", 5, "--eval-every", 2, "--out", "a")
    assert code == 0
    words = "1 client was left out of rounds because their updates were not finite or far too large: 3 (5 times)\n"
    assert words in out
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [line["left_out"] for line in lines] == [[{"3": 2}], [{"3": 2}], [{"3": 1}]]
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["left_out"] == [{"3": 5}]
    skipped = summary["skipped_rounds"][0]
    assert sum(line["skipped"][0] for line in lines) == skipped
    assert (f"{skipped} round" in out and "skipped: too few sound clients" in out) == bool(skipped)


def test_clients_with_names_go_by_them(sickly):
    federation = small_federation((7, 12, 5, 20)).take(np.array([3, 2, 1, 0]))
    result = pfedbred.run(federation=federation, algorithm="sickly", rounds=2, seeds=2, aggregated=3)
    assert result.health.left_out == [{"0": 2}, {"0": 2}]  # the name of the client whose number is 3
    assert result.diverged is None


# Divergence ------------------------------------------------------------------------------------------------


def test_a_run_that_diverges_stops_with_what_it_has():
    federation = small_federation()
    result = pfedbred.run(federation=federation, algorithm="fedavg", settings={"alpha": 1e30}, rounds=50, eval_every=4)
    assert result.diverged == 12  # the first evaluation after ten rounds without a sound client
    assert [point.round for point in result.points] == [4, 8, 12]
    assert result.health.skipped == [12]
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays((result.states.server, result.states.clients)))
    assert not table._measured(result)["P"]["finite"]  # a cell without a figure


def test_a_loss_that_is_not_finite_is_divergence():
    """Clients sent what is sound, but the server makes nothing of it."""
    federation = small_federation()
    algorithm, task = make("fedavg", federation)
    broken = lambda state, uploads: jax.tree.map(lambda leaf: leaf * jnp.nan, state)  # noqa: E731
    simulation = pfedbred.Simulation(
        algorithm._replace(server=algorithm.server._replace(aggregate=broken)),
        task,
        federation,
        pfedbred.Plan(selection.uniform(2)),
    )
    scores = simulation.evaluate(simulation.advance(simulation.init([0, 1]), 1))
    assert screening.astray(scores, [0, 0], 100).tolist() == [True, True]


def test_seeds_are_judged_apart():
    federation = small_federation()
    sound = pfedbred.run(federation=federation, algorithm="fedavg", rounds=1, seeds=3)
    scores = sound.points[0].scores
    assert screening.astray(scores, [0, 9, 10], 100).tolist() == [False, False, True]
    assert screening.astray(scores, [3, 4, 5], 5).tolist() == [False, False, True]


def test_a_point_of_a_sweep_that_diverges_has_no_figure():
    experiment = pfedbred.Experiment(algorithm="fedavg", settings={"R": 2}, rounds=3)
    found = pfedbred.sweep(experiment, {"alpha": [0.01, 1e30]}, federation=small_federation())
    assert np.isnan(found.best_accuracy("personal")).tolist() == [False, True]
    assert found.best_point() == {"alpha": 0.01}
