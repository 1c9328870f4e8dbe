"""What a page says first: sentences that follow from orders and verdicts, and where its points lie."""
import json
import math
from statistics import fmean
from types import SimpleNamespace

import pytest

from pipeline.cells.results import Summary, survey
from pipeline.report import findings, scatter
from pipeline.report.claims import Claim, Expected, Number
from pipeline.report.context import page
from pipeline.report.findings import nth
from pipeline.report.hues import keys
from pipeline.report.judgement import Order
from pipeline.report.panels import Value
from pipeline.report.scatter import LEFT, SIDE, TOP, against_cost
from pipeline.report.study import studies
from pipeline.report.tuning import tunings
from pipeline.report.verdicts import CONTRADICTED, FAILS, HOLDS, UNDECIDED, UNTESTED, WAITS, Verdict
from pipeline.report.words import spelt
from pipeline.schema import ROOT, Cell, load_paper

RANKING = (("A", 61.0, 2.0), ("B", 60.5, 1.0), ("C", 50.0, 1.0))


def order(winner, place, ranking=RANKING, title="Digits"):
    return Order(title, 0.5, 0.1, 3, 3, winner, place, 3, ranking, 70.25)


def verdict(word, size="", low=1.0, text="A is best"):
    return Verdict(Claim("x", text, Expected("bound", 0, ">"), "", "", Number(0)), word, low=low, size=size)


@pytest.mark.parametrize("found, said", [
    ([order("A", 1)],
     "On Digits, A comes first here, as in print: 61.00 %, 0.50 from B (standard deviation over "
     "seeds up to 2.00)."),
    ([order("A", 1, tuple((n, m, None) for n, m, _ in RANKING))],
     "On Digits, A comes first here, as in print: 61.00 %, 0.50 from B."),
    ([order("C", 3)],
     "On Digits, A comes first here with 61.00 %, 0.50 from B (standard deviation over seeds up to "
     "2.00); C, first in print with 70.25 %, comes third with 50.00 %."),
    ([order("D", None)],
     "On Digits, A comes first here with 61.00 %, 0.50 from B (standard deviation over seeds up to "
     "2.00); D, first in print with 70.25 %, has not run."),
    ([order("A", 1), order("B", 2, title="PACS")],
     "In one of the two columns the method that is best in print comes first here, too (Digits: A; PACS: A, "
     "B second)."),
    ([order("C", 3), order("D", None, title="PACS")],
     "In neither column does the method that is best in print come first here (Digits: A, C third; "
     "PACS: A, D not run)."),
])
def test_who_comes_first_here_and_in_print(found, said):
    assert findings._first(found) == said


@pytest.mark.parametrize("words, said", [
    ([verdict(HOLDS), verdict(HOLDS, CONTRADICTED), verdict(UNDECIDED)],
     "Of three claims tested with several seeds two hold (one of them in direction, not in size), none fails "
     "and one is undecided."),
    ([verdict(UNDECIDED, CONTRADICTED), verdict(UNDECIDED)],
     "Of two claims tested with several seeds none holds, none fails and two are undecided (one printed size "
     "contradicted)."),
    ([verdict(FAILS), verdict(FAILS)], "Of two claims tested with several seeds none holds and two fail."),
    ([verdict(FAILS), verdict(WAITS)],
     "The one claim tested with several seeds fails: A is best; one claim waits for runs."),
    ([verdict(HOLDS, low=None), verdict(FAILS, low=None), verdict(UNTESTED)],
     "One of two tested by a single number points the claimed way; one cannot be tested by a run."),
    ([], ""),
])
def test_what_became_of_the_claims(words, said):
    assert findings.claims(words) == said


