"""Jobs with the addresses and ports of pods: one address for each process, and IPv6."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.wire.ports import Ports
from tests.heterps_runtime.helpers.jobs import (
    Stage,
    ThreadedJob,
    configuration,
    finish,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

# The first stage all-reduces; the second one listens for the first.
STAGES: list[Stage] = [("card", 8, 2), ("cpu", 10, 1)]
PORTS = Ports(messages=7402, rendezvous=7403, metrics=7401)


_blocks = itertools.count(os.getpid() * 4)  # of 16 addresses; runs beside this one have others


def own_addresses() -> Callable[[str], str]:
    """A loopback address for each process, as each pod has one."""
    first = int(IPv4Address("127.64.0.0")) + (next(_blocks) % 2**18) * 16
    names = ("coordinator", "ps-0", "ps-1", "worker-0-0", "worker-0-1", "worker-1-0")
    return lambda process: str(IPv4Address(first + 1 + names.index(process)))


@pytest.mark.parametrize("encryption", ["Disabled", "Required"])
def test_a_job_with_ipv6_addresses_trains_the_model_of_plain_torch(encryption: str, tmp_path: Path) -> None:
    document = configuration(tmp_path / "job")
    document["job"]["spec"]["encryption"] = encryption
    job = ThreadedJob(document, host=lambda process: "::1")
    assert job.credentials.url.startswith("https://[::1]:" if encryption == "Required" else "http://[::1]:")
    # All-reduce cannot be encrypted, so a job that encrypts has one worker there.
    status = finish(job, STAGES if encryption == "Disabled" else [("card", 8, 1), ("cpu", 10, 2)], 2)
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))


def test_processes_with_an_address_each_share_fixed_ports(tmp_path: Path) -> None:
    document = configuration(tmp_path / "job")
    job = ThreadedJob(document, host=own_addresses(), ports=PORTS)
    status = finish(job, STAGES, 2)
    assert {member["metricsPort"] for member in status["members"]} == {PORTS.metrics}
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))
