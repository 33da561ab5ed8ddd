"""Every event of some objects as it happens: polling would miss short-lived states."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.cluster.kubectl import Kubectl

Json = dict[str, Any]


class Watching:
    """`kubectl get --watch` for the duration of the context.

    Args:
        kubectl: kubectl in the namespace.
        kind: kind of the objects: pods.
        take: called in another thread for each event, with ADDED, MODIFIED or DELETED and the object.
    """

    def __init__(self, kubectl: Kubectl, kind: str, take: Callable[[str, Json], None]) -> None:
        self._take = take
        command = kubectl.command("get", kind, "--watch", "--output-watch-events", "--output=json")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Watching:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._thread.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                event = json.loads(line)
                self._take(event["type"], event["object"])
