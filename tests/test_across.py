"""The page across papers, and what holds of every page: a reader without eyes or mouse can use it, and a real
browser shows it whole."""
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
import yaml
from browsing import PAGES, PAPERS
from federation import image_world, run
from reporting import BALANCED, PAPER, write_run

from pipeline import methods
from pipeline.cells.results import Problem, collect, summarise
from pipeline.errors import FedReproError, ParamError
from pipeline.methods._collaborative import Collaborative
from pipeline.report import render
from pipeline.report.across import REASONS, across, algorithms, excluded, plain
from pipeline.report.noise import noise
from pipeline.report.study import studies
from pipeline.report.tuning import Tuning
from pipeline.schema import NEEDS, Cell, Model, load_paper, load_params, papers

# -- what an algorithm needs ---------------------------------------------------------------------------------

def test_every_file_of_methods_is_a_row():
    assert algorithms() == methods.names()


LACKING = {
    "public data": "needs public data",
    "held-out images": "acc_source: heldout",
    "pixels in [0, 1]": r"attacks need pixels in \[0, 1\]",
    "projector": "needs a projector",
    "one network": "averages models|size of",
}


@pytest.mark.parametrize("algorithm", methods.names())
def test_what_an_algorithm_is_said_to_need_is_what_it_needs(algorithm):
    """One round with clients of different networks, without public data, held-out images, a projector or the
    scale of pixels."""
    method = methods.load(algorithm, {}, "test")
    assert method.needs <= NEEDS.keys() < {*REASONS, "projector"} and isinstance(method, Collaborative) == (
        "public data" in method.needs
    )
    first = next(
        (
            need
            for need in ("held-out images", "public data", "pixels in [0, 1]", "projector", "one network")
            if need in method.needs
        ),
        None,
    )
    world = image_world(model=[Model(name) for name in ("cnn4", "cnn5", "simple_cnn")])
    world = world.at(1)
    if first is None:
        run(method, world, 1)
    else:
        with pytest.raises((FedReproError, RuntimeError), match=LACKING[first]):
            run(method, world, 1)


def test_what_a_scenario_lacks():
    minis = {key: mini.scenario for key, mini in ((key, load_paper(key).miniature) for key in papers())}
    assert [excluded("fccl", minis[key]) for key in PAPERS] == [
        "public data",
        "",
        "public data",
        "",
        "public data",
    ]
    assert [excluded("fedavg", minis[key]) for key in PAPERS] == ["", "one network", "", "one network", ""]
    assert (
        excluded("rahfl", minis["fcclplus"]) == "held-out images" and excluded("rahfl", minis["rahfl"]) == ""
    )
    assert (
        excluded("fedccl_plus", minis["fedccl"]) == ""
        and excluded("fedccl_plus", minis["fedlsa"]) == "pixels in [0, 1]"
    )
    assert {
        excluded(name, scenario) for scenario in minis.values() for name in ("local", "fedproto_hetero")
    } == {""}


@pytest.mark.parametrize("paper, algorithm, row", [
    ("fedccl", "fedccl", "fedccl"), ("fedccl", "fedccl_plus", "fedccl-plus"), ("fcclplus", "local", "base"),
    ("fcclplus", "moon", "moon-5"), ("fcclplus", "fccl", "fccl"), ("rahfl", "fedproto_hetero", "fedproto"),
    ("rahfl", "fedproto", ""), ("rahfl", "rahfl", "rahfl")])
def test_the_plain_row_of_an_algorithm(paper, algorithm, row):
    assert plain(algorithm, load_paper(paper), load_paper(paper).miniature.methods) == row


def test_where_no_row_has_the_algorithms_name_the_one_that_is_asked_for_counts():
    assert (
        plain("moon", load_paper("fcclplus"), ["moon-1"]) == "moon-1"
        and plain("moon", load_paper("fcclplus"), []) == "moon-5"
    )


# -- the page ------------------------------------------------------------------------------------------------

def values_of(root, results=None):
    shown = across(studies(collect(root) if results is None else results, root))
    return shown, {row.name: row.values for row in shown.panel.rows}


