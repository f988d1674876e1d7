"""Names from data and from other people: as file names they lead nowhere else, on pages and terminals they are text."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.browser import wait

import pfedbred
from pfedbred.cli.data import describe
from pfedbred.errors import SettingError, file_name, is_file_name, printable
from pfedbred.experiment.command import command
from pfedbred.io.atomic import write_json
from pfedbred.paper.page import section as paper_section
from pfedbred.report import console, curves, page, terminal
from pfedbred.report.distribution import draw_distribution

PATHS = [
    "../../x",
    "/etc/x",
    "..",
    ".",
    "",
    "a/../../b",
    "\0",
    "x\0/y",
    "CON",
    "nul.txt",
    "com1",
    "x" * 5000,
    "ü" * 300,
]
PATHS += [
    "-rf",
    "--out",
    "a\nb",
    "\x1b[31m",
    "C:\\x",
    "\\\\host\\x",
    "a:b",
    "~root",
    "$HOME",
    "`id`",
    "\ud800",
    "\u202etxt",
]
EVIL = "</script><script>window.evil = 1</script><img src=x onerror='window.evil = 1'><a href=//evil.example>x</a>"


@given(st.one_of(st.sampled_from(PATHS), st.text(), st.text("./\\-~: \0abCON", max_size=12)))
@pytest.mark.full
def test_a_name_is_one_part_of_a_path(text):
    name = file_name(text)
    root = Path("/runs")
    assert Path(os.path.normpath(root / name)).parent == root
    assert not set(name) & set('/\\\0\n:*?"<>|')
    assert name[0] not in "-."
    assert name[-1] != "."
    assert len(name.encode()) < 100
    assert name.upper() not in ("CON", "NUL", "AUX", "COM1")
    assert is_file_name(name)


def test_ordinary_names_stay():
    for name in ("digits", "mg-meta+am", "mine.v2", "größe", "synthetic-1-1"):
        assert file_name(name) == name


@given(st.one_of(st.sampled_from(PATHS), st.text()))
def test_an_error_is_one_line_that_can_be_printed(text):
    message = str(SettingError(f"cannot read {text}"))
    assert message.isprintable()
    message.encode()
    assert len(message) < 20_100
    assert printable(message) == message


def test_a_very_long_value_does_not_fill_the_screen():
    assert len(str(SettingError("x" * 10**6))) < 2100


def evil_file(folder, stem="own"):
    rng = np.random.default_rng(0)
    client = np.array(["../../x", EVIL, "[red]r[/red]\x1b[31m\n"])[np.arange(24) % 3]
    label = np.array([EVIL, "$\\frac{", "\x1b]0;title\x07"])[np.arange(24) // 3 % 3]
    np.savez(folder / f"{stem}.npz", x=rng.normal(size=(24, 2)), y=label, client=client)
    return f"{stem}.npz"


@pytest.mark.parametrize(
    "stem", ["[red]x[", "\x1b[31mred", "CON", "ü" * 60, "a\nb", "x" * 240, "..", "$\\frac{", ":smile:"]
)
def test_files_are_made_where_they_should_be(stem, call, tmp_path):
    """``data prepare`` and ``data show`` name their files after the data."""
    evil_file(tmp_path, stem)
    before = set(tmp_path.iterdir())
    code, out, err = call("data", "prepare", f"./{stem}.npz")
    assert code == 0, err
    code, shown, err = call("data", "show", f"./{stem}.npz")
    assert code == 0, err
    made = sorted(set(tmp_path.iterdir()) - before)
    assert [each.suffix for each in made] == [".fed", ".png"]
    assert "\x1b" not in out + shown
    assert "\x07" not in out + shown
    assert pfedbred.load(str(made[0])).names == pfedbred.load(f"./{stem}.npz").names


@pytest.mark.full
def test_a_run_of_evil_names(call, tmp_path):
    """The run's folder, files and pictures are made, and what it prints is what it was given."""
    name = evil_file(tmp_path, "[red]$\\frac{ :smile: \x1b[31m")
    code, out, err = call("run", "--dataset", f"./{name}", "--rounds", "1", "--algorithm", "fedavg", "--set", "R=1")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert {each.name for each in folder.iterdir()} >= {"config.yaml", "summary.json", "curves.png", "data.json"}
    assert {each.name for each in tmp_path.iterdir()} == {"runs", name}
    assert "\x1b" not in out
    assert "[red]$\\frac{ :smile: \\x1b[31m: 3 clients" in out  # the line on the data
    assert "| fedavg" in out
    assert ":smile:" in out.split("test accuracy")[0].splitlines()[-1]
    code, out, err = call("export", folder, "--client", "1")
    assert code == 0, err
    assert out.startswith("model: ")
    assert "\x1b" not in out
    assert len(out.splitlines()) == 1
    code, _, err = call("run", folder / "config.yaml", "--dry-run")
    assert code == 0, err


