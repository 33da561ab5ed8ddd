"""Pages: valid, self-contained, complete, and safe whatever the names in them are."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from heterps_operator.page.html import units_of
from heterps_operator.page.report_page import report_page
from heterps_operator.state.bill import Bill
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Failure, Phase, Status
from heterps_operator.terminal.report import build_report
from tests.heterps_operator.helpers.world import make_job
from tests.heterps_operator.page.samples import (
    HOSTILE,
    LAYERS,
    NOW,
    hostile_pages,
    pages,
    planned,
    problem,
    report,
)

VOID = {"meta"}
# Attributes with which elements load something; a fragment of the page itself is no load.
LOADING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}


class Page(HTMLParser):
    """Collects a page's elements and its text, and checks that tags are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] != "style":
            self.texts.append(data)

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return pages()


@pytest.fixture(params=["plan.html", "report.html"])
def text(request: pytest.FixtureRequest, texts: dict[str, str]) -> str:
    return texts[str(request.param)]


def svgs(text: str) -> list[ElementTree.Element]:
    """The SVG elements of a page that stand in no other one, as XML."""
    pieces, depth, begin = [], 0, 0
    for match in re.finditer(r"<(/?)svg\b", text):
        if not match[1]:
            begin = match.start() if depth == 0 else begin
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                pieces.append(text[begin : match.end() + 1])
    return [ElementTree.fromstring(piece) for piece in pieces]


def test_a_page_loads_and_runs_nothing(text: str) -> None:
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & {
        tag for tag, _ in page.elements
    }
    assert [a for _, a in page.elements if LOADING & set(a) or any(name.startswith("on") for name in a)] == []
    policy = next(a["content"] for a in page.find("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#pool-{i}" for i in range(8)} | {"#send", "#wait"}
    assert not re.search(r"https?:|//[a-z]", text)


def test_a_page_is_accessible_in_its_structure(text: str) -> None:
    page = Page(text)
    assert page.find("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(a.get("scope") in ("col", "row") for a in page.find("th"))
    identifiers = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))


def test_every_chart_has_a_title_and_a_description(text: str) -> None:
    for svg in svgs(text):
        if svg.get("role") == "img":
            assert [child.tag for child in svg][:2] == ["title", "desc"]
            assert all(child.text for child in list(svg)[:2])
        else:
            assert svg.get("aria-hidden") == "true"
    assert sum(svg.get("role") == "img" for svg in svgs(text)) >= 3


def test_no_shape_is_told_apart_by_its_colour_alone(texts: dict[str, str]) -> None:
    definitions = svgs(texts["report.html"])[0]
    patterns = {pattern.get("id"): pattern.findall("path") for pattern in definitions.iter("pattern")}
    drawn = [paths[0].get("d") if paths else "" for name, paths in patterns.items() if str(name).startswith("pool")]
    assert len(drawn) == len(set(drawn)) == 8


def test_a_plan_shows_its_layers_times_prices_and_reasons(texts: dict[str, str]) -> None:
    known, text = planned(problem()), Page(texts["plan.html"]).text
    plan = known.plan
    assert known.frontier is not None
    for layer in LAYERS:
        assert layer in text
    for stage in known.explanation.stages:
        compute = 1024 * (stage.compute_sequential + stage.compute_parallel)
        assert f"{stage.name} {' '.join(units_of(stage.units, stage.pool).split())}" in text
        assert f"{compute * 1e3:.3g} ms" in text
    assert f"{plan.throughput:,.0f} samples/s" in text
    assert f"${plan.cost_per_hour:.2f} per hour" in text
    for point in (known.frontier.points[0], known.frontier.points[-1]):
        assert f"{point.throughput:,.0f}" in text
    for other in known.explanation.alternatives:
        assert other.name in text
    assert "optimal (gap 0)" in text
    assert text.count(": chosen") == 1


