"""How report.html behaves in a real browser."""

import itertools
import json
import re

import pytest
from support.browser import wait
from support.page_folders import (
    add_calibration,
    change_json,
    write_comparison,
    write_lines,
    write_paper,
    write_run,
    write_sweep,
)

from pfedbred.experiment.command import command
from pfedbred.paper.page import section
from pfedbred.report.page import write_page

pytestmark = pytest.mark.full
EVIL = '</script><script>window.evil = 1</script><img src=x onerror="window.evil = 1">'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A page with one of everything; a client's name is an attack."""
    root = tmp_path_factory.mktemp("page")
    write_comparison(root / "cmp", clients=(EVIL, "a&b", "c"))
    lines = write_run(root / "cmp" / "mg-meta", clients=(EVIL, "a&b", "c"))
    for line in lines:
        line["diagnostics"] = {"distance <b>": [1.0, 2.0], "steps": [5, 5]}
        line["client_diagnostics"] = {"strength": [[1.0, 10.0, 100.0]] * 2, "change <b>": [[-2.0, 0.5, 3.0]] * 2}
    write_lines(root / "cmp" / "mg-meta", lines)
    add_calibration(root / "cmp" / "mg-meta")
    write_sweep(root / "sweep" / "sweep.json")
    write_paper(root / "paper")
    write_page([root / "cmp", root / "sweep", root / "paper"], root / "page.html", [section()], command)
    return root


