"""The command line: what it writes, what it prints, and how it answers mistakes."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from pfedbred.report import terminal
from pfedbred.runs.provenance import revision

QUICK = ["--rounds", "3", "--clients", "10", "--set", "R=2"]


def metrics(folder):
    """The lines of metrics.jsonl without the time they took. Strict: JSON has no NaN."""
    refuse = lambda constant: pytest.fail(f"{constant} is not JSON")  # noqa: E731
    lines = [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_a_run_folder_holds_what_is_promised(call, tmp_path):
    code, out, _ = call("run", "--algorithm", "pfedme", "--seeds", 2, "--eval-every", 2, "--out", "here", *QUICK)
    folder = tmp_path / "here"
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-00000003.safetensors",
        "config.yaml",
        "curves.png",
        "data.json",
        "metrics.jsonl",
        "models.safetensors",
        "summary.json",
    ]
    assert "here/curves.png" in out
    assert "pfedme: round 3/3" in out
    assert "\x1b" not in out
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")

    summary = json.loads((folder / "summary.json").read_text())
    promised = "algorithm dataset model rounds seeds global personal seconds version revision platform"
    assert set(promised.split()) <= set(summary)
    assert (summary["algorithm"], summary["rounds"], summary["seeds"]) == ("pfedme", 3, 2)
    assert {"compile", "round", "total"} == set(summary["seconds"])
    assert 0 < summary["seconds"]["round"] < summary["seconds"]["total"]

    lines = metrics(folder)
    assert [line["round"] for line in lines] == [2, 3]
    for model in ("global", "personal"):
        by_seed = [line[model]["test"]["accuracy"] for line in lines]
        assert all(len(each) == 2 for each in by_seed)
        best = [max(seed) for seed in zip(*by_seed, strict=True)]
        for name, values in (("best_accuracy", best), ("final_accuracy", by_seed[-1])):
            assert summary[model][name]["mean"] == pytest.approx(sum(values) / 2, abs=1e-6)
            assert summary[model][name]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5, abs=1e-6)
        rounds = [line["round"] for line in lines]
        assert summary[model]["best_round"] == [rounds[seed.index(max(seed))] for seed in zip(*by_seed, strict=True)]
        for name, measured in (
            ("final_loss", "loss"),
            ("final_worst_decile", "worst_decile"),
            ("final_client_std", "client_std"),
        ):
            assert summary[model][name]["mean"] == pytest.approx(sum(lines[-1][model]["test"][measured]) / 2, abs=1e-5)
        for split in ("train", "test"):
            scores = lines[0][model][split]
            assert {"accuracy", "loss", "worst_decile", "client_std"} <= set(scores)
            assert len(scores["client_accuracy"][0]) == 10


def test_a_run_can_be_run_again_from_its_config(call, tmp_path):
    call("run", "--algorithm", "mg", "--set", "eta=1e-2", "--set", "prior=poisson", "--out", "first", *QUICK)
    code, _, _ = call("run", "first/config.yaml", "--out", "second")
    assert code == 0
    assert metrics(tmp_path / "first") == metrics(tmp_path / "second")
    first, second = (yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("first", "second"))
    assert first == second
    assert first["settings"]["eta"] == 0.01


def test_options_override_the_file(call, tmp_path):
    (tmp_path / "exp.yaml").write_text("algorithm: pfedme\nrounds: 7\nsettings: {lam: 30, K: 3}\n")
    _, out, _ = call("run", "exp.yaml", "--rounds", 9, "--set", "lam=2e1", "--dry-run")
    resolved = yaml.safe_load(out)
    assert resolved["rounds"] == 9
    (tmp_path / "list.yaml").write_text("select: [0, 3]\nrounds: '4'\nseeds: 2.0\nsettings: null\naggregated: null\n")
    assert yaml.safe_load(call("run", "list.yaml", "--dry-run")[1])["aggregated"] == 2
    assert (resolved["settings"]["lam"], resolved["settings"]["K"], resolved["settings"]["R"]) == (20.0, 3, 20)
    assert not (tmp_path / "runs").exists()


def test_compare_writes_one_table(call, tmp_path):
    code, out, _ = call("compare", "--algorithms", "fedavg,mg-meta", "--out", "both", "--set", "lam=20", *QUICK)
    assert code == 0
    table = json.loads((tmp_path / "both" / "table.json").read_text())
    assert [row["algorithm"] for row in table] == ["fedavg", "mg-meta"]
    assert table[1]["experiment"]["settings"]["lam"] == 20.0  # fedavg has no lam, which is fine
    assert table[0] == json.loads((tmp_path / "both" / "fedavg" / "summary.json").read_text())
    assert "fedavg" in out
    assert (tmp_path / "both" / "curves.png").exists()


@pytest.mark.full
def test_a_comparison_can_be_run_again_from_its_config(call, tmp_path):
    call("compare", "--algorithms", "fedavg,mg-meta", "--out", "both", "--set", "lam=20", *QUICK)
    code, _, _ = call("compare", "both/config.yaml", "--out", "again")
    assert code == 0
    for name in ("fedavg", "mg-meta"):
        assert metrics(tmp_path / "both" / name) == metrics(tmp_path / "again" / name)


def test_without_out_a_free_name_is_taken(call, tmp_path):
    (tmp_path / "runs" / "digits-mclr-fedavg").mkdir(parents=True)
    assert call("run", "--algorithm", "fedavg", *QUICK)[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["digits-mclr-fedavg", "digits-mclr-fedavg-2"]


def test_an_existing_run_is_not_overwritten_unless_asked(call, tmp_path, finished):
    shutil.copytree(finished / "run", tmp_path / "here")
    before = (tmp_path / "here" / "summary.json").read_bytes()
    code, _, err = call("run", "--algorithm", "fedavg", "--out", "here", *QUICK)
    assert code == 2
    assert err == "pfedbred: here is not empty; choose another --out, or overwrite it (--overwrite)\n"
    assert (tmp_path / "here" / "summary.json").read_bytes() == before
    assert call("run", "--algorithm", "fedavg", "--out", "here", "--overwrite", *QUICK)[0] == 0
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["algorithm"] == "fedavg"


@pytest.mark.full
def test_overwriting_removes_the_runs_of_a_comparison_and_nothing_else(call, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.txt").write_text("keep")
    assert call("compare", "--algorithms", "fedavg,pfedme", "--out", "here", "--overwrite", *QUICK)[0] == 0
    call("compare", "--algorithms", "fedavg", "--out", "here", "--overwrite", *QUICK)
    left = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert left == ["comparison.json", "config.yaml", "curves.png", "fedavg", "mine.txt", "table.json"]


MISTAKES = {
    ("run", "--algorithm", "mg-mata"): "did you mean 'mg-meta'?",
    ("run", "--dataset", "digit"): "did you mean 'digits'?",
    ("run", "--model", "dnnn"): "did you mean 'dnn'?",
    ("run", "--set", "lambda=3"): "did you mean 'lam'?",
    ("run", "--set", "prior=poison"): "did you mean 'poisson'?",
    ("run", "--set", "prox_solver=adan"): "did you mean 'adam'?",
    ("run", "--executor", "vmpa"): "did you mean 'vmap'?",
    ("run", "--participation", "some"): "all, sample",
    ("run", "--set", "w_init=globl"): "did you mean 'global'?",
    ("run", "--set", "lam=0"): "lam must be a number > 0 or learned, or learned(SCOPE) with SCOPE one of",
    ("run", "--set", "lam=-1"): "lam must be a number > 0",
    ("run", "--set", "lam=nan"): "lam must be a number > 0",
    ("run", "--set", "lam=inf"): "lam must be a number > 0",
    ("run", "--set", "lam=big"): "lam must be a number > 0",
    ("run", "--set", "lam=[1"): "cannot read the value",
    ("run", "--set", "K=0"): "K must be a whole number >= 1 and below 2**31, not 0",
    ("run", "--set", "K=1e30"): "K must be a whole number >= 1 and below 2**31",
    ("run", "--select", "²"): "unknown selection",
    ("run", "--set", "sigma=[a]"): "finite real numbers",
    ("run", "--set", "R=2.5"): "R must be a whole number",
    ("run", "--set", "eta=-0.1"): "eta must be a number >= 0",
    ("run", "--set", "K"): "NAME=VALUE",
    ("run", "--set", "sigma=[1,2]"): "sigma is for 2 params, but the model has 650",
    ("run", "--set", "sigma=-1"): "sigma must be > 0",
    ("run", "--aggregated", "21"): "at most the number of clients that train, 20, not 21",
    ("run", "--aggregated", "0"): "aggregated must be a whole number >= 1",
    ("run", "--select", "0,3,99"): "client numbers from 0 to 19",
    ("run", "--select", "0,1", "--aggregated", "3"): "select names 2 clients",
    ("run", "--select", "randomly"): "unknown selection",
    ("run", "select.yaml"): "client numbers from 0 to 19",
    ("run", "--seed", "4294967296"): "seeds must be below 2**32",
    ("run", "--rounds", "0"): "rounds must be a whole number >= 1",
    ("run", "--rounds", "many"): "rounds",
    ("run", "--clients", "1000"): "use fewer clients",
    ("run", "--labels-per-client", "11"): "labels_per_client must be 1 to 10",
    ("run", "--frobnicate"): "No such option",
    ("rnu",): "did you mean 'run'?",
    ("list", "algorithm"): "did you mean 'algorithms'?",
    ("list", "mg-meto"): "did you mean 'mg-meta'?",
    ("list", "mg-meta+ax"): "unknown suffix '+ax'",
    ("run", "missing.yaml"): "cannot read missing.yaml",
    ("run", "prox_start=theta"): "'prox_start=theta' is no file; settings are given as --set prox_start=theta",
    ("run", "broken.yaml"): "not valid YAML at line 2",
    ("run", "binary.yaml"): "not a text file",
    ("run", "list.yaml"): "expected a mapping of names to values",
    ("run", "tag.yaml"): "not valid YAML",
    ("run", "unknown.yaml"): "unknown option 'roundz'; did you mean 'rounds'?",
    ("run", "settings.yaml"): "settings must map names to values",
    ("run", "--out", "file/below"): "cannot create the folder",
    ("run", "--out", "file"): "not a folder",
    ("run", "--out", ""): "it must not be empty",
    ("export", "here", "--out", ""): "it must not be empty",
    ("predict", "here", "there", "--out", ""): "it must not be empty",
    ("report", "here", "--out", ""): "it must not be empty",
    ("run", "foreign.yaml"): "the algorithm system cannot be built: TypeError: ",
    ("run", "merge.yaml"): "not valid YAML at line 1, column 1: merge keys are not supported",
    ("run", "octal.yaml"): "010 is not a decimal number: write it in decimal, or a text in quotes",
    ("sweep", "--grid", "eta=-1e308:1e308:3"): "--grid takes NAME=FIRST:LAST:COUNT",
    ("sweep", "--grid", "eta=0:0.5"): "give the number of points to draw",
    ("compare", "--algorithms", "fedavg,fedavg"): "named twice",
    ("run", "--hold-out", "7,7"): "a client is named twice in held_out_clients: 7, 7",
    ("run", "twice.yaml"): "a client is named twice in held_out_clients: 7, 7",
    ("compare", "--algorithms", "fedavg,nope"): "unknown algorithm 'nope'",
    ("compare", "--algorithms", ","): "algorithms must be names",
    ("compare", "--algorithms", ""): "algorithms must be names",
    ("run", "--set", "R=1", "--set", "R=2"): "--set R is given more than once",
    ("sweep", "--grid", "eta=1,2", "--set", "eta=3"): "eta is in the grid and in --set",
    ("run", "--dataset", "mnist", "--data-dir", "nowhere"): "mnist was not found: put ",
    ("run", "--resume"): "--resume needs --out, the folder of the run to resume",
    ("compare", "--resume"): "--resume needs --out, the folder of the run to resume",
    ("run", "--time-limit", "99999999h"): "a time limit must be at most 100 years",
    ("run", "--time-limit", "soon", "--dry-run"): "a time limit must look like 90s, 30m or 1h30m, not 'soon'",
    ("paper", "table2", "--time-limit", "99999999h"): "a time limit must be at most 100 years",
    ("paper", "noniid", "--rows", "fedavg"): "--rows does not apply to noniid",
    ("compare", "--algorithms", "fedavg", "--set", "lam=3"): "none of these algorithms has a setting 'lam'",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, call, tmp_path):
    (tmp_path / "broken.yaml").write_text("algorithm: mg\n  rounds: [3\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "tag.yaml").write_text("algorithm: !!python/object/apply:os.system [echo]\n")
    (tmp_path / "unknown.yaml").write_text("roundz: 3\n")
    (tmp_path / "settings.yaml").write_text("settings: 3\n")
    (tmp_path / "twice.yaml").write_text("held_out_clients: 7, 7\n")
    (tmp_path / "select.yaml").write_text("select: [0, one]\n")
    (tmp_path / "foreign.yaml").write_text("algorithm: os:system\n")
    (tmp_path / "merge.yaml").write_text("<<: {rounds: 3}\n")
    (tmp_path / "octal.yaml").write_text("rounds: 010\n")
    (tmp_path / "file").write_text("")
    code, out, err = call(*arguments)
    assert code == 2
    assert MISTAKES[arguments] in err
    assert err.count("\n") == 1
    assert "Traceback" not in err + out
    assert not (tmp_path / "runs").exists()  # rejected before anything was written


def test_list_names_everything(call):
    code, out, _ = call("list")
    assert code == 0
    for name in ("mg-meta", "pfedme", "lam=15.0", "bernoulli", "identity", "dnn", "digits"):
        assert name in out
    assert "mclr" not in call("list", "priors")[1]
    assert "Settings: momentum, nesterov, clip, weight_decay." in call("list", "optimizers")[1]
    assert "Settings: start, end, warmup." in call("list", "schedules")[1]


def test_list_explains_one_method_in_words(call):
    code, out, _ = call("list", "mg-meta+am")
    assert code == 0
    assert "mg-meta: Algorithm 1 with a meta-gradient step" in out
    assert "+am: Aggregation momentum" in out
    assert "lam = 15.0\n      lambda, the strength of the prior" in out
    assert "am_beta = 2.0" in out
    assert "[a number > 0 or learned" in " ".join(out.split())
    assert "mean = " not in out  # mg-meta decides it


def command_line(*arguments, **options):
    return [sys.executable, "-m", "pfedbred", *arguments], {"env": {**os.environ, "COLUMNS": "120"}, **options}


@pytest.mark.full
def test_a_pipe_gets_plain_lines(tmp_path):
    command, options = command_line(
        "run", "--algorithm", "fedavg", *QUICK, cwd=tmp_path, capture_output=True, text=True
    )
    finished = subprocess.run(command, check=True, **options)
    assert "\x1b" not in finished.stdout
    assert "fedavg: round 3/3" in finished.stdout
    assert finished.stderr == ""


@pytest.mark.full
def test_a_terminal_gets_a_bar_with_accuracies(tmp_path):
    ours, theirs = pty.openpty()
    command, options = command_line("run", "--algorithm", "fedavg", *QUICK, cwd=tmp_path, stdout=theirs, stderr=theirs)
    options["env"]["TERM"] = "xterm-256color"
    process = subprocess.Popen(command, **options)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "━" in text
    assert "3/3" in text
    assert re.search(r"G.{0,8} +\d+\.\d\d %  .{0,8}P.{0,8} +\d+\.\d\d %", text)


def test_core_imports_stay_light():
    heavy = ("sklearn", "matplotlib", "typer", "torch", "datasets", "flwr", "plotly", "pandas")
    program = f"import sys, pfedbred; print([name for name in {heavy} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert finished.stdout.strip() == "[]"


def test_a_diverged_run_is_reported_and_fails(call, tmp_path):
    """No client's update can be used, in any of three rounds: everything is written, with the models of the start."""
    code, out, _ = call(
        "run", "--algorithm", "fedavg", "--model", "dnn", "--set", "alpha=1e30", "--out", "here", *QUICK
    )
    assert code == 1
    assert "fedavg diverged: hardly any client's update is valid; stopped at round 3 of 3; try smaller steps" in out
    assert "updates of 10 clients were rejected because they were not finite or out of line: " in out
    assert "(3 times) and 5 more\n3 rounds were skipped: too few valid updates" in out
    refuse = lambda constant: pytest.fail(f"{constant} is not JSON")  # noqa: E731
    summary = json.loads((tmp_path / "here" / "summary.json").read_text(), parse_constant=refuse)
    assert (summary["diverged"], summary["skipped_rounds"]) == (3, [3])
    assert summary["rejected"] == [dict.fromkeys(map(str, range(10)), 3)]
    assert summary["personal"]["final_loss"]["mean"] < 3
    assert (tmp_path / "here" / "curves.png").exists()


