"""Parse the claims of a paper's text: expected differences between numbers, in one grammar for all papers.

They are in papers/<paper>/claims.csv, one claim per row. A claim expects something of the difference
`left - right`, or of `left` if `right` is empty.

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

For example, "FedCRL has the highest accuracy on CIFAR-10" is

    left        table=2|dataset=CIFAR-10|column=Acc.|method=FedCRL
    right       max(table=2|dataset=CIFAR-10|column=Acc.|method!=FedCRL)
    expected    >0
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

# Columns of claims.csv, and those that it may have besides.
COLUMNS = ["id", "claim", "left", "right", "expected", "where", "slip"]
OPTIONAL = ["title"]
# Percent points by which a level may deviate ("reaches 68.40").
LEVEL_MARGIN = 1.0
# Percent points by which a difference may deviate.
SIZE_MARGIN = 0.5
# The same as a share of the difference; the larger of the two counts.
SIZE_MARGIN_SHARE = 0.1
# Weights of a sum below this count as 0: what is left of weights that cancel.
NO_WEIGHT = 1e-12


@dataclass(frozen=True)
class Spot:
    """One number of a claim: a position in a table of the paper or, without a table, a measure of a scenario.

    method    as the paper prints it
    table     key of the table in paper.yaml; empty: no table has the number
    setting   of the position
    dataset   of the position
    column    of the position
    scenario  of a number without a table
    measure   of a number without a table
    """

    method: str
    table: str = ""
    setting: str = ""
    dataset: str = ""
    column: str = ""
    scenario: str = ""
    measure: str = ""


@dataclass(frozen=True)
class Difference:
    """A weighted sum of numbers, or one that is chosen from several such sums by its size.

    weights  (spot, or later the run behind it; weight) of a sum; empty if it has parts
    place    which part is chosen: 0 is the smallest, k - 1 the k-th smallest, -1 the largest
    parts    the sums, or choices from sums, from which one is chosen
    """

    weights: tuple[tuple[Any, float], ...] = ()
    place: int = 0
    parts: tuple["Difference", ...] = ()

    def at(self, number: Callable[[Any], float]) -> float:
        """Its value.

        number  spot -> its number
        """
        if self.parts:
            return sorted(part.at(number) for part in self.parts)[self.place]
        return sum(weight * number(spot) for spot, weight in self.weights)

    def pick(self, key: Callable[["Difference"], Any]) -> "Difference":
        """The sum that is chosen if the sums are sorted by `key`."""
        if not self.parts:
            return self
        return sorted((part.pick(key) for part in self.parts), key=key)[self.place]

    def leaves(self) -> list["Difference"]:
        """All sums in it, each once; itself, if it is a sum."""
        return list(dict.fromkeys(leaf for part in self.parts for leaf in part.leaves())) or [self]

    def spots(self) -> list[Any]:
        """All numbers in it, each once."""
        return list(dict.fromkeys(spot for leaf in self.leaves() for spot, _ in leaf.weights))

    def scaled(self, factor: float) -> "Difference":
        """The difference multiplied by a number; a negative one turns the smallest part into the largest."""
        weights = tuple((spot, factor * weight) for spot, weight in self.weights)
        parts = tuple(part.scaled(factor) for part in self.parts)
        place = self.place
        if factor < 0 and parts:
            place = ~place  # the same place from the other end
        return Difference(weights, place, parts)

    def plus(self, other: "Difference") -> "Difference":
        """The sum of two differences; if one has parts, the other is added to each of them."""
        if self.parts:
            return replace(self, parts=tuple(part.plus(other) for part in self.parts))
        if other.parts:
            return other.plus(self)
        return Difference((*self.weights, *other.weights)).renamed(lambda spot: spot) or Difference()

    def renamed(self, name: Callable[[Any], Any]) -> "Difference | None":
        """The difference with other names for its numbers, and each number once; None if all cancel out.

        name  spot -> the new name, such as the run behind it
        """
        total: dict[Any, float] = {}
        for spot, weight in self.weights:
            total[name(spot)] = total.get(name(spot), 0.0) + weight
        weights = tuple((spot, weight) for spot, weight in total.items() if abs(weight) > NO_WEIGHT)
        parts = tuple(filter(None, [part.renamed(name) for part in self.parts]))
        if not weights and not parts:
            return None
        # Fewer parts may be left than there were places.
        place = max(min(self.place, len(parts) - 1), -len(parts)) if parts else 0
        return Difference(weights, place, parts)


@dataclass(frozen=True)
class Expected:
    """What a claim expects of its difference.

    text    as written in the file
    kind    `bound`, `size` (of a difference), `value` (a level), `abs`, `rank` or `text`
    sign    direction from `bound`: `>`, `<`, `>=` or `<=`; empty: none, as for a value, `abs` or a size of 0
    bound   that the difference is compared with
    number  the size, the value or the rank
    margin  by which a size or a value may deviate, or the x of `abs<x`
    low     of a rank: whether small numbers come first
    """

    text: str
    kind: str
    sign: str = ""
    bound: float = 0.0
    number: float = 0.0
    margin: float = 0.0
    low: bool = False

    def fits(self, value: float) -> bool:
        """Whether a difference has the claimed direction, or without one the claimed size; or a rank is as
        claimed.

        value  the difference or the rank
        """
        if self.kind == "rank":
            return value <= self.number
        if not self.sign:
            return abs(value - self.number) < self.margin
        if value == self.bound:
            return "=" in self.sign
        return (value > self.bound) == self.sign.startswith(">")


@dataclass(frozen=True)
class Claim:
    """A row of claims.csv.

    id        of the claim
    text      the claim in words
    expected  of its difference
    where     the paper's table or figure
    slip      what the paper's tables say instead, if its text is wrong; empty: it is right
    title     the claim in a few words, or empty
    table     key of the table that shows it; empty for a figure's claim or one in words
    tree      the difference; of a rank the lead over the rival that decides it; None: it compares nothing
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
        """The numbers that it is about, each once."""
        return self.tree.spots() if self.tree else []

    def value(self, tree: Difference, number: Callable[[Any], Any]) -> float:
        """The difference, or the rank, for given numbers.

        tree    the claim's difference, or the same of the runs behind it
        number  spot or run -> its number
        """
        if self.expected.kind == "rank":
            return 1.0 + sum(leaf.at(number) < 0 for leaf in tree.leaves())
        return tree.at(number)


