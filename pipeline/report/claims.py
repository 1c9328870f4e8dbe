"""What a paper's text claims, as papers/<paper>/claims.csv holds it: one claim per row, one grammar for all
papers.

A claim expects something of the difference `left - right` (of `left` alone where `right` is empty).

    expression  operand { " - " operand | " + " operand }
    operand     a number, a selector, or max(expression), min(expression), mean(expression), also of several
                expressions: max(one ; other)
    selector    term { "|" term }, a term is key=value or key!=value

`table`, `dataset`, `column` and `method` are the fields of a published row; `setting` is a whole setting or
one part of it, and any other key is a part `key=value` of the setting. `method=A & B` is several methods;
without a method, or with `method!=A`, a selector is every method that the table prints there (a row that is a
mean over the methods is none). A selector of several numbers stands inside max, min or mean, where a
difference goes method by method, or on the right of a rank. `scenario=..|measure=..|method=..` are numbers
that the paper gives in no table, but that runs measure; `pipeline/report/measures.py` has the names, those of
curves and figures among them.

    expected    >x  <x  >=x  <=x    the difference is above or below x
                abs<x               it is closer to 0 than x
                =x                  it is x as printed: its sign, and its size
                ~x                  it is about x, within 0.5
                rank<=k [low]       left is among the k highest (lowest) of right
                text                the claim is in words that no number settles
"""
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pipeline.errors import ParamError, unknown
from pipeline.files import read_csv
from pipeline.report.measures import rival
from pipeline.report.published import NUMBER, printed_number, read_published
from pipeline.report.study import Study
from pipeline.report.words import minus, split_setting
from pipeline.schema import Paper, shorten

FIELDS = {"table", "method", "dataset", "column", "setting"}      # of a selector, beside a setting's keys
COLUMNS = ["id", "claim", "left", "right", "expected", "where", "slip"]
OPTIONAL = ["title"]
ABOUT = 0.5                                       # the largest deviation that "about" allows
PRINTED = 0.011  # two numbers with two decimals, and their difference with two decimals
EXTREMES = {"max": max, "min": min}
BOUNDS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
SIGNS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}


@dataclass(frozen=True)
class Spot:
    """One number that a claim is about: a position of a table, or (without a table) a measure of a
    scenario."""
    method: str                                   # as printed
    table: str = ""                               # key in paper.yaml
    setting: str = ""
    dataset: str = ""
    column: str = ""
    scenario: str = ""
    measure: str = ""


Look = Callable[[Spot], float]                    # gives the number of a spot


# -- what a difference is, number by number ------------------------------------------------------------------

@dataclass(frozen=True)
class Form:
    """A sum of numbers: a coefficient for each, and a constant. They are spots, later the runs behind
    them."""
    coefficients: tuple[tuple[Any, float], ...] = ()
    constant: float = 0.0

    def value(self, of: Callable[["Form"], float]) -> float:
        return of(self)

    def at(self, look: Callable[[Any], float]) -> float:
        return sum(coefficient * look(spot) for spot, coefficient in self.coefficients) + self.constant

    def leaves(self) -> list["Form"]:
        return [self]

    def times(self, factor: float) -> "Form":
        return Form(tuple((spot, factor * c) for spot, c in self.coefficients), factor * self.constant)

    def plus(self, other: "Tree") -> "Tree":
        if isinstance(other, Extreme):
            return other.plus(self)
        return Form((*self.coefficients, *other.coefficients), self.constant + other.constant).gathered()

    def gathered(self, name: Callable[[Any], Any] = lambda spot: spot) -> "Form":
        """The same sum with each number once, renamed by `name`; numbers that cancel are left out."""
        total: dict[Any, float] = {}
        for spot, coefficient in self.coefficients:
            total[name(spot)] = total.get(name(spot), 0.0) + coefficient
        return Form(tuple((spot, c) for spot, c in total.items() if abs(c) > 1e-12), self.constant)


@dataclass(frozen=True)
class Extreme:
    """The largest or the smallest of several differences. It is monotone in each of them, so the ends of its
    interval follow from theirs."""
    kind: str                                     # max or min
    parts: tuple["Tree", ...]

    def value(self, of: Callable[[Form], float]) -> float:
        return EXTREMES[self.kind](part.value(of) for part in self.parts)

    def leaves(self) -> list[Form]:
        return list(dict.fromkeys(leaf for part in self.parts for leaf in part.leaves()))

    def times(self, factor: float) -> "Extreme":
        kind = self.kind if factor >= 0 else {"max": "min", "min": "max"}[self.kind]
        return Extreme(kind, tuple(part.times(factor) for part in self.parts))

    def plus(self, other: "Tree") -> "Extreme":
        return Extreme(self.kind, tuple(part.plus(other) for part in self.parts))


Tree = Form | Extreme


