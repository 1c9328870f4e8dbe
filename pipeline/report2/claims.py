"""What a paper's text claims, as papers/<paper>/claims.csv holds it: one claim per row, one grammar for all
papers.

A claim expects something of the difference `left - right`, or of `left` where `right` is empty.

    side       piece { " - " piece }
    piece      selector, max(sides), min(sides) or mean(sides); sides are separated by " ; "
    selector   term { "|" term }, a term is key=value or method!=value

`table`, `dataset`, `column` and `method` are the fields of a published row; `setting` is a whole setting or
one part of it, and any other key is a part `key=value` of the setting. `method=A & B` is several methods;
without a method, or with `method!=A`, a selector is every method that the table prints there, without rows
that average the methods. A selector of several numbers stands inside max, min or mean, where a difference
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
from pipeline.report2.published import NUMBER, printed_number, read_published
from pipeline.report2.study import Study
from pipeline.report2.words import split_setting
from pipeline.schema import Paper, shorten

COLUMNS = ["id", "claim", "left", "right", "expected", "where", "slip"]
OPTIONAL = ["title"]
# places in a sorted list
PLACES = {"min": 0, "max": -1}


@dataclass(frozen=True)
class Spot:
    """One number that a claim is about: a position of a table, or (without a table) a measure of a scenario.

    method: as printed; table: its key in paper.yaml
    """

    method: str
    table: str = ""
    setting: str = ""
    dataset: str = ""
    column: str = ""
    scenario: str = ""
    measure: str = ""


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of numbers; weights: ((spot, later the run behind it), weight)."""

    weights: tuple[tuple[Any, float], ...] = ()

    def at(self, number: Callable[[Any], float]) -> float:
        """Its value for given numbers."""
        return sum(weight * number(spot) for spot, weight in self.weights)

    def pick(self, key: Callable[["Contrast"], Any]) -> "Contrast":
        return self

    def leaves(self) -> list["Contrast"]:
        return [self]

    def scaled(self, factor: float) -> "Contrast":
        return Contrast(tuple((spot, factor * weight) for spot, weight in self.weights))

    def plus(self, other: "Tree") -> "Tree":
        if isinstance(other, Pick):
            return other.plus(self)
        return Contrast((*self.weights, *other.weights)).renamed(lambda spot: spot) or Contrast()

    def renamed(self, name: Callable[[Any], Any]) -> "Contrast | None":
        """With each number once, by another name; None where all cancel."""
        total: dict[Any, float] = {}
        for spot, weight in self.weights:
            total[name(spot)] = total.get(name(spot), 0.0) + weight
        weights = tuple((spot, weight) for spot, weight in total.items() if abs(weight) > 1e-12)
        return Contrast(weights) if weights else None


@dataclass(frozen=True)
class Pick:
    """One of several contrasts by its place among them: 0 is the smallest, k - 1 the k-th smallest, -1 the
    largest. It rises with each of them and always is the value of one."""

    place: int
    parts: tuple["Tree", ...]

    def pick(self, key: Callable[[Contrast], Any]) -> Contrast:
        """The contrast that it comes from, sorted by `key`."""
        return sorted((part.pick(key) for part in self.parts), key=key)[self.place]

    def leaves(self) -> list[Contrast]:
        return list(dict.fromkeys(leaf for part in self.parts for leaf in part.leaves()))

    def scaled(self, factor: float) -> "Pick":
        place = self.place if factor >= 0 else ~self.place
        return Pick(place, tuple(part.scaled(factor) for part in self.parts))

    def plus(self, other: "Tree") -> "Pick":
        return Pick(self.place, tuple(part.plus(other) for part in self.parts))

    def renamed(self, name: Callable[[Any], Any]) -> "Pick | None":
        parts = tuple(part for old in self.parts if (part := old.renamed(name)))
        return Pick(max(min(self.place, len(parts) - 1), -len(parts)), parts) if parts else None


Tree = Contrast | Pick


