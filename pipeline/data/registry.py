"""All data sets with their files and download addresses, from sets.yaml and the papers' data.py."""

from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import DataError, ParamError, unknown
from pipeline.schema import ROOT, Whole, check, load_module, read_yaml, shorten, visible
from pipeline.schema.checker import Spelling

TABLE = Path(__file__).with_name("sets.yaml")
Counts = list[Whole]  # [training, test] images
RAW = "raw"  # folder in data/ of official files


@dataclass(frozen=True)
class Mirror:
    """The set's file in a mirror folder. counts: per domain or for each; None: those of the whole set."""

    file: str
    sha256: str
    deviation: str = ""
    counts: Counts | dict[str, Counts] | None = None


@dataclass(frozen=True)
class Canonical:
    """The official distribution, in data/raw/<set>/.

    reader: a name of `formats.READERS`, or a paper's function with the same arguments. files: path below
    `base` -> checksum, "md5:..." or "sha256:...", or both with a blank between; empty where none is known.
    base: addresses, tried in order; one that does not end with / is of the file itself; none: a person
    fetches the files. page: where that person finds them. note: size and licence, printed before a download.
    """

    reader: Any
    files: dict[str, str]
    page: str = ""
    base: list[str] = field(default_factory=list)
    deviation: str = ""
    note: str = ""

    def urls(self, path: str) -> list[str]:
        """The addresses of a file."""
        return [base + path if base.endswith("/") else base for base in self.base]


@dataclass(frozen=True)
class DataSet:
    """One data set; bundled ones and composites (`parts`) have neither mirror nor canonical source.

    classes: 0 where they are not known beforehand. names: of the classes, where the official files hold none.
    shape: of a stored sample, (H, W, C) of images when read from the official files; channels come first in
    all others. dtype: of the samples; images are uint8. domains: none: one, called as the set. counts: as of
    Mirror; None: not known beforehand. without_twins: pictures that are there more than once are stored once,
    in the test part where that has them.
    """

    title: str
    shape: list[Whole]
    dtype: Literal["uint8", "float32", "int64"] = "uint8"
    classes: Whole = 0
    names: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    counts: Counts | dict[str, Counts] | None = None
    official_split: bool = True
    bundled: bool = False
    without_twins: bool = False
    parts: list[str] = field(default_factory=list)
    mirror: Mirror | None = None
    canonical: Canonical | None = None

    @property
    def images(self) -> bool:
        """Whether the samples are images; else numbers of any shape, such as a table's rows or a signal."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (1, 3)

    @property
    def sample(self) -> str:
        """What a sample is, for messages: `float32 of shape (13,)`."""
        return f"{self.dtype} of shape {(*self.shape,)}"

    def expected(self, source: str) -> dict[str, tuple[int, int]]:
        """(training, test) images of every domain; empty where they are not known beforehand."""
        sampled = self.mirror and source == "mirror" and self.mirror.counts
        counts = sampled or self.counts or {}
        each = counts if isinstance(counts, dict) else dict.fromkeys(self.domains, counts)
        return {domain: (train, test) for domain, (train, test) in each.items()}


def sets(root: Path = ROOT) -> dict[str, DataSet]:
    """Every set by its name. ParamError for a name that two papers, or a paper and sets.yaml, have."""
    return _sets(root)


@cache
def _sets(root: Path) -> dict[str, DataSet]:
    table = {name: entry for name, entry in read_yaml(TABLE).items() if not name.startswith(".")}
    known = {
        name: _named(name, check(DataSet, entry, f"{shorten(TABLE)}: {name}"))
        for name, entry in table.items()
    }
    for file in visible(root, "papers/*/data.py"):
        for name, entry in of_paper(file.parent.name, root).items():
            if other := next((one for one in known if one.casefold() == name.casefold()), None):
                raise ParamError(f"{shorten(file)}: {name}: there is another data set {other!r}: rename one")
            known[name] = entry
    return known


def of_paper(paper: str, root: Path = ROOT) -> dict[str, DataSet]:
    """A paper's sets: the values of papers/<paper>/data.py that are a DataSet, by their names there."""
    file = root / "papers" / paper / "data.py"
    if not file.is_file():
        return {}
    values = vars(load_module(f"papers.{paper}.data", file)).items()
    entries = {name: entry for name, entry in values if isinstance(entry, DataSet)}
    return {name: _checked(name, entry, f"{shorten(file)}: {name}:") for name, entry in entries.items()}


def _checked(name: str, entry: DataSet, where: str) -> DataSet:
    """With the types of sets.yaml, and a name that its folder in data/ can have."""
    taken = "is the folder of official files" if name.casefold() == RAW else None
    if problem := Spelling().problem(name) or taken:
        raise ParamError(f"{where} {problem}")
    values = {each.name: getattr(entry, each.name) for each in fields(entry)}
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return _named(name, check(DataSet, lists, where))


def _named(name: str, entry: DataSet) -> DataSet:
    return replace(entry, domains=entry.domains or [name])


def find(name: str, root: Path = ROOT) -> DataSet:
    """The entry of a set; DataError names the nearest known one."""
    if name not in sets(root):
        raise DataError(unknown("data set", name, sets(root)))
    return sets(root)[name]
