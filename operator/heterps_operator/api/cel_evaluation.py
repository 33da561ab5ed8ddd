"""Evaluation of CEL in bounded time and memory. cel-python has no limits of its own.

An API server estimates the costs of an expression before it stores it. What is evaluated here may come from anywhere,
and a hundred characters are enough: four nested macros over lists of eight elements make 200,000 steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celpy import Runner
from celpy.celtypes import BoolType
from celpy.evaluation import Activation, CELEvalError, Evaluator

__all__ = ["CostError", "Meter", "evaluate"]

_ELEMENTS_PER_STEP = 64  # reading, comparing or copying this many takes about as long as a step of cel-python, 10 µs
_CHARACTERS_PER_ELEMENT = 16


class CostError(Exception):
    """An expression takes more steps than it may."""


class Meter:
    """Counts the steps of an evaluation.

    Each part of the expression is a step, as often as a macro repeats it. Large values count for more.

    Args:
        most: steps that the evaluation may take.

    Attributes:
        taken: steps so far.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0
        self._sizes: dict[int, tuple[object, int]] = {}  # by id; the value is kept, for its id to remain its own

    def count(self, value: Any) -> None:
        """Count the step that has led to a value.

        Raises:
            CostError: it is one too many.
        """
        self.taken += 1 + self._size(value) // _ELEMENTS_PER_STEP
        if self.taken > self._most:
            raise CostError(f"it takes more than {self._most:,} steps")

    def _size(self, value: Any) -> int:
        """Return the elements of a value, those of its elements included: as often as they appear in it."""
        if isinstance(value, str | bytes):
            return len(value) // _CHARACTERS_PER_ELEMENT
        if isinstance(value, CELEvalError):  # its text may describe all variables
            return len(str(value.args[0])) // _CHARACTERS_PER_ELEMENT if value.args else 0
        if not isinstance(value, dict | list):
            return 0
        known = self._sizes.get(id(value))
        if known is None:
            parts = value.values() if isinstance(value, dict) else value
            known = self._sizes[id(value)] = value, len(value) + sum(map(self._size, parts))
        return known[1]


def evaluate(runner: Runner, variables: dict[str, Any], meter: Meter) -> Any:
    """Evaluate a program of cel-python as far as the meter lets it.

    Raises:
        CostError: it takes more steps.
    """
    return _Metered(runner.ast, runner.new_activation(), meter).evaluate(variables)


class _Metered(Evaluator):
    """Counts steps, and decides && and || as CEL does. `tree` and `ast` are parts of an expression, trees of lark."""

    def __init__(self, ast: Any, activation: Activation, meter: Meter) -> None:
        super().__init__(ast, activation)
        self._meter = meter

    def sub_evaluator(self, ast: Any) -> Evaluator:
        return _Metered(ast, self.activation, self._meter)

    # For two errors, cel-python's operators and macros describe both in a third, which doubles the text each time.

    def conditionaland(self, tree: Any) -> Any:
        return self._joined(tree, by=False)

    def conditionalor(self, tree: Any) -> Any:
        return self._joined(tree, by=True)

    def _joined(self, tree: Any, by: bool) -> Any:
        parts = tree.children
        return self._visit_tree(parts[0]) if len(parts) == 1 else _join(map(self._visit_tree, parts), by)

    def member_dot_arg(self, tree: Any) -> Any:
        member, macro, *_ = tree.children
        if macro not in ("all", "exists"):
            return super().member_dot_arg(tree)
        values = self._visit_tree(member)
        if isinstance(values, CELEvalError):
            return values
        return _join(map(self.build_ss_macro_eval(tree), values), by=macro == "exists")

    def _visit_tree(self, tree: Any) -> Any:
        value = getattr(self, tree.data)(tree)  # as the base class, whose frame would halve the depth of expressions
        self._meter.count(value)
        return value


def _join(operands: Iterable[Any], by: bool) -> Any:
    """CEL's && (decided by false) and || (by true): an operand that decides makes errors of the others void."""
    error = None
    for operand in operands:
        if not isinstance(operand, BoolType):
            error = error or (operand if isinstance(operand, CELEvalError) else CELEvalError("no such overload"))
        elif bool(operand) is by:
            return operand
    return error or BoolType(not by)
