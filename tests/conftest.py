"""Shared set-up. Numerics are tested in float64; models that should stay in float32 choose it themselves."""

import dataclasses
import gc
import os
import shutil
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(signal, "SIGHUP"):  # under nohup it is ignored, in every process that tests start
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Tests compile the same programs again and again. They share them in a folder that is removed at the end; pytest's
# workers inherit its name, and the user's own cache is left alone.
PROGRAMS = None
if "PFEDBRED_TEST_PROGRAMS" not in os.environ:
    PROGRAMS = os.environ["PFEDBRED_TEST_PROGRAMS"] = tempfile.mkdtemp(prefix="pfedbred-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
# Most of the suite's time is compilation: programs that run for milliseconds need not be optimised for long. Without
# its newer emitters XLA takes half the time for them; a version that does not know this flag would end the process.
FLAGS = ["--xla_backend_optimization_level=0"]
if version("jaxlib").startswith("0.10."):
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))

import jax
import jax.extend
import numpy as np
import pytest
from hypothesis import settings

import pfedbred
import pfedbred.cli

jax.config.update("jax_enable_x64", True)
if jax.config.jax_num_cpu_devices == -1:  # else the first test of the command line would decide for those after it
    jax.config.update("jax_num_cpu_devices", 1)
settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("default")
# Tracing makes many small objects and hardly any cycles: collecting less often saves 7 % of the time.
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """A test's other cases than the first are left to make test-all; of some that take long, most to make test-slow.

    A case that is asked for by its name is run.
    """
    if any("::" in each for each in config.option.file_or_dir):
        return
    by_function = {}
    for item in items:
        by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in by_function.values():
        if few := cases[0].get_closest_marker("few_cases"):
            open_to_all = [each for each in cases if not each.get_closest_marker("slow")]
            kept = {round(i) for i in np.linspace(0, len(open_to_all) - 1, *(few.args or (1,)))}
            for each in (each for i, each in enumerate(open_to_all) if i not in kept):
                each.add_marker("slow")
        plain = [each for each in cases if not (each.get_closest_marker("full") or each.get_closest_marker("slow"))]
        for each in plain[1:]:
            each.add_marker("full")


def pytest_terminal_summary(terminalreporter, config):
    """Tells a newcomer that there is more."""
    if "not full" in config.option.markexpr and not config.option.file_or_dir:
        terminalreporter.write_line(
            "one case of each test, without the longest; the rest: make test-all (about 20 minutes)"
        )


def pytest_unconfigure(config):
    if PROGRAMS:
        shutil.rmtree(PROGRAMS, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def _receive_interrupts():
    """A shell's background jobs ignore Ctrl-C, and so would the tests of it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _draw_the_same_in_any_order(request):
    """A module's ``RNG`` starts anew for every test, whatever ran before it."""
    if rng := getattr(request.module, "RNG", None):
        rng.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
    """A compiled program holds memory maps, of which Linux grants a process 65,530; hundreds of tests use them up."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def digits() -> pfedbred.Federation:
    return pfedbred.load("digits")


def small_federation(sizes=(7, 12, 5, 20), features=6, classes=3, seed=0) -> pfedbred.Federation:
    """Clients of different sizes whose inputs lie around different centres, with unequal label frequencies."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))

    def samples(client: int, size: int):
        y = rng.choice(classes, size, p=rng.dirichlet(np.ones(classes))).astype(np.int32)
        x = centres[y] + 0.5 * rng.normal(size=(size, features)) + 0.3 * client
        return x, y

    train = [samples(i, size) for i, size in enumerate(sizes)]
    test = [samples(i, max(2, size // 3)) for i, size in enumerate(sizes)]
    return pfedbred.from_clients(train, test, name="small")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A federation of three clients in single precision, as outside these tests, and its file."""
    made = small_federation((7, 20, 20))  # two alike: their programs are compiled once

    def narrow(split):
        return split._replace(x=split.x.astype(np.float32))

    made = dataclasses.replace(made, train=narrow(made.train), test=narrow(made.test))
    path = tmp_path_factory.mktemp("data") / "small.fed"
    pfedbred.data.prepared.save(made, path)
    return made, path


def array_sizes(program):
    """The sizes of all arrays that a jaxpr makes, inner programs included."""
    for equation in program.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from array_sizes(inner)


def command_line(*arguments, capsys, monkeypatch):
    """Runs the command line in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["pfedbred", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        pfedbred.cli.main()
    printed = capsys.readouterr()
    return stopped.value.code or 0, printed.out, printed.err


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """``call("run", ...)`` runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: command_line(*arguments, capsys=capsys, monkeypatch=monkeypatch)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run, of a sweep, and of exported models, as the command line writes them."""
    root = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        np.savez(
            "own.npz", x=np.random.default_rng(0).normal(size=(30, 3)), y=np.arange(30) % 3, client=np.arange(30) % 4
        )
        for line in (
            "run --dataset own.npz --rounds 2 --seeds 2 --algorithm pfedme --set R=1 --set K=1 --out run",
            "sweep --dataset own.npz --rounds 1 --algorithm fedavg --set R=1 --grid alpha=0.1,0.2 --out sweep",
            "export run --client 1",
        ):
            patch.setattr("sys.argv", ["pfedbred", *line.split()])
            with pytest.raises(SystemExit) as stopped:
                pfedbred.cli.main()
            assert not stopped.value.code
    return root


@pytest.fixture(scope="session")
def browser():
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    programs = [shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")]
    if not all(programs):
        pytest.skip("there is no Chromium with its driver on this machine")
    options = selenium.ChromeOptions()
    options.binary_location = programs[0]
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-swiftshader"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(programs[1]))
    yield driver
    driver.quit()
