"""The ports that a process listens on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from heterps_runtime.contract import ENV_MESSAGE_PORT, ENV_METRICS_PORT, ENV_RENDEZVOUS_PORT
from heterps_runtime.errors import UserError

__all__ = ["FREE_PORTS", "Ports"]

_MOST_PORT = 65535


@dataclass(frozen=True)
class Ports:
    """Ports to listen on; 0: any free one. A pod has an address of its own, so its ports can be fixed and declared."""

    messages: int = 0  # of other members
    rendezvous: int = 0  # of workers that all-reduce
    metrics: int = 0  # of a server or worker

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Ports:
        """Read the ports that the controller has fixed.

        Raises:
            UserError: a variable is not a port.
        """
        names = (ENV_MESSAGE_PORT, ENV_RENDEZVOUS_PORT, ENV_METRICS_PORT)
        return cls(*(_port(name, variables.get(name, "0")) for name in names))


FREE_PORTS = Ports()


def _port(name: str, text: str) -> int:
    usable = text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_PORT)) and int(text) <= _MOST_PORT
    if not usable:
        raise UserError(f"{name}: must be a port, 0 to {_MOST_PORT}, is {text!r}")
    return int(text)
