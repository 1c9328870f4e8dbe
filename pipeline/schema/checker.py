"""Checks plain YAML against a dataclass; every error names the file and the key."""

import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union

from pipeline.errors import ParamError, unknown
from pipeline.schema.former_keys import advice

# Characters that no page, picture or terminal can show: control characters other than ends of lines and tabs,
# and halves of surrogate pairs.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Range:
    """Bounds of a number: low <= x <= high, or above < x."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf

    def problem(self, value: float) -> str | None:
        """What is wrong with a number; None if nothing is."""
        if isinstance(value, float) and not math.isfinite(value):
            return "must be finite"
        if value < self.low:
            return f"must be at least {self.low:g}"
        if value > self.high:
            return f"must be at most {self.high:g}"
        return f"must be above {self.above:g}" if value <= self.above else None


@dataclass(frozen=True)
class Spelling:
    """The allowed form of names that become parts of paths, of stages and of shell commands.

    A dot is not allowed because DVC splits the keys of parameters at dots.
    """

    pattern: str = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
    means: str = "a name of letters, digits, - and _, a letter or digit first, at most 100"

    def problem(self, value: str) -> str | None:
        """What is wrong with a name; None if nothing is."""
        return None if re.fullmatch(self.pattern, value) else f"must be {self.means}"


Name = Annotated[str, Spelling()]
FileName = Annotated[
    str,
    Spelling(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        "a name of letters, digits, ., - and _, a letter or digit first, at most 100",
    ),
]
Sha256 = Annotated[str, Spelling("[0-9a-f]{64}", "64 hexadecimal digits")]
Count = Annotated[int, Range(low=1, high=10**8)]
Whole = Annotated[int, Range(low=0, high=10**9)]
Finite = Annotated[float, Range()]
# Networks compute in single precision, which ends at 3.4e38.
Positive = Annotated[float, Range(above=0, high=1e30)]
NonNegative = Annotated[float, Range(low=0, high=1e30)]
Share = Annotated[float, Range(low=0, high=1)]
Fraction = Annotated[float, Range(above=0, high=1)]


def check(kind: Any, value: Any, where: str) -> Any:
    """Turn plain YAML into `kind`, or raise ParamError with `where` (file and key) in front.

    `kind` is a dataclass, a TypedDict, int, float, bool, str, Literal, Annotated[number, Range], Name,
    list[...], dict[str, ...], dict[Name, ...], an optional of these, or a union of kinds that differ in YAML:
    a share (0.2), a count (4), a list and a mapping. A dataclass with `variants`, a function of the class
    that gives {kind: subclass}, is the one that the key `kind` names.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (dataclasses.is_dataclass(kind) and isinstance(value, kind)):  # type: ignore[arg-type]
        return value
    if dataclasses.is_dataclass(kind):
        return _check_dataclass(kind, value, where)
    if typing.is_typeddict(kind):
        return _check_typed_dict(kind, value, where)
    if origin is Annotated:
        checked = check(args[0], value, where)
        if problem := next(filter(None, (bound.problem(checked) for bound in args[1:])), None):
            raise ParamError(f"{where}: {problem}, not {value!r:.80}")
        return checked
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in args):  # true is no 1
            raise ParamError(f"{where}: {unknown('value', value, args)}")
        return value
    if origin in (Union, types.UnionType):
        return _check_union(args, value, where)
    if not isinstance(value, expected := {float: (int, float)}.get(kind, origin or kind)) or (
        isinstance(value, bool) and kind is not bool
    ):
        named = {list: "a list", dict: "a mapping"}.get(expected, getattr(kind, "__name__", kind))
        raise ParamError(f"{where}: expected {named}, not {value!r:.80}")
    if origin is list:
        return [check(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        if args[0] == Name and (odd := [key for key in value if key is None or isinstance(key, bool)]):
            raise ParamError(f"{where}: YAML reads a key as {odd[0]!r:.80}: put it in quotes")
        return {
            check(args[0], str(key), where): check(args[1], item, _at(where, key))
            for key, item in value.items()
        }
    if kind is float and isinstance(value, int):
        return float(value) if abs(value) < 2**63 else math.inf
    if kind is str and (control := CONTROL.search(value)):
        raise ParamError(f"{where}: holds the control character U+{ord(control[0]):04X}")
    return value


def _check_union(kinds: tuple, value: Any, where: str) -> Any:
    """The kind whose form in YAML the value has; else the first."""
    if value is None and type(None) in kinds:
        return None
    forms = {}
    for kind in (kind for kind in kinds if kind is not type(None)):
        origin = typing.get_origin(kind)
        forms[typing.get_args(kind)[0] if origin is Annotated else origin] = kind
    return check(forms.get(type(value), next(iter(forms.values()))), value, where)


def _check_dataclass(kind: Any, value: Any, where: str) -> Any:
    place = where.rstrip(":")
    if not isinstance(value, dict):
        raise ParamError(f"{place}: expected a mapping, not {value!r:.80}")
    if variants := kind.variants() if hasattr(kind, "variants") else None:
        name, value = value.get("kind"), {key: item for key, item in value.items() if key != "kind"}
        if name is None:
            raise ParamError(f"{place}: expected a mapping with the key 'kind', one of {', '.join(variants)}")
        if not isinstance(name, str) or name not in variants:
            raise ParamError(f"{_at(where, 'kind')}: {unknown('kind', name, variants)}")
        kind = variants[name]
    fields, hints = {f.name: f for f in dataclasses.fields(kind)}, _hints(kind)
    for key in value:
        if key not in fields:
            raise ParamError(f"{place}: {advice(kind.__name__, key) or unknown('key', key, fields)}")
    for name, f in fields.items():
        if name not in value and f.default is f.default_factory is dataclasses.MISSING:
            raise ParamError(f"{place}: the key {name!r} is missing")
    checked = {key: check(hints[key], item, _at(where, key)) for key, item in value.items()}
    try:
        return kind(**checked)
    except ValueError as error:  # a rule over several keys, raised in __post_init__
        raise ParamError(f"{where}: {error}") from None


def _check_typed_dict(kind: Any, value: Any, where: str) -> dict[str, Any]:
    """The mapping, if it has the keys of `kind` with values of their types, and no others."""
    place = where.rstrip(":")
    if not isinstance(value, dict):
        raise ParamError(f"{place}: expected a mapping, not {value!r:.80}")
    kinds = fields_of(kind)
    for key in value:
        if key not in kinds:
            raise ParamError(f"{place}: {unknown('key', key, kinds)}")
    for key in kinds:
        if key not in value and key in kind.__required_keys__:
            raise ParamError(f"{place}: the key {key!r} is missing")
    return {key: check(kinds[key], item, _at(where, key)) for key, item in value.items()}


@cache
def fields_of(kind: Any) -> dict[str, Any]:
    """The keys of a TypedDict and the types of their values, without `NotRequired`."""
    kinds = {}
    for key, hint in _hints(kind).items():
        origin = typing.get_origin(hint)
        kinds[key] = typing.get_args(hint)[0] if origin in (typing.Required, typing.NotRequired) else hint
    return kinds


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def keys(kinds: dict[str, Any]) -> type:
    """The kind of a mapping with these keys of these types."""
    return dataclasses.make_dataclass("Document", list(kinds.items()), frozen=True)


def check_keys(value: Any, kinds: dict[str, Any], where: str, more: bool = False) -> None:
    """ParamError unless a mapping has these keys of these types.

    where: begins the error's message
    more: the mapping may have other keys as well
    """
    if more and isinstance(value, dict):
        value = {key: item for key, item in value.items() if key in kinds}
    check(keys(kinds), value, where)


def check_known(kind: Any, value: Any, where: str) -> None:
    """ParamError unless a mapping has the keys of a kind; it may have others.

    kind: a TypedDict, or what `keys` made
    where: begins the error's message
    """
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key in kind.__annotations__}
    check(kind, value, where)


def _at(where: str, key: object) -> str:
    """`file: key`, `file: key.inner`."""
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"