def test_a_setting_of_our_own_says_how_much_of_it_is_measured():
    ranking = [("A", Summary(61.0, 0.2, 2)), ("Ours", Summary(60.5, 2.0, 2))]     # the larger spread counts
    table = SimpleNamespace(title="Cut down", ranking=ranking, done=2, planned=9, headline="clean.AVG",
                            mixed=False, others={})
    words = ("A comes first with 61.00 % (clean test, average), 0.50 from Ours (standard deviation over "
             "seeds up to 2.00), Ours second of two.")
    assert findings._beside(SimpleNamespace(name="Ours"), table) == (
        f"Cut down (not comparable with the print; 2 of 9 measured so far): {words}")
    table.planned = 2
    assert findings._beside(SimpleNamespace(name="Ours"), table) == (
        f"Cut down (not comparable with the print): {words}")
    table.mixed, table.others = True, {"corrupted.AVG": [("Ours", Summary(50.0, None, 1)), ranking[0]][::-1]}
    assert findings._beside(SimpleNamespace(name="Ours"), table) == (
        "Cut down (not comparable with the print; some scored before local training, some after it): "
        f"{words[:-1]}; by corrupted test, average A comes first with 61.00 %, 11.00 from Ours (standard "
        "deviation over seeds up to 0.20), Ours second of two.")


def test_settings_are_compared_over_the_numbers_that_both_have():
    def table(*rows):
        made = [SimpleNamespace(name=name, values=[
            Value("measured", Summary(mean, None, 1), printed, float(printed), measure="average")
            for mean, printed in values]) for name, values in rows]
        return SimpleNamespace(panels=[SimpleNamespace(rows=made)])
    whole = table(("A", [(91.0, "90.00"), (50.0, "70.00")]), ("B", [(83.0, "80.00"), (80.0, "60.00")]))
    part = table(("A", [(90.5, "90.00")]), ("B", [(80.0, "80.00")]))
    assert findings.distance(part, part) == pytest.approx(0.25)
    assert findings.distance(whole, part) == pytest.approx(2)      # not the 11 of both columns
    assert findings.distance(table(("A", [(50.0, "70.00")])), part) is None
    more = table(("A", [(90.5, "90.00")]))
    more.panels[0].rows[0].values[0].number = Summary(90.5, 0.1, 3)
    assert findings.distance(more, part) is None                   # one seed beside the mean of three


def test_a_method_keeps_its_colour_and_no_two_look_alike():
    names = ["M1", "FedAvg", *(f"M{i}" for i in range(2, 20)), "Ours"]
    found = {key.name: key for key in keys(names, "Ours")}
    assert (found["Ours"].hue, found["FedAvg"].hue) == (1, 2)
    assert len({(key.hue, key.shape) for key in found.values()}) == len(found)
    assert found["M1"] == next(key for key in keys(["M1"], "Ours"))


def test_the_front_joins_what_no_other_beats_in_both():
    points = {"cheap": (1.0, 50.0), "worse": (10.0, 40.0), "good": (10.0, 70.0), "dear": (99.0, 70.0)}
    chart = against_cost("", "kB", [(name, *at, "") for name, at in points.items()], "good")
    assert [chart.keys[dot.key].name for dot in chart.front] == ["cheap", "good"]
    assert all(LEFT <= dot.x <= LEFT + SIDE and TOP <= dot.y <= TOP + SIDE for dot in chart.dots)
    assert [text for _, text in chart.x_ticks] == ["1", "10", "100"]


def test_a_scale_has_few_round_ticks():
    assert scatter._span([10.2, 69.0]) == (10, 70, 10) and scatter._span([93.5, 98.9]) == (93, 99, 1)