class PublishedNumbers:
    """The numbers of a paper's tables, without rows that are means over methods.

    study    of the paper
    numbers  spot -> its number; None: the printed text is no number, or cannot be read
    """

    def __init__(self, study: Study):
        self.study = study
        self.paper = study.paper
        self.numbers: dict[Spot, float | None] = {}
        for name, table in self.paper.tables.items():
            for record in read_published(study.key, table, study.root):
                # paper.yaml gives a row that averages the methods no method: `null`.
                if table.rows.get(record["method"], "") is None:
                    continue
                spot = Spot(record["method"], name, record["setting"], record["dataset"], record["column"])
                self.numbers[spot] = printed_number(record)
        self._places: dict[str, Places] = {}

    def places(self, table: str) -> "Places":
        """Where a table of the paper prints its numbers; ordered once, since every claim asks."""
        if table not in self._places:
            self._places[table] = Places([spot for spot in self.numbers if spot.table == table])
        return self._places[table]


class Places:
    """An index of the spots of a table by what is printed at them.

    spots    in printed order
    methods  names of all methods, as printed
    """

    def __init__(self, spots: list[Spot]):
        self.spots = spots
        self.methods = {spot.method for spot in spots}
        # Term (as in `_facts`) -> indices of the spots that have it.
        self._having: dict[str, set[int]] = {}
        for number, spot in enumerate(spots):
            for term in _facts(spot):
                self._having.setdefault(term, set()).add(number)

    def having(self, terms: Collection[str]) -> list[Spot]:
        """The spots that have all terms, in printed order; all spots if there is no term."""
        if not terms:
            return self.spots
        # The rarest term comes first: only its spots are looked up in the others.
        rarest, *others = sorted((self._having.get(term, set()) for term in terms), key=len)
        return [self.spots[number] for number in sorted(rarest.intersection(*others))]

    def unknown(self, terms: Collection[str]) -> list[str]:
        """The terms that no spot has, in alphabetical order."""
        return sorted(term for term in terms if term not in self._having)


