"""report.html: what is on it, that it stands alone, and how it behaves in a real browser."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
from support.browser import wait

import pfedbred
from pfedbred.errors import SettingError
from pfedbred.paper import columns, figures
from pfedbred.paper.page import beside_paper, paper_commands
from pfedbred.report.page import command, gather

EVIL = '</script><script>window.evil = 1</script><img src=x onerror="window.evil = 1">'


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A comparison of clients with ugly names, a sweep, and some of the paper's, as the command line writes them."""
    root = tmp_path_factory.mktemp("page")
    x, y = np.random.default_rng(0).normal(size=(240, 6)), np.arange(240) % 3
    np.savez(root / "own.npz", x=x, y=y, client=np.array([EVIL, "a&b", "c"])[np.arange(240) % 3])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        part = "every other writer"
        for name, why in {"digits": None, "digits-part": part}.items():
            column = columns.Column(f"{name.title()}, MCLR", "digits", "mclr", 4, aggregated=4, not_compared=why)
            patch.setitem(columns.ALL, name, column)
        patch.setattr(figures, "HYPER_GRID", {"eta": [0.01, 0.1], "lam": [5.0, 15.0]})
        for arguments in (
            "compare --dataset own.npz --rounds 3 --seeds 2 --set R=2 --algorithms fedavg,mg-meta --out cmp",
            "sweep --rounds 2 --clients 6 --set R=2 --grid eta=0.01,0.1 --grid lam=5,15 --out sweep",
            "paper table2 --columns digits,digits-part --rows fedavg,mg-meta,mg-meta+am --seeds 2 --rounds 2 "
            "--out paper",
            "paper deviation --columns digits --rows pfedme,mg-meta --rounds 2 --out paper",
            "paper noniid --columns digits --out paper",
            "paper hyper --columns digits --seeds 1 --rounds 2 --out paper",
        ):
            run(patch, *arguments.split())
        run(patch, "report", "cmp", "sweep", "paper", "--out", "page.html")
    return root


def run(patch, *arguments):
    patch.setattr("sys.argv", ["pfedbred", *arguments])
    with pytest.raises(SystemExit) as stopped:
        pfedbred.cli.main()
    assert not stopped.value.code


def test_the_page_holds_what_the_folders_say(folders):
    content = gather([folders / "cmp", folders / "sweep", folders / "paper"])
    assert [each["name"] for each in content["runs"]] == ["fedavg", "mg-meta"]
    mg = content["runs"][1]
    summary = json.loads((folders / "cmp" / "mg-meta" / "summary.json").read_text())
    assert mg["P"]["best"] == pytest.approx(100 * summary["personal"]["best_accuracy"]["mean"], abs=1e-3)
    lines = [json.loads(line) for line in (folders / "cmp" / "mg-meta" / "metrics.jsonl").read_text().splitlines()]
    assert mg["rounds"] == [1, 2, 3]
    accuracy = 100 * np.array([line["personal"]["test"]["accuracy"] for line in lines])
    np.testing.assert_allclose(mg["P"]["mean"], accuracy.mean(axis=1), atol=1e-3)
    np.testing.assert_allclose(mg["P"]["high"], accuracy.max(axis=1), atol=1e-3)
    clients = 100 * np.mean(lines[-1]["global"]["test"]["client_accuracy"], axis=0)
    np.testing.assert_allclose(mg["clients"]["g"], clients, atol=0.06)
    assert sorted(mg["clients"]["names"]) == sorted([EVIL, "a&b", "c"])
    own, digits = content["federations"]
    assert np.sum(own["train"]) + np.sum(own["test"]) == 240
    assert digits["name"] == "digits"
    said = {each["name"]: each["command"] for each in content["commands"]}
    deviation = "pfedbred paper deviation --columns digits --rows mg-meta,pfedme --rounds 2 --out paper"
    assert said["Deviation: digits"] == deviation
    assert [len(each["points"]) for each in content["sweeps"]] == [4, 4]
    (table,) = content["tables"]
    assert [each["title"] for each in table["columns"]] == ["digits", "digits-part"]
    figures = [(each["row"], each["model"]) for each in table["columns"][0]["cells"]]
    assert figures == [("fedavg", "G"), *((row, model) for row in ("mg-meta", "mg-meta+am") for model in "PG")]
    assert len(set(content["platforms"])) == 1
    assert set(content["deviations"][0]["methods"]) == {"pfedme", "mg-meta"}


