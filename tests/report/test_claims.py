"""Claims: one language, wrong rows are named, and published numbers that bear the text out."""

import pytest
from reporting import write_claims

from pipeline.errors import ParamError
from pipeline.report import claims as module
from pipeline.report.claims import PublishedNumbers, parse, parse_expected, read_claims
from pipeline.report.study import Study
from pipeline.report.verdicts import Evidence
from pipeline.schema import load_paper, papers

# Claims whose published numbers the scan lost.
LOST = {"fcclplus": {"F05", "F12", "F14"}}
# Claims about the sizes of data sets, which no run measures.
SIZES = {"fedlsa": {"L10a", "L10b", "L10c"}}
# PublishedNumbers numbers have two decimals, and so has their difference; "about" allows half a point.
PRINTED, ABOUT = 0.011, 0.5
AVG = "table=1|column=Avg"


def agrees(claim, value):
    """Whether a difference of printed numbers is what the text says, its size included."""
    if claim.expected.kind in ("size", "value"):
        margin = ABOUT if claim.expected.text.startswith("~") else PRINTED
        return abs(value - claim.expected.number) <= margin
    return claim.expected.fits(value)


@pytest.mark.parametrize("key", papers())
def test_published_numbers_bear_the_claims_out_except_for_the_papers_slips(key):
    printed, lost, wrong = PublishedNumbers(Study(key, load_paper(key))), set(), {}
    claims = [claim for claim in read_claims(printed) if claim.tree and claim.table]
    for claim in claims:
        numbers = {spot: printed.numbers.get(spot) for spot in claim.spots}
        if None in numbers.values():
            lost.add(claim.id)
        elif not agrees(claim, value := claim.value(claim.tree, numbers.__getitem__)):
            wrong[claim.id] = value
    assert len(claims) > 20
    assert lost == LOST.get(key, set())
    assert set(wrong) == {claim.id for claim in claims if claim.slip}, wrong


@pytest.mark.parametrize("key", papers())
def test_every_number_of_a_claim_is_a_measure_of_a_run(key):
    evidence = Evidence(PublishedNumbers(Study(key, load_paper(key))))
    claims = read_claims(evidence.printed)
    without = {claim.id for claim in claims for spot in claim.spots if evidence.source(spot) is None}
    assert without == SIZES.get(key, set())


@pytest.fixture
def printed(root):
    return PublishedNumbers(Study("fedcrl", load_paper("fedcrl", root), root=root))


@pytest.mark.parametrize("text, value", [
    (f"{AVG}|method=Ours", 46.66),
    (f"{AVG}|method=Ours - {AVG}|method=FedAvg", 4.44),
    (f"max({AVG}|method!=Ours)", 44.44),
    (f"min({AVG})", 42.22),
    (f"mean({AVG}|method=Ours & FedAvg)", 44.44),
    (f"max({AVG}) - {AVG}|method=FedAvg - min(table=1|public=a|column=M)", 46.66 - 42.22 - 41.11),
    # The row Averaged is no method.
    ("mean(table=2|setting=practical(beta=0.1,N=20)|column=Acc.)", 32.07),
    # Method by method.
    (f"max(table=1|column=M - {AVG})", -1.11),
    (f"min(table=2|setting=pathological(N=20)|column=Acc. - {AVG}|method=FedAvg)", 51.07 - 42.22),
    (f"max(table=1|column=M|method=Ours ; min({AVG}))", 45.55),
])  # fmt: skip
def test_sides(printed, text, value):
    [(_, tree)] = parse(text, printed)
    assert tree.at(printed.numbers.__getitem__) == pytest.approx(value)


def test_an_extreme_of_differences_is_one_of_the_pairwise_ones_and_turns_over_with_the_sign(printed):
    lead = f"{AVG}|method=Ours - max({AVG}|method!=Ours)"
    [(_, forth)], [(_, back)] = parse(lead, printed), parse(" - ".join(reversed(lead.split(" - "))), printed)
    numbers = printed.numbers.__getitem__
    assert (forth.place, back.place, len(forth.leaves())) == (0, -1, 2)
    assert back.at(numbers) == -forth.at(numbers) == pytest.approx(-2.22)
    assert all(sum(weight for _, weight in leaf.weights) == 0 for leaf in forth.leaves())
    nearest = forth.pick(lambda leaf: leaf.at(numbers))
    assert {spot.method for spot, _ in nearest.weights} == {"Ours", "FedProx"}
    nested = parse(f"min({lead} ; {lead.replace('Avg|', 'M|')})", printed)[0][1]
    assert len(nested.leaves()) == 4
    assert nested.at(numbers) == pytest.approx(2.22)


def test_a_rank_is_the_lead_over_the_rival_that_decides_it(root, printed):
    rows = [(f"r{k}", "", f"{AVG}|method=FedProx", AVG, f"rank<={k}") for k in (1, 2)]
    write_claims(root, [*rows, ("low", "", f"{AVG}|method=FedAvg", AVG, "rank<=1 low")])
    first, second, low = read_claims(printed)
    numbers = printed.numbers.__getitem__
    # 42, 44, 46 are printed.
    assert [claim.tree.at(numbers) for claim in (first, second, low)] == pytest.approx([-2.22, 2.22, 2.22])
    assert [claim.value(claim.tree, numbers) for claim in (first, second, low)] == [2, 2, 1]


