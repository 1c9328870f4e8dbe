"""Parse the claims of a paper's text: expected differences between numbers, in one grammar for all papers.

They are in papers/<paper>/claims.csv, one claim per row. A claim expects something of the difference
`left - right`, or of `left` where `right` is empty.

    side       piece { " - " piece }
    piece      selector, max(sides), min(sides) or mean(sides); sides are separated by " ; "
    selector   term { "|" term }, a term is key=value or method!=value

`table`, `dataset`, `column` and `method` are the fields of a published row; `setting` is a whole setting or
one part of it, and any other key is a part `key=value` of the setting. `method=A & B` is several methods;
without a method, or with `method!=A`, a selector is every method that the table prints there, without rows
that average the methods. A selector of several numbers belongs inside max, min or mean, where a difference
goes method by method, or on the right of a rank. `scenario=..|measure=..|method=..` are numbers that no table
has, but that runs measure; `measures.py` has the names.

    expected    >x  <x  >=x  <=x    the difference is above or below x
                abs<x               it is closer to 0 than x
                =x  ~x              it is x, or about x: its sign, and its size
                rank<=k [low]       left is among the k highest (lowest) of right
                text                the claim is in words that no number settles
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pipeline.errors import ParamError, unknown
from pipeline.files import read_csv
from pipeline.report.published import printed_number, read_published
from pipeline.report.study import Study
from pipeline.report.words import split_setting
from pipeline.schema import Paper, shorten
from pipeline.schema.paper import NUMBER

COLUMNS = ["id", "claim", "left", "right", "expected", "where", "slip"]
OPTIONAL = ["title"]
# points by which a level may deviate ("reaches 68.40")
CLOSE = 1.0
# points, or share of the size, by which a difference may deviate
SIZE, SHARE = 0.5, 0.1


@dataclass(frozen=True)
class Spot:
    """One number that a claim is about: a position of a table (its key in paper.yaml) as printed, or, without
    a table, a measure of a scenario."""

    method: str
    table: str = ""
    setting: str = ""
    dataset: str = ""
    column: str = ""
    scenario: str = ""
    measure: str = ""


@dataclass(frozen=True)
class Difference:
    """A weighted sum of numbers, `weights` (spot, later the run behind it; weight); or with `parts` one of
    several such sums by its place among them: 0 is the smallest, k - 1 the k-th smallest, -1 the largest."""

    weights: tuple[tuple[Any, float], ...] = ()
    place: int = 0
    parts: tuple["Difference", ...] = ()

    def at(self, number: Callable[[Any], float]) -> float:
        """Its value for given numbers."""
        if self.parts:
            return sorted(part.at(number) for part in self.parts)[self.place]
        return sum(weight * number(spot) for spot, weight in self.weights)

    def pick(self, key: Callable[["Difference"], Any]) -> "Difference":
        """The sum that it comes from, sorted by `key`."""
        return sorted((part.pick(key) for part in self.parts), key=key)[self.place] if self.parts else self

    def leaves(self) -> list["Difference"]:
        """All its sums."""
        return list(dict.fromkeys(leaf for part in self.parts for leaf in part.leaves())) or [self]

    def spots(self) -> list[Any]:
        return list(dict.fromkeys(spot for leaf in self.leaves() for spot, _ in leaf.weights))

    def scaled(self, factor: float) -> "Difference":
        weights = tuple((spot, factor * weight) for spot, weight in self.weights)
        place = self.place if factor >= 0 or not self.parts else ~self.place
        return Difference(weights, place, tuple(part.scaled(factor) for part in self.parts))

    def plus(self, other: "Difference") -> "Difference":
        if self.parts:
            return replace(self, parts=tuple(part.plus(other) for part in self.parts))
        if other.parts:
            return other.plus(self)
        return Difference((*self.weights, *other.weights)).renamed(lambda spot: spot) or Difference()

    def renamed(self, name: Callable[[Any], Any]) -> "Difference | None":
        """With other names, and each number once; None where all cancel."""
        total: dict[Any, float] = {}
        for spot, weight in self.weights:
            total[name(spot)] = total.get(name(spot), 0.0) + weight
        weights = tuple((spot, weight) for spot, weight in total.items() if abs(weight) > 1e-12)
        parts = tuple(part for old in self.parts if (part := old.renamed(name)))
        place = max(min(self.place, len(parts) - 1), -len(parts)) if parts else 0
        return Difference(weights, place, parts) if weights or parts else None


@dataclass(frozen=True)
class Expected:
    """What a claim expects of its difference.

    kind: bound, size, value, abs, rank or text; text: as written
    sign, bound: its direction, `> 0` for example, of a bound, a rank, or a size other than 0
    number: the size, the value or the rank; margin: by which a size or a value may deviate
    """

    text: str
    kind: str
    sign: str = ""
    bound: float = 0.0
    number: float = 0.0
    margin: float = 0.0
    low: bool = False

    def fits(self, value: float) -> bool:
        """Whether a difference has the claimed direction, else the size, or whether it is such a rank."""
        if self.kind == "rank":
            return value <= self.number
        if not self.sign:
            return abs(value - self.number) < self.margin
        return (value > self.bound) == self.sign.startswith(">") if value != self.bound else "=" in self.sign


@dataclass(frozen=True)
class Claim:
    """A row of claims.csv.

    where: the paper's table or figure; slip: what its tables say instead; title: in a few words, or empty
    table: key of the table that shows it, empty for a figure's claim or one in words
    tree: the difference; of a rank the lead over the rival that decides it; None: it compares nothing
    """

    id: str
    text: str
    expected: Expected
    where: str
    slip: str = ""
    title: str = ""
    table: str = ""
    tree: Difference | None = field(default=None, repr=False)

    @property
    def spots(self) -> list[Spot]:
        return self.tree.spots() if self.tree else []

    def value(self, tree: Difference, number: Callable[[Any], Any]) -> float:
        """The difference for given numbers, or the rank; tree: the claim's, or that of its runs."""
        if self.expected.kind == "rank":
            return 1.0 + sum(leaf.at(number) < 0 for leaf in tree.leaves())
        return tree.at(number)


