"""What a disturbed connection does to the bytes that pass, as a broken network or middlebox would."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.faults.incident import Hit

__all__ = ["ONCE", "Disturbance"]

ONCE = frozenset({"corrupt", "duplicate", "reorder"})  # kinds that change one chunk; the others last for a time
_SLICES_PER_SECOND = 20


@dataclass
class Disturbance:
    """A disturbance of a link's connections.

    Attributes:
        kind: `delay`, `slow`, `corrupt`, `duplicate` or `reorder`.
        link: `CLIENT>LISTENER`.
        forward: direction, for kinds in `ONCE`; the others apply to both.
        until: monotonic seconds at which it ends; kinds in `ONCE` end with the chunk that they have changed.
        amount: `delay`: seconds per chunk; `slow`: bytes per second; `corrupt`: position in the chunk, 0 to 1.
        hit: set with the first chunk that it changes.
    """

    kind: str
    link: str
    forward: bool
    until: float
    amount: float
    hit: Hit = field(default_factory=Hit)

    def over(self, now: float) -> bool:
        """Whether it has no effect any more."""
        return now > self.until or (self.kind in ONCE and self.hit.happened)

    def applies(self, link: str, forward: bool, now: float) -> bool:
        """Whether it changes the next bytes of a connection."""
        return link == self.link and (self.kind not in ONCE or forward == self.forward) and not self.over(now)

    def shape(self, chunk: bytes) -> list[tuple[float, bytes]]:
        """Return the parts to forward instead of a chunk, each with the seconds to wait before it."""
        self.hit.happened = True
        match self.kind:
            case "delay":
                return [(self.amount, chunk)]
            case "slow":
                size = max(1, int(self.amount / _SLICES_PER_SECOND))
                parts = [chunk[i : i + size] for i in range(0, len(chunk), size)]
                return [(len(part) / self.amount, part) for part in parts]
            case "corrupt":
                changed = bytearray(chunk)
                changed[min(int(self.amount * len(chunk)), len(chunk) - 1)] ^= 0x10
                return [(0.0, bytes(changed))]
            case "duplicate":
                return [(0.0, chunk), (0.0, chunk)]
            case "reorder":
                half = len(chunk) // 2
                return [(0.0, chunk[half:]), (0.0, chunk[:half])]
        raise AssertionError(f"not a disturbance: {self.kind}")
