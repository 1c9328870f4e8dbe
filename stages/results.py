"""Write what DVC shows of a paper's miniature, and the digests of the files that its page depends on."""

import hashlib
from pathlib import Path

from pipeline.cells.results import as_csv, collect, curves, metrics
from pipeline.files import write_json, write_text
from pipeline.schema import MINIATURE, ROOT, load_paper, visible
from stages._stage import stage


def main(paper: str) -> None:
    """Write to reports/curves what `dvc plots` shows, to reports/metrics what `dvc metrics` shows, and to
    reports/inputs the digests of its page's inputs, by which DVC knows when to render the reports."""
    load_paper(paper)
    cells = collect(ROOT, paper, MINIATURE)
    write_text(ROOT / "reports" / "curves" / f"{paper}.csv", as_csv(curves(cells)))
    write_text(ROOT / "reports" / "metrics" / f"{paper}.json", metrics(paper, cells))
    folder = ROOT / "papers" / paper
    parts = {
        "paper.yaml": ["paper.yaml", "figures.py", "templates/*.md"],
        "sources.yaml": ["sources.yaml"],  # by which a page says what is measured by earlier code
        "claims.csv": ["claims.csv"],
        "experiments": ["experiments/*.yaml"],
        "published": ["published/*.csv"],
        "figures": [f"figures/*-{MINIATURE}*"],
        "runs": [f"runs/{MINIATURE}/{name}" for name in ("clients.csv", "*/result.json", "*/history.csv")],
    }
    write_json(
        ROOT / "reports" / "inputs" / f"{paper}.json",
        {name: _digest(folder, patterns) for name, patterns in parts.items()},
    )
    print(f"{paper}: {len(cells)} miniature cells")


def _digest(folder: Path, patterns: list[str]) -> str:
    whole = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in visible(folder, pattern)):
        whole.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


if __name__ == "__main__":
    stage(main, "paper")
