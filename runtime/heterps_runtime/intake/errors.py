"""Errors of the user's model. Each message has a place in the user's code, the problem, and a remedy.

IntakeError (ValueError)
├── EntrypointError       `module:callable` cannot be imported or called, raises, or returns the wrong type
├── EmbeddingError        an embedding table is used in a way that is not supported
├── TracingError          `forward` cannot be traced
├── CutError              a value cannot travel from one stage to the next
└── LossError             the loss does not suit the logits or the labels
    └── LabelError        a label is not the number of one of the logits
"""

from __future__ import annotations

__all__ = ["CutError", "EmbeddingError", "EntrypointError", "IntakeError", "LabelError", "LossError", "TracingError"]


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


class LabelError(LossError):
    """A label is not the number of one of the logits.

    Args:
        index: of the sample among those that the loss was computed of.
        value: the label.
        num_classes: number of logits.
        place: where the label is, for users.
    """

    def __init__(self, index: int, value: int, num_classes: int, place: str = "") -> None:
        self.index = index
        self.value = value
        self.num_classes = num_classes
        super().__init__(
            f"spec.data.label: is {value} in {place or f'sample {index + 1} of a batch'}, but the model's logits have "
            f"{num_classes} classes (0 to {num_classes - 1}).",
            fix=f"correct the data, or give the model's last layer {value + 1} outputs; with spec.data.classes, labels "
            "are checked before training.",
        )