class Printed:
    """The published numbers of a paper (None: lost, or words), without rows that average the methods."""

    def __init__(self, study: Study):
        self.study, self.paper = study, study.paper
        self.numbers: dict[Spot, float | None] = {}
        for name, table in self.paper.tables.items():
            for record in read_published(study.key, table, study.root):
                if table.rows.get(record["method"], "") is not None:
                    place = record["setting"], record["dataset"], record["column"]
                    self.numbers[Spot(record["method"], name, *place)] = printed_number(record)


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
        except (ValueError, RecursionError) as error:
            raise ParamError(f"{where}: {str(error):.300}") from None
    for name in printed.paper.main:
        if name not in claims:
            where = shorten(path.with_name("paper.yaml"))
            raise ParamError(f"{where}: main: {unknown('claim', name, claims)}")
    return list(claims.values())


# A tree for each method; the method is empty where a value is not of a single one.
Methods = list[tuple[str, Difference]]


def parse_claim(row: dict[str, str], printed: Printed) -> Claim:
    """One row of claims.csv; ValueError says what is wrong with it."""
    expected = parse_expected(row["expected"], alone=not row["right"])
    table, tree = "", None
    if expected.kind == "text":
        if row["left"] or row["right"]:
            raise ValueError("'text' compares nothing, but a side is given")
    else:
        left = parse(row["left"], printed)
        right = parse(row["right"], printed) if row["right"] else []
        if expected.kind == "rank":
            tree = _ranked(left, right, expected)
        elif len(left) > 1 or len(right) > 1:
            raise ValueError("several numbers belong inside max, min or mean, or on the right of a rank")
        else:
            tree = _minus(left, right)[0][1] if right else left[0][1]
        table = next((spot.table for _, part in left for spot in part.spots()), "")
    return Claim(row["id"], row["claim"], expected, row["where"], row["slip"], row["title"], table, tree)


def _ranked(left: Methods, right: Methods, expected: Expected) -> Difference:
    """The lead over the k-th of the others: it is above 0 where left is among the first k."""
    one, place = left[0][1], int(expected.number) - 1
    others = [tree for _, tree in right if tree != one]
    if len(left) > 1 or len(others) != len(right) - 1:
        raise ValueError("a rank needs one number on the left that is among those on the right")
    if place >= len(others):
        raise ValueError(f"expected {expected.text!r}: there are only {len(right)} to rank")
    sign = -1 if expected.low else 1
    return Difference((), place, tuple(one.plus(tree.scaled(-1)).scaled(sign) for tree in others))


def parse_expected(text: str, alone: bool = False) -> Expected:
    """`>0`, `abs<1`, `=8.47`, `~2`, `rank<=3 low`, `text`; ValueError for anything else. alone: there is no
    right side."""
    if text == "text":
        return Expected(text, "text")
    match = re.fullmatch(rf"(>=|<=|>|<|abs<|=|~)({NUMBER})|(rank<=)(\d{{1,3}})( low)?", text)
    if not match:
        raise ValueError(f"expected {text!r} is none of >x, <x, >=x, <=x, abs<x, =x, ~x, rank<=k, text")
    sign, number = match[1] or match[3], float(match[2] or match[4])
    if sign in ("abs<", "rank<=") and number <= 0:
        raise ValueError(f"expected {text!r}: {number:g} must be above 0")
    if sign == "abs<":
        return Expected(text, "abs", margin=number)
    if sign == "rank<=":
        return Expected(text, "rank", ">", number=number, low=bool(match[5]))
    if sign not in "=~":
        return Expected(text, "bound", sign, number)
    if alone:
        return Expected(text, "value", number=number, margin=CLOSE)
    direction = ">" if number > 0 else "<" if number else ""
    return Expected(text, "size", direction, number=number, margin=max(SIZE, SHARE * abs(number)))


