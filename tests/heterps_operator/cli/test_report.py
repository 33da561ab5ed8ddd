"""`heterps report` of jobs of this machine; those of a cluster are in test_cluster.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs


@pytest.fixture
def folder(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(job_file.parent)
    monkeypatch.setenv("FAKE_SCENARIO", "{}")
    return job_file.parent


def test_a_trained_job_has_a_page_and_the_report_of_its_run(folder: Path, programs: Programs, capsys: Any) -> None:
    assert main(["run", "job.yaml", "--output", "json"], programs) == 0
    ran = json.loads(capsys.readouterr().out)
    assert main(["report", "job.yaml"]) == 0
    assert capsys.readouterr().out == "tiny: report written to tiny.html\n"
    text = (folder / "tiny.html").read_text()
    for words in (
        "Succeeded",
        "Plan 1: first plan",
        "What speed costs",
        "50,000 samples/s",
        "predicted: 52,000",
        "0.7100",
    ):
        assert words in text
    assert main(["report", "job.yaml", "--html", "other.html", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == ran
    assert (folder / "other.html").exists()


def test_a_changed_floor_is_the_reason_for_the_second_plan(folder: Path, programs: Programs, capsys: Any) -> None:
    manifest = folder / "job.yaml"
    text = manifest.read_text()
    manifest.write_text(f"{text}  mode: Plan\n")
    assert main(["run", "job.yaml"], programs) == 0
    manifest.write_text(text.replace("minSamplesPerSecond: 20000", "minSamplesPerSecond: 30000"))
    assert main(["run", "job.yaml"], programs) == 0
    assert main(["report", "job.yaml"]) == 0
    page = (folder / "tiny.html").read_text()
    assert "Plan 2: another plan" in page
    assert "pools, objective or scheduling have changed" in page


def test_without_profiles_the_page_says_what_is_missing(folder: Path, programs: Programs, capsys: Any) -> None:
    assert main(["run", "job.yaml"], programs) == 0
    for path in (folder / ".heterps/tiny/cache/profiles").iterdir():
        path.unlink()
    assert main(["report", "job.yaml"]) == 0
    page = (folder / "tiny.html").read_text()
    assert "Alternatives and the frontier are missing: there is no profile of pool cpu, accelerator." in page


def test_a_job_that_never_ran_is_refused_and_leaves_no_folder(folder: Path, capsys: Any) -> None:
    assert main(["report", "job.yaml"]) == 2
    err = capsys.readouterr().err
    assert ".heterps/tiny: there is no run of job tiny here; heterps run job.yaml starts one" in err
    assert not (folder / ".heterps").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("job.yaml", "--html", "none/a.html"), "--html none/a.html: its folder does not exist"),
        (("job.yaml", "--html", "a.txt"), "--html a.txt: must end in .html or .htm"),
        (("tiny", "--work-directory", "w"), "--work-directory: is for a job of this machine"),
        (("job.yaml", "--namespace", "team"), "--namespace: is for a job on a cluster"),
        (("Tiny/x",), "must be a name of a-z, 0-9, '-' and '.', is 'Tiny/x'"),
        (("none.yaml",), "none.yaml: the file does not exist"),
    ],
)
def test_mistakes_are_explained(folder: Path, arguments: tuple[str, ...], words: str, capsys: Any) -> None:
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err
