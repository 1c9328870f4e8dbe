"""Which colour and shape a method has: the same on every chart of a paper's page."""
from collections.abc import Iterable
from dataclasses import dataclass

HUES = 8                                          # colours; further methods repeat them with other shapes
BASELINE = "FedAvg"


@dataclass(frozen=True)
class Key:
    """A method with its colour (1 to HUES, `--c1` of style.css) and its shape, which a line has as dashes."""
    name: str
    hue: int
    shape: int = 0


def keys(names: Iterable[str], own: str) -> list[Key]:
    """A key for every name; the paper's own method and FedAvg have theirs on every page."""
    found = list(dict.fromkeys(names))
    fixed = {name: (hue, 0) for hue, name in enumerate((own, BASELINE), 1)}
    rest = [name for name in found if name not in fixed]
    free = [(i % (HUES - 2) + 3, i // (HUES - 2)) for i in range(len(rest))]
    taken = fixed | dict(zip(rest, free))
    return [Key(name, *taken[name]) for name in found]
