"""Several devices and several processes: the same results as on one, to rounding."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import json, sys
import jax
import numpy as np
devices, processes, number, port = map(int, sys.argv[1:5])
jax.config.update("jax_num_cpu_devices", devices)
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
assert jax.device_count() == devices * processes
import pfedbred
found = {}
for name, clients in (("mg-meta", 8), ("scaffold", 7)):
    run = pfedbred.run(
        algorithm=name, model="dnn", clients=clients, rounds=3, eval_every=2, seeds=2, executor=sys.argv[5],
        settings={"R": 3}, held_out_clients=0.25 if name == "mg-meta" else None,
    )
    scores = run.points[-1].scores
    found[name] = [model.test.client_loss.tolist() for model in (scores.global_, scores.personal)]
    if run.newcomers:
        found["new"] = run.newcomers[-1].personal.test.client_loss.tolist()
run = pfedbred.run(
    clients=9, rounds=3, settings={"R": 3}, participation="sample", aggregated=5, store="memory", executor=sys.argv[5]
)
found["streamed"] = [run.points[-1].scores.personal.test.client_loss.tolist()]
rng = np.random.default_rng(0)
pairs = [(rng.normal(size=(9, 4)) * (1e25 if i == 2 else 1), rng.integers(0, 2, 9)) for i in range(5)]
faulty = pfedbred.from_clients(pairs, pairs)  # one client's numbers overflow: it is rejected wherever it is
run = pfedbred.run(
    federation=faulty, algorithm="scaffold", rounds=3, aggregated=5, settings={"R": 2}, executor=sys.argv[5]
)
assert run.rejections.rejected == [{"2": 3}], run.rejections
found["faulty"] = [run.points[-1].scores.global_.test.client_accuracy[:, :2].tolist()]
if number == 0:
    print(json.dumps(found))
"""


def run(devices, processes=1, executor="in-turn"):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(devices), str(processes), str(number), str(port), executor],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(processes)
    ]
    outputs = [each.communicate(timeout=300) for each in started]
    for each, (_, err) in zip(started, outputs, strict=True):
        assert each.returncode == 0, err[-2000:]
    return json.loads(outputs[0][0].splitlines()[-1])


@pytest.fixture(scope="module")
def alone():
    return run(1)


@pytest.mark.parametrize(
    ("devices", "processes", "executor"),
    [
        pytest.param(2, 1, "in-turn", marks=pytest.mark.full),
        pytest.param(4, 1, "in-turn", marks=pytest.mark.slow),
        pytest.param(1, 2, "in-turn", marks=pytest.mark.slow),
        pytest.param(2, 1, "vmap", marks=pytest.mark.slow),
    ],
)
def test_results_do_not_depend_on_the_devices(alone, devices, processes, executor):
    """6 clients and 2 newcomers come out even on 2 devices and not on 4; 7 clients on neither."""
    found = run(devices, processes, executor)
    assert found.keys() == alone.keys()
    for name in alone:
        np.testing.assert_allclose(np.array(found[name]), np.array(alone[name]), rtol=2e-4, atol=1e-6, err_msg=name)


NORMALISED = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
assert jax.device_count() == int(sys.argv[1])
import pfedbred
from support.normalised import equinox_network
found = {}
for mode in ("batch", "ema"):
    run = pfedbred.run(
        clients=4, rounds=1, algorithm="fedavg", settings={"R": 2},
        model=lambda shape, classes: equinox_network(shape, classes, mode=mode),
    )
    found[mode] = run.points[-1].scores.personal.test.client_loss.tolist()
print(json.dumps(found))
"""


@pytest.mark.full
@pytest.mark.slow
def test_batch_norm_of_equinox_does_not_depend_on_the_devices():
    """Its State compares the types of arrays, which contain the devices."""
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", NORMALISED, str(devices)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": paths},
        )
        for devices in (1, 2)
    ]
    outputs = [each.communicate(timeout=300) for each in started]
    for each, (_, err) in zip(started, outputs, strict=True):
        assert each.returncode == 0, err[-2000:]
    one, two = (json.loads(out.splitlines()[-1]) for out, _ in outputs)
    for mode in ("batch", "ema"):
        np.testing.assert_allclose(two[mode], one[mode], rtol=2e-4)


def in_two_processes(*arguments, folder):
    """The command line in two processes that share the clients: their exit codes and outputs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = []
    for number in range(2):
        names = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
        command = [sys.executable, "-m", "pfedbred", "--distributed", *arguments]
        environment = {**os.environ, **names, "JAX_NUM_CPU_DEVICES": "1"}
        started.append(
            subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    outputs = [each.communicate(timeout=300) for each in started]
    return [each.returncode for each in started], outputs


@pytest.mark.full
def test_the_command_line_in_two_processes(tmp_path):
    """The first process writes the run folder, and it is that of one process; the other writes nothing.

    Before that they are stopped after a round, by the first one's clock, and go on.
    """
    options = ["run", "--rounds", "2", "--clients", "6", "--set", "R=2", "--out"]
    alone = [sys.executable, "-m", "pfedbred", *options, "one"]
    subprocess.run(alone, cwd=tmp_path, check=True, capture_output=True)
    codes, outputs = in_two_processes(*options, "two", "--time-limit", "1s", folder=tmp_path)
    assert codes == [75, 75], outputs
    assert [path.name for path in (tmp_path / "two").glob("checkpoint-*")] == ["checkpoint-00000001.safetensors"]
    codes, outputs = in_two_processes("run", "--resume", "--out", "two", folder=tmp_path)
    assert codes == [0, 0], outputs
    assert b"best on test" in outputs[0][0]
    assert b"accuracy" not in outputs[1][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    one, two = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert two["platform"]["devices"] == 2
    for model in ("global", "personal"):
        assert two[model]["final_loss"]["mean"] == pytest.approx(one[model]["final_loss"]["mean"], rel=1e-4)


def test_processes_that_do_not_find_each_other_fail_in_one_line(call):
    code, _, err = call("--distributed", "run")
    assert code == 2
    assert "cannot join the other processes" in err
