"""`fedrepro archive PAPER`: pack a paper with its results and the code that trained them into one zip.

It is meant to be published with a DOI. The zip is an RO-Crate (https://w3id.org/ro/crate/1.1), a standard for
research data: ro-crate-metadata.json describes every file with its size and SHA-256. `fedrepro import` adds
the paper to another checkout.
"""

import hashlib
import io
import json
import mimetypes
import platform
import zipfile
from collections.abc import Iterator
from datetime import date
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from pipeline import files
from pipeline.cells.documents import Result
from pipeline.cells.results import machines, partitions, survey
from pipeline.commands.sync import IGNORED
from pipeline.errors import DAMAGED, FedReproError
from pipeline.git import git
from pipeline.schema import ROOT, Cell, load_paper, shorten
from pipeline.schema.loader import check_name
from pipeline.schema.paper import Paper

# The file that describes all others; RO-Crate fixes its name.
METADATA = "ro-crate-metadata.json"
# Where the terms in it are defined.
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
# The version of RO-Crate that it follows.
PROFILE = "https://w3id.org/ro/crate/1.1"
LICENCE = "https://spdx.org/licenses/Apache-2.0"
# What is packed besides the paper's folder: patterns from the root of the repository.
CODE = (
    "pipeline/**/*.py",
    "pipeline/**/*.yaml",
    "pipeline/**/*.csv",
    "pipeline/**/*.txt",
    "stages/*.py",
    "fedrepro/*.py",
    "reports/templates/*",
    "reports/withdrawn.csv",
    "data/*.json",
    "data/dvc.yaml",
    "dvc.yaml",
    "params.yaml",
    "sources.yaml",
    "pyproject.toml",
    "setup.py",
    "requirements/*",
    ".dvc/config",
    ".dvcignore",
    "LICENSE",
)
# What is not packed of a paper's folder: it can be computed again, or belongs to one machine.
LEFT_OUT = {name.strip("/") for name in IGNORED.split()}
# Time of every entry: the earliest that a zip can hold. With the real times equal contents would give
# different zips.
TIME = (1980, 1, 1, 0, 0, 0)
# Permissions of every entry, in the upper 16 bits as zips have them: its owner writes, everybody reads.
PERMISSIONS = 0o644 << 16
# Bytes that an archive may unpack to. FedCRL's folder, the largest, has less than a tenth.
MOST_BYTES = 2 * 2**30


def archive(key: str, target: str | None = None, root: Path = ROOT) -> int:
    """Write the zip of a paper.

    key     of the paper's folder
    target  file to write; None: <key>.zip in the current folder
    root    folder of the repository

    Returns the exit code. Raises FedReproError for a result that is damaged or was altered.
    """
    paper = load_paper(key, root)
    results, problems = survey(root)
    of_paper = {cell: result for cell, result in results.items() if cell.paper == key}
    for cell, problem in problems.items():
        if cell.paper == key:
            raise FedReproError(problem)

    # Cell -> seed -> digest of what it was trained on.
    digests = {}
    for cell, result in of_paper.items():
        digests[str(cell)] = dict(zip(map(str, result["seeds"]), partitions(result)))
    contents = {path.as_posix(): (root / path).read_bytes() for path in files_of(key, root)}
    contents["CITATION.cff"] = _citation(key, root).encode()
    contents["environment.json"] = _json(_environment(of_paper))
    contents["partitions.json"] = _json(digests)
    contents["README.md"] = _readme(key, paper.title, len(of_paper)).encode()
    contents[METADATA] = _json(_crate(key, paper, contents, root))

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as pack:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = PERMISSIONS
            pack.writestr(entry, contents[name])

    file = Path(target or f"{key}.zip")
    files.write_bytes(file, content.getvalue())
    size = len(content.getvalue()) / 2**20
    print(f"{file}: {len(contents)} files, {len(of_paper)} results, {size:.1f} MB")
    print(f"To read it: fedrepro import {file}")
    return 0


def paper_of(file: Path) -> str:
    """The key of the paper in an archive.

    file  written by `archive`

    Raises FedReproError for a file that is no zip, or holds no paper or several.
    """
    with _opened(file) as pack:
        parts = [PurePosixPath(name).parts for name in pack.namelist()]
    keys = set()
    for path in parts:
        if len(path) == 3 and path[0] == "papers" and path[2] == "paper.yaml":
            keys.add(path[1])
    if len(keys) != 1:
        raise FedReproError(f"{shorten(file)}: expected one papers/<name>/paper.yaml, found {len(keys)}")
    [key] = keys
    check_name(key)
    return key


