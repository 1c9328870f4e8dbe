"""Format settings, methods, measures and numbers as readable text.

The CSV files write settings as `practical(beta=0.1,N=20),test=clean`, method variants as
`FedCCL[local=1,global=0]` and Greek letters by name. A page shows `practical (β = 0.1, N = 20)` and `FedCCL
(local = 1, global = 0)`.
"""

import re
from html import unescape

GREEK = {
    name: unescape(f"&{name};")
    for name in ("alpha", "beta", "gamma", "eta", "theta", "lambda", "mu", "tau", "omega")
} | {"delta": "Δ"}
# Components of methods, as the papers write them.
NAMES = {
    "hfl": "HFL",
    "asymhfl": "AsymHFL",
    "aug": "Aug",
    "dcl": "DCL",
    "supcon": "SupCon",
    "fccm": "FCCM",
    "fisl": "FISL",
    "fntd": "FNTD",
    "sep": "separability",
    "com": "compactness",
}
# The last part of a measure's name, `AVG` of `clean.AVG`, in words.
MEASURES = {
    "weighted": "weighted by test size",
    "clients_std": "std. over clients",
    "AVG": "average",
    "fgsm": "under FGSM",
    "pgd": "under PGD",
}
# What stands before it in words.
GROUPS = {
    "inter": "inter-domain",
    "intra": "intra-domain",
    "clean": "clean test",
    "corrupted": "corrupted test",
    "unseen": "unseen clients",
    "metric": "",
    "pre": "before local training",
    "post": "after local training",
    "before": "before local training",
    "after": "after local training",
    "other": "other model",
}
_GREEK = re.compile(rf"(?<![A-Za-z])({'|'.join(GREEK)})(?![A-Za-z])")
# A comma that no bracket encloses.
_OUTSIDE = re.compile(r",(?![^(\[]*[)\]])")
_VARIANT = re.compile(r"(?P<base>[^\[]+)\[(?P<options>.*)\]")


def pretty(text: str) -> str:
    """Greek letters, spaces for underscores (`T_f` stays), spaces around `=`, room before a bracket."""
    text = _GREEK.sub(lambda match: GREEK[match[1]], text)
    text = re.sub(r"(?<!\b[A-Z])_", " ", text)
    text = re.sub(r"\s*=\s*", " = ", text)
    return re.sub(r",(?=\S)", ", ", re.sub(r"(?<=\w)\(", " (", text))


def split_setting(setting: str) -> list[str]:
    """`practical(beta=0.1,N=20),test=clean` -> [`practical(beta=0.1,N=20)`, `test=clean`]."""
    return [part for part in _OUTSIDE.split(setting) if part]


def setting_words(part: str) -> str:
    """One part of a setting; hyphens between words go, those of inter-domain and of values stay."""
    key, equals, value = part.partition("=") if "(" not in part else (part, "", "")
    if key in ("metric", "test") and value in GROUPS:
        return GROUPS[value]
    return pretty(re.sub(r"(?<!inter)(?<!intra)(?<=[a-z])-", " ", key) + equals + value.replace("/", " / "))


def variant(label: str) -> tuple[str, dict[str, str]]:
    """`FedCCL[local=1,global=0]` -> (`FedCCL`, {`local`: `1`, `global`: `0`}); a plain name has no
    options."""
    match = _VARIANT.fullmatch(label)
    if not match:
        return label, {}
    return match["base"], dict(option.partition("=")[::2] for option in match["options"].split(","))


def method_words(label: str) -> str:
    """A method's name as running text; of components that are there or not those that are:
    `RAHFL[hfl=1,asymhfl=0]` -> `RAHFL (HFL)`."""
    base, options = variant(label)
    if not options:
        return base
    words = {NAMES.get(key) or pretty(key): value for key, value in options.items()}
    if set(options.values()) <= {"0", "1"}:
        present = [word for word, value in words.items() if value == "1"]
        return f"{base} ({' + '.join(present) or 'none'})"
    return f"{base} ({', '.join(f'{word} = {value}' for word, value in words.items())})"


def measure_words(measure: str) -> str:
    """`clean.AVG` -> `clean test, average`; a domain keeps its name."""
    group, _, name = measure.rpartition(".")
    return ", ".join(filter(None, (GROUPS.get(group, group), MEASURES.get(name, pretty(name)))))


def minus(number: str) -> str:
    """`-0.41` with the minus sign that is as wide as the plus."""
    return number.replace("-", "−")


def signed(number: float, digits: int = 2) -> str:
    """`+0.41`, `−7.23`."""
    return minus(f"{number:+.{digits}f}")


def interval_words(low: float, high: float) -> str:
    """`[−4.4, 4.6]`."""
    return minus(f"[{low:.1f}, {high:.1f}]")


def ordinal(place: int) -> str:
    """`1st`, `12th`."""
    if place % 100 in (11, 12, 13):
        return f"{place}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def hours_words(hours: float) -> str:
    """`12 hours`, `1.5 hours`, `40 minutes`."""
    if hours < 1:
        return counted(max(round(60 * hours), 1), "minute")
    return f"{hours:,.0f} hours" if hours >= 10 else f"{hours:.1f} hours"


def counted(count: int, noun: str) -> str:
    """`1 cell`, `9 cells`."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def tick(value: float, sign: bool = False) -> str:
    """A number of an axis: `+4`, `0`, `−8`."""
    return minus(f"{value:+g}" if sign and value else f"{value:g}")