def test_cells_have_accuracy_bytes_and_seconds_or_a_reason(measured):
    shown, rows = values_of(measured)
    # of "fedavg" and "ours", which is no algorithm
    assert (shown.measured, shown.asked, shown.device) == (1, 5, "cpu")
    accuracy, sent, seconds, memory = rows["FedAvg"][-4:]
    assert (accuracy.mean, accuracy.spread, accuracy.page) == (
        "61.00",
        "1.41",
        "runs/fedcrl/mini.html#fedavg",
    )
    # 1.5 s of 2 rounds
    assert (
        (sent.text, sent.order) == ("12.0", 12000)
        and memory.state == "outside"
        and (seconds.text, seconds.order) == ("0.75", 0.75)
    )
    assert rows["FedAvg"][0].hint == "not run: fedrepro run fedccl/mini/fedavg" and [
        value.state for value in rows["FedAvg"][:4]
    ] == ["missing", "outside", "outside", "outside"]
    assert {value.text for value in rows["fedmd"][::4]} == {"needs public data"} and {
        value.text for value in rows["FedProx"][::4]
    } == {"not asked for"}
    assert shown.command == "fedrepro run " + " ".join(
        f"papers/{key}/dvc.yaml:mini@fedavg" for key in PAPERS if key != "fedcrl")
    assert [word for word, _ in shown.reasons] == [
        "needs public data",
        "needs pixels in [0, 1]",
        "not asked for",
    ]


@pytest.mark.parametrize("memory, text", [
    ({"process_mb": [400, 500], "device_mb": None}, "450"),
    ({"process_mb": [400, 500], "device_mb": [None, None]}, "450"),
    ({"process_mb": [4000, 5000], "device_mb": [1200, 1300]}, "1,250"), (None, "")])
def test_memory_is_the_devices_or_the_processs(measured, memory, text):
    results = collect(measured)
    results[Cell("fedcrl", "mini", "fedavg")]["memory"] = memory
    _, rows = values_of(measured, results)
    assert rows["FedAvg"][-1].text == text and rows["FedAvg"][3].text == ""


def test_a_method_of_another_paper_is_on_this_page_and_in_no_table_of_the_paper(measured):
    render(["fedcrl"], measured)
    before = {kind: (measured / f"reports/fedcrl.{kind}").read_text() for kind in ("html", "md", "tex")}
    document = yaml.safe_load((measured / "papers/fedcrl/paper.yaml").read_text())
    document["miniature"]["others"] = ["fedprox"]
    (measured / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(document))
    for cached in (load_params, load_paper):
        cached.cache_clear()
    missing, rows = values_of(measured)
    assert rows["FedProx"][-4].hint == "not run: fedrepro run fedcrl/across/fedprox"
    assert missing.command.split()[-1] == "papers/fedcrl/dvc.yaml:across@fedprox"
    write_run(measured, "across/fedprox", BALANCED["ours"])
    shown, rows = values_of(measured)
    assert (shown.measured, shown.asked) == (2, 6)
    assert (
        rows["FedProx"][-4].page == "runs/fedcrl/across.html#fedprox" and rows["FedProx"][-4].mark == "best"
    )
    results = collect(measured)
    results[Cell("fedcrl", "across", "fedprox")]["executor"] = "stacked"
    about = [column.about for column in values_of(measured, results)[0].columns]
    said = "FedProx (across): stacked, fp32, cpu; the others: sequential, fp32, cpu."
    assert [said in text for text in about].count(True) == 1
    render(["fedcrl"], measured)
    after = {kind: (measured / f"reports/fedcrl.{kind}").read_text() for kind in before}
    link = ', <a href="runs/fedcrl/across.html">miniature, methods of the other papers</a>'
    assert link in after["html"] and after | {"html": after["html"].replace(link, "")} == before
    assert 'id="fedprox"' in (measured / "reports/runs/fedcrl/across.html").read_text()


