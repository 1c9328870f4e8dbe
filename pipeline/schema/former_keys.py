"""Keys of paper.yaml that had another name, or were dropped, before 0.3.0.

The checker refuses them with their new name; `fedrepro migrate` renames them in the file.
"""

# class of the schema -> former key -> today's; None for a key that was dropped, as no page showed it any more
FORMER_KEYS: dict[str, dict[str, str | None]] = {
    "Paper": {"beside": "extra_scenarios", "headline": None},
    "Grid": {"beside": "supplementary", "apart": "separate_file"},
    "Table": {"beside": "also", "marks": None, "remarks": None},
    "Block": {"previous": None},
    "Source": {"own": "choice"},
}
# class of the schema -> where paper.yaml has its mappings; "*" is any key
PLACES: dict[str, list[tuple[str, ...]]] = {
    "Paper": [()],
    "Grid": [("grids", "*")],
    "Table": [("tables", "*")],
    "Block": [("tables", "*", "blocks", "*")],
    "Source": [("sources", "methods", "*", "*"), ("sources", "settings", "*")],
}


def advice(kind: str, key: str) -> str:
    """What to do about a former key of a class, as the end of an error message; empty for any other key."""
    names = FORMER_KEYS.get(kind, {})
    if key not in names:
        return ""
    change = f"is now {names[key]!r}" if names[key] else "was dropped"
    return f"the key {key!r} {change} (0.3.0): `fedrepro migrate` changes the file"
