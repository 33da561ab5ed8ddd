"""The process annotation of pods: only what HeterPS can have written is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.kubernetes.names import ANNOTATION_PROCESS
from heterps_operator.kubernetes.reading.processes import process_of, process_text
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.documents import SPECS

NAMES = {
    "coordinator": st.just("coordinator"),
    "ps": st.from_regex(r"\Aps-[0-9]{1,4}\Z"),
    "worker": st.from_regex(r"\Aworker-[0-9]{1,4}-[0-9]{1,4}\Z"),
    "profile": st.from_regex(r"\Aprofile-[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?\Z"),
}
HUGE = 10**30
GOOD = {
    "name": "worker-0-1", "role": "worker", "stage": 0, "index": 1, "pool": "cpu", "units": 2, "threads": 2,
    "incarnation": 1, "attempt": 1,
}  # fmt: skip


def pod(text: str | None) -> dict[str, Any]:
    annotations = {} if text is None else {ANNOTATION_PROCESS: text}
    return {"metadata": {"name": "p", "annotations": annotations}}


@st.composite
def processes(draw: st.DrawFn) -> ProcessSpec:
    role = draw(st.sampled_from(sorted(NAMES)))
    pool = draw(st.none() | st.text(min_size=1, max_size=5))
    return ProcessSpec(
        draw(NAMES[role]),
        Role(role),
        pool,
        draw(st.integers(0, 64)) if pool else 0,
        draw(st.integers(1, 64)),
        stage=draw(st.none() | st.integers(0, 64)),
        index=draw(st.none() | st.integers(0, 64)),
        incarnation=draw(st.integers(1, 9)),
        attempt=draw(st.integers(1, 9)),
    )


@settings(max_examples=50, derandomize=True)
@given(processes())
def test_a_pod_says_itself_what_it_runs(spec: ProcessSpec) -> None:
    assert process_of(pod(process_text(spec))) == spec


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_what_jobs_are_made_of_is_read(spec: ProcessSpec) -> None:
    assert process_of(pod(process_text(spec))) == spec


def test_keys_of_a_later_version_are_passed_over() -> None:
    assert process_of(pod(json.dumps({**GOOD, "zone": "a"}))).name == "worker-0-1"


PATH = "metadata.annotations[heterps.io/process]"
MALFORMED: list[tuple[str, Any, str]] = [
    ("units", "1", 'units must be a whole number from 0 to 1000000, is "1"'),
    ("units", 1_000_000_000, "units must be a whole number from 0 to 1000000, is 1000000000"),
    ("units", HUGE, "units must be a whole number from 0 to 1000000, is a number out of range"),
    ("units", -1, "units must be a whole number from 0 to 1000000, is -1"),
    ("units", True, "units must be a whole number from 0 to 1000000, is true"),
    ("units", 1.5, "units must be a whole number from 0 to 1000000, is 1.5"),
    ("units", None, "units must be there, is missing"),
    ("role", "king", 'role must be one of coordinator, ps, worker, profile, is "king"'),
    ("role", ["ps"], "role must be one of coordinator, ps, worker, profile, is a list of 1"),
    ("name", "ps-0", 'name must be the name of a process of the role worker, is "ps-0"'),
    ("name", "worker-0-1\n", 'name must be the name of a process of the role worker, is "worker-0-1\\n"'),
    ("name", "", 'name must be a text of 1 to 80 characters, is ""'),
    ("stage", "0", 'stage must be a whole number from 0 to 2147483647, is "0"'),
    ("stage", -1, "stage must be a whole number from 0 to 2147483647, is -1"),
    ("index", 1.5, "index must be a whole number from 0 to 2147483647, is 1.5"),
    ("pool", 7, "pool must be a text of 1 to 63 characters, is 7"),
    ("pool", "", 'pool must be a text of 1 to 63 characters, is ""'),
    ("pool", None, "units must be 0 where no pool is named, is 2"),
    ("threads", 0, "threads must be a whole number from 1 to 1000000, is 0"),
    ("incarnation", 0, "incarnation must be a whole number from 1 to 2147483647, is 0"),
    ("attempt", "1", 'attempt must be a whole number from 1 to 2147483647, is "1"'),
    ("attempt", {}, "attempt must be a whole number from 1 to 2147483647, is an object"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "words"), MALFORMED, ids=[f"{f}={str(v)[:12]}" for f, v, _ in MALFORMED])
def test_what_heterps_cannot_have_written_is_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        process_of(pod(json.dumps({**GOOD, field: value})))
    assert str(refused.value) == f"{PATH}.{words}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "must be a text of 1 to 2048 characters, is missing"),
        ("", 'must be a text of 1 to 2048 characters, is ""'),
        ("{", 'must be the JSON object that HeterPS writes, is "{"'),
        ("[]", "must be an object, is a list of 0"),
        ("7", "must be an object, is 7"),
        ("[" * 2048, "must be the JSON object that HeterPS writes, is a text of 2048 characters"),
        ("[" * 2049, "must be a text of 1 to 2048 characters, is a text of 2049 characters"),
        ('{"units": ' + "9" * 2000 + "}", ".name must be there, is missing"),
    ],
    ids=["none", "empty", "cut", "list", "number", "deep", "large", "huge number"],
)
def test_what_is_no_process_is_refused(text: str | None, words: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        process_of(pod(text))
    assert str(refused.value).removeprefix(PATH).strip() == words