def read_claims(printed: PublishedNumbers) -> list[Claim]:
    """The claims of a paper in the order of the file; empty if there is no file.

    printed  the paper's numbers

    Raises ParamError for a malformed claim; it names file, line and what is wrong.
    """
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


# (method, its difference), for each method; the method is empty if a number is not of a single one.
Methods = list[tuple[str, Difference]]


def parse_claim(row: dict[str, str], printed: PublishedNumbers) -> Claim:
    """Parse one row of claims.csv.

    row      its fields, COLUMNS and OPTIONAL
    printed  the numbers that it may be about

    Raises ValueError for a malformed row; it says what is wrong.
    """
    expected = parse_expected(row["expected"], alone=not row["right"])
    claim = Claim(row["id"], row["claim"], expected, row["where"], row["slip"], row["title"])
    if expected.kind == "text":
        if row["left"] or row["right"]:
            raise ValueError("'text' compares nothing, but a side is given")
        return claim

    left = parse(row["left"], printed)
    right = parse(row["right"], printed) if row["right"] else []
    if expected.kind == "rank":
        tree = _ranked(left, right, expected)
    elif len(left) > 1 or len(right) > 1:
        raise ValueError("several numbers belong inside max, min or mean, or on the right of a rank")
    elif right:
        [(_, tree)] = _minus(left, right)
    else:
        [(_, tree)] = left
    table = next((spot.table for _, side in left for spot in side.spots()), "")
    return replace(claim, table=table, tree=tree)


def _ranked(left: Methods, right: Methods, expected: Expected) -> Difference:
    """The lead of left over the k-th of the others: it is above 0 if left is among the first k."""
    own = left[0][1]
    place = int(expected.number) - 1
    others = [tree for _, tree in right if tree != own]
    if len(left) > 1 or len(others) != len(right) - 1:
        raise ValueError("a rank needs one number on the left that is among those on the right")
    if place >= len(others):
        raise ValueError(f"expected {expected.text!r}: there are only {len(right)} to rank")
    sign = -1 if expected.low else 1
    leads = tuple(own.plus(other.scaled(-1)).scaled(sign) for other in others)
    return Difference((), place, leads)


def parse_expected(text: str, alone: bool = False) -> Expected:
    """Parse what a claim expects.

    text   `>0`, `abs<1`, `=8.47`, `~2`, `rank<=3 low` or `text`
    alone  whether there is no right side, so that a number is a level and not a difference

    Raises ValueError for any other text.
    """
    if text == "text":
        return Expected(text, "text")
    match = re.fullmatch(rf"(>=|<=|>|<|abs<|=|~)({NUMBER})|(rank<=)(\d{{1,3}})( low)?", text)
    if not match:
        raise ValueError(f"expected {text!r} is none of >x, <x, >=x, <=x, abs<x, =x, ~x, rank<=k, text")
    sign = match[1] or match[3]
    number = float(match[2] or match[4])
    if sign in ("abs<", "rank<=") and number <= 0:
        raise ValueError(f"expected {text!r}: {number:g} must be above 0")
    if sign == "abs<":
        return Expected(text, "abs", margin=number)
    if sign == "rank<=":
        return Expected(text, "rank", ">", number=number, low=bool(match[5]))
    if sign not in "=~":
        return Expected(text, "bound", sign, number)
    if alone:
        return Expected(text, "value", number=number, margin=LEVEL_MARGIN)

    # A difference of a given size: its direction from 0, and how far its size may be off.
    direction = ""
    if number:
        direction = ">" if number > 0 else "<"
    margin = max(SIZE_MARGIN, SIZE_MARGIN_SHARE * abs(number))
    return Expected(text, "size", direction, number=number, margin=margin)


def parse(text: str, printed: PublishedNumbers) -> Methods:
    """Parse one side of a claim.

    text     as the grammar says
    printed  the numbers that it may select

    Raises ValueError if it cannot be read or selects no number.
    """
    pieces = [_piece(piece.strip(), printed) for piece in _cut(text, " - ")]
    return reduce(_minus, pieces)


def _minus(left: Methods, right: Methods) -> Methods:
    """The difference of two sides, method by method; a single number is combined with each of the others.

    Raises ValueError if the sides have different methods.
    """
    names = [name for name, _ in max(left, right, key=len)]
    first = _for_methods(left, names)
    second = _for_methods(right, names)
    if len(first) != len(names) or len(first.keys() & second.keys()) != len(names):
        raise ValueError("the sides of a difference have different methods")
    return [(name, tree.plus(second[name].scaled(-1))) for name, tree in first.items()]