def parse(text: str, printed: Printed) -> Methods:
    """One side of a claim; ValueError where it cannot be read or selects nothing."""
    pieces = [_piece(piece.strip(), printed) for piece in _cut(text, " - ")]
    return reduce(_minus, pieces)


def _minus(left: Methods, right: Methods) -> Methods:
    """Lists must be of the same methods; a single number is combined with each of a list."""
    names = [name for name, _ in max(left, right, key=len)]
    one, other = (
        [(name, side[0][1]) for name in names] if len(side) == 1 else side for side in (left, right)
    )
    if not len(names) == len(dict(one)) == len(dict(one).keys() & dict(other)):
        raise ValueError("the sides of a difference have different methods")
    return [(name, tree.plus(dict(other)[name].scaled(-1))) for name, tree in one]


def _cut(text: str, mark: str) -> Iterator[str]:
    """The pieces between marks that stand in no bracket."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if not depth and text.startswith(mark, at):
            yield text[begin:at]
            begin = at + len(mark)
    if depth:
        raise ValueError(f"brackets do not match in {text!r}")
    yield text[begin:]


def _piece(text: str, printed: Printed) -> Methods:
    match = re.fullmatch(r"(max|min|mean)\((.*)\)", text)
    if not match:
        return [(spot.method, Difference(((spot, 1.0),))) for spot in _select(text, printed)]
    parts = [tree for side in _cut(match[2], " ; ") for _, tree in parse(side, printed)]
    if match[1] == "mean":
        return [("", reduce(lambda one, other: one.plus(other), parts).scaled(1 / len(parts)))]
    return [("", Difference((), -1 if match[1] == "max" else 0, tuple(parts)))]


def _select(text: str, printed: Printed) -> list[Spot]:
    """The spots of a selector, in printed order."""
    pairs = [term.partition("=")[::2] for term in text.split("|")]
    keys = [key for key, _ in pairs if key != "method!"]
    if any("=" not in term for term in text.split("|")) or len(keys) > len(set(keys)):
        raise ValueError(f"{text!r} is not key=value|key=value, each key once")
    methods = [name for key, value in pairs if key == "method" for name in value.split(" & ")]
    without = [value for key, value in pairs if key == "method!"]
    place = {key: value for key, value in pairs if not key.startswith("method")}
    if "scenario" in place:
        return _runs(place, methods, printed.paper)
    number = place.pop("table", "")
    table = number if number in printed.paper.tables else f"table{number}"
    _check("table", [table], printed.paper.tables)
    spots = [spot for spot in printed.numbers if spot.table == table]
    _check("printed method", (*methods, *without), {spot.method for spot in spots})
    terms, facts = {f"{key}={value}" for key, value in place.items()}, {spot: _facts(spot) for spot in spots}
    here = [spot for spot in spots if terms <= facts[spot] and spot.method not in without]
    if not here:
        lost = terms.difference(*facts.values()) or terms
        raise ValueError(f"table {number} prints nothing with {'|'.join(sorted(lost))}")
    # A named method at every position, even where the scanned paper lost the number.
    named = [replace(spot, method=name) for name in methods for spot in here]
    return list(dict.fromkeys(named or here))


def _facts(spot: Spot) -> set[str]:
    """The terms that select a spot of a table."""
    parts = split_setting(spot.setting)
    settings = {f"setting={part}" for part in (spot.setting, *parts)}
    return {f"dataset={spot.dataset}", f"column={spot.column}", *settings, *parts}


def _runs(terms: dict[str, str], methods: list[str], paper: Paper) -> list[Spot]:
    if sorted(terms) != ["measure", "scenario"] or not methods:
        raise ValueError("a run is scenario=..|measure=..|method=..")
    _check("scenario", [terms["scenario"]], paper.scenarios)
    _check("method", methods, [paper.label(method) for method in paper.methods])
    figure = terms["measure"].partition(".")[0]
    _check("figure", [figure] if figure.startswith("figure") else [], paper.figures)
    return [Spot(name, **terms) for name in methods]


def _check(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
