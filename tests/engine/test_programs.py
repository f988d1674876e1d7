"""Programs: constants that are arguments, and clients that run a few at a time where all would not fit."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.engine import devices, programs
from pfedbred.experiment.building import build

pytestmark = pytest.mark.full

LARGE = jax.random.normal(jax.random.key(0), (600, 600), jnp.float32)  # 1.4 MB


def several_products(rounds, x):
    def step(_, x):
        return jax.vmap(lambda row: jnp.tanh(LARGE @ row))(x)

    return jax.lax.fori_loop(0, rounds, step, x)


def test_a_large_constant_is_an_argument_of_the_program():
    x = jnp.ones((3, 600), jnp.float32)
    expected = several_products(2, x)
    traced = programs.trace(several_products, jnp.int32(2), x, everywhere=None, in_place=1)
    assert [each.shape for each in traced.constants] == [LARGE.shape]
    assert len(traced.stage.lower().as_text()) < 10_000  # in which 360,000 numbers would be
    assert np.allclose(traced.compiled()(jnp.int32(2), x), expected, atol=1e-6)
    assert x.is_deleted()


def test_small_constants_stay_in_the_program():
    assert programs.trace(lambda x: x + jnp.arange(9.0), jnp.ones(9), everywhere=None).constants == []


@pytest.mark.parametrize("clients", [1, 7, 8, 100])
def test_fewer_clients_at_a_time_until_they_fit(clients):
    """A program of 10 + 3 a client, found in as many steps as halving takes, at most."""
    for room, waste in itertools.product((11, 13, 20, 100, 309), (1.0, 1.3)):
        chunk, steps = clients, 0
        while 10 + 3 * waste * chunk > room:
            problem = devices.TooLarge(10 + 3 * waste * chunk, 3 * waste * chunk, room)
            less = programs.fewer(clients, None if steps == 0 else chunk, problem)
            if less is None:
                assert chunk == 1
                break
            assert 1 <= less <= chunk / 2
            chunk, steps = less, steps + 1
        assert steps <= np.log2(clients)
    assert programs.fewer(8, None, devices.TooLarge(120, 20, 90)) is None  # its arguments alone are too large
    assert programs.fewer(100, None, devices.TooLarge(300, 300, 100)) == 25  # 33 would leave a remainder


WIDE = {"algorithm": "fedavg", "model": "dnn", "rounds": 1, "executor": "vmap", "settings": {"R": 2}, "batch_size": 64}


def memory_of(backend, seeds=1):
    """What the compiler says of a round of all clients at once, and of one client at a time."""
    found = []
    for chunk in (None, 1):
        states = jax.eval_shape(backend._start, jnp.zeros(seeds, jnp.uint32))
        if chunk:
            assert backend.run_fewer(devices.TooLarge(2**40, 2**40, 1))
        backend._advance.trace(backend.shards, jnp.int32(1), states)
        stats = backend._advance._traced.pop(seeds).stage.lower().compile().memory_analysis()
        found.append(stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes)
    return found


@pytest.mark.broad
def test_clients_run_a_few_at_a_time_where_all_would_not_fit(monkeypatch):
    federation = small_federation((30,) * 8, features=20)
    plain = pfedbred.run(federation=federation, **WIDE)
    assert plain.record().summary["chunk"] is None
    together, alone = memory_of(build(pfedbred.Experiment("small", **WIDE), federation).backend)
    assert alone < together
    room = (together + alone) // 2
    monkeypatch.setattr(devices, "device_memory", lambda: room)
    monkeypatch.setattr("pfedbred.experiment.building._check_memory", lambda *_: None)
    found = pfedbred.run(federation=federation, **WIDE)
    chunk = found.record().summary["chunk"]
    assert chunk in (1, 2, 4)
    for one, other in zip(*(jax.tree.leaves(each.personal_model(3)) for each in (plain, found)), strict=True):
        assert np.allclose(one, other, atol=1e-6)
    with pytest.raises(pfedbred.SettingError, match="the compiled program needs"):
        pfedbred.run(federation=federation, **WIDE, chunk=8)  # as it was asked for
    monkeypatch.setattr(devices, "device_memory", lambda: alone // 2)
    with pytest.raises(pfedbred.SettingError, match="the compiled program needs"):
        pfedbred.run(federation=federation, **WIDE)


@pytest.fixture
def first_program_too_large(monkeypatch):
    """The first program that is compiled does not fit; returns what each needs."""
    compiled, needed = devices.compiled, []

    def with_limit(traced):
        needed.append(traced.lower().compile().memory_analysis().temp_size_in_bytes)
        if len(needed) == 1:
            raise devices.TooLarge(needed[0], needed[0], int(0.6 * needed[0]))
        return compiled(traced)

    monkeypatch.setattr(devices, "compiled", with_limit)
    return needed


def test_the_command_line_says_how_many_run_at_a_time(first_program_too_large, call, tmp_path):
    options = ("--executor", "vmap", "--clients", 6, "--rounds", 1, "--algorithm", "fedavg", "--set", "R=2")
    code, out, _ = call("run", *options, "--out", tmp_path / "run")
    assert code == 0
    assert "fedavg ran 3 clients at a time: more would not fit into memory" in out
    assert pfedbred.RunRecord.read(tmp_path / "run").summary["chunk"] == 3


@pytest.mark.broad
def test_a_streamed_cohort_runs_a_few_at_a_time(request):
    options = {**WIDE, "participation": "sample", "aggregated": 8, "store": "memory"}
    federation = small_federation((30,) * 9, features=20)
    plain = pfedbred.run(federation=federation, **options)
    needed = request.getfixturevalue("first_program_too_large")
    found = pfedbred.run(federation=federation, **options)
    assert found.backend.plan.chunk == 4
    assert needed[1] < needed[0]
    for one, other in zip(*(jax.tree.leaves(each.global_model()) for each in (plain, found)), strict=True):
        assert np.allclose(one, other, atol=1e-6)


@pytest.mark.broad
def test_a_network_with_dropout_draws_the_same_if_only_a_few_clients_run_at_a_time(request):
    federation = small_federation((30,) * 8, features=20)
    linear = pfedbred.models.mclr(federation.shape, federation.classes)

    def train(params, x, key):
        return linear.apply(params, x * jax.random.bernoulli(key, 0.5, x.shape))

    options = {**WIDE, "model": linear._replace(train=train)}
    plain = pfedbred.run(federation=federation, **options)
    request.getfixturevalue("first_program_too_large")
    found = pfedbred.run(federation=federation, **options)
    assert found.backend.plan.chunk == 4
    for one, other in zip(*(jax.tree.leaves(each.global_model()) for each in (plain, found)), strict=True):
        assert np.allclose(one, other, atol=1e-6)


@pytest.fixture
def no_cache():
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_programs_are_kept_for_their_owner_alone(no_cache, tmp_path):
    (tmp_path / "file").touch()
    devices.keep_programs(tmp_path / "file" / "compiled")  # cannot be created, and is not needed
    assert jax.config.jax_compilation_cache_dir is None
    devices.keep_programs(tmp_path / "cache" / "compiled")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache" / "compiled")
    modes = [each.stat().st_mode & 0o777 for each in (tmp_path / "cache", tmp_path / "cache" / "compiled")]
    assert list(map(oct, modes)) == ["0o700", "0o700"]
