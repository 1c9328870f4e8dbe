"""A fast version of `pipeline.schema.checker.check` for the types that results have.

A result has a thousand values, and `check` builds the place of each for a possible error message. This module
only recognises values that are certainly right; all others are left to `check`.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Set
from functools import cache
from typing import Annotated, Any, Literal, Union

from pipeline.schema.checker import CONTROL, Range, Spelling, fields_of

Test = Callable[[Any], bool]
# Whole numbers below it are floats to `check`, others infinite.
INFINITE = 2**63


@cache
def plainly(kind: Any, more: bool = True) -> Test:
    """Tells of a value, as JSON gives it, whether it is plainly of a kind of `checker.check_known`: True is
    sure, False means that the check has to look.

    more: whether a mapping may have further keys; as there, one within it may not
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: True
    if kind is str:
        return lambda value: type(value) is str and not CONTROL.search(value)
    if kind is bool:
        return lambda value: type(value) is bool
    if kind in (int, float):
        return _number(kind, Range())
    if origin is Annotated and args[0] is str:
        return _all_of(plainly(str, False), *(_spelled(one) for one in args[1:]))
    if origin is Annotated and args[0] in (int, float):
        return _all_of(*(_number(args[0], bound) for bound in args[1:]))
    if origin is Literal:
        return lambda value: type(value) is str and value in args
    if origin in (Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        given = plainly(args[0], False)
        return lambda value: value is None or given(value)
    if origin is list:
        item = plainly(args[0], False)
        return lambda value: type(value) is list and all(map(item, value))
    if origin is dict:
        key, item = (plainly(argument, False) for argument in args)
        return lambda value: type(value) is dict and all(map(key, value)) and all(map(item, value.values()))
    if typing.is_typeddict(kind):
        return _mapping(fields_of(kind), kind.__required_keys__, more)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        needed = {one.name for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING}
        return _mapping(hints, needed, more)
    return lambda value: False


def _all_of(*tests: Test) -> Test:
    return lambda value: all(test(value) for test in tests)


def _spelled(spelling: Spelling) -> Test:
    return lambda value: spelling.problem(value) is None


def _number(kind: type, bound: Range) -> Test:
    low = bound.low
    high = bound.high
    above = bound.above

    def test(value: Any) -> bool:
        if type(value) is int:
            return abs(value) < INFINITE and low <= value <= high and value > above
        return kind is float and type(value) is float and _within(value, low, high, above)

    return test


def _within(value: float, low: float, high: float, above: float) -> bool:
    return math.isfinite(value) and low <= value <= high and value > above


def _mapping(kinds: Mapping[str, Any], needed: Set[str], more: bool) -> Test:
    """Of a mapping with keys of these kinds.

    kinds: key -> kind of its value
    needed: the keys that may not be absent
    more: whether there may be other keys
    """
    tests = {name: plainly(kind, False) for name, kind in kinds.items()}

    def test(value: Any) -> bool:
        if type(value) is not dict or not needed <= value.keys():
            return False
        if not more and not value.keys() <= tests.keys():
            return False
        return all(tests[key](item) for key, item in value.items() if key in tests)

    return test