def test_a_model_or_an_algorithm_cannot_lead_out_of_the_folder(call, tmp_path):
    for arguments in (
        ("sweep", "--model", "../../../x/y", "--grid", "eta=0.1,0.2"),
        ("run", "--model", "../../../x/y"),
        ("run", "--algorithm", "../../x"),
        ("compare", "--algorithms", "fedavg+../../x"),
        ("run", "--dataset", "../../x"),
    ):
        code, _, err = call(*arguments)
        assert code == 2
        assert len(err.splitlines()) == 1
    outside = {each.name for each in tmp_path.parent.iterdir()}
    assert not outside & {"x", "x-mg-meta-sweep"}
    assert {each.name for each in tmp_path.iterdir()} <= {"runs"}


@pytest.mark.parametrize("name", ["../pfedme", "/etc", "..", "", "a/b", "\0", "..(a)", "()", "(/)", "a\\b"])
def test_a_comparison_reads_its_own_runs_only(name, tmp_path):
    (tmp_path / "cmp").mkdir()
    write_json(tmp_path / "cmp" / "table.json", [{"algorithm": name}])
    with pytest.raises(SettingError, match="is not an algorithm"):
        page.gather([tmp_path / "cmp"])


# On a terminal ------------------------------------------------------------------------------------------------------


def evil_federation():
    def samples(n):
        return np.ones((n, 2)), np.arange(n) % 2

    found = pfedbred.from_clients([samples(4)] * 2, [samples(2)] * 2, name="[red]x[/red] :smile: \x1b[31m\n\x07")
    return pfedbred.data.federation.dataclasses.replace(found, labels=("[b]", "\x1b]0;t\x07"), names=("\x1b", "[/]"))


def test_what_is_printed_of_data_is_text(capsys):
    describe(evil_federation())
    out = capsys.readouterr().out
    assert not set(out) & {"\x1b", "\x07", "\r"}
    assert "[red]x[/red] :smile: \\x1b[31m\\n\\x07: 2 clients" in out


@pytest.mark.parametrize("on_terminal", [True, False])
def test_the_outcome_shows_markup_as_it_is(on_terminal, finished, monkeypatch, capsys):
    summary = json.loads((finished / "run" / "summary.json").read_text())
    summary["data"]["name"] = "[red]x[/red] :smile: \x1b[31m"
    summary["algorithm"] = "[blink]y"
    screen = io.StringIO()
    if on_terminal:
        screen_ = Console(file=screen, force_terminal=True, width=120, **console._LITERAL)
        monkeypatch.setattr(console, "console", screen_)
    terminal.show_outcome([summary])
    out = screen.getvalue() if on_terminal else capsys.readouterr().out
    assert "[red]x[/red] :smile: \\x1b[31m" in out
    assert "[blink]y" in out
    assert "\x1b[5m" not in out