def unpack(file: Path, target: Path) -> None:
    """Write the folder of an archive's paper, and nothing else of the archive.

    file    written by `archive`
    target  a folder that does not exist yet

    Raises FedReproError for an archive that is too large or has no description of its files, and for a file
    in it that cannot be read, is hidden, differs from its description, or whose name leads out of the folder.
    """
    inside = f"papers/{paper_of(file)}/"
    with _opened(file) as pack:
        if sum(entry.file_size for entry in pack.infolist()) > MOST_BYTES:
            raise FedReproError(f"{shorten(file)}: unpacks to more than {MOST_BYTES // 2**30} GB")
        try:
            described = {entity["@id"]: entity for entity in json.loads(pack.read(METADATA))["@graph"]}
        except (*DAMAGED, RuntimeError) as error:
            raise FedReproError(f"{shorten(file)}: {METADATA}: {error!r}: no archive of a paper") from None

        for entry in pack.infolist():
            if entry.is_dir() or not entry.filename.startswith(inside):
                continue
            name = PurePosixPath(entry.filename.removeprefix(inside))
            if name.is_absolute() or ".." in name.parts or "\\" in entry.filename:
                raise FedReproError(
                    f"{shorten(file)}: {entry.filename!r:.80} leads out of the paper's folder"
                )
            if any(part.startswith(".") for part in name.parts):
                raise FedReproError(
                    f"{shorten(file)}: {entry.filename!r:.80} is hidden, as no file of a paper is"
                )

            try:
                content = pack.read(entry)
            except (*DAMAGED, RuntimeError) as problem:  # RuntimeError: it is encrypted
                raise FedReproError(
                    f"{shorten(file)}: {entry.filename!r:.80} cannot be read: {problem}"
                ) from None
            expected = described.get(entry.filename, {}).get("sha256")
            if hashlib.sha256(content).hexdigest() != expected:
                raise FedReproError(f"{shorten(file)}: {entry.filename}: not the file that {METADATA} names")
            files.write_bytes(target / name, content)


def _opened(file: Path) -> zipfile.ZipFile:
    """A zip, open for reading; FedReproError if it is none."""
    try:
        return zipfile.ZipFile(file)
    except (OSError, zipfile.BadZipFile) as error:
        raise FedReproError(f"{shorten(file)}: no zip: {error}") from None


# -- what goes in --------------------------------------------------------------------------------------------


def files_of(key: str, root: Path = ROOT) -> Iterator[Path]:
    """The files of the code and of the paper's folder that are packed.

    key   of the paper
    root  folder of the repository, which the paths are relative to
    """
    for pattern in CODE:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root)
    folder = root / "papers" / key
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not path.is_symlink() and not hidden and parts[0] not in LEFT_OUT:
            yield path.relative_to(root)


def _environment(results: dict[Cell, Result]) -> dict:
    """The packages on this machine, and the machine on which each cell's first seed was trained."""
    packages = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    return {
        "python": platform.python_version(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
        "trained_on": {str(cell): machines(result)[0] for cell, result in results.items()},
    }


def _citation(key: str, root: Path) -> str:
    """CITATION.cff of the archive: that of the repository, if it has one, with a reference to the paper."""
    paper = load_paper(key, root)
    file = root / "CITATION.cff"
    document: dict[str, Any] = {"cff-version": "1.2.0", "type": "dataset"}
    if file.is_file():
        document |= yaml.safe_load(file.read_text(encoding="utf-8"))
    document["type"] = "dataset"
    document["title"] = f"Results of {paper.name}, reproduced"
    document["message"] = "Cite this and the paper."
    document.setdefault("authors", [{"name": "The authors of this archive"}])
    names = [name.strip() for name in paper.authors.replace(" and ", ",").split(",")]
    authors = [{"name": name} for name in names if name]
    document["references"] = [{"type": "article", "title": paper.title, "authors": authors}]
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _readme(key: str, title: str, cells: int) -> str:
    """README.md of the archive; cells: number of results."""
    return f"""# {title}

The results of {cells} cells, in papers/{key}/runs, with the code and the settings that gave them.

    fedrepro import {key}.zip

adds the paper to a checkout of FedRepro, after a check of every file; `fedrepro verify {key}` then trains a
part again and compares. {METADATA} describes the files (RO-Crate 1.1), partitions.json has the digest of
what each seed was trained on, environment.json the packages and machines.
"""


def _crate(key: str, paper: Paper, contents: dict[str, bytes], root: Path) -> dict:
    """ro-crate-metadata.json: the whole data set, the paper, the licence, and every file with size and hash.

    key       of the paper
    paper     as paper.yaml describes it
    contents  name in the archive -> bytes
    root      folder of the repository
    """
    parts = [
        {
            "@id": name,
            "@type": "File",
            "name": PurePosixPath(name).name,
            "encodingFormat": mimetypes.guess_type(name)[0] or "text/plain",
            "contentSize": str(len(content)),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for name, content in sorted(contents.items())
    ]
    article = {
        "@id": f"#{key}",
        "@type": "ScholarlyArticle",
        "name": paper.title,
        "author": paper.authors,
        "isPartOf": paper.reference,
    }
    whole = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Results of {paper.name}, reproduced with FedRepro",
        "description": f"{paper.idea} Measured results, partitions' digests, code and environment.",
        "datePublished": _date(root),
        "license": {"@id": LICENCE},
        "about": {"@id": f"#{key}"},
        "hasPart": [{"@id": part["@id"]} for part in parts],
    }
    descriptor = {
        "@id": METADATA,
        "@type": "CreativeWork",
        "conformsTo": {"@id": PROFILE},
        "about": {"@id": "./"},
    }
    licence = {"@id": LICENCE, "@type": "CreativeWork", "name": "Apache License 2.0"}
    return {"@context": CONTEXT, "@graph": [descriptor, whole, article, licence, *parts]}


def _date(root: Path) -> str:
    """The date of the last commit, YYYY-MM-DD, so that the archive of a commit is always the same."""
    try:
        return git(root, "log", "-1", "--format=%cs")
    except FedReproError:  # before the first one
        return date.today().isoformat()


def _json(document: Any) -> bytes:
    """A document as JSON, with a newline at the end."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
