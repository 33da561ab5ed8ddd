"""Jobs with encryption: the same model as plain PyTorch, and nothing for a stranger who records all bytes."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_PLAN
from heterps_runtime.wire.link import Credentials
from heterps_runtime.wire.messages import Forward
from heterps_runtime.worker.exchange.peers import Downstream
from tests.heterps_runtime.helpers.jobs import TOKEN, Stage, ThreadedJob, configuration, plan_document, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.heterps_runtime.helpers.wiretap import Wiretap
from tests.same_model import assert_same_model

STAGES: list[Stage] = [("cpu", 8, 2), ("cpu", 10, 1)]
SERVERS = 2


@pytest.mark.parametrize("encryption", ["Required", "Disabled"])
def test_a_stranger_on_the_network_learns_nothing_of_a_job_that_encrypts(
    encryption: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job without encryption shows that the stranger would see everything."""
    document = configuration(tmp_path / "job")
    document["job"]["spec"]["encryption"] = encryption
    sent: list[Forward] = []
    forward = Downstream.send

    def record(downstream: Downstream, worker: int, message: Forward) -> None:
        sent.append(message)
        forward(downstream, worker, message)

    monkeypatch.setattr(Downstream, "send", record)
    tap = Wiretap()
    tap.tap_listeners(monkeypatch)
    job = ThreadedJob(document)
    job.credentials = Credentials(tap.tap(job.credentials.url), job.credentials.security)
    job.start(STAGES, SERVERS)
    try:
        model = trained_model(job.wait())
    finally:
        job.close()
        tap.close()
    assert not job.failures, "\n".join(job.failures)
    assert_same_model(model, train(RunConfig.from_json(document), torch.float64))

    # The coordinator's HTTP, two sockets of each member to it, workers to servers, workers to the next stage.
    assert tap.connections >= 5 + 2 * 5 + 3 * SERVERS + 2
    assert len(sent) >= 2 * 24
    secrets = {"the token": TOKEN.encode(), "a member's name": b"worker-0-1"}
    secrets |= {f"row {i}": row.tobytes() for i, row in enumerate(model["embeddings.carrier.weight"])}
    secrets |= {f"tensor {name}": array.tobytes() for name, array in sent[0].tensors.items()}
    assert len(secrets) > 23, "activations and the label are among them"
    in_clear = encryption == "Disabled"
    assert {name: tap.heard(secret) for name, secret in secrets.items()} == dict.fromkeys(secrets, in_clear)


def test_a_plan_with_a_link_in_clear_is_refused(tmp_path: Path) -> None:
    """All-reduce is not encrypted; a single worker does not all-reduce."""
    document = configuration(tmp_path / "job")
    document["job"]["spec"]["encryption"] = "Required"
    job = ThreadedJob(document)
    text = r"^HTTP Error 400: plan\.stages\[1\]\.pods: must be 1 with spec\.encryption Required, is 2"
    with pytest.raises(urllib.error.HTTPError, match=text):
        job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 8, 2), ("card", 10, 2)], 1))
    job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 8, 2), ("card", 10, 1)], 1))
    job.close()
