"""The line of jobs that wait for units: priority, shares of namespaces, waiting, and no starvation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_operator.control.queueing.waiting import describe_place
from heterps_operator.control.queueing.waiting_line import Contest, FreeUnits, LineState, WaitingJob, covers, form_line
from heterps_operator.state.values import Place

NOW = 10_000.0
PATIENCE = 300.0
NEW, OLD = NOW - 10, NOW - 1_000
NOTHING = {"cpu": 0, "gpu": 0}
MOST = {"cpu": 8, "gpu": 4}

Units = Mapping[str, int]


def job(key: str, claim: Units | None = None, since: float | None = NEW, **more: Any) -> WaitingJob:
    """A job that has been refused with nothing, unless said otherwise."""
    return WaitingJob(key, ("cpu", "gpu"), MOST, since=since, claim=dict(claim or {}), **more)


def tried(entry: WaitingJob, **limits: int) -> WaitingJob:
    """The same job after it was refused with these limits."""
    return replace(entry, refused=({**NOTHING, **limits},))


def free(cpu: int = 0, gpu: int = 0, **held: int) -> FreeUnits:
    return FreeUnits({"cpu": cpu, "gpu": gpu}, MOST, {(name, "cpu"): units for name, units in held.items()})


def line(jobs: list[WaitingJob], units: FreeUnits, **more: Any) -> LineState:
    return form_line(jobs, units, **{"now": NOW, "patience": PATIENCE, **more})


def cpus(state: LineState) -> dict[str, int]:
    return {key: found.units["cpu"] for key, found in state.allotments.items()}


def places(state: LineState) -> list[str]:
    """Keys in the order of the places for the cpu."""
    placed = {key: found.place for key, found in state.allotments.items() if found.place is not None}
    return sorted(placed, key=lambda key: placed[key].number)


LARGE = tried(job("ml/large", {"cpu": 8}), cpu=3)


def test_who_has_nobody_ahead_gets_what_is_free_and_the_first_try_with_it() -> None:
    state = line([tried(job("ml/a", {"cpu": 8}), cpu=2), job("ml/new", since=None)], free(cpu=3))
    assert state.allotments["ml/a"].units == {"cpu": 3, "gpu": 0}
    assert state.allotments["ml/a"].tries
    assert cpus(state)["ml/new"] == 0, "until it has been planned with them"
    assert state.spare["cpu"] == 0


def test_what_a_job_cannot_use_now_is_lent_to_its_equals_until_it_has_waited_for_long() -> None:
    new = job("ml/new", since=None)
    state = line([LARGE, new], free(cpu=3))
    assert (cpus(state)["ml/new"], state.until) == (3, NEW + PATIENCE)
    assert state.spare["cpu"] == 0, "running jobs do not grow into what a waiting one claims"
    aged = replace(LARGE, since=OLD)
    assert cpus(line([aged, new], free(cpu=3)))["ml/new"] == 0
    assert cpus(line([aged, new], free(cpu=5)))["ml/new"] == 0, "first try with more"
    assert cpus(line([tried(aged, cpu=8), new], free(cpu=9)))["ml/new"] == 1, "only its claim is kept"


def test_claimed_units_are_for_no_job_of_lower_priority() -> None:
    low, equal = job("ml/low", since=None, priority=-1), job("ml/equal", since=None)
    state = line([low, LARGE, equal], free(cpu=3))
    assert cpus(state) == {"ml/low": 0, "ml/equal": 3, "ml/large": 0}
    assert cpus(line([replace(low, priority=1), LARGE], free(cpu=3)))["ml/low"] == 3, "of higher priority it is ahead"


def test_claims_are_capped_by_what_is_free_and_end_where_the_pools_are_too_small() -> None:
    low = job("ml/low", since=None, priority=-1)
    assert cpus(line([replace(LARGE, claim={"cpu": 2}), low], free(cpu=3)))["ml/low"] == 1
    assert cpus(line([replace(LARGE, claim={"cpu": 9}), low], free(cpu=3)))["ml/low"] == 3, "it could never be met"
    assert cpus(line([replace(LARGE, claim={}), low], free(cpu=3)))["ml/low"] == 3


def test_jobs_of_namespaces_with_equal_shares_alternate_and_the_smaller_share_is_first() -> None:
    jobs = [
        tried(job(f"{name}/{n}", {"cpu": 2}, NEW + i))
        for i, (name, n) in enumerate([("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)])
    ]
    assert places(line(jobs, free())) == ["a/1", "b/1", "a/2", "b/2", "a/3"]
    assert places(line(jobs, free(a=4)))[:3] == ["b/1", "b/2", "a/1"]
    first = replace(jobs[2], priority=5)
    assert places(line([*jobs[:2], first, *jobs[3:]], free(a=4)))[0] == "a/3", "priority goes before the share"


def test_what_a_namespace_holds_of_other_pools_makes_its_job_wait_for_nobody() -> None:
    jobs = [tried(job("a/gpu", {"gpu": 2}, NEW)), tried(job("b/gpu", {"gpu": 2}, NEW + 1))]
    state = line(jobs, free(cpu=1, a=6))
    assert state.allotments["a/gpu"].place == Place(1, "gpu")
    assert state.allotments["b/gpu"].place == Place(2, "gpu", "a/gpu", 0)


def test_who_waits_for_jobs_of_its_own_namespace_keeps_nothing_from_others() -> None:
    aged = replace(tried(LARGE, cpu=3), since=OLD)
    units = replace(free(cpu=3), left={("ml", "cpu"): 3})
    state = line([aged, job("other/new", since=None), job("ml/new", since=None)], units)
    assert cpus(state) == {"ml/large": 0, "other/new": 3, "ml/new": 0}


def test_profilers_take_what_they_need_and_no_more() -> None:
    first = job("ml/first", {"cpu": 1}, measures=True)
    second = job("ml/second", {"cpu": 1}, NEW + 1, measures=True)
    state = line([first, second, job("ml/new", since=None)], free(cpu=2))
    assert [state.allotments[key].tries for key in ("ml/first", "ml/second")] == [True, True]
    assert cpus(state) == {"ml/first": 2, "ml/second": 1, "ml/new": 0}


# --- planned together -------------------------------------------------------------------------------------------------


def test_jobs_that_have_more_to_be_planned_with_are_a_contest_and_nobody_gets_it_meanwhile() -> None:
    jobs = [
        job("ml/a", {"gpu": 1}),
        job("ml/b", {"gpu": 1}, NEW + 1),
        job("ml/new", since=None),
        job("ml/c", priority=-1),
    ]
    state = line(jobs, free(cpu=8, gpu=1))
    assert state.contest is not None
    assert [entry.key for entry in state.contest.jobs] == ["ml/a", "ml/b"]
    assert (state.contest.limits, state.contest.fits) == ({"cpu": 8, "gpu": 1}, False)
    assert all(found.units == NOTHING for found in state.allotments.values())
    deciding = line(jobs, free(cpu=8, gpu=1), deciding=frozenset({"ml/a", "ml/b"}))
    assert (deciding.contest, deciding.allotments) == (None, state.allotments)


def test_offers_are_set_apart_and_others_get_the_rest() -> None:
    jobs = [job("ml/a", {"gpu": 1}), job("ml/b", {"gpu": 1}, NEW + 1), job("ml/new", since=None)]
    offers = {"ml/a": {"cpu": 5}, "ml/b": {"gpu": 1}}
    state = line(jobs, free(cpu=8, gpu=1), offers=offers)
    assert [dict(state.allotments[key].units) for key in ("ml/a", "ml/b", "ml/new")] == [
        {"cpu": 5}, {"gpu": 1}, {"cpu": 3, "gpu": 0},
    ]  # fmt: skip
    assert state.contest is None
    lost = line(jobs, free(cpu=4, gpu=1), offers=offers)
    assert lost.allotments["ml/b"].units == {"gpu": 1}
    assert lost.allotments["ml/a"].units != {"cpu": 5}, "the pool has lost the units"


def test_jobs_that_fit_beside_each_other_need_no_planner() -> None:
    state = line([job("ml/a", {"gpu": 1}), job("ml/b", {"cpu": 8}, NEW + 1)], free(cpu=8, gpu=1))
    assert state.contest is not None
    assert state.contest.fits


@pytest.mark.parametrize("which", ["alone", "stalled"])
def test_jobs_are_planned_one_by_one_where_planning_together_failed(which: str) -> None:
    jobs = [job("ml/a", {"gpu": 1}), job("ml/b", {"gpu": 1}, NEW + 1)]
    state = line(jobs, free(gpu=1), **{which: frozenset({"ml/a", "ml/b"})})
    assert state.contest is None
    assert state.allotments["ml/a"].units["gpu"] == 1
    assert state.allotments["ml/a"].tries == (which == "alone"), (
        "a job that had a try for too long keeps the rest from no other"
    )
    assert state.allotments["ml/b"].units["gpu"] == (0 if which == "alone" else 1)


def test_nobody_is_planned_together_with_jobs_ahead_of_one_whose_claim_is_kept() -> None:
    kept = tried(job("ml/kept", {"cpu": 8}, OLD), cpu=8, gpu=4)
    state = line([kept, job("ml/a", {"gpu": 2}), job("ml/b", {"gpu": 2}, NEW + 1)], free(cpu=3, gpu=2))
    assert state.contest is None
    assert state.allotments["ml/a"].units == {"cpu": 0, "gpu": 2}


# --- what people are told ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (Place(1, "gpu"), "1st in line for pool gpu"),
        (Place(2, "gpu", "ml/train-7", 1000), "2nd in line for pool gpu, behind ml/train-7 (priority 1000)"),
        (Place(3, "cpu", "a/b"), "3rd in line for pool cpu, behind a/b (priority 0)"),
        (Place(10, "cpu", "a/b"), "10th in line for pool cpu, behind a/b (priority 0)"),
        (Place(11, "cpu", "a/b"), "more than 10 jobs are ahead of it in line for pool cpu"),
        (Place(20, "cpu", "a/b"), "more than 10 jobs are ahead of it in line for pool cpu"),
        (Place(400, "cpu", "a/b"), "more than 200 jobs are ahead of it in line for pool cpu"),
    ],
)
def test_a_place_is_told_so_that_it_changes_rarely(place: Place, told: str) -> None:
    assert describe_place(place) == told


def test_a_place_counts_the_jobs_that_claim_the_pool_it_lacks() -> None:
    jobs = [
        tried(job("ml/a", {"cpu": 8})),
        tried(job("ml/b", {"gpu": 4}, NEW + 1)),
        tried(job("ml/c", {"cpu": 1, "gpu": 1}, NEW + 2, priority=-3)),
    ]
    state = line(jobs, free(gpu=1))
    assert state.allotments["ml/c"].place == Place(2, "cpu", "ml/a", 0)


# --- properties -------------------------------------------------------------------------------------------------------

amounts = st.fixed_dictionaries({}, optional={"cpu": st.integers(0, 9), "gpu": st.integers(0, 5)})
entries = st.builds(
    lambda name, claim, since, priority, refused, measures: WaitingJob(
        name, ("cpu", "gpu"), MOST, priority, since, claim, measures, (refused,) if refused else ()
    ),
    st.sampled_from(["a", "b", "c"]).flatmap(lambda ns: st.integers(0, 5).map(lambda n: f"{ns}/{n}")),
    amounts,
    st.one_of(st.none(), st.floats(NOW - 2 * PATIENCE, NOW)),
    st.integers(-1, 1),
    amounts,
    st.booleans(),
)
lines = st.lists(entries, max_size=8, unique_by=lambda entry: entry.key)


@given(lines, st.integers(0, 8), st.integers(0, 4), st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_unit_is_given_to_two_jobs_and_no_limit_is_exceeded(
    jobs: list[WaitingJob], cpu: int, gpu: int, data: st.DataObject
) -> None:
    left = {("a", "cpu"): data.draw(st.integers(0, 8))}
    offers = {entry.key: data.draw(amounts) for entry in jobs if data.draw(st.booleans())}
    state = line(jobs, replace(free(cpu, gpu), left=left), offers=offers)
    total = {"cpu": 0, "gpu": 0}
    of_a = 0
    assert set(state.allotments) == {entry.key for entry in jobs}
    for entry in jobs:
        found = state.allotments[entry.key]
        for pool, units in found.units.items():
            assert 0 <= units <= {"cpu": cpu, "gpu": gpu}[pool]
        if found.tries:
            offered = found.units == offers.get(entry.key)
            own = entry.claim if entry.measures and not offered else found.units
            for pool in total:
                total[pool] += min(own.get(pool, 0), found.units.get(pool, 0))
            if entry.namespace == "a":
                of_a += min(own.get("cpu", 0), found.units.get("cpu", 0))
    assert total["cpu"] + state.spare["cpu"] <= cpu
    assert total["gpu"] + state.spare["gpu"] <= gpu
    assert of_a <= left["a", "cpu"]


@given(lines, st.integers(0, 8), st.integers(0, 4), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_job_of_lower_priority_takes_nothing_from_a_higher_one(
    jobs: list[WaitingJob], cpu: int, gpu: int, random: Any
) -> None:
    state = line(jobs, free(cpu, gpu))
    for top in {entry.priority for entry in jobs}:
        upper = [entry for entry in jobs if entry.priority >= top]
        alone = line(upper, free(cpu, gpu))
        for entry in upper:
            assert state.allotments[entry.key].units == alone.allotments[entry.key].units
    shuffled = list(jobs)
    random.shuffle(shuffled)
    assert line(shuffled, free(cpu, gpu)).allotments == state.allotments, "the order of the entries does not matter"


@dataclass
class Pool:
    """One pool of cpus whose jobs run for a time and need exactly their claims; each second all get a turn."""

    size: int
    now: float = 0.0
    running: dict[str, tuple[int, float]] = field(default_factory=dict)  # units, and the end
    waiting: dict[str, WaitingJob] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def submit(self, key: str, units: int, priority: int = 0) -> None:
        self.waiting[key] = WaitingJob(key, ("cpu",), {"cpu": self.size}, priority, None, {"cpu": units})

    @staticmethod
    def admits(contest: Contest, left: int) -> str:
        """Return the first of those planned together that fits, as the planner does."""
        for entry, kept in zip(contest.jobs, contest.kept, strict=True):
            if entry.claim["cpu"] <= left:
                return entry.key
            if kept:
                break
        return ""

    def step(self, seconds: dict[str, float]) -> None:
        self.now += 1
        self.running = {key: entry for key, entry in self.running.items() if entry[1] > self.now}
        for key in sorted(self.waiting, key=lambda key: self.waiting[key].since is not None):  # newcomers are faster
            entry, units = self.waiting[key], self.waiting[key].claim["cpu"]
            held: dict[tuple[str, str], int] = {}
            for other, (number, _) in self.running.items():
                place = other.partition("/")[0], "cpu"
                held[place] = held.get(place, 0) + number
            left = self.size - sum(number for number, _ in self.running.values())
            assert left >= 0
            known = [w if w.since is not None else replace(w, claim={}) for w in self.waiting.values()]
            state = form_line(known, FreeUnits({"cpu": left}, {"cpu": self.size}, held), now=self.now, patience=20)
            room = state.allotments[key].units["cpu"]
            if state.contest is not None and any(e.key == key for e in state.contest.jobs):
                room = left if self.admits(state.contest, left) == key else 0
            if units <= room:
                del self.waiting[key]
                self.running[key] = units, self.now + seconds.get(key, 5.0)
                self.started.append(key)
            else:
                since = self.now if entry.since is None else entry.since
                self.waiting[key] = replace(entry, since=since, refused=({"cpu": room},))


@pytest.mark.parametrize("namespace", ["ml", "other"])
@pytest.mark.parametrize("patient", [True, False])
@given(size=st.integers(4, 8), small=st.integers(1, 3), lasts=st.integers(1, 9))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_a_large_job_does_not_starve_in_an_endless_stream_of_small_ones(
    patient: bool, namespace: str, size: int, small: int, lasts: int
) -> None:
    pool = Pool(size)
    for second in range(70):
        while len(pool.waiting) < 4 + (second > 5):  # there are always more than the pool can carry
            pool.submit(f"ml/small-{second:03d}-{len(pool.waiting)}", small)
        if second == 5:
            pool.submit(f"{namespace}/large", size)
        pool.step(dict.fromkeys(pool.waiting, float(lasts)))
        if not patient:  # who is not served at once is replaced by a new job, which has not been refused yet
            pool.waiting = {key: entry for key, entry in pool.waiting.items() if key.endswith("large")}
        if f"{namespace}/large" in pool.started:
            break
    assert pool.started[-1] == f"{namespace}/large"
    assert len(pool.started) >= size // small


def test_two_namespaces_share_a_pool_whatever_they_submit() -> None:
    pool = Pool(6)
    shares = []
    for second in range(40):
        for name, number in (("a", 6), ("b", 3 if second > 2 else 0)):
            for index in range(number - sum(key.startswith(name) for key in pool.waiting)):
                pool.submit(f"{name}/{second:02d}-{index}", 1)
        pool.step({})
        shares.append(sum(key.startswith("b/") for key in pool.running))
    assert shares[20:] == [3] * 20, "half of the pool"


def test_a_refusal_covers_smaller_limits() -> None:
    assert covers({"cpu": 3, "gpu": 1}, {"cpu": 3, "gpu": 0})
    assert not covers({"cpu": 3, "gpu": 1}, {"cpu": 4, "gpu": 0})
    assert not covers({}, {})
