"""Format settings, methods, measures and numbers as readable text.

The CSV files write settings as `practical(beta=0.1,N=20),test=clean`, method variants as
`FedCCL[local=1,global=0]` and Greek letters by name. A page shows `practical (β = 0.1, N = 20)` and `FedCCL
(local = 1, global = 0)`.
"""

import re
from html import unescape

# Name of a Greek letter -> the letter. Delta stands for a difference, and is a capital one.
GREEK = {
    name: unescape(f"&{name};")
    for name in ("alpha", "beta", "gamma", "eta", "theta", "lambda", "mu", "tau", "omega")
} | {"delta": "Δ"}
# Key of a method's component -> its name, as the papers write it.
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
# The last part of a measure's name, such as `AVG` of `clean.AVG` -> in words.
MEASURES = {
    "weighted": "weighted by test size",
    "clients_std": "std. over clients",
    "AVG": "average",
    "fgsm": "under FGSM",
    "pgd": "under PGD",
}
# The part before it, such as `clean` -> in words; empty: it is not mentioned.
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
# The name of a Greek letter that is a word of its own.
_GREEK = re.compile(rf"(?<![A-Za-z])({'|'.join(GREEK)})(?![A-Za-z])")
# A comma that no bracket encloses.
_OUTSIDE = re.compile(r",(?![^(\[]*[)\]])")
# A method with its options: FedCCL[local=1,global=0].
_VARIANT = re.compile(r"(?P<base>[^\[]+)\[(?P<options>.*)\]")


def pretty(text: str) -> str:
    """A text with Greek letters, spaces for underscores (`T_f` stays), and spaces around `=`, before brackets
    and after commas: `practical(beta=0.1)` -> `practical (β = 0.1)`."""
    text = _GREEK.sub(lambda match: GREEK[match[1]], text)
    text = re.sub(r"(?<!\b[A-Z])_", " ", text)
    text = re.sub(r"\s*=\s*", " = ", text)
    text = re.sub(r"(?<=\w)\(", " (", text)
    return re.sub(r",(?=\S)", ", ", text)


def split_setting(setting: str) -> list[str]:
    """`practical(beta=0.1,N=20),test=clean` -> [`practical(beta=0.1,N=20)`, `test=clean`]."""
    return [part for part in _OUTSIDE.split(setting) if part]


def setting_words(part: str) -> str:
    """One part of a setting in words, as `split_setting` gives it.

    Hyphens between words become spaces, except in inter-domain and intra-domain, and in values.
    """
    key = part
    equals = ""
    value = ""
    if "(" not in part:
        key, equals, value = part.partition("=")
    if key in ("metric", "test") and value in GROUPS:
        return GROUPS[value]
    key = re.sub(r"(?<!inter)(?<!intra)(?<=[a-z])-", " ", key)
    value = value.replace("/", " / ")
    return pretty(key + equals + value)


def variant(label: str) -> tuple[str, dict[str, str]]:
    """Split a method into its name and its options; a plain name has none.

    `FedCCL[local=1,global=0]` -> (`FedCCL`, {`local`: `1`, `global`: `0`})
    """
    match = _VARIANT.fullmatch(label)
    if not match:
        return label, {}
    return match["base"], dict(option.partition("=")[::2] for option in match["options"].split(","))


def method_words(label: str) -> str:
    """A method's name with its options as running text.

    Options that are switches (0 or 1) are components, of which those that are on are listed:
    `RAHFL[hfl=1,asymhfl=0]` -> `RAHFL (HFL)`.
    """
    base, options = variant(label)
    if not options:
        return base
    words = {NAMES.get(key) or pretty(key): value for key, value in options.items()}
    if set(options.values()) <= {"0", "1"}:
        present = [word for word, value in words.items() if value == "1"]
        return f"{base} ({' + '.join(present) or 'none'})"
    values = [f"{word} = {value}" for word, value in words.items()]
    return f"{base} ({', '.join(values)})"


def measure_words(measure: str) -> str:
    """A measure in words: `clean.AVG` -> `clean test, average`; a domain keeps its name."""
    group, _, name = measure.rpartition(".")
    parts = [GROUPS.get(group, group), MEASURES.get(name, pretty(name))]
    return ", ".join(filter(None, parts))


def minus(number: str) -> str:
    """A number as text, `-0.41`, with the minus sign that is as wide as the plus."""
    return number.replace("-", "−")


def signed(number: float, digits: int = 2) -> str:
    """A number with its sign: `+0.41`, `−7.23`.

    digits  decimals
    """
    return minus(f"{number:+.{digits}f}")


def interval_words(low: float, high: float) -> str:
    """An interval with one decimal: `[−4.4, 4.6]`."""
    return minus(f"[{low:.1f}, {high:.1f}]")


def ordinal(place: int) -> str:
    """A place as text: `1st`, `12th`."""
    if place % 100 in (11, 12, 13):
        return f"{place}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def hours_words(hours: float) -> str:
    """A duration with two digits or so: `12 hours`, `1.5 hours`, `40 minutes`."""
    if hours < 1:
        return counted(max(round(60 * hours), 1), "minute")
    return f"{hours:,.0f} hours" if hours >= 10 else f"{hours:.1f} hours"


def counted(count: int, noun: str) -> str:
    """A number of things: `1 cell`, `9 cells`.

    noun  in the singular; its plural ends with s
    """
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def tick(value: float, sign: bool = False) -> str:
    """A number of an axis: `4`, `0`, `−8`.

    sign  whether a positive number has a plus
    """
    form = "+g" if sign and value else "g"
    return minus(format(value, form))
