"""Terminal output for invalid input: `heterps run` with the real runtime, to its end.

Each case costs the seconds that torch takes to load, so there is one of each kind (other wordings are tested
elsewhere), they run two at a time, and the tests check their results.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.data.order import BatchOrder
from tests.heterps_operator.helpers.real_job import BATCH, ROWS, RealJob, Result, columns

SEED = 17
NAN_STEP = 60
MANY_ROWS = 80 * BATCH  # so that one epoch is more than NAN_STEP steps


def with_label(value: int) -> dict[str, Any]:
    data = columns()
    return {**data, "late": np.where(np.arange(ROWS) == 7, value, data["late"])}


def with_extreme_at(step: int) -> dict[str, Any]:
    """One sample with a number that overflows in every model here, and that the given step is the first to use."""
    data = columns(MANY_ROWS)
    data["distance"][BatchOrder(MANY_ROWS, BATCH, SEED).rows(step, 3, 4)[0]] = 3e38
    return data


def corrupt_data(job: RealJob) -> None:
    (job.folder / "data" / "part-0.parquet").write_bytes(b"PAR1, it says, and then nothing of the kind" * 50)


@dataclass(frozen=True)
class Case:
    spec: Mapping[str, Any] = field(default_factory=dict)
    data: Callable[[], Mapping[str, Any]] = columns
    prepare: Callable[[RealJob], None] = lambda job: None
    profiled: bool = False  # False: the profiler is the first to meet the input, as in any first run
    arguments: tuple[str, ...] = ()


CASES = {
    "corrupt data": Case(prepare=corrupt_data, arguments=("--output", "json")),
    "label of 3": Case(data=lambda: with_label(3), profiled=True),
    "branching": Case({"model__entrypoint": "small_model:build_branching"}, arguments=("--quiet",)),
    "floor": Case({"objective__minSamplesPerSecond": 100_000_000, "scheduling": None}, profiled=True),
    "NaN": Case(
        {"training__seed": SEED, "model__entrypoint": "small_model:build_squaring", "checkpoint__everySteps": 5},
        data=lambda: with_extreme_at(NAN_STEP),
        profiled=True,
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Result]]]:
    def run(case: Case, folder: Path) -> Result:
        job = RealJob(folder / "here", case.data(), profiled=case.profiled, **case.spec)
        case.prepare(job)
        return job.run(*case.arguments)

    with ThreadPoolExecutor(2) as pool:
        # The factory is not made for threads.
        yield {name: pool.submit(run, case, tmp_path_factory.mktemp("job")) for name, case in CASES.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        (
            "label of 3",
            2,
            r"spec\.data\.label: column 'late' must be 0 or 1 .*, but is 3 in row 8 of .*part-0\.parquet; correct",
        ),
        ("floor", 3, r"no plan reaches 100,000,000 samples/s: the pools allow [\d,]+ samples/s; .*raise maxUnits"),
    ],
)
def test_wrong_input_is_named_with_its_value_and_what_to_do(
    case: str, code: int, words: str, runs: Mapping[str, Future[Result]]
) -> None:
    result = runs[case].result()
    assert re.search(words, result.text), result.text
    assert result.code == code, result.text
    assert "restarts in" not in result.text


@pytest.mark.slow
def test_a_file_that_is_no_parquet_is_named_in_a_document_for_programs(runs: Mapping[str, Future[Result]]) -> None:
    report = runs["corrupt data"].result().report()
    assert (report["phase"], report["exitCode"], report["failure"]["reason"]) == ("Failed", 2, "DataError")
    assert "part-0.parquet: cannot be read as parquet" in report["failure"]["message"]
    assert report["failure"]["member"] == "profile-cpu"
    assert report["failure"]["lastLines"]


@pytest.mark.slow
def test_a_model_that_cannot_be_traced_is_shown_by_line_even_to_those_who_want_quiet(
    runs: Mapping[str, Future[Result]],
) -> None:
    result = runs["branching"].result()
    source = (Path(__file__).parents[1] / "helpers" / "small_model.py").read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if "if dense.sum() > 0" in text)
    assert (result.code, result.out) == (2, ""), result.text
    assert f"small_model.py:{line}" in result.err


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_the_job_and_names_step_and_checkpoint(
    runs: Mapping[str, Future[Result]],
) -> None:
    result = runs["NaN"].result()
    assert result.code == 1, result.text
    found = re.search(r"NaNLoss: the loss of step (\d+) is not finite .*checkpoint is step (\d+)\. Lower", result.text)
    assert found is not None, result.text
    assert int(found[1]) == NAN_STEP
    assert 0 < int(found[2]) <= NAN_STEP  # a checkpoint of n steps holds steps 0 to n - 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pools": [{"name": "cpuu"}]}, r"spec\.pools\[0\]\.name: .*cpuu.*cpu"),
        ({"training__globalBatchSize": 0}, r"spec\.training\.globalBatchSize: .*0"),
        ({"training__optimizer__dense": {"name": "adam", "beta1": "1.5"}}, r"dense\.beta1: .*1\.5"),
        ({"training__optimizer__dense": {"name": "adam", "learningrate": "1"}}, r"learningrate.*learningRate"),
        (
            {"scheduling__stages": [{"pool": "gpu", "lastLayer": "output"}]},
            r"spec\.scheduling\.stages: every stage's pool must be one of",
        ),
    ],
)
def test_a_wrong_manifest_is_refused_before_anything_starts(
    changes: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from heterps_operator.__main__ import main

    job = RealJob(tmp_path / "job", profiled=False, **changes)
    monkeypatch.chdir(job.folder)
    assert main(["run", "job.yaml", "--output", "json"]) == 2
    out, err = capsys.readouterr()
    assert re.search(words, err), err
    document = Result(2, out, err).report()
    assert document["failure"]["reason"] == "BadInput"
    assert re.search(words, document["failure"]["message"])
    assert not job.work.exists()


@pytest.mark.parametrize(("price", "words"), [("-1", "-1"), ("1e99", "1e99"), ("cheap", "cheap")])
def test_a_price_out_of_range_is_refused(
    price: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from heterps_operator.__main__ import main

    job = RealJob(tmp_path / "job", profiled=False)
    text = (job.folder / "job.yaml").read_text()
    assert "pricePerUnitHour: '0.04'" in text
    (job.folder / "job.yaml").write_text(text.replace("pricePerUnitHour: '0.04'", f"pricePerUnitHour: '{price}'"))
    monkeypatch.chdir(job.folder)
    assert main(["run", "job.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "DevicePool cpu: spec.pricePerUnitHour: " in err
    assert words in err


def test_a_port_that_is_taken_is_said_in_a_document_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from heterps_operator.__main__ import main

    job = RealJob(tmp_path / "job")
    monkeypatch.chdir(job.folder)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert main(["run", "job.yaml", "--port", str(port), "--output", "json"]) == 2
    out, err = capsys.readouterr()
    words = f"--port {port}: cannot listen on it (Address already in use); choose another"
    assert words in err
    assert words in Result(2, out, err).report()["failure"]["message"]