@pytest.mark.parametrize("text, alone, kind, sign, bound, number, margin", [
    (">=5", False, "bound", ">=", 5, 0, 0), ("<-1.5", True, "bound", "<", -1.5, 0, 0),
    ("=8.47", False, "size", ">", 0, 8.47, 0.847), ("~-2", False, "size", "<", 0, -2, 0.5),
    ("=0", False, "size", "", 0, 0, 0.5), ("=68.40", True, "value", "", 0, 68.4, 1),
    ("abs<2", False, "abs", "", 0, 0, 2), ("rank<=3", False, "rank", ">", 0, 3, 0),
    ("text", True, "text", "", 0, 0, 0),
])  # fmt: skip
def test_expected(text, alone, kind, sign, bound, number, margin):
    expected = parse_expected(text, alone)
    assert (expected.kind, expected.sign, expected.bound, expected.number) == (kind, sign, bound, number)
    assert expected.margin == pytest.approx(margin)


@pytest.mark.parametrize("row, message", [
    (("table=9|column=Avg|method=Ours", "", "=1"), r"claims.csv:2: x: unknown table"),
    (("table=1|column=Average|method=Ours", "", "=1"), "column=Average"),
    (("table=1|column=Avg|method=Our", "", "=1"), "nearest: 'Ours'"),
    (("table=1|column=Avg|method!=Our", "", "=1"), "'Our'"),
    (("table=1|column=Avg|method=Averaged", "", "=1"), "'Averaged'"),
    (("table=1|column=Avg", "", "=1"), "max, min or mean"),
    (("table=1|Avg", "", "=1"), "key=value"),
    (("table=1|column=M|column=Avg|method=Ours", "", "=1"), "key=value"),
    (("table=1|colunm=Avg|method=Ours", "", "=1"), "colunm=Avg"),
    (("table=1|column!=Avg|method=Ours", "", "=1"), "column!=Avg"),
    (("max(table=1|column=Avg", "", "=1"), "brackets"),
    (("max(table=1|column=Avg - table=1|column=Avg|method!=Ours)", "", "=1"), "different methods"),
    (("scenario=even|measure=M|method=Ours", "", "=1"), "unknown scenario 'even'"),
    (("scenario=skewed|method=Ours", "", "=1"), "a run is scenario"),
    (("scenario=skewed|measure=M|method!=Ours", "", "=1"), "a run is scenario"),
    (("scenario=skewed|measure=M|method=Ours & Our", "", "=1"), "unknown method 'Our'"),
    (("scenario=skewed|measure=figure9.mean|method=Ours", "", "=1"), "unknown figure 'figure9'"),
    (("table=1|column=Avg|method=Ours", "", "about 3"), "'about 3'"),
    (("table=1|column=Avg|method=Ours", "", ">0 low"), "'>0 low'"),
    (("table=1|column=Avg|method=Ours", "", "rank<=2"), "a rank needs"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg|method!=Ours", "rank<=2"), "a rank needs"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg", "rank<=0"), "above 0"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg", "rank<=3"), "only 3"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg|method=FedAvg", "abs<0"), "above 0"),
    (("table=1|column=Avg|method=Ours", "", "text"), "text"),
    (("max(" * 900 + "x" + ")" * 900, "", "=1"), "claims.csv:2: x: "),
    (("1" * 400, "", "=1"), "claims.csv:2: x: '1{200}"),
])  # fmt: skip
def test_a_wrong_claim_is_named(root, printed, row, message):
    write_claims(root, [("x", "words", *row)])
    with pytest.raises(ParamError, match=message):
        read_claims(printed)


def test_wrong_columns_ids_given_twice_and_unknown_main_claims_are_named(root, printed):
    row = ("more", "", f"{AVG}|method=Ours", f"{AVG}|method=FedAvg", ">0")
    write_claims(root, [row, row])
    with pytest.raises(ParamError, match="claims.csv:3: more: "):
        read_claims(printed)
    write_claims(root, [row])
    with (root / "papers/fedcrl/paper.yaml").open("a", encoding="utf-8") as file:
        file.write("main: [more, mroe]\n")
    load_paper.cache_clear()
    with pytest.raises(ParamError, match="paper.yaml: main: unknown claim 'mroe' .nearest: 'more'"):
        read_claims(PublishedNumbers(Study.of("fedcrl", {}, root)))
    (root / "papers/fedcrl/claims.csv").write_text("id,lhs\n")
    with pytest.raises(ParamError, match="claims.csv:1: the column 'claim'"):
        read_claims(printed)


def test_every_printed_number_is_looked_at_once_however_many_claims_ask(printed, monkeypatch):
    """Otherwise the time grows with the square of a paper's size."""
    facts, looked = module._facts, []
    monkeypatch.setattr(module, "_facts", lambda spot: looked.append(spot) or facts(spot))
    for _ in range(3):
        parse(f"{AVG}|method=Ours", printed)
        parse(f"max({AVG}|method!=Ours)", printed)
    assert sorted(looked, key=str) == sorted(
        (spot for spot in printed.numbers if spot.table == "table1"), key=str
    )
