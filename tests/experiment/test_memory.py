"""Running out of memory is one line: before the run where a limit is known, and otherwise when it happens."""

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_federation

import pfedbred
from pfedbred.engine import ResidentBackend, StreamedBackend, devices
from pfedbred.experiment import sweep
from pfedbred.experiment.building import build
from pfedbred.io.memory import container_limits

V2 = {"proc/self/cgroup": "0::/job/step\n", "sys/fs/cgroup/job/memory.max": "3000000\n"}
V2_INSIDE = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "4000000\n"}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "5000000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/1/memory.limit_in_bytes": "1\n",
}
HOST_PATH = {  # a container that sees the host's path, but only its own group
    "proc/self/cgroup": "4:memory:/docker/1\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "6000000\n",
}
UNLIMITED = {
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/memory.max": "max\n",
}


@pytest.mark.parametrize(
    ("files", "smallest"),
    [(V2, 3_000_000), (V2_INSIDE, 4_000_000), (V1, 5_000_000), (HOST_PATH, 6_000_000), (UNLIMITED, None), ({}, None)],
)
def test_the_limit_of_a_container_is_read(files, smallest, tmp_path):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert min(container_limits(tmp_path), default=None) == smallest


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_run_beyond_a_limit_is_refused_before_it_begins(limit, monkeypatch, call, tmp_path):
    resource = pytest.importorskip("resource")
    assert devices.host_memory() > 2**27
    which, none = getattr(resource, limit), resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda each: (2**27, none) if each == which else (none, none))
    assert devices.host_memory() == 2**27
    code, _, err = call("run", "--model", "dnn", "--seeds", 2000)
    assert code == 2
    assert "GB for models and minibatches, but only 0.1 GB are available" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("store", ["device", "memory"])
def test_a_program_that_needs_more_than_there_is_never_starts(store, monkeypatch, tmp_path):
    """Beyond the models, which are counted before: what the compiler needs between them."""
    federation = small_federation((40,) * 8, features=200)
    options = {"algorithm": "fedavg", "rounds": 2, "store": store, "batch_size": 400, "chunk": 8}
    options |= {"participation": "sample" if store == "memory" else "all", "aggregated": 8}
    built = build(pfedbred.Experiment("small", **options), federation).backend  # the models alone fit
    room = built.state_bytes() + 4 * 20 * 400 + 4 * 201 * 400
    monkeypatch.setattr(devices, "device_memory", lambda: room)
    with pytest.raises(pfedbred.SettingError, match=r"the compiled program needs .* GB on each device"):
        pfedbred.run(federation=federation, **options)


@pytest.fixture
def events(monkeypatch):
    """What a run compiles and when it trains, in order; from the program of the number ``full`` on, none fits."""
    found, compiled = [], devices.compiled

    def noted(traced):
        found.append("compiled")
        if len(found) > noted.full:
            raise devices.TooLarge(2, 1, 1)
        return compiled(traced)

    noted.full = 10
    monkeypatch.setattr(devices, "compiled", noted)

    def training(advance):
        return lambda *given: (found.append("trained"), advance(*given))[1]

    for backend in (ResidentBackend, StreamedBackend):
        monkeypatch.setattr(backend, "advance", training(backend.advance))
    return found, noted


IN_TURN = {"executor": "in-turn", "rounds": 4, "eval_every": 4, "settings": {"R": 1}}
SAMPLED = {"participation": "sample", "aggregated": 4, "store": "memory"}
LEARNED = {"algorithm": "learned-prior", "diagnostics": True, "seeds": 2, "settings": {}}


@pytest.mark.parametrize(
    ("options", "programs"),
    [
        ({"algorithm": "fedavg"}, 2),  # a round, and the evaluation
        ({"algorithm": "fedavg", "out": "run"}, 3),  # and the models that are kept
        ({"algorithm": "fedavg", "validation": 0.3}, 3),
        ({"algorithm": "fedavg", "posterior": "ensemble", "seeds": 2}, 3),
        ({"algorithm": "fedavg", "out": "run", "keep_models": False, "validation": 0.3}, 2),
        (LEARNED, 3),  # and what describes clients
        ({"algorithm": "fedavg", **SAMPLED}, 2),
        ({**LEARNED, **SAMPLED}, 3),
    ],
    ids=str,
)
@pytest.mark.few_cases(2)
def test_all_that_a_run_needs_is_compiled_before_its_first_round(options, programs, events, tmp_path):
    """Each program once: where one does not fit, the run is refused before it trains."""
    (found, noted), federation = events, small_federation((8,) * 8)
    given = {**IN_TURN, **options}
    for full in range(programs, -1, -1):
        found.clear()
        noted.full = full if full < programs else 10
        where = {"out": tmp_path / f"run{full}"} if "out" in options else {}
        if full < programs:
            with pytest.raises(pfedbred.SettingError, match="the compiled program needs"):
                pfedbred.run(federation=federation, **{**given, **where})
            assert found == ["compiled"] * (full + 1)
        else:
            pfedbred.run(federation=federation, **{**given, **where})
            assert found[:programs] == ["compiled"] * programs
            assert set(found[programs:]) == {"trained"}


def test_all_that_a_sweep_needs_is_compiled_before_its_first_round(events):
    found, noted = events
    noted.full = 1
    experiment = pfedbred.Experiment(algorithm="fedavg", **IN_TURN)
    with pytest.raises(pfedbred.SettingError, match="the compiled program needs"):
        pfedbred.sweep(experiment, {"alpha": [0.01, 0.1]}, federation=small_federation((8,) * 8), choose_on_test=True)
    assert found == ["compiled"] * 2


def test_the_points_of_a_sweep_take_no_more_than_half_of_a_small_device(monkeypatch):
    for device, usual in ((2**31, 2**30), (2**40, 2**32)):
        monkeypatch.setattr(devices, "device_memory", lambda found=device: found)
        assert sweep.default_memory() == usual


def test_more_evaluated_clients_than_memory_holds_are_refused(call, tmp_path):
    many = ("--dataset", "synthetic", "--clients", 10**9, "--participation", "sample", "--aggregated", 5)
    code, _, err = call("run", *many, "--scored-clients", 10**9)
    assert code == 2
    assert "evaluating 1,000,000,000 clients needs about" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def numpy_array():
    np.ones(2**46)


def jax_array():
    jnp.ones(2**44)


class Exhaust(pfedbred.Callback):
    def __init__(self, use):
        self.use = use

    def stop_reason(self, progress):
        if progress.round == 3:
            self.use()


@pytest.mark.parametrize("use", [numpy_array, jax_array])
def test_a_run_out_of_memory_says_what_is_saved(use, tmp_path):
    options = {"federation": small_federation(), "algorithm": "fedavg", "rounds": 5, "checkpoint_every": 1}
    with pytest.raises(pfedbred.SettingError) as raised:
        pfedbred.run(**options, out=tmp_path / "run", callbacks=[Exhaust(use)])
    assert str(raised.value).startswith("out of memory: use fewer clients")
    assert str(raised.value).endswith("the run is saved up to round 2")


@pytest.mark.parametrize("use", [numpy_array, jax_array])
def test_any_command_out_of_memory_is_one_line(use, call, monkeypatch):
    monkeypatch.setattr("pfedbred.cli.data.data.load", lambda *_, **__: use())
    code, _, err = call("data", "show", "digits")
    assert code == 2
    assert err.startswith("pfedbred: out of memory: ")
    assert err.count("\n") == 1