@dataclass(frozen=True)
class Expected:
    """What a claim expects of its difference.

    kind: bound, size, value, abs, rank or text; text: as written
    sign, bound: its direction, `> 0` for example, of a bound, a rank, or a size other than 0
    number: the size, the value, the largest distance or the rank
    """

    text: str
    kind: str
    sign: str = ""
    bound: float = 0.0
    number: float = 0.0
    low: bool = False

    def fits(self, value: float) -> bool:
        """Whether a difference has the claimed direction, distance or rank."""
        if self.kind == "rank":
            return value <= self.number
        if self.kind == "abs":
            return abs(value) < self.number
        if value == self.bound:
            return self.sign.endswith("=")
        return (value > self.bound) == self.sign.startswith(">")


@dataclass(frozen=True)
class Claim:
    """A row of claims.csv.

    where: the paper's table or figure; slip: what its own tables say instead; title: in a few words, or empty
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
    tree: Tree | None = field(default=None, repr=False)

    @property
    def spots(self) -> list[Spot]:
        leaves = self.tree.leaves() if self.tree else []
        return list(dict.fromkeys(spot for leaf in leaves for spot, _ in leaf.weights))

    def value(self, tree: Tree, number: Callable[[Any], float]) -> float:
        """The difference for given numbers, or the rank (1 is the best); tree: the claim's, or that of its
        runs."""
        if self.expected.kind == "rank":
            return 1.0 + sum(leaf.at(number) < 0 for leaf in tree.leaves())
        return tree.pick(lambda leaf: leaf.at(number)).at(number)


class Printed:
    """The published tables of a paper, as claims ask for them. ParamError for a table that cannot be read."""

    def __init__(self, study: Study):
        self.study, self.paper = study, study.paper
        self.records = {
            name: read_published(study.key, table, study.root) for name, table in self.paper.tables.items()
        }
        pairs = ((name, record) for name, records in self.records.items() for record in records)
        self.numbers = {self.spot(name, record): printed_number(record) for name, record in pairs}

    @staticmethod
    def spot(table: str, record: dict[str, str]) -> Spot:
        return Spot(record["method"], table, record["setting"], record["dataset"], record["column"])

    def is_mean(self, table: str, method: str) -> bool:
        """Whether a printed row averages the methods."""
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


# -- parsing --

# A tree for each method; the method is empty where a value is not of a single one.
Methods = list[tuple[str, Tree]]


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
        tree = _ranked(left, right, expected) if expected.kind == "rank" else _single(left, right)
        named = (spot.table for _, part in left for leaf in part.leaves() for spot, _ in leaf.weights)
        table = next(named, "")
    return Claim(row["id"], row["claim"], expected, row["where"], row["slip"], row["title"], table, tree)


def _single(left: Methods, right: Methods) -> Tree:
    if len(left) > 1 or len(right) > 1:
        raise ValueError("several numbers stand inside max, min or mean, or on the right of a rank")
    return _minus(left, right)[0][1] if right else left[0][1]


def _ranked(left: Methods, right: Methods, expected: Expected) -> Tree:
    """The lead over the k-th of the others: it is above 0 where left is among the first k."""
    one, place = left[0][1], int(expected.number) - 1
    others = [tree for _, tree in right if tree != one]
    if len(left) > 1 or len(others) != len(right) - 1:
        raise ValueError("a rank needs one number on the left that is among those on the right")
    if place >= len(others):
        raise ValueError(f"expected {expected.text!r}: there are only {len(right)} to rank")
    sign = -1 if expected.low else 1
    return Pick(place, tuple(one.plus(tree.scaled(-1)).scaled(sign) for tree in others))


def parse_expected(text: str, alone: bool = False) -> Expected:
    """`>0`, `abs<1`, `=8.47`, `~2`, `rank<=3 low`, `text`; ValueError for anything else. alone: there is no
    right side."""
    if text == "text":
        return Expected(text, "text")
    if match := re.fullmatch(r"rank<=(\d{1,3})( low)?", text):
        if not int(match[1]):
            raise ValueError(f"expected {text!r}: there is no place before the first")
        return Expected(text, "rank", ">", number=float(match[1]), low=bool(match[2]))
    match = re.fullmatch(rf"(>=|<=|>|<|abs<|=|~)({NUMBER})", text)
    if not match:
        raise ValueError(f"expected {text!r} is none of >x, <x, >=x, <=x, abs<x, =x, ~x, rank<=k, text")
    sign, number = match[1], float(match[2])
    if sign == "abs<" and number <= 0:
        raise ValueError(f"expected {text!r}: no difference is closer to 0 than {number:g}")
    if sign == "abs<":
        return Expected(text, "abs", number=number)
    if sign in "=~":
        direction = "" if alone or not number else ">" if number > 0 else "<"
        return Expected(text, "value" if alone else "size", direction, number=number)
    return Expected(text, "bound", sign, number)


def parse(text: str, printed: Printed) -> Methods:
    """One side of a claim; ValueError where it cannot be read or selects nothing."""
    pieces = [_piece(piece.strip(), printed) for piece in _cut(text, " - ")]
    return reduce(_minus, pieces)


def _minus(left: Methods, right: Methods) -> Methods:
    """Lists must be of the same methods; a single number is combined with each of a list."""
    names = [name for name, _ in max(left, right, key=len)]
    one, other = (
        dict.fromkeys(names, side[0][1]) if len(side) == 1 else dict(side) for side in (left, right)
    )
    if not len(names) == len(one.keys() | other.keys()) == len(one.keys() & other.keys()):
        raise ValueError("the sides of a difference have different methods")
    return [(name, one[name].plus(other[name].scaled(-1))) for name in names]


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
        return [(spot.method, Contrast(((spot, 1.0),))) for spot in _select(text, printed)]
    parts = [tree for side in _cut(match[2], " ; ") for _, tree in parse(side, printed)]
    if match[1] == "mean":
        return [("", reduce(lambda one, other: one.plus(other), parts).scaled(1 / len(parts)))]
    return [("", Pick(PLACES[match[1]], tuple(parts)))]


def _select(text: str, printed: Printed) -> list[Spot]:
    """The spots of a selector, in printed order."""
    terms: dict[str, str] = {}
    without: list[str] = []
    for term in text.split("|"):
        key, equals, value = term.partition("=")
        if not equals or key.endswith("!") and key != "method!":
            raise ValueError(f"{term!r} is neither key=value nor method!=value in {text!r}")
        if key in terms:
            raise ValueError(f"{key} is given twice in {text!r}")
        if key == "method!":
            without.append(value)
        else:
            terms[key] = value
    methods = terms.pop("method").split(" & ") if "method" in terms else []
    if "scenario" in terms:
        return _runs(terms, methods, printed.paper)
    number = terms.pop("table", "")
    table = number if number in printed.records else f"table{number}"
    if table not in printed.records:
        raise ValueError(unknown("table", number, [name.removeprefix("table") for name in printed.records]))
    records = printed.records[table]
    _check("printed method", (*methods, *without), {record["method"] for record in records})
    here = [record for record in records if all(_matches(record, *term) for term in terms.items())]
    if not here:
        lost = [term for term in terms.items() if not any(_matches(record, *term) for record in records)]
        words = "|".join(f"{key}={value}" for key, value in lost or terms.items())
        raise ValueError(f"table {number} prints nothing with {words}")
    spots = [printed.spot(table, record) for record in here]
    if methods:
        # At every position, even where the scanned paper lost the number.
        return list(dict.fromkeys(replace(spot, method=name) for name in methods for spot in spots))
    spots = [spot for spot in spots if spot.method not in without and not printed.is_mean(table, spot.method)]
    if not spots:
        raise ValueError("no method is left")
    return spots


def _matches(record: dict[str, str], key: str, value: str) -> bool:
    if key in ("dataset", "column"):
        return record[key] == value
    parts = split_setting(record["setting"])
    return value in (record["setting"], *parts) if key == "setting" else f"{key}={value}" in parts


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