# -- expressions ---------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Number:
    number: float
    spots: tuple[Spot, ...] = ()

    def trees(self) -> list[tuple[str, Tree]]:
        """(method, value) of everything it stands for; the name is empty where a value is not one
        method's."""
        return [("", Form(constant=self.number))]


@dataclass(frozen=True)
class Select:
    spots: tuple[Spot, ...]

    def trees(self) -> list[tuple[str, Tree]]:
        return [(spot.method, Form(((spot, 1.0),))) for spot in self.spots]


@dataclass(frozen=True)
class Fold:
    kind: str                                     # max, min, mean
    inner: tuple["Node", ...]

    @property
    def spots(self) -> tuple[Spot, ...]:
        return tuple(spot for node in self.inner for spot in node.spots)

    def trees(self) -> list[tuple[str, Tree]]:
        parts = [tree for node in self.inner for _, tree in node.trees()]
        if self.kind == "mean":
            return [("", reduce(lambda one, other: one.plus(other), parts).times(1 / len(parts)))]
        return [("", Extreme(self.kind, tuple(parts)))]


@dataclass(frozen=True)
class Sum:
    """Terms with their signs. Lists must be of the same methods; a single number is combined with each of a
    list."""
    terms: tuple[tuple[int, "Node"], ...]

    @property
    def spots(self) -> tuple[Spot, ...]:
        return tuple(spot for _, term in self.terms for spot in term.spots)

    def trees(self) -> list[tuple[str, Tree]]:
        lists = [[(name, tree.times(sign)) for name, tree in term.trees()] for sign, term in self.terms]
        longest = max(lists, key=len)
        total: dict[str, Tree] = {method: Form() for method, _ in longest}
        for trees in lists:
            found = {method: trees[0][1] for method in total} if len(trees) == 1 else dict(trees)
            if found.keys() != total.keys() or len(found) != len(longest):
                raise ValueError("the sides of a difference have different methods")
            total = {method: total[method].plus(found[method]) for method in total}
        return list(total.items())


Node = Number | Select | Fold | Sum


# -- claims --------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Expected:
    """What a claim expects of its difference; `kind` is bound, abs, size, value, about, rank or text."""
    kind: str
    number: float = 0.0
    sign: str = ""                                # of a bound
    low: bool = False                             # of a rank: the lowest numbers are the best
    text: str = ""                                # as written

    @property
    def testable(self) -> bool:
        return self.kind != "text"

    @property
    def sized(self) -> bool:
        """Whether the paper gives the size of the difference, so that its sign and its size can be
        compared."""
        return self.kind in ("size", "about") and self.number != 0

    @property
    def words(self) -> str:
        """What is expected, for a reader."""
        number = minus(f"{self.number:g}")
        signed = minus(f"{self.number:+g}") if self.number else "0"
        return {
            "bound": f"{SIGNS.get(self.sign, self.sign)} {number}",
            "abs": f"less than {number} apart",
            "size": signed,
            "about": f"about {signed}",
            "value": number,
            "rank": "first" if self.number == 1 else f"among the first {number}",
        }.get(self.kind, self.text)

    def fits(self, value: float) -> bool:
        """Whether one value agrees with the claim. For a sized claim only the sign counts."""
        if self.kind == "bound":
            return bool(BOUNDS[self.sign](value, self.number))
        if self.kind == "abs":
            return abs(value) < self.number
        if self.kind == "rank":
            return value <= self.number
        if self.sized:
            return value * self.number > 0
        return abs(value - self.number) <= PRINTED


@dataclass(frozen=True)
class Claim:
    id: str
    text: str
    expected: Expected
    where: str                                    # the paper's table or figure
    slip: str  # what the paper's own tables say instead, where they contradict it
    left: Node | None = None
    right: Node | None = None                     # None: the claim is about `left` itself
    table: str = ""  # key of the table that shows it; empty for a claim about a figure or in words
    spots: tuple[Spot, ...] = field(default=(), repr=False)
    title: str = ""                               # the claim in a few words; empty: none is given

    @property
    def tree(self) -> Tree:
        """left - right; of a rank, the lead over the nearest of the others."""
        if self.left is None:
            raise ValueError(f"{self.id} compares nothing")
        [(method, left)] = self.left.trees()
        right = self.right.trees() if self.right else []
        if self.expected.kind == "rank":
            others = [other for name, other in right if name != method]
            return Extreme("min", tuple(left.plus(other.times(-1)) for other in others))
        return left.plus(right[0][1].times(-1)) if right else left

    def difference(self, look: Look) -> float:
        """left - right, or the rank of left among right (1 is the best)."""
        if self.expected.kind == "rank":
            return self.place(form.at(look) for form in self.tree.leaves())
        return self.tree.value(lambda form: form.at(look))

    def place(self, leads: Iterable[float]) -> float:
        """Rank from the leads over all the others."""
        return 1.0 + sum((lead > 0) if self.expected.low else (lead < 0) for lead in leads)

    def stands(self, value: float) -> bool:
        """Whether a difference of printed numbers is what the text says, size included."""
        if self.expected.sized:
            return abs(value - self.expected.number) <= (ABOUT if self.expected.kind == "about" else PRINTED)
        return self.expected.fits(value)