def _for_methods(side: Methods, names: list[str]) -> dict[str, Difference]:
    """Method -> its tree; a single number is that of every method."""
    if len(side) == 1:
        return dict.fromkeys(names, side[0][1])
    return dict(side)


def _cut(text: str, mark: str) -> Iterator[str]:
    """The pieces of a text between marks outside of brackets; ValueError if brackets do not match."""
    depth = 0
    begin = 0
    for place, letter in enumerate(text):
        if letter in "([":
            depth += 1
        if letter in ")]":
            depth -= 1
        if not depth and text.startswith(mark, place):
            yield text[begin:place]
            begin = place + len(mark)
    if depth:
        raise ValueError(f"brackets do not match in {text!r}")
    yield text[begin:]


def _piece(text: str, printed: PublishedNumbers) -> Methods:
    """A selector, or max, min or mean of sides."""
    match = re.fullmatch(r"(max|min|mean)\((.*)\)", text)
    if not match:
        return [(spot.method, Difference(((spot, 1.0),))) for spot in _select(text, printed)]
    function, sides = match.groups()
    parts = [tree for side in _cut(sides, " ; ") for _, tree in parse(side, printed)]
    if function == "mean":
        total = reduce(Difference.plus, parts)
        return [("", total.scaled(1 / len(parts)))]
    place = -1 if function == "max" else 0
    return [("", Difference((), place, tuple(parts)))]


def _select(text: str, printed: PublishedNumbers) -> list[Spot]:
    """The spots of a selector, in printed order; ValueError if there are none."""
    terms = text.split("|")
    pairs = [term.partition("=")[::2] for term in terms]
    keys = [key for key, _ in pairs if key != "method!"]
    if any("=" not in term for term in terms) or len(keys) > len(set(keys)):
        raise ValueError(f"{text!r} is not key=value|key=value, each key once")

    methods: list[str] = []
    without: list[str] = []
    place = {}
    for key, value in pairs:
        if key == "method":
            methods = value.split(" & ")
        elif key == "method!":
            without.append(value)
        elif not key.startswith("method"):
            place[key] = value
    if "scenario" in place:
        return _runs(place, methods, printed.paper)

    number = place.pop("table", "")
    table = number if number in printed.paper.tables else f"table{number}"
    _check("table", [table], printed.paper.tables)
    places = printed.places(table)
    _check("printed method", [*methods, *without], places.methods)

    wanted = {f"{key}={value}" for key, value in place.items()}
    selected = [spot for spot in places.having(wanted) if spot.method not in without]
    if not selected:
        lost = places.unknown(wanted) or sorted(wanted)
        raise ValueError(f"table {number} prints nothing with {'|'.join(lost)}")

    # A named method is taken at every position, even if its number there cannot be read.
    named = [replace(spot, method=name) for name in methods for spot in selected]
    return list(dict.fromkeys(named or selected))


def _facts(spot: Spot) -> set[str]:
    """The terms that select a spot of a table."""
    parts = split_setting(spot.setting)
    settings = {f"setting={part}" for part in (spot.setting, *parts)}
    return {f"dataset={spot.dataset}", f"column={spot.column}", *settings, *parts}


def _runs(terms: dict[str, str], methods: list[str], paper: Paper) -> list[Spot]:
    """The spots of `scenario=..|measure=..|method=..`: numbers that runs measure and no table has.

    terms    key -> value, without the methods
    methods  as printed

    Raises ValueError for another form, or an unknown name.
    """
    if sorted(terms) != ["measure", "scenario"] or not methods:
        raise ValueError("a run is scenario=..|measure=..|method=..")
    _check("scenario", [terms["scenario"]], paper.scenarios)
    _check("method", methods, [paper.label(method) for method in paper.methods])
    figure = terms["measure"].partition(".")[0]
    _check("figure", [figure] if figure.startswith("figure") else [], paper.figures)
    return [Spot(name, **terms) for name in methods]


def _check(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError for the first name that is not known.

    kind  of what it is a name
    """
    for name in names:
        if name not in known:
            raise ValueError(unknown(kind, name, known))
