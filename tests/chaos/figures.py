"""Writes what a campaign tried, and how often something was wrong, into the table of docs/reliability.md: a
row for each kind, commit and seed, the newest above."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import project

PAGE = project.ROOT / "docs" / "reliability.md"
HEAD = "| campaign | commit | day | seed | tried | wrong |\n|---|---|---|--:|--:|--:|\n"


def commit() -> str:
    """The commit that is tried, with a + where files differ from it."""
    reply = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=project.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return reply.stdout.strip()


def write(kind: str, seed: int, tried: int, wrong: int, page: Path = PAGE, of: str = "") -> None:
    """Put the row into the page's table; one of the same kind, commit and seed gives way. of: the commit;
    empty: the present one."""
    of = of or commit()
    row = f"| {kind} | {of} | {datetime.now(UTC):%Y-%m-%d} | {seed} | {tried:,} | {wrong:,} |\n"
    before, after = page.read_text(encoding="utf-8").split(HEAD)
    rows, rest = _rows(after)
    same = tuple(_fields(row)[at] for at in (0, 1, 3))
    kept = [one for one in rows if tuple(_fields(one)[at] for at in (0, 1, 3)) != same]
    page.write_text("".join([before, HEAD, row, *kept, rest]), encoding="utf-8")


def _rows(text: str) -> tuple[list[str], str]:
    """The rows of the table, and what comes behind it."""
    lines = text.splitlines(keepends=True)
    count = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:count], "".join(lines[count:])


def _fields(row: str) -> list[str]:
    return [field.strip() for field in row.strip().strip("|").split("|")]
