"""Errors of the user's model. Each message has a place in the user's code, the problem, and a remedy.

IntakeError (ValueError)
├── EntrypointError       `module:callable` cannot be imported or called, raises, or returns the wrong type
├── EmbeddingError        an embedding table is used in a way that is not supported
├── TracingError          `forward` cannot be traced
├── CutError              a value cannot travel from one stage to the next
└── LossError             the loss does not suit the logits or the labels
"""

from __future__ import annotations

__all__ = ["CutError", "EmbeddingError", "EntrypointError", "IntakeError", "LossError", "TracingError"]


class IntakeError(ValueError):
    """The user's model cannot be used.

    Args:
        problem: one sentence.
        fix: a remedy; empty if the problem suggests it.
        where: `file:line` of the user's code; empty if unknown.
    """

    def __init__(self, problem: str, *, fix: str = "", where: str = "") -> None:
        self.problem = problem
        self.where = where
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text} To do: {fix}" if fix else text)


class EntrypointError(IntakeError):
    """`module:callable` cannot be imported or called, raises, or returns the wrong type."""


class EmbeddingError(IntakeError):
    """An embedding table is used in a way that is not supported."""


class TracingError(IntakeError):
    """`forward` cannot be traced."""


class CutError(IntakeError):
    """A value cannot travel from one stage to the next."""


class LossError(IntakeError):
    """The loss does not suit the logits or the labels."""
