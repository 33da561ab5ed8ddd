"""What a user can have done wrong with a model, as exceptions.

Every message says where in the user's code, what is wrong, and what to do about it.

    IntakeError (ValueError)
    ├── EntrypointError       `module:callable` does not import, is not callable, raises, or returns the wrong thing
    ├── EmbeddingError        an embedding table is used in a way that parameter servers cannot serve
    ├── TracingError          `forward` cannot be turned into a graph
    ├── CutError              a value cannot travel from one stage to the next
    └── LossError             the loss does not fit the logits or the labels
"""

from __future__ import annotations

__all__ = ["CutError", "EmbeddingError", "EntrypointError", "IntakeError", "LossError", "TracingError"]


class IntakeError(ValueError):
    """The user's model cannot be taken in.

    Args:
        problem: what is wrong, one sentence.
        fix: what the user can do about it, or an empty string where the problem says it.
        where: `file:line` of the user's code, or an empty string if no line is to blame.
    """

    def __init__(self, problem: str, *, fix: str = "", where: str = "") -> None:
        self.problem = problem
        self.fix = fix
        self.where = where
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text} To do: {fix}" if fix else text)


class EntrypointError(IntakeError):
    """`module:callable` does not import, is not callable, raises, or returns the wrong thing."""


class EmbeddingError(IntakeError):
    """An embedding table is used in a way that parameter servers cannot serve."""


class TracingError(IntakeError):
    """`forward` cannot be turned into a graph."""


class CutError(IntakeError):
    """A value cannot travel from one stage to the next."""


class LossError(IntakeError):
    """The loss does not fit the logits or the labels."""
