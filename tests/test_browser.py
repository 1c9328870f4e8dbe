"""What a page does when it is used: hover, keys, filters, toggles and copies, in a real browser; and what axe
finds to say of it."""
import csv
import io
import os
import re
import shutil
import subprocess

import pytest
from browsing import PAGES
from repository import PATIENCE, ROOT

AXE = "axe-core@4.11.0"

# A button's copy goes to window.copied: a page that is opened from a file may not read the clipboard.
CLIPBOARD = """window.copied = null; Object.defineProperty(navigator, 'clipboard', {configurable: true,
  value: {writeText: async text => { window.copied = text; }}})"""


@pytest.fixture
def paper(site, browser):
    """The page of a paper with runs, open."""
    assert browser.open(site / "reports/fedcrl.html") == []
    return browser


def point(browser, place, share_x, share_y=0.5):
    """Move the mouse to a share of an element's box."""
    x, y = browser.run(f"""(() => {{ const element = document.querySelector({place!r});
      for (let at = element; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true;
      element.scrollIntoView({{block: 'center', behavior: 'instant'}});
      const box = element.getBoundingClientRect();
      return [box.x + {share_x} * box.width, box.y + {share_y} * box.height]; }})()""")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)


def key(browser, name):
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)


def rows(browser, table):
    """First cells of the rows that are seen."""
    return browser.run(f"""[...document.querySelectorAll('#{table} tbody tr')].filter(row => row.offsetParent)
      .map(row => row.cells[0].firstChild.textContent.trim())""")


# -- charts --------------------------------------------------------------------------------------------------

def test_a_point_says_which_number_it_is(paper):
    point(paper, ".points [data-x]", 0.5)
    said = paper.run("document.querySelector('.points .read').textContent")
    assert re.fullmatch(r"\w+, \w+ \(Table \d\): measured [\d.]+, published [\d.]+, [+−][\d.]+", said)
    paper.run("document.querySelector('.points svg').focus()")
    key(paper, "Escape")
    assert "as published" in paper.run("document.querySelector('.points .read').textContent")
    key(paper, "ArrowRight")
    first = paper.run("document.querySelector('.points .read').textContent")
    key(paper, "ArrowRight")
    assert "measured" in first != paper.run("document.querySelector('.points .read').textContent")


def test_a_methods_name_shows_its_points_alone(paper):
    paper.run("document.querySelector('.points .keys button').click()")
    assert paper.run("""(() => { const svg = document.querySelector('.points svg.dim');
      const same = [...svg.querySelectorAll('[data-x].same')];
      return same.length > 0 && new Set(same.map(dot => dot.dataset.k)).size; })()""") == 1


def test_curves_read_values_and_methods_switch(paper):
    """The fixture's runs rise evenly to round 2, so that round 1 is two thirds of it in trailing means of
    two."""
    chart = "#figure3 .live"
    values = f"[...document.querySelectorAll('{chart} .picks .value')].map(one => one.textContent)"
    lines = f"document.querySelectorAll('{chart} .panels svg:first-child .line-of').length"
    ends = paper.run(values)
    assert len(ends) == 3 and paper.run(lines) == 3
    point(paper, f"{chart} svg", 0.5)
    middle = [float(value) for value in paper.run(values)]
    assert middle == pytest.approx([float(end) * 2 / 3 for end in ends], abs=0.1)
    assert "round 1" in paper.run(f"document.querySelector('{chart} .small').textContent")
    paper.run(f"document.querySelector('{chart} input').click()")
    assert paper.run(lines) == 2
    [none, logarithmic] = (
        f"[...document.querySelectorAll('{chart} .presets button')]"
        f".find(one => one.textContent.startsWith('{word}'))"
        for word in ("none", "logarithmic round"))
    paper.run(f"{none}.click()")
    assert paper.run(lines) == 0
    paper.run(f"{logarithmic}.click()")
    assert paper.run(f"{logarithmic}.getAttribute('aria-pressed')") == "true"