def test_what_rounding_alone_does_is_shown_where_it_was_measured(measured):
    assert noise(studies({}, measured), measured) is None
    path = measured / "reports/noise.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "cell,setting,accuracy\nfedcrl/mini/fedavg,default,54.5\nfedcrl/mini/fedavg,avx2,60.2\nfedccl/mini/ours,default,70\n"
    )
    shown = noise(studies({}, measured), measured)
    assert [[value.text for value in row.values] for row in shown.panel.rows] == [["54.50", "60.20", "5.70"]]
    assert (
        "different spread, is 4.03 points. So two differ by about 5.70" in shown.text
        and "default and avx2" in shown.text
    )
    render(["fedcrl"], measured)
    for kind in ("html", "md", "tex"):
        assert "two differ by about 5.70" in (measured / f"reports/across.{kind}").read_text()
    path.write_text(path.read_text() + "fedcrl/mini/ours,default,70\nfedcrl/mini/ours,avx2,70.1\n")
    said = noise(studies({}, measured), measured).text
    assert "2 cells move by 0.10 to 5.70 points (" in said and "half of them by 2.90 at most" in said
    assert "; most of that is FEDCRL: FedAvg, without which it is 0.07. So two differ by" in said


@pytest.mark.parametrize("text, message", [
    ("cell,accuracy\n", "noise.csv:1: .*the columns must be cell,setting,accuracy"),
    ("cell,setting,accuracy\nfedcrl/mini/fedavg,\xfc,50\n", "noise.csv:2: not UTF-8"),
    ("cell,setting,accuracy\nfedcrl/mini/fedavg,a,high\n", "noise.csv:2: could not convert"),
    ("cell,setting,accuracy\nfedcrl/mini/fedag,a,50\n", "noise.csv:2: .*unknown method 'fedag'"),
    ("cell,setting,accuracy\nfedcrl/mini/fedavg,a,50\nfedcrl/mini/fedavg,a,51\n", "noise.csv:3: .* given "
                                                                                  "twice")])
def test_wrong_numbers_of_rounding_are_named(root, text, message):
    (root / "reports").mkdir(exist_ok=True)
    (root / "reports/noise.csv").write_text(text, encoding="latin-1")
    with pytest.raises(ParamError, match=message):
        noise(studies({}, root), root)


def test_mean_ranks_of_the_algorithms_that_most_miniatures_share(root):
    for key in PAPERS[:3]:
        path = root / f"papers/{key}/paper.yaml"
        document = yaml.safe_load(path.read_text()) | {
            "methods": {"fedavg": {}, "fedprox": {}, "moon": {}, "ours": {}}
        }
        document["miniature"]["methods"] = ["fedavg", "fedprox", "moon"]
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        for method, value in (("fedavg", 60.0), ("fedprox", 70.0), ("moon", 50.0)):
            write_run(root, f"mini/{method}", {"average": [value, value + 1]}, paper=key)
    for cached in (load_params, load_paper):
        cached.cache_clear()
    found = across(studies(collect(root), root)).standing
    assert found.text.startswith(
        "Mean ranks over 3 miniatures (1 is the best): fedprox 1.00, fedavg 2.00, moon 3.00. Friedman test"
    )
    assert (
        "The miniatures are those of FEDCCL, FCCLPLUS and FEDLSA" in found.text
        and "No bars are drawn for fewer than 5 miniatures." in found.drawing.caption
    )


def test_several_devices_stand_at_their_cells(measured):
    write_run(measured, "mini/fedavg", {"average": [50.0]}, paper="fedccl")
    results = collect(measured)
    results[Cell("fedccl", "mini", "fedavg")]["device"] = "NVIDIA H100"
    shown, rows = values_of(measured, results)
    assert shown.device == "" and [rows["FedAvg"][at].text for at in (2, -2)] == [
        "0.75 (NVIDIA H100)",
        "0.75 (cpu)",
    ]


def test_best_and_second_best_of_a_block(measured):
    path = measured / "papers/fedcrl/paper.yaml"
    document = yaml.safe_load(path.read_text())
    document["miniature"]["methods"].append("fedprox")
    path.write_text(yaml.safe_dump(document))
    load_paper.cache_clear()
    write_run(measured, "mini/fedprox", BALANCED["ours"])
    _, rows = values_of(measured)
    assert rows["FedProx"][-4].mark == "best" and rows["FedAvg"][-4].mark == "second"