def test_curves_of_a_table_are_those_of_its_records(folders):
    (table,) = gather([folders / "paper"])["tables"]
    fedavg, mg, _ = table["columns"][1]["curves"]
    assert "P" not in fedavg  # of which the table has no figure
    record = json.loads((folders / "paper/cells/table2/digits-part/mg-meta.json").read_text())
    assert mg["rounds"] == record["rounds"] == [1, 2]
    assert mg["seeds"] == 2
    for model in "GP":
        for name, kind in {"mean": "curve", "low": "low", "high": "high"}.items():
            np.testing.assert_allclose(mg[model][name], record[model][kind], atol=0.0051)


def test_damaged_records_of_a_table_are_refused(folders, tmp_path):
    def refused(file, change):
        shutil.copytree(folders / "paper", tmp_path / "paper", dirs_exist_ok=True)
        value = json.loads((tmp_path / "paper" / file).read_text())
        change(value)
        (tmp_path / "paper" / file).write_text(json.dumps(value))
        with pytest.raises(SettingError) as stopped:
            gather([tmp_path / "paper"])
        return str(stopped.value)

    record = "cells/table2/digits/mg-meta.json"
    assert "curves are not of the same rounds" in refused(record, lambda value: value["P"]["low"].pop())
    assert "damaged" in refused(record, lambda value: value.pop("platform"))
    assert "table2.json" in refused("table2.json", lambda value: value.clear())


def test_a_table_without_its_records_is_shown_without_curves(folders, tmp_path):
    shutil.copy(folders / "paper" / "table2.json", tmp_path)
    (table,) = gather([tmp_path])["tables"]
    assert [each["curves"] for each in table["columns"]] == [[], []]


def test_the_commands_of_pictures_make_them_again(folders, tmp_path):
    """Each with its own rounds; the data of a column by the first of its dataset."""
    shutil.copytree(folders / "paper", tmp_path / "its results")
    file = tmp_path / "its results/cells/deviation/digits/pfedme.json"
    record = json.loads(file.read_text())
    record["fingerprint"]["rounds"] = 7
    file.write_text(json.dumps(record))
    own = json.loads((folders / "paper/noniid-digits.json").read_text())
    (tmp_path / "its results/noniid-mnist-paper.json").write_text(json.dumps({**own, "name": "mnist-paper"}))
    content = gather([tmp_path / "its results"])
    said = {each["name"]: each["command"].splitlines() for each in content["commands"]}
    assert said["Deviation: digits"] == [
        "pfedbred paper deviation --columns digits --rows mg-meta --rounds 2 --out 'its results'",
        "pfedbred paper deviation --columns digits --rows pfedme --rounds 7 --out 'its results'",
    ]
    assert said["Who has what"] == ["pfedbred paper noniid --columns mnist-mclr --out 'its results'"]


def test_every_platform_is_named(folders, tmp_path):
    shutil.copytree(folders / "paper", tmp_path / "paper")
    for kind, file in {"table": "cells/table2/digits/fedavg", "deviation": "cells/deviation/digits/pfedme"}.items():
        record = json.loads((tmp_path / "paper" / f"{file}.json").read_text())
        record["platform"]["device"] = kind
        (tmp_path / "paper" / f"{file}.json").write_text(json.dumps(record))
    assert {each.split(" (")[0] for each in gather([tmp_path / "paper"])["platforms"]} == {"cpu", "table", "deviation"}


def test_a_table_leads_to_no_file_elsewhere(folders, tmp_path):
    shutil.copytree(folders / "paper", tmp_path / "paper")
    file = tmp_path / "paper" / "table2.json"
    (first, *others) = json.loads(file.read_text())
    file.write_text(json.dumps([{**first, "row": "../digits/fedavg"}, *others]))
    (table,) = gather([tmp_path / "paper"])["tables"]
    assert [each["row"] for each in table["columns"][0]["curves"]] == ["mg-meta", "mg-meta+am"]


def test_a_part_of_a_dataset_is_not_compared():
    cell = {"row": "fedavg", "model": "G", "mean": 85.3, "std": 0.2, "paper": 53.96, "n": 5, "rounds": 200}
    part = beside_paper({**cell, "column": "femnist-mclr"})
    assert part["difference"] is None
    whole = beside_paper({**cell, "column": "mnist-mclr"})
    assert whole["difference"] == 31.34
    assert [part["rounds"], whole["rounds"]] == ["200 of 1200", "200"]


