"""CEL without an API server: rules of the CRDs (x-kubernetes-validations), and other expressions of Kubernetes.

cel-python evaluates them. This module adds the libraries of Kubernetes that they use most, for quantities, versions and
strings, and equality as CEL defines it. cel-python is imported with the first rule, not before: the import takes
a third of a second, which `heterps --help` must not pay.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from heterps_operator.api.quantity import parse_quantity
from heterps_operator.api.semver import Version
from heterps_operator.errors import MISSING

if TYPE_CHECKING:
    from heterps_operator.api.cel_evaluation import Meter

__all__ = ["RuleError", "evaluate", "fingerprint", "holds", "is_transition_rule", "load"]

_OLD = re.compile(r"\boldSelf\b")
# By rule and fingerprint. An operator reads the same pools for every job, and jobs that differ only in a name;
# evaluating their rules again takes 40 ms each.
_RESULTS: dict[tuple[str, bytes], bool] = {}
_MOST_RESULTS = 16_384
_STEPS_OF_RULE = 2_000_000
_LOADING = threading.Lock()
_MOST_SHOWN = 120  # characters
_FEW_ESCAPES = 16  # cel-python takes up to 2^16 steps of a few nanoseconds for these
_OPENING = re.compile(r"//[^\n]*|(?P<raw>[rR]?)(?P<quotes>\"{3}|'{3}|\"|')")
_REST = {  # of a text, from its opening quotes; no two alternatives begin alike
    '"': re.compile(r'(?:[^\\"\n]|\\[^\n])*"'),
    "'": re.compile(r"(?:[^\\'\n]|\\[^\n])*'"),
    '"""': re.compile(r'(?:[^\\"]|\\.|"(?!""))*"""', re.DOTALL),
    "'''": re.compile(r"(?:[^\\']|\\.|'(?!''))*'''", re.DOTALL),
}


class RuleError(Exception):
    """An expression cannot be evaluated: it is malformed, or a value does not have the types that it expects.

    Args:
        expression: its text, of which the message shows the beginning.
        reason: why.
    """

    def __init__(self, expression: str, reason: object) -> None:
        super().__init__(f"{expression[:_MOST_SHOWN]}{'...' * (len(expression) > _MOST_SHOWN)}: {reason}")


def load() -> None:
    """Import cel-python; call this before any of its modules is used.

    They import each other. If two threads began at once, each would find parts of modules, and no later attempt would
    mend that.
    """
    with _LOADING:
        import heterps_operator.api.cel_evaluation  # noqa: F401


def is_transition_rule(rule: str) -> bool:
    """Whether a rule compares with the previous value, and so applies to updates only."""
    return _OLD.search(rule) is not None


def fingerprint(value: Any, old: Any = MISSING) -> bytes:
    """Return what identifies `self` and `oldSelf`; empty if they are not JSON: with keys of several types, say."""
    try:
        text = json.dumps([value, None if old is MISSING else [old]], sort_keys=True)
    except (TypeError, ValueError):
        return b""
    return hashlib.sha256(text.encode()).digest()


def holds(rule: str, value: Any, old: Any = MISSING, known: bytes | None = None) -> bool:
    """Evaluate a rule.

    Args:
        rule: the text of the rule.
        value: `self`, plain JSON values with defaults applied.
        old: `oldSelf`, for a transition rule.
        known: their `fingerprint`, if the caller has it.

    Raises:
        RuleError: the value does not have the types that the rule expects.
    """
    known = fingerprint(value, old) if known is None else known
    if not known:
        return _evaluate(rule, value, old)
    result = _RESULTS.get((rule, known))
    if result is None:
        if len(_RESULTS) >= _MOST_RESULTS:
            _RESULTS.clear()
        result = _RESULTS[rule, known] = _evaluate(rule, value, old)
    return result


def _evaluate(rule: str, value: Any, old: Any) -> bool:
    load()
    from celpy.adapter import json_to_cel

    from heterps_operator.api.cel_evaluation import Meter

    variables = {"self": json_to_cel(_as_sent(value))}
    if old is not MISSING:
        variables["oldSelf"] = json_to_cel(_as_sent(old))
    return bool(evaluate(rule, variables, Meter(_STEPS_OF_RULE)))


def evaluate(expression: str, variables: Mapping[str, Any], meter: Meter) -> Any:
    """Evaluate an expression.

    Args:
        expression: its text.
        variables: values of cel-python (`celpy.celtypes`), `Decimal` for quantities, `Version` for versions; by name.
        meter: limits its steps, each about 10 µs, and counts them.

    Raises:
        RuleError: the expression is malformed or uses what is not known here, a value lacks what it asks for, or it
            takes too many steps.
    """
    from heterps_operator.api import cel_evaluation

    try:
        return cel_evaluation.evaluate(_program(expression), dict(variables), meter)
    except RuleError:
        raise
    except RecursionError:
        raise RuleError(expression, "it nests too deeply") from None
    except Exception as error:  # cel-python has no common class of errors, and passes on those of Python's operators
        raise RuleError(expression, error.args[0] if error.args else error) from error


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
    _check_texts(rule)
    environment = _environment()
    return environment.program(environment.compile(rule), functions=_FUNCTIONS)


def _check_texts(expression: str) -> None:
    """Refuse texts at which cel-python's lexer would hang.

    Its regular expressions match an escape sequence in two ways, and a carriage return in a text of several lines. If
    a text has no end, they try all combinations: 60 backslashes take hours.

    Raises:
        RuleError: there are many escape sequences, and a text without an end, or a raw one that the lexer reads
            otherwise than CEL does.
    """
    if expression.count("\\") + expression.count("\r") <= _FEW_ESCAPES:
        return
    at = 0
    while (opening := _OPENING.search(expression, at)) is not None:
        at = opening.end()
        if opening["quotes"] is None:  # a comment
            continue
        rest = _REST[opening["quotes"]].match(expression, at)
        if rest is None:
            raise RuleError(expression, "a text has no end")
        if opening["raw"] and "\\" in rest[0]:
            raise RuleError(expression, f"with more than {_FEW_ESCAPES} backslashes, no text may be raw")
        at = rest.end()


def _is_quantity(text: Any) -> Any:
    from celpy.celtypes import BoolType

    try:
        parse_quantity(str(text))
    except ValueError:
        return BoolType(False)
    return BoolType(True)


def _compared(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def function(one: Any, other: Any) -> Any:
        from celpy.celtypes import BoolType

        return BoolType(test(*_of_one_kind(one, other)))

    return function


def _compare(one: Any, other: Any) -> Any:
    from celpy.celtypes import IntType

    one, other = _of_one_kind(one, other)
    return IntType((one > other) - (one < other))


def _of_one_kind(one: Any, other: Any) -> tuple[Any, Any]:
    for kind in (Decimal, Version):
        if isinstance(one, kind) and isinstance(other, kind):
            return one, other
    raise TypeError("quantities can only be compared with quantities, and versions with versions")


def _lower(text: Any) -> Any:
    from celpy.celtypes import StringType

    return StringType("".join(letter.lower() if letter.isascii() else letter for letter in str(text)))


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


# The libraries for quantities, versions and strings: https://kubernetes.io/docs/reference/using-api/cel/
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_==_": _equality(True),
    "_!=_": _equality(False),
    "isQuantity": _is_quantity,
    "quantity": lambda text: parse_quantity(str(text)),
    "semver": lambda text: Version.parse(str(text)),
    "isGreaterThan": _compared(lambda one, other: one > other),
    "isLessThan": _compared(lambda one, other: one < other),
    "compareTo": _compare,
    "lowerAscii": _lower,
}