class Printed:
    """The published tables of a paper, as claims ask for them. ParamError for a table that cannot be read."""

    def __init__(self, study: Study):
        self.study, self.paper = study, study.paper
        self.records = {
            name: read_published(study.key, table, study.root) for name, table in self.paper.tables.items()
        }
        self.numbers = {
            self.spot(name, record): printed_number(record)
            for name, records in self.records.items()
            for record in records
        }

    @staticmethod
    def spot(table: str, record: dict[str, str]) -> Spot:
        return Spot(record["method"], table, record["setting"], record["dataset"], record["column"])

    def is_mean(self, table: str, method: str) -> bool:
        """Whether a printed row is a mean over the methods."""
        rows = self.paper.tables[table].rows
        return method in rows and rows[method] is None


def read_claims(printed: Printed) -> list[Claim]:
    """The claims of a paper in the order of the file, none where the file is missing; ParamError names file,
    line and what is wrong."""
    path = printed.study.root / "papers" / printed.study.key / "claims.csv"
    claims: dict[str, Claim] = {}
    for line, row in read_csv(path, COLUMNS, OPTIONAL) if path.exists() else []:
        where = f"{shorten(path)}:{line}: {' '.join(row['id'].split()):.80}"
        if not re.fullmatch(r"\S.{0,99}", row["id"]):
            raise ParamError(f"{where}: the id must be a line of 1 to 100 characters")
        if row["id"] in claims:
            raise ParamError(f"{where}: the id is given twice")
        try:
            claims[row["id"]] = parse_claim(row, printed)
        except ValueError as error:
            raise ParamError(f"{where}: {str(error):.300}") from None
        except RecursionError:
            raise ParamError(f"{where}: brackets are nested too deeply") from None
    for name in printed.paper.main:
        if name not in claims:
            where = shorten(path.with_name("paper.yaml"))
            raise ParamError(f"{where}: main: {unknown('claim', name, claims)}")
    return list(claims.values())


# -- parsing -------------------------------------------------------------------------------------------------

def parse_claim(row: dict[str, str], printed: Printed) -> Claim:
    """One row of claims.csv; ValueError says what is wrong with it."""
    expected = parse_expected(row["expected"], alone=not row["right"])
    claim = Claim(row["id"], row["claim"], expected, row["where"], row["slip"], title=row.get("title", ""))
    if not expected.testable:
        if row["left"] or row["right"]:
            raise ValueError(f"{expected.kind!r} compares nothing, but a side is given")
        return claim
    left = parse(row["left"], printed)
    right = parse(row["right"], printed) if row["right"] else None
    ranked = expected.kind == "rank"
    trees = [side.trees() for side in ([left] if right is None else [left, right])]
    if any(len(found) > 1 for found in (trees[:1] if ranked else trees)):
        raise ValueError("a selector of several numbers stands inside max, min or mean, "
                         "or on the right of a rank")
    if ranked and (right is None or not isinstance(left, Select) or left.spots[0] not in right.spots):
        raise ValueError("a rank needs one selected number on the left that is among those on the right")
    return replace(claim, left=left, right=right, table=next((spot.table for spot in left.spots), ""),
                   spots=tuple(dict.fromkeys((*left.spots, *(right.spots if right else ())))))


def parse_expected(text: str, alone: bool = False) -> Expected:
    """`>0`, `abs<1`, `=8.47`, `~2`, `rank<=3 low`, `figure`; ValueError for anything else. Alone: there is no
    right side."""
    if text == "text":
        return Expected("text", text=text)
    if found := re.fullmatch(r"rank<=(\d{1,3})( low)?", text):
        if not int(found[1]):
            raise ValueError(f"expected {text!r}: there is no place before the first")
        return Expected("rank", float(found[1]), low=bool(found[2]), text=text)
    if found := re.fullmatch(rf"(>=|<=|>|<|abs<|=|~)({NUMBER})", text):
        sign, number = found[1], float(found[2])
        if sign == "~" and alone:
            raise ValueError(f"expected {text!r} is of a difference, which needs a right side; a value is =x")
        if sign == "abs<" and number <= 0:
            raise ValueError(f"expected {text!r}: no difference is closer to 0 than {number:g}")
        kind = {"abs<": "abs", "=": "value" if alone else "size", "~": "about"}.get(sign, "bound")
        return Expected(kind, number, sign if kind == "bound" else "", text=text)
    raise ValueError(f"expected {text!r} is none of >x, <x, >=x, <=x, abs<x, =x, ~x, rank<=k, text")