def test_the_commands_of_a_table_make_its_cells_and_no_others():
    def cells(column, rows, rounds, n=5):
        return [{"column": column, "row": row, "model": m, "n": n, "rounds": rounds} for row in rows for m in "PG"]

    table = [
        *cells("mnist-mclr", ["fedavg", "pfedme"], 200),
        *cells("mnist-dnn", ["fedavg", "pfedme"], 200),
        *cells("cifar10-cnn", ["pfedme"], 2000),
        *cells("sent140-lstm", ["fedavg", "pfedme"], 100),
        *cells("sent140-lstm", ["fedem"], 100, n=2),
    ]
    assert paper_commands("table2", table) == [
        "pfedbred paper table2 --columns mnist-mclr,mnist-dnn --rows fedavg,pfedme --seeds 5",
        "pfedbred paper table2 --columns cifar10-cnn --rows pfedme --seeds 5",
        "pfedbred paper table2 --columns sent140-lstm --rows fedavg,pfedme --seeds 5 --rounds 100",
        "pfedbred paper table2 --columns sent140-lstm --rows fedem --seeds 2 --rounds 100",
    ]


def test_the_page_stands_alone_and_is_small(folders):
    text = (folders / "page.html").read_text()
    assert len(text) < 6 * 10**6
    assert EVIL not in text
    head = text.split('<script id="content"')[0]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", head)
    assert text.count("<script") == 3  # the content, plotly.js, and the page's own


def test_a_thousand_clients_fit(tmp_path):
    """20 runs of them stay under the limit, since plotly.js is 4.8 MB of it."""
    run = {"g": [99.9] * 1000, "p": [99.9] * 1000, "names": [f"client-{i}" for i in range(1000)]}
    assert 20 * len(json.dumps(run)) < 10**6


def test_the_command_makes_the_run_again(folders):
    summary = json.loads((folders / "cmp" / "mg-meta" / "summary.json").read_text())
    said = command(summary["experiment"])
    assert said.startswith("pfedbred run --algorithm mg-meta --dataset ")
    assert "--seeds 2" in said
    assert "--set R=2" in said
    assert "--set lam" not in said  # a default
    assert "--batch-size" not in said


def test_folders_without_results_are_refused(call, folders, tmp_path):
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "summary.json").write_text("{}")
    for folder, words in {
        "nowhere": "no folder nowhere",
        "empty": "pfedbred: empty holds no finished run",
        "damaged": "damaged",
    }.items():
        code, _, err = call("report", folder)
        assert code == 2
        assert words in err
        assert len(err.splitlines()) == 1


# In a browser ----------------------------------------------------------------------------------------------


@pytest.fixture
def page(browser, folders):
    """Opens the page in a window of that width and theme; its charts are drawn."""

    def open_(width=1280, theme="light"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get((folders / "page.html").as_uri())
        wait(browser, "return document.documentElement.dataset.ready === 'yes'")
        charts = browser.execute_script("return [...document.querySelectorAll('.chart')].map((each) => each.id)")
        for chart in charts:
            # Charts are drawn when they come into view: a move between looks lets a busy browser notice it again.
            drawn = """const c = document.getElementById(arguments[0]);
                window.scrollBy(0, -50 * Math.random()); c.scrollIntoView(); return Boolean(c.data)"""
            wait(browser, drawn, chart)
        browser.execute_script("window.scrollTo(0, 0)")
        return browser, charts

    return open_


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark"), (820, "dark")])
def test_it_opens_without_an_error_and_nothing_overflows(page, width, theme):
    browser, charts = page(width, theme)
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert len(charts) == 2 + 2 + 4 + 1 + 2  # curves, clients; two of the table; two of each sweep; deviation; data
    sections = browser.execute_script("return [...document.querySelectorAll('main section')].map((each) => each.id)")
    assert sections == ["table", "curves", "clients", "paper", "deviation", "sweeps", "data", "settings"]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    wide = """return [...document.querySelectorAll('main *')]
        .filter((each) => !each.closest('.scroll, pre, .chart, details'))
        .filter((each) => each.getBoundingClientRect().right > arguments[0] + 1).length"""
    assert browser.execute_script(wide, width) == 0
    assert browser.execute_script("return window.evil") is None
    assert EVIL in browser.execute_script("return document.getElementById('clients').textContent")
    ink, ground = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    )
    bright = [sum(map(int, re.findall(r"\d+", each)[:3])) for each in (ink, ground)]
    assert (bright[0] > bright[1]) == (theme == "dark")
    drawn = browser.execute_script("return document.getElementById('curves-chart').layout.font.color")
    assert (int(drawn[1:3], 16) > 128) == (theme == "dark")


