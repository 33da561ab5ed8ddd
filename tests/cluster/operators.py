"""The operator as a process of this machine, inside the cluster's network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.building import ROOT
from tests.cluster.kubectl import wait_until

NAMESPACE = "heterps-system"


class Operator:
    """`heterps operator`, as the chart's pod runs it; as a context manager it runs inside the block.

    Args:
        kubeconfig: who it is to the API server.
        folder: for its log.
        options: further ones.
        program: what is started; the options follow.
    """

    def __init__(
        self,
        kubeconfig: Path,
        folder: Path,
        *options: str,
        program: Sequence[str] = (sys.executable, "-m", "heterps_operator"),
    ) -> None:
        self._kubeconfig = kubeconfig
        self._options: Sequence[str] = options
        self._program = program
        self.log = folder / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def __enter__(self) -> Operator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and return when it is at work."""
        assert self._process is None
        self.starts += 1
        command = [*self._program, "operator", "--kubeconfig", str(self._kubeconfig)]
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            # The test's thread is in the cluster's network, and what it starts is, too.
            self._process = subprocess.Popen(
                [*command, "--metrics-port", "0", "--lease-namespace", NAMESPACE, *self._options],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "KUBECONFIG": ""},
            )
        wait_until(
            "the operator is at work", lambda: b" active: " in self.log.read_bytes()[before:], 60, more=self.story
        )

    def stop(self) -> None:
        """End it in order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)
            self._process = None

    def kill(self) -> None:
        """End it at once, as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=30)
        self._process = None

    def wait_until_dead(self, seconds: float) -> None:
        """Wait for it to end by itself.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        assert self._process is not None
        self._process.wait(timeout=seconds)
        self._process = None

    def story(self) -> str:
        """Its log."""
        return self.log.read_text(errors="replace")