def test_a_config_can_be_run_with_another_algorithm(call, tmp_path):
    (tmp_path / "exp.yaml").write_text("algorithm: mg\nsettings: {lam: 30, prior: poisson}\n")
    _, out, err = call("run", "exp.yaml", "--algorithm", "pfedme", "--dry-run")
    assert yaml.safe_load(out)["settings"]["lam"] == 30
    assert "pfedme has no prior" in err
    _, out, _ = call("compare", "exp.yaml", "--dry-run")
    assert [each["algorithm"] for each in yaml.safe_load(out)] == ["mg"]


def test_a_config_can_be_run_with_a_method_of_ones_own(call, tmp_path):
    (tmp_path / "exp.yaml").write_text("algorithm: mg\nsettings: {lam: 30, R: 3}\n")
    _, out, err = call("run", "exp.yaml", "--algorithm", "support.custom:local_sgd", "--dry-run")
    assert yaml.safe_load(out)["settings"] == {"alpha": 0.01, "R": 3}
    assert "support.custom:local_sgd has no lam: ignored in exp.yaml" in err
    _, out, err = call("run", "exp.yaml", "--algorithm", "support.custom:built", "--dry-run")
    assert yaml.safe_load(out)["settings"] == {}
    assert "support.custom:built has no lam, R: ignored in exp.yaml" in err