def test_without_scripts_every_chart_is_a_picture_and_every_table_whole(site, browser):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        assert browser.open(site / "reports/fedcrl.html") == []
        shown = """[[...document.querySelectorAll('.chart img')].every(one => one.offsetWidth > 100),
          document.querySelectorAll('.chart img').length,
          document.querySelectorAll('#table1 th:not(.wait)').length,
          document.querySelectorAll('.tools, .live').length]"""
        pictures, count, heads, alive = browser.run(shown)
        assert pictures and count >= 2 and heads > 3 and alive == 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


# -- tables --------------------------------------------------------------------------------------------------

def test_a_table_is_filtered(paper):
    assert rows(paper, "table1") == ["FedAvg", "FedProx", "Ours"]
    paper.run("""(() => { const find = document.querySelector('#table1 input[type=search]');
      find.value = 'prox, our'; find.dispatchEvent(new Event('input')); })()""")
    assert rows(paper, "table1") == ["FedProx", "Ours"]


def test_measured_only_hides_what_waits_and_heads_shrink_with_it(paper):
    heads = """[...document.querySelectorAll('#table2 thead tr:first-child th')]
      .filter(head => head.offsetParent).map(head => [head.textContent.trim(), head.colSpan])"""
    assert [name for name, _ in paper.run(heads)] == ["method", "practical (β = 0.1, N = 20)"]
    assert "Averaged" in rows(paper, "table2")
    paper.run("document.querySelector('#table2 input[type=checkbox]').click()")
    assert [span for _, span in paper.run(heads)] == [1, 2, 2]


def test_what_is_shown_is_copied_as_csv_and_as_latex(paper):
    paper.run(CLIPBOARD)
    copied = []
    for label in ("Copy CSV", "Copy LaTeX"):
        paper.run("[...document.querySelectorAll('#table1 .tools button')]"
                  f".find(button => button.textContent === '{label}').click()")
        copied.append(paper.run("window.copied"))
    table = list(csv.DictReader(io.StringIO(copied[0])))
    assert [row["method"] for row in table] == ["FedAvg", "FedProx", "Ours"]
    assert (table[0]["M"], table[0]["M std"], table[0]["M published"]) == ("71.00", "1.41", "41.11")
    assert (table[2]["Δ"], table[2]["Δ published"]) == ("+5.50", "+4.44")
    assert r"FedAvg & $71.00 \pm 1.41$ \textit{41.11}" in copied[1] and copied[1].count(r"\\") == 4
    assert paper.run("document.querySelector('#table1 .said').textContent") == "copied"
    paper.run("document.querySelector('#table2 .tools button:last-of-type').click()")
    assert r"practical ($\beta$ = 0.1, N = 20)" in paper.run("window.copied")


def test_a_link_into_what_is_folded_unfolds_it(site, browser):
    browser.open(site / "reports/fedcrl.html")
    browser.run("location.hash = '#R1'")
    assert browser.run("""new Promise(done => setTimeout(() => done(
      document.getElementById('R1').closest('details').open), 200))""")


# -- size and accessibility ----------------------------------------------------------------------------------

@pytest.mark.parametrize("page", sorted((ROOT / "reports").glob("*.html")), ids=lambda page: page.stem)
def test_a_committed_page_is_small_and_fetches_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 1e6
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//", text)


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """The text of axe-core, through npm."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine (Debian: apt install npm)")
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), AXE],
        capture_output=True, text=True, env=os.environ | {"HOME": str(folder)}, timeout=PATIENCE)
    if done.returncode:
        pytest.skip(f"npm cannot install {AXE}: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("night", [False, True])
def test_axe_has_nothing_serious_to_say(site, browser, axe, name, night):
    assert browser.open(site / f"reports/{name}.html", night=night) == []
    browser.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    browser.run(axe + "; null")
    assert browser.run("""axe.run().then(found => found.violations
      .filter(one => ['serious', 'critical'].includes(one.impact))
      .map(one => [one.id, one.nodes.length, one.nodes[0].html.slice(0, 120)]))""") == []
