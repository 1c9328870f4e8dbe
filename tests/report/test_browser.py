"""The pages in a browser: what the script adds, what a phone shows, what axe finds."""

import csv
import io
import os
import re
import shutil
import subprocess

import pytest

from pipeline.schema import ROOT, papers

AXE = "axe-core@4.10.3"
PATIENCE = 180
CLIPBOARD = """Object.defineProperty(navigator, 'clipboard', { configurable: true,
  value: { writeText: text => { window.copied = text; return Promise.resolve(); } } })"""
WAIT = "new Promise(done => setTimeout(done, 150))"


# The headline, the first two tiles and the first table, from the top of the page to its end.
ORDER = """[['h1', 'h1'], ['tile', '.tile'], ['tile', '.tile ~ .tile'], ['pane', '.pane']]
  .map(([name, selector]) => [name, document.querySelector(selector).getBoundingClientRect().top])
  .sort((one, other) => one[1] - other[1]).map(([name]) => name)"""


@pytest.fixture
def fedlsa(files, browser):
    assert browser.open(files["fedlsa"]) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    return browser


def names(browser, table):
    return browser.run(f"[...document.querySelectorAll('#{table} tbody th')].map(head => head.textContent)")


def values(browser, table):
    """The numbers of the first column, row by row."""
    cells = browser.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(row => row.cells[1].textContent)"
    )
    return [float(re.search(r"\d+\.\d+", cell)[0]) for cell in cells]


def press(browser, selector, text):
    browser.run(
        f"[...document.querySelectorAll('{selector}')].find(one => one.textContent === '{text}').click()"
    )


def test_a_column_sorts_both_ways_and_back(fedlsa):
    first = names(fedlsa, "table2")
    fedlsa.run("document.querySelector('#table2 thead button').click()")
    down = values(fedlsa, "table2")
    assert down == sorted(down, reverse=True)
    assert len(set(down)) > 4
    assert sorted(names(fedlsa, "table2")) == sorted(first)
    fedlsa.run("document.querySelector('#table2 thead button').click()")
    assert values(fedlsa, "table2") == sorted(down)
    fedlsa.run("document.querySelector('#table2 thead button').click()")
    assert names(fedlsa, "table2") == first


def test_the_shown_table_is_copied(fedlsa, files):
    fedlsa.run(CLIPBOARD)
    fedlsa.run("document.getElementById('t-table2').click()")
    press(fedlsa, ".tools button", "Copy CSV")
    rows = list(csv.DictReader(io.StringIO(fedlsa.run("window.copied"))))
    [ours] = [row for row in rows if row["method"] == "FedLSA"]
    assert (ours["Avg printed"], ours["DSLR printed"]) == ("60.22", "60.00")
    assert float(ours["Avg"]) == pytest.approx(max(values(fedlsa, "table2")), abs=0.06)
    assert float(ours["Avg sd"]) > 0
    assert len(rows) == 9
    fedlsa.run("document.getElementById('t-table5').click()")
    press(fedlsa, ".tools button", "Copy LaTeX")
    latex = (ROOT / "reports/tables/fedlsa-table5.tex").read_text(encoding="utf-8")
    assert fedlsa.run("window.copied") == latex


def test_a_square_says_its_claim_and_leads_to_it(files, browser):
    browser.open(files["index"])
    square = "document.querySelector('.q[href=\"fedlsa.html#L04\"]')"
    browser.run(f"{square}.dispatchEvent(new PointerEvent('pointerover', {{ bubbles: true }}))")
    words = browser.run("document.querySelector('.hover').textContent")
    assert words == browser.run(f"{square}.getAttribute('aria-label')")
    assert words.startswith("L04")
    browser.events.clear()
    browser.run(f"{square}.click()")
    while not any(event["method"] == "Page.loadEventFired" for event in browser.events):
        browser.events.append(browser.next())
    assert browser.run("location.hash") == "#L04"
    assert browser.run("document.getElementById('L04').open")


def test_a_link_into_a_fold_opens_it(fedlsa):
    for place, fold in (("L01a", "open"), ("R3", "readings")):
        assert fedlsa.run(f"document.getElementById('{fold}').open") is False
        fedlsa.run(f"location.hash = '#{place}'")
        fedlsa.run(WAIT)
        assert fedlsa.run(f"document.getElementById('{fold}').open")


def test_a_count_shows_its_claims_alone(fedlsa):
    visible = """[...document.querySelectorAll('#claims .c')].filter(one => one.offsetParent)
      .map(one => one.className)"""
    every = fedlsa.run(visible)
    fedlsa.run("document.querySelector('[data-filter] button:has(.undecided)').click()")
    assert set(fedlsa.run(visible)) == {"c undecided"}
    assert set(every) > {"c undecided"}
    fedlsa.run("document.querySelector('[data-filter] button:has(.undecided)').click()")
    assert fedlsa.run(visible) == every


def test_without_scripts_tabs_and_folds_work(files, browser):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        assert browser.open(files["fedlsa"]) == []
        assert browser.run("document.querySelectorAll('.tools button, .copy').length") == 0
        visible = "[...document.querySelectorAll('.pane')].filter(one => one.offsetParent).map(one => one.id)"
        assert browser.run(visible) == ["tuned-office-caltech"]
        browser.run("document.querySelector('label[for=t-table5]').click()")
        assert browser.run(visible) == ["table5"]
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("name", ["index", *papers()])
def test_a_phone_shows_headline_and_tiles_first(files, browser, name):
    assert browser.open(files[name], width=390) == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    if name == "index":
        return
    assert browser.run(ORDER) == ["h1", "tile", "tile", "pane"]
    scrolled = """(() => { const box = document.querySelector('.pane .scroll');
      box.scrollLeft = 200;
      const [head, frame] = [box.querySelector('tbody th'), box].map(one => one.getBoundingClientRect().left);
      return Math.abs(head - frame); })()"""
    assert browser.run(scrolled) < 1


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The text of axe-core, through npm."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine (Debian: apt install npm)")
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), AXE],
        capture_output=True,
        text=True,
        env=os.environ | {"HOME": str(folder)},
        timeout=PATIENCE,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install {AXE}: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name, night", [*((name, False) for name in ("index", *papers())), ("index", True), ("fedlsa", True)]
)
def test_axe_finds_nothing_serious(files, browser, axe, name, night):
    assert browser.open(files[name], night=night) == []
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.run(axe + "; null")
    only = "runOnly: ['color-contrast'], " if night else ""  # at night other colours, nothing else
    assert (
        browser.run(
            f"axe.run({{ {only}resultTypes: ['violations'] }})"
            + """.then(result => result.violations
      .filter(one => ['serious', 'critical'].includes(one.impact))
      .map(one => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 120)]))"""
        )
        == []
    )
