"""kubectl with a kubeconfig, for tests."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.cluster.building import KUBECTL, path_of
from tests.cluster.errors import ClusterError

Json = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer:
    """Output and exit code of a command."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Kubectl:
    """Talks to one API server; the calling thread must be where it can be reached (`Cluster.entered`)."""

    kubeconfig: Path
    cache: Path  # discovery cache: two clusters have the same address, but not the same resources
    namespace: str | None = None

    def try_to(self, *arguments: str, text: str | None = None) -> Answer:
        """Run a command that may fail."""
        ran = subprocess.run(
            self.command(*arguments),
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    def command(self, *arguments: str) -> list[str]:
        """Return the command, for callers that start it themselves."""
        scope = [f"--namespace={self.namespace}"] if self.namespace else []
        return [_program(), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.cache}", *scope, *arguments]

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        """Run a command and return its output.

        Raises:
            ClusterError: it fails; with its output.
        """
        answer = self.try_to(*arguments, text=text)
        if answer.code:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {answer.errors.strip()}")
        return answer.output

    def get(self, *arguments: str) -> Json:
        """Return the value of `kubectl get`."""
        value: Json = json.loads(self("get", *arguments, "--output=json"))
        return value

    def items(self, *arguments: str) -> list[Json]:
        """Return the objects that `kubectl get` lists."""
        items: list[Json] = self.get(*arguments)["items"]
        return items

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        self("apply", "--server-side", "--filename=-", text=list_of(manifests))

    def logs(self, pod: str) -> str:
        return self("logs", pod)

    def wait_for_phase(self, pod: str, *phases: str, seconds: float = 60) -> Json:
        """Wait until a pod is in one of these phases, and return it."""

        def reached() -> Json | None:
            value = self.get("pod", pod)
            return value if value["status"].get("phase") in phases else None

        return wait_until(f"pod {pod} is {' or '.join(phases)}", reached, seconds, more=lambda: self.story(pod))

    def story(self, pod: str) -> str:
        """Return everything that the cluster knows about a pod: its description with events, and its logs."""
        parts = [self.try_to("describe", "pod", pod), self.try_to("logs", pod, "--all-containers")]
        return "\n".join(part.output + part.errors for part in parts)


def _program() -> str:
    """Return the cluster's own kubectl; for another cluster it need not be built."""
    built = path_of(KUBECTL)
    return str(built) if built.exists() else "kubectl"


def wait_until(
    what: str, attempt: Callable[[], Value | None], seconds: float = 60, more: Callable[[], str] = lambda: ""
) -> Value:
    """Wait until an attempt returns a true value, and return it.

    Raises:
        ClusterError: timeout; with the output of `more`.
    """
    deadline = time.monotonic() + seconds
    while not (value := attempt()):
        if time.monotonic() > deadline:
            raise ClusterError(f"not so after {seconds:.0f} s: {what}\n{more()}")
        time.sleep(0.1)
    return value


def list_of(manifests: Sequence[Mapping[str, Any]]) -> str:
    """Return a file with these objects: kubectl applies them one by one, and continues after a refused one."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def current_context(kubeconfig: Path) -> str:
    """Return the current context of a kubeconfig.

    Raises:
        ClusterError: the file cannot be read, or names none.
    """
    try:
        value = yaml.safe_load(kubeconfig.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ClusterError(f"{kubeconfig} cannot be read: {error}") from None
    context = value.get("current-context") if isinstance(value, dict) else None
    if not isinstance(context, str) or not context:
        raise ClusterError(f"{kubeconfig} names no current-context; set one with kubectl config use-context")
    return context


def check_test_context(context: str) -> None:
    """Reject clusters that may be in use: tests create, starve and delete objects.

    Raises:
        ClusterError: the name does not mark the cluster as a test cluster.
    """
    words = context.lower().replace("_", "-").replace("/", "-").replace("@", "-").replace(".", "-").split("-")
    if words[0] not in ("kind", "minikube", "k3d") and not {"test", "tests", "testing"} & set(words):
        raise ClusterError(
            f"the context {context!r} does not look like a test cluster's; tests run with contexts named kind-..., "
            "k3d-..., minikube, or with the word test in their name (kubectl config rename-context)"
        )