def parse(text: str, printed: Printed) -> Node:
    """An expression; ValueError where it cannot be read or selects nothing."""
    terms = list(_cut(text, " - ", " + "))
    if len(terms) > 1:
        return Sum(tuple((-1 if mark == " - " else 1, _operand(term, printed)) for mark, term in terms))
    return _operand(text, printed)


def _cut(text: str, *marks: str) -> Iterator[tuple[str, str]]:
    """(mark before it, piece): cut at marks of three characters that stand in no bracket."""
    depth, begin, mark = 0, 0, ""
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and text[at:at + 3] in marks:
            yield mark, text[begin:at]
            begin, mark = at + 3, text[at:at + 3]
    if depth:
        raise ValueError(f"brackets do not match in {text!r}")
    yield mark, text[begin:]


def _operand(text: str, printed: Printed) -> Node:
    text = text.strip()
    if re.fullmatch(NUMBER, text):
        return Number(float(text))
    if found := re.fullmatch(r"(max|min|mean)\((.*)\)", text):
        return Fold(found[1], tuple(parse(part, printed) for _, part in _cut(found[2], " ; ")))
    return Select(tuple(_select(text, printed)))


def _select(text: str, printed: Printed) -> list[Spot]:
    """The spots of a selector, in printed order."""
    terms = []
    for term in text.split("|"):
        key, equals, value = term.partition("=")
        if not equals:
            raise ValueError(f"{term!r} is not key=value in {text!r}")
        terms.append((key.removesuffix("!"), value, key.endswith("!")))
    keys = [key for key, _, _ in terms]
    if "scenario" in keys:
        if len(keys) > len(set(keys)) or any(negated for _, _, negated in terms):
            raise ValueError(f"a run has every key once, and none with `!`, in {text!r}")
        return _runs(dict(zip(keys, (value for _, value, _ in terms))), printed.paper)
    number = next((value for key, value, _ in terms if key == "table"), "")
    table = number if number in printed.records else f"table{number}"
    if table not in printed.records:
        raise ValueError(unknown("table", number, [name.removeprefix("table") for name in printed.records]))
    records = printed.records[table]
    known = FIELDS | {part.partition("=")[0] for record in records
                      for part in split_setting(record["setting"]) if "=" in part}
    for key in keys:
        if key not in known:
            raise ValueError(unknown("key", key, known))
    others = [term for term in terms if term[0] not in ("table", "method")]
    here = [record for record in records if all(_matches(record, *term) for term in others)]
    if not here:
        lost = [term for term in others if not any(_matches(record, *term) for record in records)] or others
        raise ValueError(
            f"table {number} prints nothing with "
            + "|".join(f"{key}{'!' * negated}={value}" for key, value, negated in lost)
        )
    return _of_methods(table, here, records, [term for term in terms if term[0] == "method"], printed)


def _of_methods(table: str, here, records, terms, printed: Printed) -> list[Spot]:
    """The named methods at every position, even where the scanned paper lost the number; without names, all
    that are printed there."""
    named = [name for _, value, negated in terms if not negated for name in value.split(" & ")]
    without = {value for _, value, negated in terms if negated}
    known = {record["method"] for record in records}
    for name in (*named, *without):
        if name not in known:
            raise ValueError(unknown("printed method", name, known))
    if named:
        places = dict.fromkeys((record["setting"], record["dataset"], record["column"]) for record in here)
        return [Spot(name, table, *place) for name in named for place in places]
    spots = [printed.spot(table, record) for record in here
             if record["method"] not in without and not printed.is_mean(table, record["method"])]
    if not spots:
        raise ValueError("no method is left")
    return spots


def _matches(record: dict[str, str], key: str, value: str, negated: bool) -> bool:
    if key in ("dataset", "column"):
        same = record[key] == value
    elif key == "setting":
        same = value == record["setting"] or value in split_setting(record["setting"])
    else:
        same = f"{key}={value}" in split_setting(record["setting"])
    return same != negated


def _runs(terms: dict[str, str], paper: Paper) -> list[Spot]:
    if sorted(terms) != ["measure", "method", "scenario"]:
        raise ValueError("a run is scenario=..|measure=..|method=..")
    labels, methods = [paper.label(method) for method in paper.methods], terms["method"].split(" & ")
    figure = terms["measure"].partition(".")[0]
    asked = [
        ("scenario", terms["scenario"], paper.scenarios),
        *(("method", name, labels) for name in methods),
    ]
    asked += [("figure", figure, paper.figures)] if figure.startswith("figure") else []
    asked += [("row", other, paper.methods)] if (other := rival(terms["measure"])) else []
    for kind, name, known in asked:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
    return [Spot(name, scenario=terms["scenario"], measure=terms["measure"]) for name in methods]
