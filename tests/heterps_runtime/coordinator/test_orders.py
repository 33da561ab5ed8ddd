"""Whatever order events come in, the coordinator commits every step once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heterps_runtime.contract import PlanDocument
from heterps_runtime.errors import ProtocolError
from heterps_runtime.wire.messages import Checkpoint, Commit, Generation, Ready
from tests.heterps_runtime.helpers.coordinator_world import Record, World
from tests.heterps_runtime.helpers.jobs import plan_document


class Interleavings(RuleBasedStateMachine):
    """Joins, losses, reports and checkpoints in any order: no step is committed twice or left out."""

    @initialize(cards=st.booleans(), servers=st.integers(1, 2), opens=st.booleans())
    def start(self, cards: bool, servers: int, opens: bool) -> None:
        self.world = World([("cpu", 0, 2), ("card" if cards else "cpu", 1, 2)], servers, opens=opens)
        self.core = self.world.core
        self.expected = 0  # next step to be committed
        self.seen = 0

    def member(self, number: int) -> str:
        return self.world.names[number % len(self.world.names)]

    @rule(number=st.integers(0, 5))
    def come(self, number: int) -> None:
        self.world.join(self.member(number))

    @rule()
    def everybody_comes(self) -> None:
        assert self.core.membership.roster is not None
        for name in self.world.names:
            if name not in self.core.membership.roster.present:
                self.world.join(name)

    @precondition(lambda self: not self.core.checkpoints.opened)
    @rule()
    def checkpoints_are_opened(self) -> None:
        assert self.world.told(Generation) == []
        self.world.open()

    @rule(number=st.integers(0, 5))
    def go(self, number: int) -> None:
        self.core.member_lost(self.member(number), "gone")

    @rule(workers=st.integers(1, 2))
    def rescale(self, workers: int) -> None:
        stages = [(pool, last, workers) for pool, last, _ in self.world.stages]
        self.core.set_plan(PlanDocument.from_json(plan_document(stages, self.world.servers)))

    @rule(number=st.integers(0, 5))
    def get_ready(self, number: int) -> None:
        self.world.say(self.member(number), Ready(self.core.membership.generation))

    @rule()
    def everybody_gets_ready(self) -> None:
        self.world.ready()

    @rule(number=st.integers(0, 3), ahead=st.integers(-2, 2))
    def report(self, number: int, ahead: int) -> None:
        name = self.world.workers[number]
        try:
            self.world.done(name, max(0, self.core.progress.committed + ahead))
        except ProtocolError as error:  # of a step that it cannot have begun; the server lets it join again
            self.core.member_lost(name, str(error))

    @rule(number=st.integers(1, 12))
    def everybody_reports(self, number: int) -> None:
        self.world.step(number)

    @rule()
    def ask_for_a_checkpoint(self) -> None:
        self.core.checkpoints.requested = True

    @precondition(lambda self: any(isinstance(m, Checkpoint) for _, m in self.world.sent))
    @rule(error=st.sampled_from(["", "", "disk full"]))
    def write_parts(self, error: str) -> None:
        self.world.write(error)

    @precondition(lambda self: bool(self.world.manifests))
    @rule()
    def write_manifest(self) -> None:
        barrier, progress = self.world.manifests.pop()
        assert progress["step"] == barrier.step
        assert barrier.folder not in self.world.discarded
        self.core.manifest_written(Record(barrier.step, barrier.folder))

    @invariant()
    def steps_follow_each_other(self) -> None:
        sent = self.world.sent
        for _, message in sent[self.seen :]:
            if isinstance(message, Generation) and message.restore is not None:
                self.expected = message.restore.step
            elif isinstance(message, Commit) and message.step != self.expected - 1:
                assert message.step == self.expected
                self.expected += 1
            if isinstance(message, Generation):
                assert message.committed == self.expected
        self.seen = len(sent)
        assert self.core.progress.committed == self.expected
        assert self.core.phase != "Failed"
        sizes = [self.core.progress.batch_size(s) for s in range(self.expected)] if self.expected else []
        assert self.core.progress.samples == sum(sizes)

    @invariant()
    def no_incomplete_plan_runs(self) -> None:
        if self.core.membership.running:
            assert self.core.membership.roster is not None
            assert self.core.membership.roster.viable()
            assert all(m.state == "ready" or m.waits for m in self.core.membership.roster.present.values())


Interleavings.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestInterleavings = Interleavings.TestCase