def test_hovering_shows_the_numbers(page):
    from selenium.webdriver.common.action_chains import ActionChains

    browser, _ = page()
    chart = browser.find_element("css selector", "#curves-chart .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    wait(browser, "return document.querySelector('#curves-chart .hoverlayer').textContent.includes('mg-meta')")


def test_filtering_takes_a_run_out_of_the_curves_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    browser, _ = page()
    names = "return document.getElementById('curves-chart').data.map((each) => each.name).filter(Boolean)"
    assert set(browser.execute_script(names)) == {"fedavg", "mg-meta"}
    box = browser.find_element("css selector", "#curves input[data-curve='fedavg']")
    box.send_keys(Keys.SPACE)
    assert set(browser.execute_script(names)) == {"mg-meta"}


def test_another_run_can_be_chosen_client_by_client(page):
    browser, _ = page()
    before = browser.find_element("id", "clients-summary").text
    assert before.startswith("mg-meta")
    browser.find_element("css selector", "#clients-run option[value='0']").click()
    assert browser.find_element("id", "clients-summary").text.startswith("fedavg")


def test_a_column_of_the_paper_is_chosen_and_its_methods_filtered(page, folders):
    browser, _ = page()
    browser.execute_script("document.getElementById('sweep-map-0').layout.untouched = true")
    assert browser.find_element("id", "paper-0-summary").text.startswith("Digits, MCLR: best P")  # one that is compared
    names = "return document.getElementById('paper-0-rounds').data.map((each) => each.name).filter(Boolean)"
    assert browser.execute_script(names) == ["fedavg", "mg-meta", "mg-meta+am", "mg-meta", "mg-meta+am"]  # G, then P
    browser.find_element("css selector", "#paper input[data-curve='mg-meta+am']").click()
    assert browser.execute_script(names) == ["fedavg", "mg-meta", "mg-meta"]
    details = "return document.querySelector('#paper figure:has(#paper-0-rounds) details')"
    browser.execute_script(f"{details}.open = true")
    browser.find_element("css selector", "#paper-0-column option[value='1']").click()
    assert browser.execute_script(f"{details}.open")
    assert browser.find_element("id", "paper-0-summary").text.startswith("Digits-Part, MCLR: best P")
    assert browser.execute_script(names) == ["fedavg", "mg-meta", "mg-meta"]
    assert "2 of 4 rounds; every other writer." in browser.find_element("id", "paper").text
    cells = json.loads((folders / "paper" / "table2.json").read_text())
    figures = [cell for cell in cells if (cell["column"], cell["model"]) == ("digits-part", "P")]
    words = browser.find_element("id", "paper-0-rounds").get_attribute("aria-label")
    assert words.startswith("Digits-Part, MCLR: accuracy by round. Lines are means over seeds")
    assert browser.execute_script(
        "return document.getElementById('sweep-map-0').layout.untouched"
    )  # what is done there stays
    dots = browser.execute_script("return document.getElementById('paper-0-beside').data.at(-1).x")
    assert dots == [cell["mean"] for cell in figures]
    best = browser.execute_script("""return [...document.querySelectorAll('#paper .scroll')]
        .find((each) => each.ariaLabel.endsWith('(P)')).querySelector('td.best:last-child').textContent""")
    assert best == f"{max(cell['mean'] for cell in figures):.2f}"


def test_a_panel_without_curves_keeps_its_axes(page):
    """And its title stays above it."""
    browser, _ = page()
    for box in browser.find_elements("css selector", "#paper input[type=checkbox]"):
        if box.get_attribute("data-curve") != "fedavg":  # of which there is no P
            box.click()
    axes = "return Object.keys(document.getElementById('paper-0-rounds')._fullLayout._plots).sort()"
    assert browser.execute_script(axes) == ["x2y2", "xy"]
    browser.find_element("css selector", "#paper input[data-curve='fedavg']").click()
    assert browser.execute_script(axes) == ["x2y2", "xy"]


def test_it_can_be_read_without_seeing_it(page):
    """Every chart has words and its numbers, every table a caption, every control a name; headings are in order."""
    browser, charts = page()
    for chart in charts:
        element = browser.find_element("id", chart)
        assert len(element.get_attribute("aria-label")) > 10
    without_words = """return [...document.querySelectorAll('figure')]
        .filter((each) => !each.querySelector('figcaption')).length"""
    assert browser.execute_script(without_words) == 0
    without_heads = """return [...document.querySelectorAll('table')]
        .filter((each) => !each.caption || !each.querySelector('th[scope]')).length"""
    assert browser.execute_script(without_heads) == 0
    unnamed = "return [...document.querySelectorAll('select, input')].filter((each) => !each.labels.length).length"
    assert browser.execute_script(unnamed) == 0
    assert browser.execute_script("return document.documentElement.lang") == "en"
    headings = "return [...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))"
    levels = browser.execute_script(headings)
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
