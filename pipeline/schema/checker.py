"""A mapping of plain YAML against a dataclass: every error names the file and the key.

It uses dataclasses instead of pydantic because a training stage must run on machines that have only torch,
numpy, pandas, PyYAML and Jinja2."""

import dataclasses
import math
import re
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union

from pipeline.errors import ParamError, unknown

# Characters that no page, picture or terminal can show: control characters other than ends of lines and tabs,
# and halves of surrogate pairs.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Range:
    """Bounds of a number: low <= x <= high, or above < x."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf

    def problem(self, value) -> str | None:
        """What is wrong with a number; None where nothing is."""
        if isinstance(value, float) and not math.isfinite(value):
            return "must be finite"
        if value < self.low:
            return f"must be at least {self.low:g}"
        if value > self.high:
            return f"must be at most {self.high:g}"
        if value <= self.above:
            return f"must be above {self.above:g}"
        return None


@dataclass(frozen=True)
class Spelling:
    """What names may look like that become parts of paths, of stages and of the commands that a shell runs.
    A dot is left out because DVC takes the keys of parameters apart at it."""

    pattern: str = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
    means: str = "letters, digits, - and _, a letter or digit first, at most 100"

    def problem(self, value: str) -> str | None:
        """What is wrong with a name; None where nothing is."""
        return None if re.fullmatch(self.pattern, value) else f"must be a name of {self.means}"


Name = Annotated[str, Spelling()]


FileName = Annotated[
    str,
    Spelling(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
        "letters, digits, ., - and _, a letter or digit first, at most 100",
    ),
]


Count = Annotated[int, Range(low=1)]


Whole = Annotated[int, Range(low=0)]


Finite = Annotated[float, Range()]


Positive = Annotated[float, Range(above=0)]


NonNegative = Annotated[float, Range(low=0)]


Share = Annotated[float, Range(low=0, high=1)]


Fraction = Annotated[float, Range(above=0, high=1)]


def check(kind: Any, value: Any, where: str) -> Any:
    """Turn plain YAML into `kind`, or raise ParamError with `where` (file and key) in front.

    `kind` is a dataclass, int, float, bool, str, Literal, Annotated[number, Range], Name, list[...],
    dict[str, ...], dict[Name, ...], an optional of these, or a union of dataclasses told apart by their
    `kind` field, or of a share (0.2), a count (4), a list and a mapping.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _check_dataclass(kind, value, where)
    if origin is Annotated:
        number = check(args[0], value, where)
        problem = next((p for p in (bound.problem(number) for bound in args[1:]) if p), None)
        if problem:
            raise ParamError(f"{where}: {problem}, found {value!r:.80}")
        return number
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in args):  # true is no 1
            raise ParamError(f"{where}: {unknown('value', value, args)}")
        return value
    if origin in (Union, types.UnionType):
        return _check_union(args, value, where)
    if origin is list:
        if not isinstance(value, list):
            raise ParamError(f"{where}: expected a list, found {value!r:.80}")
        return [check(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise ParamError(f"{where}: expected a mapping, found {value!r:.80}")
        return {
            check(args[0], str(k), where): check(args[1], item, _at(where, k)) for k, item in value.items()
        }
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**63 else math.inf
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ParamError(f"{where}: expected {kind.__name__}, found {value!r:.80}")
    if kind is str and (found := CONTROL.search(value)):
        raise ParamError(f"{where}: holds the control character U+{ord(found[0]):04X}")
    return value


def _check_union(kinds, value, where):
    if value is None and type(None) in kinds:
        return None
    kinds = [k for k in kinds if k is not type(None)]
    tagged = {k.kind: k for k in kinds if dataclasses.is_dataclass(k) and hasattr(k, "kind")}
    if not tagged:  # only one dataclass, or kinds that YAML tells apart: numbers, lists, mappings
        forms = {
            typing.get_args(k)[0] if typing.get_origin(k) is Annotated else typing.get_origin(k): k
            for k in kinds
        }
        return check(forms.get(type(value), kinds[0]), value, where)
    if not isinstance(value, dict) or "kind" not in value:
        raise ParamError(f"{where}: expected a mapping with the key 'kind', one of {', '.join(tagged)}")
    if not isinstance(value["kind"], str) or value["kind"] not in tagged:
        raise ParamError(f"{where}.kind: {unknown('kind', value['kind'], tagged)}")
    return _check_dataclass(tagged[value["kind"]], {k: v for k, v in value.items() if k != "kind"}, where)


def _check_dataclass(kind, value, where):
    said = where.rstrip(":")
    if not isinstance(value, dict):
        raise ParamError(f"{said}: expected a mapping, found {value!r:.80}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = _hints(kind)
    for key in value:
        if key not in fields:
            raise ParamError(f"{said}: {unknown('key', key, fields)}")
    for name, f in fields.items():
        if (
            name not in value
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ):
            raise ParamError(f"{said}: the key {name!r} is missing")
    made = {k: check(hints[k], v, _at(where, k)) for k, v in value.items()}
    try:
        return kind(**made)
    except ValueError as error:  # a rule over several keys, raised in __post_init__
        raise ParamError(f"{where}: {error}") from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def check_keys(value: Any, kinds: dict[str, Any], where: str) -> None:
    """ParamError, beginning with `where`, unless the mapping has these keys of these types and no other."""
    if not isinstance(value, dict):
        raise ParamError(f"{where} expected a mapping, found {value!r:.80}")
    for key in value:
        if key not in kinds:
            raise ParamError(f"{where} {unknown('key', key, kinds)}")
    for key, kind in kinds.items():
        if key not in value:
            raise ParamError(f"{where} the key {key!r} is missing")
        if not isinstance(value[key], kind) or isinstance(value[key], bool):
            raise ParamError(f"{where} {key}: expected {kind.__name__}, found {value[key]!r:.80}")


def _at(where: str, key: object) -> str:
    """`file: key`, `file: key.inner`."""
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"