@pytest.mark.full
def test_a_sigma_in_a_file_is_found_from_anywhere(call, tmp_path, monkeypatch):
    np.save(tmp_path / "sigma.npy", np.full(650, 2.0))
    call("run", "--set", "sigma=sigma.npy", "--out", "first", *QUICK)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("run", "../first/config.yaml", "--out", "second")[0] == 0
    assert metrics(tmp_path / "first") == metrics(tmp_path / "elsewhere" / "second")


def test_tables_and_lines_put_g_before_p(capsys):
    cell = lambda value: {"mean": value, "std": 0.0}  # noqa: E731
    model = lambda value: {  # noqa: E731
        "best_accuracy": cell(value),
        "final_accuracy": cell(value - 0.05),
        "final_worst_decile": cell(0.3),
    }
    summary = {"algorithm": "x", "model": "m", "rounds": 1, "seeds": 1, "seconds": {"round": 0.004}}
    summary |= {"data": {"name": "d"}, "newcomers": None, "scored": None}
    terminal.show_outcome([{**summary, "global": model(0.1), "personal": model(0.2)}])
    out = capsys.readouterr().out
    assert re.search(r"\| algorithm \| model \| best on test \| last round \|", out)
    assert re.search(r"x +\| G +\| +10.00 \| +5.00 \| +\| +4.0 \|\n\| +\| P +\| +20.00 \| +15.00 \| +30.00 \|", out)


def test_the_revision_is_the_checkouts():
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        assert revision.__wrapped__() is None
        return
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert revision.__wrapped__().removesuffix("-dirty") == head.stdout.strip()


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "words"),
    [
        (
            "mkdir gone; cd gone; rmdir ../gone;",
            "cannot use the current folder: No such file or directory; change to another",
        ),
        ("JAX_PLATFORMS=tpu", "Unable to initialize backend 'tpu'"),
    ],
)
def test_what_surrounds_a_command_is_one_line_too(before, words, tmp_path):
    line = f"{before} {sys.executable} -m pfedbred run --rounds 1 --out {tmp_path / 'here'}"
    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"pfedbred: {words}")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "expected"), [("pfedbred comp", "compare"), ("pfedbred run --prec", "--precision")])
def test_the_shell_completes_commands_and_options(words, expected):
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_PFEDBRED_COMPLETE": "complete_bash"}
    program = "import sys; sys.argv[0] = 'pfedbred'; from pfedbred.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [expected]