def test_the_findings_of_the_readme_are_those_of_the_committed_results():
    results, _ = survey()
    loaded = studies(results)
    pages = {key: page(study) for key, study in loaded.items()}
    tables = {(key, table.key): table.judgement for key, one in pages.items() for table in one.tables}

    def judged(paper, table, claim):
        return next(found for found in tables[paper, table].verdicts if found.claim.id == claim)

    def of(paper, table, claim, column=""):
        order, = (order for order in tables[paper, table].orders if order.title.startswith(column))
        return order, judged(paper, table, claim)

    order, lead = of("fedlsa", "table2", "L04", "Office Caltech")
    _, ahead = of("fedlsa", "table2", "L01b", "Office Caltech")
    _, tuned = of("fedlsa", "table2-tuned", "L04")
    flipped, _ = of("fedlsa", "table2-augmented", "L01b")
    compact, apart = (judged("fedlsa", "table5", claim) for claim in ("L07b", "L08b"))
    assert (compact.word, apart.word) == (HOLDS, HOLDS)
    nearer, = (text for text in pages["fedlsa"].findings if "cropped, flipped" in text)
    assert "third of nine; 7.2 points from the print on average instead of 9.0" in nearer
    pacs, _ = of("fedlsa", "table3-64", "L01c")
    fewer, _ = of("fedlsa", "table3-64-one-sketch", "L01c")
    relu, normalised = (fmean(results[Cell("fedlsa", "office-caltech", name)]["measures"]["average"])
                        for name in ("fedavg", "fedavg-normalised"))
    network = normalised - relu
    mnist, best = of("fedccl", "table4-momentum", "C07g", "MNIST")
    fashion, gain = of("fedccl", "table4-momentum", "C09", "Fashion-MNIST")
    assert fashion.winner == "FedCCL" and len(fashion.ranking) == len(mnist.ranking)
    assert gain.word == UNDECIDED and gain.size == CONTRADICTED
    assert all("partitions" in result for cell, result in results.items()              # of each seed
               if cell.scenario == "mnist-dir-005")
    plain, _ = of("fedccl", "table4", "C07g", "MNIST")
    letter, above = of("fedccl", "table4", "C09", "Fashion-MNIST")
    assert {(one.place, one.seeds, len(one.ranking)) for one in (plain, letter)} == {(1, 1, 6)}
    signals = {method: fmean(results[Cell("fedccl", "fashion-mnist-dir-05", method)]["measures"]["average"])
               for method in ("fedavg", "fedccl-local", "fedccl-global", "fedccl")}
    assert max(signals.values()) - min(signals.values()) < 0.5
    figure = [
        {method: fmean(results[Cell("fedccl", scenario, method)]["measures"]["average"])
         for method in loaded["fedccl"].paper.figures["figure6-momentum"].methods}
        for scenario in ("fashion-mnist-dir-05", "fashion-mnist-dir-5")
    ]
    assert all(max(one, key=one.__getitem__) == "fedccl" for one in figure)
    robust = judged("fedccl", "table8-02", "C30a")
    eps, strong = (load_paper("fedccl").scenarios[name].evaluation.attack.eps
                   for name in ("mnist-adversarial-02", "mnist-adversarial"))
    chance = [{fmean(results[Cell("fedccl", "mnist-adversarial", method)]["measures"][name])
               for name in ("average", "fgsm", "pgd")} for method in ("fedccl-plus", "fedavg-plus")]
    assert [len(one) for one in chance] == [1, 1]                             # each answers one class
    means = [mean for _, mean, _ in mnist.ranking]
    short = [own for own in pages["fedcrl"].beside if own.title.startswith("CIFAR-10") and own.done]
    crl = load_paper("fedcrl")
    tried = {crl.label(method) for method in crl.grids["main"].methods}
    assert all(tried <= {name for name, *_ in own.ranking} for own in short)
    assert (order.winner, mnist.winner, best.word, pacs.seeds) == ("FedLSA", "FedCCL", UNDECIDED, 2)
    assert ahead.word == UNDECIDED
    assert not any(verdict.tested for verdict in pages["fedcrl"].judgement.verdicts)
    assert not pages["fcclplus"].done and not pages["rahfl"].done
    hard, = pages["rahfl"].beside
    rounds, place = load_paper("rahfl").scenarios["corrupted-05-short"].training.rounds, 1 + next(
        k for k, (name, _) in enumerate(hard.ranking) if name == "RAHFL")
    first, own = hard.ranking[0], dict(hard.ranking)["RAHFL"]
    damaged = {result["label"]: fmean(result["measures"]["corrupted.AVG"]) for cell, result in results.items()
               if (cell.paper, cell.scenario) == ("rahfl", "corrupted-05-short")}
    ours, best = damaged["RAHFL"], max(damaged, key=damaged.__getitem__)
    seeds, = {number.seeds for _, number in hard.ranking}
    level, = (name for name, value in damaged.items() if value == ours and name != "RAHFL")
    study = loaded["rahfl"]
    starts = {study.label(cell.method): study.history(cell).query("round == 0")["corrupted.AVG"].mean()
              for cell in study.results if cell.scenario == "corrupted-05-short"}
    risen, = (name for name, start in starts.items() if damaged[name] > start)
    assert all(name in hard.note.partition(".")[0] for name, _ in hard.ranking)
    assert hard.note.startswith("Lower than round 0 in the end: ")
    office, = (own for own in pages["fcclplus"].beside if own.done)
    (leading, ahead), (behind, after), *_ = office.ranking
    alone = dict(office.ranking)["BASE"]
    assert (leading, office.done) == ("FCCL+", len(loaded["fcclplus"].paper.grids["short"].methods))
    assert {number.seeds for _, number in office.ranking} == {2}
    abroad = {result["label"]: fmean(result["measures"]["inter.AVG"]) for cell, result in results.items()
              if (cell.paper, cell.scenario) == ("fcclplus", "office-caltech-short")}
    widest = max(abroad, key=abroad.__getitem__)
    fccl_rounds = load_paper("fcclplus").scenarios["office-caltech-short"].training.rounds
    within = math.ceil(10 * (max(means) - min(means))) / 10
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for row in (
        f"On Office-Caltech it comes {nth(order.place)} of the paper's {spelt(len(order.ranking))} methods, "
        f"as printed, though its lead over the next is undecided, and lies {lead.point:.1f} points above "
        f"FedAvg (95 % interval {lead.low:.1f} to {lead.high:.1f}; printed {lead.printed:.1f}), or "
        f"{tuned.point:.1f} ({tuned.low:.1f} to {tuned.high:.1f}) once "
        "validation images choose its own alpha, lambda and tau (FedAvg keeps its values). Each of its two "
        f"losses alone helps, by {compact.point:.1f} and {apart.point:.1f} points (printed "
        f"{compact.printed:.1f} and {apart.printed:.1f}); {network:.1f} points of each, undecided, are its "
        "network's, which scales representations to length one: FedAvg gains them with that network, too. "
        "With training images cropped, flipped and normalised, which come nearer to the print, it is "
        f"{nth(flipped.place)}. On PACS at 64 pixels, {spelt(pacs.seeds)} seeds, {spelt(pacs.place - 1)} "
        "methods come before it, with other numbers of clients per domain, one seed, "
        f"{spelt(fewer.place - 1)}.",
        f"On MNIST it comes {nth(mnist.place)} of {spelt(len(means))} methods, printed first; all "
        f"{spelt(len(means))} lie within {within} points, and the order stays "
        f"undecided. With SGD to the letter of the paper, without momentum, it comes {nth(plain.place)}, "
        f"{plain.ranking[0][1] - plain.ranking[1][1]:.2f} points before {plain.ranking[1][0]} (one seed). "
        f"On Fashion-MNIST it comes {nth(fashion.place)}, the order undecided, and its gain over FedAvg is "
        f"{gain.point:.1f} points, printed {gain.printed:.1f}: the printed size is contradicted. There too "
        f"it comes {nth(letter.place)} without momentum, {above.point:.1f} points above FedAvg (one seed). "
        "With a milder skew, Table 6, its two signals add "
        f"{signals['fedccl'] - signals['fedavg']:.1f} points to FedAvg's {signals['fedavg']:.1f} %, "
        "printed 5.0; there and with the mildest, Figure 6, it comes first of "
        f"{spelt(len(figure[0]))} (one seed). "
        f"Trained against attacks on MNIST of a size that the paper does not state, {eps} here, FedCCL+ lies "
        f"{robust.point:.1f} points above FedAvg+ under FGSM, printed {robust.printed:.1f} (one seed); with "
        f"{strong}, the first choice, both stay at chance ({chance[0].pop():.1f} and "
        f"{chance[1].pop():.1f} %).",
        f"{spelt(len(short)).capitalize()} CIFAR-10 settings, cut down to 30 rounds, for "
        f"the paper's {len(tried)} methods; no verdict on the paper's claims yet.",
        f"On half-corrupted CIFAR-10, cut down to {spelt(rounds)} rounds, it comes {nth(place)} of "
        f"{spelt(len(hard.ranking))} methods on clean test images ({own.mean:.1f} %, {first[0]} "
        f"{first[1].mean:.1f} %) and {nth(1 + sum(value > ours for value in damaged.values()))} on corrupted "
        f"ones ({ours:.1f} %, like {level}; {best} {damaged[best]:.1f} %). On average over {spelt(seeds)} "
        "seeds all of them end below what their pretraining alone gave, on corrupted images all but "
        f"{risen}; no verdict on the paper's claims yet.",
        f"On Office-Caltech, cut down to {spelt(fccl_rounds)} rounds, it comes first of "
        f"{spelt(office.done)} methods on the clients' own domains ({ahead.mean:.1f} %, then {behind} "
        f"{after.mean:.1f} %; clients that learn alone {alone.mean:.1f} %) and "
        f"{nth(1 + sum(number > abroad[leading] for number in abroad.values()))} on the other clients' "
        f"domains ({abroad[leading]:.1f} %, {widest} {abroad[widest]:.1f} %), with two seeds; no verdict on "
        "the paper's claims yet.",
    ):
        assert f"| {row} |" in readme
    ranking = tuned_order("office-caltech")
    place, own = next((k, one) for k, one in enumerate(ranking, 1) if one.cell.method == "fedlsa")
    first = load_paper("fedlsa").label(ranking[0].cell.method)
    file = ROOT / "papers/fedlsa/tuning/office-caltech-tuned" / ranking[0].cell.method / "result.json"
    tgp = json.loads(file.read_text())["measures"]["average"]
    assert own.kept and first == "FedTGP" and max(tgp) - min(tgp) > ranking[0].tuned.mean - own.tuned.mean
    apart = f"{first}'s five seeds alone range from {min(tgp):.1f} to {max(tgp):.1f} %,"
    assert apart in " ".join(readme.split())
    at, average = next((k, one) for k, one in enumerate(ranking, 1) if one.cell.method == "fedavg")
    said = (f"{len(ranking)} methods with a shared model, FedLSA is {nth(place)} on Office-Caltech "
            f"({own.tuned.mean:.1f} %), FedAvg {nth(at)} ({average.tuned.mean:.1f} %), and {first} first "
            f"({ranking[0].tuned.mean:.1f} %).")
    assert said in " ".join(readme.split())
    ranking = tuned_order("cifar10-dir-01-short")
    before = max(ranking, key=lambda one: one.published.mean)
    place, own = next((k, one) for k, one in enumerate(ranking, 1) if one.cell.method == "fedcrl")
    alone, = (one for one in ranking if one.cell.method == "local")
    names = [crl.label(one.cell.method) for one in ranking]
    more = fmean(results[Cell("fedcrl", "cifar10-dir-01-short", "fedprox")]["measures"]["post.weighted"])
    assert more > own.published.mean
    assert before is own and place == 3 and {one.tuned.seeds for one in ranking} == {2}
    said = (f"FedCRL is first of {spelt(len(ranking))} personalised methods with their own values "
            f"({own.published.mean:.1f} %) and {nth(place)} after tuning ({own.tuned.mean:.1f} %), behind "
            f"{names[0]} ({ranking[0].tuned.mean:.1f} %) and {names[1]}; clients that learn alone lie "
            f"{ranking[0].tuned.mean - alone.tuned.mean:.1f} points below {names[0]}. "
            f"FedProx's global model, which each client then trains on, has {more:.1f} % untuned, and to "
            "answer each client's most frequent class gives 64.6 %. Those are two seeds.")
    assert said in " ".join(readme.split())
    last = pages["fedcrl"].findings[-1]
    assert f"(Across papers): {names[0]} comes first with {ranking[0].tuned.mean:.2f} %" in last
    assert last.endswith(f", FedCRL {nth(place)} of {spelt(len(ranking))}.")


def tuned_order(scenario: str) -> list:
    """The tunings of a scenario, the best after tuning first."""
    found = (one for one in tunings()[0] if one.cell.scenario == scenario and one.tuned)
    return sorted(found, key=lambda one: -one.tuned.mean)