def test_of_several_rows_of_an_algorithm_only_the_plain_one_counts(measured):
    changed = PAPER | {
        "methods": PAPER["methods"] | {"fedavg-slow": {"algorithm": "fedavg", "label": "FedAvg[slow=1]"}}
    }
    (measured / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    load_paper.cache_clear()
    before = across(studies(collect(measured), measured))
    write_run(measured, "mini/fedavg-slow", BALANCED["ours"])
    assert across(studies(collect(measured), measured)) == before


def test_a_result_that_cannot_be_used_is_no_number(measured):
    cell = Cell("fedcrl", "mini", "fedavg")
    rows = {
        row.name: row.values
        for row in across(studies({}, measured, [Problem("result.json: cut", cell)])).panel.rows
    }
    assert rows["FedAvg"][-4].hint == "not shown: result.json: cut"


def test_names_are_told_apart_and_other_networks_are_told():
    shown = across(studies({}))
    names = [row.name for row in shown.panel.rows]
    assert len(set(names)) == len(names) == len(algorithms()) and {
        "FedProto",
        "FedProto (hetero)",
        "Local",
        "MOON",
        "FedAvg+",
    } <= set(names)
    about = {column.key: column.about for column in shown.columns}
    assert (
        "Networks of their own: Centralised (not in the paper), FedAvg, FedProc, FedProx, FedRS, MOON: "
        "simple_cnn; FedProto (hetero): "
        in about["fcclplus"]
    )
    assert (
        "public images photo_patches" in about["rahfl"]
        and "Networks of their own: FedBN: cnn3_bn; FedLSA: fedlsa; FedProto (hetero): cnn4 with a "
            "projector; FedSR: cnn4_gaussian."
        in about["fedccl"]
    )


def test_the_page_comes_in_three_formats_and_is_linked(measured):
    render(["fedcrl"], measured)
    html, text, body = ((measured / f"reports/across.{kind}").read_text() for kind in ("html", "md", "tex"))
    assert (
        '<a class="measured" href="runs/fedcrl/mini.html#fedavg">' in html
        and '<td data-order="12000">12.0</td>' in html
    )
    assert (
        "[61.00](../papers/fedcrl/runs/mini/fedavg/result.json) ± 1.41 | 12.0 | 0.75 |  |" in text
        and "*not asked for*" in text
    )
    assert r"61.00{\scriptsize$\,\pm\,1.41$} & 12.0 & 0.75" in body
    assert body.count("{") == body.count("}") and len(re.findall(r"\\begin", body)) == len(
        re.findall(r"\\end\b", body)
    )
    lines = body.partition(r"\midrule")[2].partition(r"\bottomrule")[0].splitlines()
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines if "&" in line} == {20}
    for name in ("index", "fedcrl"):
        assert 'href="across.html"' in (measured / f"reports/{name}.html").read_text()
    assert (
        'href="../../across.html"' in (measured / "reports/runs/fedcrl/mini.html").read_text()
        and "](across.md)" in (measured / "reports/index.md").read_text()
    )


def test_numbers_of_older_code_are_named(measured, monkeypatch):
    told = "By other code, parameters or seeds than today's"
    render(["fedcrl"], measured)
    assert told not in (measured / "reports/across.md").read_text()
    monkeypatch.setattr(sys.modules["pipeline.report.across"], "departures",
                        lambda study, cell: ["changed"] if cell.method == "fedavg" else [])
    render(["fedcrl"], measured)
    assert f"{told}: FedAvg." in (measured / "reports/across.md").read_text()


def test_what_equal_tuning_changes_comes_in_three_formats(measured, monkeypatch):
    """One table for all miniatures, and one of details for each."""
    one = Tuning(Cell("fedcrl", "mini", "fedavg"), summarise([50.0, 52.0]), summarise([60.0, 62.0]),
                 {"learning_rate": 0.0268}, False, [40.0, None], older=True)
    monkeypatch.setattr(sys.modules["pipeline.report.across"], "tunings", lambda root: ([one], []))
    render(["fedcrl"], measured)
    html, text, body = ((measured / f"reports/across.{kind}").read_text() for kind in ("html", "md", "tex"))
    chosen = "learning_rate 0.0268; 1 of 2 configurations diverged"
    assert html.count(f"<td>{chosen}</td>") == 1 and html.count('<td data-order="10.0">+10.00</td>') == 2
    assert "| FedAvg | 61.00 ± 1.41 | +10.00 |" in text
    assert "By other code or parameters than today's: FedAvg in FEDCRL's miniature." in text
    chosen = chosen.replace("_", r"\_")
    assert f"| FedAvg | 51.00 ± 1.41 | 61.00 ± 1.41 | +10.00 |  | {chosen} |" in text
    assert "& +10.00 \\\\\n" in body and rf"& +10.00 &  & {chosen} \\" in body


