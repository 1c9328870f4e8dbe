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
    """A file of the data set in a mirror folder.

    file: its name
    sha256: of its content
    deviation: how it differs from the official set
    counts: [training, test] images of each domain, or by name of domain; None: those of the whole set
    """

    file: str
    sha256: str
    deviation: str = ""
    counts: Counts | dict[str, Counts] | None = None


@dataclass(frozen=True)
class Canonical:
    """The official distribution; its files are in data/raw/<set>/.

    reader: a name in `formats.READERS`, or a paper's function with the same arguments
    files: path below `base` -> checksum, "md5:..." or "sha256:...", or both separated by a blank; empty if
        none is known
    page: where a user finds the files
    base: addresses, tried in order. An address that does not end with / is that of the file itself. Empty: a
        user has to download the files
    deviation: how the stored set differs from the official one
    note: size and licence, printed before a download
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
    """One data set. Bundled sets and composites (`parts`) have neither a mirror nor an official source.

    classes: number of classes; 0 if not known beforehand
    names: of the classes, if the official files do not have them
    shape: of a stored sample: (H, W, C) for images read from the official files, channels first for all
        others
    dtype: of the samples; uint8 for images
    domains: names of the domains; empty: a single domain with the name of the set
    counts: as in Mirror; None: not known beforehand
    without_twins: an image that occurs several times is stored once, in the test part if it occurs there
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
        """Whether the samples are images; otherwise they are numbers of any shape, such as rows of a table
        or signals."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] in (1, 3)

    @property
    def sample(self) -> str:
        """What a sample is, for messages, such as `float32 of shape (13,)`."""
        return f"{self.dtype} of shape {(*self.shape,)}"

    def expected(self, source: str) -> dict[str, tuple[int, int]]:
        """(training, test) images of every domain; empty if not known beforehand."""
        sampled = self.mirror and source == "mirror" and self.mirror.counts
        counts = sampled or self.counts or {}
        each = counts if isinstance(counts, dict) else dict.fromkeys(self.domains, counts)
        return {domain: (train, test) for domain, (train, test) in each.items()}


def sets(root: Path = ROOT) -> dict[str, DataSet]:
    """All data sets by name. ParamError if two papers, or a paper and sets.yaml, use the same name."""
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
    """The data sets of a paper: the variables of papers/<paper>/data.py that are a DataSet."""
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
    """The data set of this name; DataError names the nearest known one."""
    if name not in sets(root):
        raise DataError(unknown("data set", name, sets(root)))
    return sets(root)[name]