def test_pictures_of_evil_names(tmp_path):
    draw_distribution(evil_federation(), tmp_path / "a.png")
    assert curves.literal("$\\frac{$\x1b") == r"\$\frac{\$\x1b"


# On the page --------------------------------------------------------------------------------------------------------


def poisoned(value, keep=()):
    """All texts and free names in a value with markup at their end."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    if isinstance(value, dict):
        return {key: each if key in keep else poisoned(each) for key, each in value.items()}
    return value


@pytest.fixture
def evil_page(finished, tmp_path):
    """Every text that a run, a sweep, a table and a deviation hold is an attack."""
    run, sweep = tmp_path / "run", tmp_path / f"sweep{EVIL.replace('/', '')}"[:200]
    for folder in (run, sweep, run / "cells" / "deviation" / "c<b>"):
        folder.mkdir(parents=True)
    summary = poisoned(json.loads((finished / "run" / "summary.json").read_text()))
    summary["experiment"]["settings"][EVIL] = EVIL
    write_json(run / "summary.json", summary)
    write_json(run / "data.json", poisoned(json.loads((finished / "run" / "data.json").read_text())))
    (run / "metrics.jsonl").write_bytes((finished / "run" / "metrics.jsonl").read_bytes())
    facts = poisoned(json.loads((finished / "sweep" / "sweep.json").read_text()), keep=("grid", "best", "points"))
    names = (EVIL, "b%{z}" + EVIL)
    facts["grid"], facts["best"] = list(names), dict.fromkeys(names, 0.1)
    measured = {"measured": facts["points"][0]["measured"], "global": 0.5}
    facts["points"] = [{names[0]: i, names[1]: j, **measured, "personal": 0.1 * i} for i in (0, 1) for j in (0, 1)]
    write_json(sweep / "sweep.json", facts)
    cell = {**dict.fromkeys(("column", "row", "model"), EVIL), "mean": 1.0, "std": 0.1, "paper": 2.0}
    cell |= {"n": 5, "rounds": 7}
    write_json(run / "table2.json", [cell])
    deviation = {"global": [0.1, 0.2], "local": [0.1, None], "samples": {"global": [1, 2], "local": [1, 0]}}
    deviation |= {"fingerprint": {"rounds": 3}, "platform": summary["platform"]}
    write_json(run / "cells" / "deviation" / "c<b>" / f"{EVIL.replace('/', '')}.json", deviation)
    page.write_page([run, sweep], tmp_path / "page.html", [paper_section()], command)
    return tmp_path / "page.html"


def test_the_page_ends_no_element_early(evil_page):
    text = evil_page.read_text()
    assert text.count("<script") == 3
    assert EVIL not in text
    assert "<img" not in text.split("<script>")[0]


@pytest.mark.full
def test_nothing_on_the_page_is_made_of_names(browser, evil_page):
    browser.get(evil_page.as_uri())
    wait(browser, "return document.documentElement.dataset.ready === 'yes'")
    for chart in browser.execute_script("return [...document.querySelectorAll('.chart')].map((each) => each.id)"):
        wait(
            browser,
            "const c = document.getElementById(arguments[0]); c.scrollIntoView(); return Boolean(c.data)",
            chart,
        )
    assert browser.execute_script("return window.evil") is None
    assert browser.execute_script("return document.scripts.length") == 3
    made = (
        "return document.querySelectorAll('img, iframe, object, main a, main script, svg a, svg image[href*=x]').length"
    )
    assert browser.execute_script(made) == 0
    for place in ("h1", "#table", "#clients", "#settings", "#sweeps", "#paper", "#deviation"):
        shown = browser.execute_script("return document.querySelector(arguments[0]).textContent", place)
        assert "onerror='window.evil = 1'>" in shown, place
    labels = "return [...document.querySelectorAll('.chart svg text')].map((each) => each.textContent).join(' ')"
    assert "<a href=//evil.example>x</a>" in browser.execute_script(labels).replace("\u00a0", " ")
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
