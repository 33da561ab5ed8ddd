"""What the demonstrations print: commands, a job's line whenever it changes, and its result."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.cluster.kubectl import Kubectl, wait_until

__all__ = ["print_result", "print_text", "say", "watch"]

_FINAL = ("Succeeded", "Failed", "Suspended")
_PATIENCE_SECONDS = 900


def watch(kubectl: Kubectl, job: str) -> str:
    """Print a job's line whenever it changes, until it has ended; return the last phase."""
    began, shown = time.monotonic(), ""

    def ended() -> str | None:
        nonlocal shown
        phase = kubectl("get", "heterpsjob", job, "--output=jsonpath={.status.phase}")
        head, _, row = kubectl("get", "heterpsjob", job).strip().partition("\n")
        line = row.rsplit(maxsplit=1)[0]  # without the age, which always changes
        if not shown:
            print_text(f"  time  {head}")
        if line != shown:
            shown = line
            print_text(f"{time.monotonic() - began:5.0f}s  {row}")
        return phase if phase in _FINAL else None

    return wait_until("the job has ended", ended, _PATIENCE_SECONDS)


def print_result(kubectl: Kubectl, job: str, shared: Path) -> None:
    """Print what came out, and the bill."""
    status = json.loads(kubectl("get", "heterpsjob", job, "--output=jsonpath={.status}"))
    evaluation, cost = status.get("evaluation") or {}, status.get("cost") or {}
    say(f"{status['phase']}: {status.get('message') or 'the job is done'}")
    print_text(f"held-out AUC {evaluation.get('auc')}, log loss {evaluation.get('logLoss')}")
    print_text(f"throughput {status['throughput'].get('samplesPerSecond')} samples/s, plan {status['plan']['summary']}")
    print_text(f"bill ${cost.get('total')}")
    print_text(f"model {shared / job / 'model'} (in pods: {status.get('model')})")


def say(line: str) -> None:
    """Print a command after a prompt, and anything else as it is."""
    print_text(f"\n$ {line}" if line.startswith(("kubectl", "heterps", "helm")) else line)


def print_text(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()