@pytest.fixture
def page(browser, root):
    """Opens a page in a window of that width and theme; its charts are drawn."""

    def open_(width=1280, theme="light", file=root / "page.html"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(file.as_uri())
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


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_it_opens_without_an_error_and_nothing_overflows(page, width, theme):
    browser, charts = page(width, theme)
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    # curves, clients; strengths, other numbers by client; diagnostics; uncertainty; table; sweeps; deviation; data
    assert len(charts) == 2 + 2 + 2 + 2 + 2 + 4 + 1 + 5
    sections = browser.execute_script("return [...document.querySelectorAll('main section')].map((each) => each.id)")
    of_runs = ["table", "curves", "clients", "strengths", "described", "diagnostics", "uncertainty"]
    assert sections == [*of_runs, "paper", "deviation", "sweeps", "data", "settings"]
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


def test_runs_and_metrics_can_be_chosen(page):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser, _ = page()
    chart = browser.find_element("css selector", "#curves-chart .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    wait(browser, "return document.querySelector('#curves-chart .hoverlayer').textContent.includes('mg-meta')")

    names = "return document.getElementById('curves-chart').data.map((each) => each.name).filter(Boolean)"
    assert set(browser.execute_script(names)) == {"fedavg", "mg-meta"}
    browser.find_element("css selector", "#curves input[data-curve='fedavg']").send_keys(Keys.SPACE)
    assert set(browser.execute_script(names)) == {"mg-meta"}

    before = browser.find_element("id", "clients-summary").text
    chosen, other = ("fedavg", "mg-meta") if before.startswith("fedavg") else ("mg-meta", "fedavg")
    assert before.startswith(f"{chosen}, accuracy: of 3 clients")
    option = f"//select[@id='clients-run']/option[text()='{other}']"
    browser.find_element("xpath", option).click()
    assert browser.find_element("id", "clients-summary").text.startswith(f"{other}, accuracy")

    assert (
        browser.execute_script("return document.getElementById('curves-metric').selectedOptions[0].text") == "accuracy"
    )
    assert "worst tenth (%)" in browser.find_element("id", "table").text
    browser.find_element("xpath", "//select[@id='curves-metric']/option[text()='RMSE']").click()
    axis = "return document.getElementById(arguments[0]).layout.yaxis.title.text"
    assert {browser.execute_script(axis, f"{each}-chart") for each in ("curves", "clients")} == {"test RMSE"}
    heads = browser.execute_script(
        "return [...document.querySelectorAll('#table th[scope=col]')].map((e) => e.textContent)"
    )
    assert heads[:4] == [
        "method",
        "G",
        "P",
        "seeds",
    ]  # the data and the model, which the runs share, are in the caption
    assert "(mine, mclr): RMSE" in browser.find_element("css selector", "#table caption").text
    assert browser.find_element("id", "clients-summary").text.startswith(f"{other}, RMSE")
    figures = browser.execute_script("""return [...document.querySelectorAll('#table tbody tr')]
        .map((row) => [parseFloat(row.cells[2].textContent), row.cells[2].className])""")
    assert min(figures)[1] == "best"  # the lower, the better
    assert max(figures)[1] == ""


def test_a_column_of_the_paper_is_chosen_and_its_methods_filtered(page, root):
    browser, _ = page()
    browser.execute_script("document.getElementById('sweep-map-0').layout.untouched = true")
    assert browser.find_element("id", "paper-0-summary").text.startswith("MNIST, MCLR: best P")  # one that is compared
    names = "return document.getElementById('paper-0-rounds').data.map((each) => each.name).filter(Boolean)"
    assert browser.execute_script(names) == ["fedavg", "mg-meta", "mg-meta+am", "mg-meta", "mg-meta+am"]  # G, then P
    browser.find_element("css selector", "#paper input[data-curve='mg-meta+am']").click()
    assert browser.execute_script(names) == ["fedavg", "mg-meta", "mg-meta"]
    details = "return document.querySelector('#paper figure:has(#paper-0-rounds) details')"
    browser.execute_script(f"{details}.open = true")
    browser.find_element("css selector", "#paper-0-column option[value='1']").click()
    assert browser.execute_script(f"{details}.open")
    assert browser.find_element("id", "paper-0-summary").text.startswith("FEMNIST, MCLR: best P")
    assert browser.execute_script(names) == ["fedavg", "mg-meta", "mg-meta"]
    assert "2 of 1200 rounds; a part of FEMNIST" in browser.find_element("id", "paper").text
    words = browser.find_element("id", "paper-0-rounds").get_attribute("aria-label")
    assert words.startswith("FEMNIST, MCLR: accuracy by round. Lines are means over seeds")
    cells = json.loads((root / "paper" / "table2.json").read_text())
    figures = [cell["mean"] for cell in cells if (cell["column"], cell["model"]) == ("femnist-mclr", "P")]
    assert browser.execute_script("return document.getElementById('paper-0-beside').data.at(-1).x") == figures
    best = browser.execute_script("""return [...document.querySelectorAll('#paper .scroll')]
        .find((each) => each.ariaLabel.endsWith('(P)')).querySelector('td.best:last-child').textContent""")
    assert best == f"{max(figures):.2f}"
    # A chart elsewhere is left alone, and a panel without a curve keeps its axes.
    assert browser.execute_script("return document.getElementById('sweep-map-0').layout.untouched")
    browser.find_element("css selector", "#paper input[data-curve='mg-meta']").click()
    axes = "return Object.keys(document.getElementById('paper-0-rounds')._fullLayout._plots).sort()"
    assert browser.execute_script(names) == ["fedavg"]  # which has no P
    assert browser.execute_script(axes) == ["x2y2", "xy"]


def test_it_can_be_read_without_seeing_it(page):
    """Every chart has a text and its numbers, every table a caption, every control a label; headings are in order."""
    browser, charts = page()
    for chart in charts:
        element = browser.find_element("id", chart)
        assert len(element.get_attribute("aria-label")) > 10
    without_words = """return [...document.querySelectorAll('figure')]
        .filter((each) => !each.querySelector('figcaption')?.textContent).length"""
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


def test_reliability_and_coverage_are_drawn_and_told(page):
    browser, charts = page()
    assert {"reliability-chart", "coverage-chart"} <= set(charts)
    words = browser.execute_script("return document.getElementById('uncertainty-summary').textContent")
    assert "90 % of the labels should be covered. Of 3 clients, 1 has the 19 validation samples needed" in words
    assert "for this one the coverage holds client by client. The others share one calibration" in words
    lines = browser.execute_script(
        """return document.getElementById('coverage-chart').data.map((each) => [each.name, [...each.y]])"""
    )
    assert lines == [["requested", [90, 90]], ["G", [50, 50, 50]], ["P", [95, 95, 95]]]
    marks = browser.execute_script("return [...document.getElementById('coverage-chart').data[1].marker.symbol]")
    assert sorted(marks) == ["circle", "circle-open", "circle-open"]
    curves = browser.execute_script(
        """return document.getElementById('reliability-chart').data.map((each) => each.x.length)"""
    )
    assert curves == [2, 14, 14, 2, 14, 14]  # a bin without samples has no dot


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Pages of runs on two data sets, of which only the runs on the first have validation samples."""
    root = tmp_path_factory.mktemp("apart")
    for place, (name, method) in enumerate({"a": "fedavg", "b": "mg-meta", "c": "ditto", "d": "pfedme"}.items()):
        many = [f"client-{i}" for i in range(40)] if name == "d" else ("x", "y", "z")
        write_run(root / name, method, clients=many, validation=place < 2, seed=place, metrics=())
        data = {"name": "mine", "clients": 3 if place < 2 else 5}
        change_json(root / name / "summary.json", lambda all_, data=data: all_.update(data=data))
    for name, alone in {"a": False, "b": True}.items():
        add_calibration(root / name)
        own = {"own": [alone] * 3}
        change_json(root / name / "summary.json", lambda all_, own=own: all_["calibration"].update(own))
    write_page([root / name for name in "abcd"], root / "all.html")
    write_page([root / "a", root / "c"], root / "two.html")
    return root


def test_the_best_is_marked_among_runs_on_the_same_data(page, apart):
    browser, _ = page(file=apart / "all.html")
    cells = browser.execute_script("""return [...document.querySelectorAll('#table tbody tr')]
        .map((row) => [...row.cells].map((cell) => [cell.textContent, cell.className]))""")
    firsts, per_model = 1, 3
    for column in range(firsts + per_model, firsts + 2 * per_model):
        for rows in (cells[:2], cells[2:]):
            shown = [row[column] for row in rows]
            if shown[0][0] == "–":
                assert [look for _, look in shown] == ["", ""]
            else:
                best = max(shown, key=lambda cell: float(cell[0].split()[0]))
                assert [look for _, look in shown] == ["best" if cell is best else "" for cell in shown]
    words = browser.find_element("id", "curves-chart").get_attribute("aria-label")
    assert words.count("best P on mine: ") == 2
    browser, _ = page(file=apart / "two.html")
    assert browser.execute_script("return document.querySelectorAll('#table .best').length") == 0
    words = browser.find_element("id", "curves-chart").get_attribute("aria-label")
    assert words == "Test accuracy by round of 2 runs."


def test_only_strengths_are_shown_as_lambda_on_a_scale_of_logarithms(page):
    browser, _ = page()
    drawn = """const chart = document.getElementById(arguments[0]), [map] = chart.data;
        const heading = chart.closest('section').querySelector('h2').textContent;
        return [heading, chart.layout.title.text, map.colorbar.title.text, map.z.map((row) => row[0])]"""
    strengths = ["Strength of the prior, client by client", "all layers", "lambda", [0, 1, 2]]
    assert browser.execute_script(drawn, "strengths-0-0") == strengths
    others = ["Diagnostics, client by client", "change &lt;b>", "change &lt;b>", [-2, 0.5, 3]]
    assert browser.execute_script(drawn, "described-0-0") == others


def test_the_outcome_shows_g_and_p_in_an_ordinary_window(page, apart):
    browser, _ = page(1200, file=apart / "all.html")
    heads = browser.execute_script("""return [...document.querySelectorAll('#table th[scope=colgroup]')]
        .map((each) => [each.textContent, each.colSpan, each.getBoundingClientRect().right])""")
    assert [each[:2] for each in heads] == [["G (%)", 3], ["P (%)", 3]]
    assert heads[-1][2] < browser.execute_script(
        "return document.querySelector('#table .scroll').getBoundingClientRect().right"
    )


def test_clients_have_their_names_on_the_axis_or_ranks(page, apart):
    browser, _ = page(file=apart / "all.html")
    axis = "return document.getElementById(arguments[0]).layout.xaxis"
    for chart in ("clients-chart", "coverage-chart", "data-chart-0-train"):
        found = browser.execute_script(axis, chart)
        assert sorted(found["ticktext"]) == ["x", "y", "z"], chart
        assert found["title"]["text"].startswith("client")
    browser.find_element("xpath", "//select[@id='clients-run']/option[text()='pfedme']").click()
    found = browser.execute_script(axis, "clients-chart")
    assert found["title"]["text"] == "rank of the client by G"
    assert "ticktext" not in found


def test_bands_are_within_their_panels(page):
    browser, _ = page()
    for suffix in ("", "2"):
        low, high = browser.execute_script(
            "return document.getElementById('curves-chart').layout[arguments[0]].range", f"yaxis{suffix}"
        )
        bands = browser.execute_script(
            """return document.getElementById('curves-chart').data
                .filter((each) => each.fill && each.yaxis === arguments[0]).flatMap((each) => each.y)""",
            f"y{suffix}",
        )
        assert bands
        assert low <= min(bands)
        assert high >= max(bands)


def test_what_is_said_of_labels_and_calibration(page, apart):
    browser, _ = page(file=apart / "all.html")
    words = browser.find_element("id", "data-chart-0-train").get_attribute("aria-label")
    assert words.endswith("3 clients; on average, a client has samples of 83 % of the labels.")
    of_calibration = "return document.getElementById('uncertainty-summary').textContent"
    assert "None of the 3 clients has the 19 validation samples" in browser.execute_script(of_calibration)
    assert "only on average over all clients." in browser.execute_script(of_calibration)
    browser.find_element("xpath", "//select[@id='uncertainty-run']/option[text()='mg-meta']").click()
    words = browser.execute_script(of_calibration)
    assert "Each of the 3 clients has the 19 validation samples" in words
    assert words.endswith("the coverage holds client by client.")
