"""Checks of what neighbouring stages send, before a worker computes with it.

What does not fit would end the process with an error of torch's, and count as a failure of the job. As a
`ProtocolError` it costs the generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from heterps_runtime.errors import ProtocolError
from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.wire.messages import Backward, Forward
from heterps_runtime.worker.steps.runs import LABEL

__all__ = ["MOST_EARLY", "MOST_STEPS_AHEAD", "check_activation", "check_gradients"]

MOST_EARLY = 4096  # activations that refer to an order which has not arrived
# Steps of activations beyond those that this worker may begin: a commit reaches workers at different times.
MOST_STEPS_AHEAD = 256


def check_activation(message: Forward, mine: Sequence[MicroBatch], inputs: Sequence[str]) -> MicroBatch:
    """The micro-batch of an activation.

    Args:
        message: of the previous stage.
        mine: this worker's micro-batches of the step.
        inputs: names of the tensors that the stage needs.

    Raises:
        ProtocolError: the micro-batch is another worker's, or its tensors are not those of this stage.
    """
    micro = next((micro for micro in mine if micro.index == message.index), None)
    where = f"the activations of micro-batch {message.index} of step {message.step}"
    if micro is None:
        raise ProtocolError(f"{where} are for another worker")
    if message.tensors.keys() != {*inputs, LABEL}:
        raise ProtocolError(f"{where} are {sorted(message.tensors)}, not {sorted({*inputs, LABEL})}")
    label = message.tensors[LABEL]
    if label.shape[:1] != (micro.size,):
        raise ProtocolError(f"{where} have labels of the shape {list(label.shape)}, not of {micro.size} samples")
    for name in message.bfloat16:
        if name not in message.tensors or message.tensors[name].dtype != np.uint16:
            raise ProtocolError(f"{where}: {name!r} is not there in bfloat16")
    for name in message.differentiable:
        floats = name in message.bfloat16 or (
            name in message.tensors and np.issubdtype(message.tensors[name].dtype, np.floating)
        )
        if name == LABEL or not floats:
            raise ProtocolError(f"{where}: {name!r} has no gradient")
    return micro


def check_gradients(message: Backward, outputs: Mapping[str, torch.Tensor]) -> None:
    """Check that gradients are those of a micro-batch's outputs.

    Args:
        message: of the next stage.
        outputs: that were sent to it.

    Raises:
        ProtocolError: they are not.
    """
    where = f"the gradients of micro-batch {message.index} of step {message.step}"
    expected = {name: tensor for name, tensor in outputs.items() if tensor.requires_grad}
    if message.gradients.keys() != expected.keys():
        raise ProtocolError(f"{where} are of {sorted(message.gradients)}, not of {sorted(expected)}")
    for name, tensor in expected.items():
        found = message.gradients[name]
        if (found.shape, found.dtype) != (tuple(tensor.shape), _dtype_of(tensor)):
            raise ProtocolError(
                f"{where}: {name!r} is {found.dtype} {list(found.shape)}, not {_dtype_of(tensor)} {list(tensor.shape)}"
            )


def _dtype_of(tensor: torch.Tensor) -> np.dtype[Any]:
    """The type of a tensor in a message."""
    dtype: np.dtype[Any] = np.dtype(np.uint16)
    return dtype if tensor.dtype == torch.bfloat16 else torch.empty(0, dtype=tensor.dtype).numpy().dtype
