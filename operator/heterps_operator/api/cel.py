"""Rules of the CRDs (x-kubernetes-validations), evaluated without an API server.

The rules are written in CEL; cel-python evaluates them. This module adds the quantity library of Kubernetes, which the
rules may use, and equality as CEL defines it. cel-python is imported with the first rule, not before: the import takes
a third of a second, which `heterps --help` must not pay.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from heterps_operator.api.quantity import parse_quantity
from heterps_operator.errors import MISSING

__all__ = ["RuleError", "holds", "is_transition_rule"]

_OLD = re.compile(r"\boldSelf\b")
# By digest of rule and value. An operator reads the same pools for every job, and jobs that differ only in a name;
# evaluating their rules again takes 40 ms each.
_RESULTS: dict[bytes, bool] = {}
_MOST_RESULTS = 16_384


class RuleError(Exception):
    """A rule cannot be evaluated because the value does not have the types that it expects."""


def is_transition_rule(rule: str) -> bool:
    """Whether a rule compares with the previous value, and so applies to updates only."""
    return _OLD.search(rule) is not None


def holds(rule: str, value: Any, old: Any = MISSING) -> bool:
    """Evaluate a rule.

    Args:
        rule: the text of the rule.
        value: `self`, plain JSON values with defaults applied.
        old: `oldSelf`, for a transition rule.

    Raises:
        RuleError: the value does not have the types that the rule expects.
    """
    try:
        text = json.dumps([rule, value, None if old is MISSING else [old]], sort_keys=True)
    except (TypeError, ValueError):  # keys of several types, say: not JSON, but not refused here
        return _evaluate(rule, value, old)
    digest = hashlib.sha256(text.encode()).digest()
    known = _RESULTS.get(digest)
    if known is None:
        if len(_RESULTS) >= _MOST_RESULTS:
            _RESULTS.clear()
        known = _RESULTS[digest] = _evaluate(rule, value, old)
    return known


def _evaluate(rule: str, value: Any, old: Any) -> bool:
    from celpy.adapter import json_to_cel
    from celpy.evaluation import CELEvalError

    program = _program(rule)
    variables = {"self": json_to_cel(_as_sent(value))}
    if old is not MISSING:
        variables["oldSelf"] = json_to_cel(_as_sent(old))
    try:
        result = program.evaluate(variables)
    except (CELEvalError, TypeError, ValueError, KeyError) as error:
        raise RuleError(f"{rule}: {error}") from error
    return bool(result)


def _as_sent(value: Any) -> Any:
    """Return a value as an API server reads it.

    Whole numbers of more than 64 bits are floats, and half of a surrogate pair is U+FFFD.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {key: _as_sent(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_sent(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


@lru_cache(maxsize=1)
def _environment() -> Any:
    import celpy

    return celpy.Environment()


@lru_cache(maxsize=256)
def _program(rule: str) -> Any:
    environment = _environment()
    return environment.program(environment.compile(rule), functions=_FUNCTIONS)


def _is_quantity(text: Any) -> Any:
    from celpy.celtypes import BoolType

    try:
        parse_quantity(str(text))
    except ValueError:
        return BoolType(False)
    return BoolType(True)


def _compared(test: Callable[[Decimal, Decimal], bool]) -> Callable[[Any, Any], Any]:
    def function(one: Any, other: Any) -> Any:
        from celpy.celtypes import BoolType

        if not isinstance(one, Decimal) or not isinstance(other, Decimal):
            raise TypeError("quantities can only be compared with quantities")
        return BoolType(test(one, other))

    return function


def _equality(expected: bool) -> Callable[[Any, Any], Any]:
    """CEL equality. cel-python raises an error for values of different types, at any depth."""

    def function(one: Any, other: Any) -> Any:
        from celpy.celtypes import BoolType
        from celpy.evaluation import CELEvalError

        for operand in (one, other):
            if isinstance(operand, CELEvalError):
                return operand
        return BoolType(_same(one, other) is expected)

    return function


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        names = {str(name) for name in one}
        return names == {str(name) for name in other} and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, type) or isinstance(other, type):  # the result of type()
        return bool(one == other)
    return _plain(one) == _plain(other)


def _plain(value: Any) -> tuple[str, Any]:
    """A scalar with Python's equality: numbers compare by value, other types never equal them."""
    from celpy.celtypes import BoolType

    if isinstance(value, BoolType):
        return "bool", bool(value)
    for name, kind in (("number", float), ("number", int), ("string", str)):
        if isinstance(value, kind):
            return name, kind(value)
    return type(value).__name__, None if value is None else value


# The quantity library: https://kubernetes.io/docs/reference/using-api/cel/#kubernetes-quantity-library
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_==_": _equality(True),
    "_!=_": _equality(False),
    "isQuantity": _is_quantity,
    "quantity": lambda text: parse_quantity(str(text)),
    "isGreaterThan": _compared(lambda one, other: one > other),
    "isLessThan": _compared(lambda one, other: one < other),
}