# -- every page: without eyes or mouse -----------------------------------------------------------------------

class Reader(HTMLParser):
    """What a screen reader goes by: language, headings, table headers, names of pictures and links."""

    def __init__(self, html):
        super().__init__()
        self.language, self.headings, self.problems, self.ids, self.open, self.titles = "", [], [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "html":
            self.language = values.get("lang", "")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "th" and values.get("scope") not in ("col", "row", "colgroup"):
            self.problems.append("a header cell without scope")
        if tag == "img" and len(values.get("alt", "").strip()) < 10:
            self.problems.append(f"{values.get('src')}: no alternative text")
        if tag == "svg" and not values.get("aria-label"):
            self.problems.append("a drawing without a name")
        if values.get("tabindex", "0") != "0" or values.get("tabindex") and not values.get("aria-label"):
            self.problems.append("a place to tab to that has no name, or an order of its own")
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "table":
            self.problems += (
                []
                if "scroll" in self.open or "index" in values.get("class", "")
                else ["a table that cannot scroll"]
            )
        if tag in ("a", "title", "summary", "button", "div"):
            self.open.append(values.get("class") or tag)
            self.titles.append([tag, values.get("aria-label") or ""])

    def handle_data(self, data):
        for title in self.titles:
            title[1] += data.strip()

    def handle_endtag(self, tag):
        if tag in ("a", "title", "summary", "button", "div"):
            self.open.pop()
            _, words = self.titles.pop()
            if not words:
                self.problems.append(f"<{tag}> without words")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_without_eyes(site, name):
    reader = Reader((site / f"reports/{name}.html").read_text())
    assert reader.language == "en" and reader.problems == []
    assert reader.headings[0] == 1 and reader.headings.count(1) == 1
    assert all(below <= above + 1 for above, below in zip(reader.headings, reader.headings[1:])), (
        reader.headings
    )
    assert len(set(reader.ids)) == len(reader.ids)


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """WCAG 2: 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_by_hand():
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast(
        "#777777", "#ffffff"
    ) == pytest.approx(4.48, abs=0.01)


def test_every_colour_of_text_can_be_read_by_day_and_by_night(site):
    """4.5 to 1 on the page, on a panel and on a box."""
    blocks = re.findall(r":root \{([^}]*)\}", (site / "reports/index.html").read_text())
    assert len(blocks) == 2
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for ground in ("ground", "panel", "warn"):
            for ink in ("ink", "muted", "accent", "published", "better", "worse"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground, block)


def test_links_within_the_pages_lead_somewhere(site):
    """Every page and file that is linked is there, and so is every place in it."""
    texts = {path: path.read_text() for path in site.glob("reports/**/*.html")}
    ids = {path: set(Reader(text).ids) for path, text in texts.items()}
    for page, text in texts.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            if link.startswith("data:"):
                continue
            assert not re.match(r"\w+:|//", link), (page, link)
            file, _, place = unquote(link).partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), (page, link)
            assert not place or place in ids[target], (page, link)


# -- every page: in a browser --------------------------------------------------------------------------------

@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width, night", [(1280, False), (390, True)])
def test_a_page_in_the_browser(site, browser, name, width, night):
    """No error, no missing picture, nothing wider than the window, also with everything unfolded."""
    assert browser.open(site / f"reports/{name}.html", width, night) == []
    assert (
        browser.run("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)") == []
    )
    for unfolded in (False, True):
        assert browser.run("document.documentElement.scrollWidth") <= width, unfolded
        browser.run("document.querySelectorAll('details').forEach(details => { details.open = true; })")


READABLE = """(() => {
  const parse = text => { const numbers = (text.match(/[\\d.]+/g) || []).map(Number);
    return text.startsWith('color(srgb') ? numbers.map((v, i) => i < 3 ? 255 * v : v) : numbers; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = element => {
    if (!element) return [255, 255, 255];
    const [r, g, b, a = 1] = parse(getComputedStyle(element).backgroundColor);
    const below = a < 1 ? ground(element.parentElement) : [0, 0, 0];
    return [r, g, b].map((v, i) => a * v + (1 - a) * below[i]); };
  document.querySelectorAll('details').forEach(details => { details.open = true; });
  return [...document.querySelectorAll('main *, nav *')]
    .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .filter(element => !element.closest('script, svg'))
    .map(element => { const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 90)]; })
    .filter(([ratio]) => ratio < 4.5).slice(0, 5);
})()"""


@pytest.mark.parametrize("name", ["index", "across", "fedcrl", "rahfl", "runs/fedcrl/balanced"])
@pytest.mark.parametrize("night", [False, True])
def test_what_is_written_can_be_read(site, browser, name, night):
    browser.open(site / f"reports/{name}.html", night=night)
    assert browser.run(READABLE) == []


def column(browser, heading, place=""):
    """First words of the rows of the first table in a section with such a heading, after a click on the
    heading with a mouse."""
    browser.run(f"""(() => {{
      const button = [...document.querySelectorAll('{place} table.sort thead button')]
        .find(b => b.textContent === {heading!r});
      for (let at = button; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true;
      button.scrollIntoView({{block: 'center', behavior: 'instant'}});
      const box = button.getBoundingClientRect(); window.at = [box.x + box.width / 2, box.y + box.height / 2];
      window.table = button.closest('table'); }})()""")
    x, y = browser.run("window.at")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    return browser.run(
        "[...window.table.tBodies[0].rows].map(row => row.cells[0].firstChild.textContent.trim())"
    )


def test_a_table_sorts_by_what_was_measured(site, browser):
    browser.open(site / "reports/fedcrl.html")
    as_printed = ["FedAvg", "FedProx", "Ours"]
    # 95, 80.5, 71; published 43.33, 45.55, 41.11
    assert column(browser, "M", "#table1") == ["FedProx", "Ours", "FedAvg"]
    assert browser.run("window.table.querySelectorAll('[aria-sort=descending]').length") == 1
    assert (
        column(browser, "M", "#table1") == ["FedAvg", "Ours", "FedProx"]
        and column(browser, "M", "#table1") == as_printed
    )
    # the baseline has none and stays below
    assert column(browser, "Δ", "#table1") == ["FedProx", "Ours", "FedAvg"]
    assert browser.run("window.table.querySelectorAll('[aria-sort]').length") == 1


def test_the_mean_over_the_rows_stays_below(site, browser):
    browser.open(site / "reports/fedcrl.html")
    assert column(browser, "Std.", "#table2") == ["FedAvg", "Ours", "FedProx", "Averaged"]
    assert column(browser, "Std.", "#table2") == ["FedProx", "Ours", "FedAvg", "Averaged"]


def test_a_column_of_published_numbers_alone_sorts_by_them(site, browser):
    browser.open(site / "reports/fedccl.html")
    assert column(browser, "M", "#table1") == ["Ours", "FedProx", "FedAvg"]


def test_bytes_sort_as_numbers_and_keys_work_too(site, browser):
    browser.open(site / "reports/across.html")
    names = column(browser, "algorithm")
    assert names == sorted(names, key=str.lower) and column(browser, "algorithm") == names[::-1]
    browser.run("window.table.querySelectorAll('thead button')[18].focus()")     # kB of FedCRL
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            windowsVirtualKeyCode=13,
            text="\r" if kind == "keyDown" else "",
        )
    assert browser.run("window.table.tBodies[0].rows[0].cells[0].textContent.trim()") == "FedAvg"
    assert browser.run("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"


def test_what_has_the_focus_is_seen(site, browser):
    """Tab through the page: link, region and heading get an outline."""
    browser.open(site / "reports/fedcrl.html")
    seen = {}
    for _ in range(60):
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        tag, width = browser.run("""(() => { const s = getComputedStyle(document.activeElement);
          return [document.activeElement.tagName,
            s.outlineStyle === 'none' ? 0 : parseFloat(s.outlineWidth)]; })()""")
        seen.setdefault(tag, set()).add(width)
    assert {"A", "DIV", "BUTTON", "SUMMARY"} <= seen.keys() and all(
        width >= 1 for tag, widths in seen.items() if tag != "BODY" for width in widths
    ), seen