def test_a_report_shows_what_was_measured_why_plans_changed_and_the_bill(texts: dict[str, str]) -> None:
    known = planned(problem())
    document, status = report(known)
    text = Page(texts["report.html"]).text
    measured = document["throughput"]["measuredSamplesPerSecond"]
    assert f"{measured:,.0f} samples/s" in text
    assert f"plan 3 {known.plan.throughput:,.0f} {measured:,.0f} -4.3 %" in text
    assert "plan 1 44,100 36,210 -17.9 %" in text
    for stage, seen in zip(known.explanation.stages, status.result["stages"] if status.result else (), strict=True):
        assert f"{stage.name} alone {stage.throughput:,.0f} {seen['samplesPerSecond']:,.0f}" in text
    assert "Plan 2: another number of units 2023-11-14T22:19:00Z measured 36,210 samples/s, the floor is 40,000" in text
    assert f"from {status.history[0].summary} to {status.history[1].summary}" in text
    for line in document["bill"]["pools"]:
        assert f"{line['pool']} {float(line['unitHours']):.4f} ${line['pricePerUnitHour']}" in text
    assert "AboveFloor: 45,470 samples/s, the floor is 40,000" in text
    assert "0.7913" in text
    assert "step 30,468 of 46,875" in text


def test_names_and_messages_cannot_become_elements() -> None:
    for text in hostile_pages():
        page = Page(text)
        assert page.find("script") == []
        assert HOSTILE in page.text
        svgs(text)


def test_a_failed_job_says_why() -> None:
    failure = Failure("BackoffLimitExceeded", "worker-0-0 ended", "worker-0-0", -9, ("last words", "killed"))
    document, status = report(planned(problem()), failure=failure)
    text = Page(report_page(document, status, "there is no profile of pool t4", "here", NOW)).text
    assert "BackoffLimitExceeded: worker-0-0 ended The last lines of worker-0-0: last words killed" in text
    assert "Alternatives and the frontier are missing: there is no profile of pool t4." in text


def test_a_job_without_plan_has_a_page() -> None:
    status = Status(phase=Phase.PROFILING).with_condition("Profiled", None, "Measuring", "", NOW)
    document = build_report(make_job(), status, Bill(), interrupted=False, logs="")
    text = Page(report_page(document, status, "there is no plan yet", "here", NOW)).text
    assert "Profiling · here" in text
    assert "there is no plan yet" in text


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (0, "The plan changed 2 times"),
        (1, "The last 2 plans"),
        (2, "Only the present plan"),
        (3, "Only the present plan"),
    ],
)
def test_the_history_says_how_much_of_it_is_known(first: int, words: str) -> None:
    known = planned(problem())
    document, status = report(known)
    status = replace(status, history=status.history[first:])
    assert words in Page(report_page(document, status, known, "here", NOW)).text


def test_every_layer_of_a_large_model_is_there() -> None:
    stages: list[dict[str, Any]] = [
        {
            "name": f"stage-{i}",
            "pool": f"pool-{i}",
            "firstLayer": 50 * i,
            "lastLayer": 50 * i + 49,
            "layers": [f"layer_{50 * i + j}" for j in range(50)],
            "units": 2,
            "pods": 2,
        }
        for i in range(12)
    ]
    servers = {"pool": "pool-0", "replicas": 3, "units": 3}
    status = Status(plan=JobPlan.from_json({"stages": stages, "parameterServer": servers}), plan_revision=1)
    document = build_report(make_job(), status, Bill(), interrupted=False, logs="")
    text = Page(report_page(document, status, "it is not known", "here", NOW)).text
    assert "600 layers in 12 stages" in text
    assert "3 parameter servers on pool-0 hold the rows" in text
    assert "layer_599" in text


@pytest.mark.parametrize(
    ("evaluation", "shown"),
    [
        ({"auc": 0.7913, "loss": 0.5, "samples": 400}, "Held-out AUC"),
        ({"accuracy": 0.9694, "loss": 0.5, "samples": 400}, "Held-out accuracy"),
        ({"auc": None, "loss": 0.5, "samples": 400}, "Held-out loss"),
    ],
)
def test_a_report_shows_the_figure_of_the_evaluation_that_says_most(evaluation: dict[str, Any], shown: str) -> None:
    known = planned(problem())
    document, status = report(known)
    text = Page(report_page({**document, "evaluation": evaluation}, status, known, "here", NOW)).text
    assert [name for name in ("Held-out AUC", "Held-out accuracy", "Held-out loss") if name in text] == [shown]
