"""Which run of a job may change the checkpoints of a path: the one that took them over last.

    CHECKPOINT_PATH/owners/
        000000004-5f2c9a11.json    term 4, held by the run that drew 5f2c9a11

A controller may believe that a run's processes are gone although they still reach the storage, for example on a node
that is cut off from the cluster. A run therefore takes over the path before it reads a checkpoint, with a term greater
than all others, and looks again before it writes a manifest, deletes a checkpoint or replaces the model. If it finds a
greater term, it has been fenced: it must not change anything, and ends. The term is drawn here and not by the
controller, whose own count begins again when its state is lost or when a job is created anew for the same path.

The name of a record says everything that the decision needs, so the storage need not create files exclusively: if two
runs take the path over at the same time, the names have an order, and the lesser one is fenced. What remains possible
is written in docs/decisions/0025-fencing-of-checkpoints.md.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

from heterps_runtime.checkpoint.errors import FencedError
from heterps_runtime.storage import Storage, StorageError

__all__ = ["Ownership", "owner_of", "take_over"]

_FOLDER = "owners"
_VERSION = 1
_NAME = re.compile(rf"{_FOLDER}/(\d{{9,}})-([0-9a-f]{{8}})\.json")
_Claim = tuple[int, str]  # (term, random hexadecimal digits), in the order of precedence


@dataclass(frozen=True)
class Ownership:
    """A run's right to change the checkpoints of a path.

    Attributes:
        term: grows each time that a run takes the path over; from 1.
    """

    storage: Storage
    term: int
    identity: str  # eight hexadecimal digits, drawn by the run

    def check(self) -> None:
        """Check that no other run has taken the path over.

        Raises:
            FencedError: one has, or this run's record was removed.
            StorageError: the records cannot be listed.
        """
        claims = _claims(self.storage)
        mine = (self.term, self.identity)
        newer = [claim for claim in claims if claim > mine]
        if newer:
            other = _described(self.storage, max(newer))
            raise FencedError(
                f"another run of {other} has taken over {self.storage.address}; this run (term {self.term}) changes "
                "nothing there any more. Give every job its own checkpoint.path"
            )
        if mine not in claims:
            raise FencedError(
                f"the record {self.storage.path(_name(mine))} of this run was removed; start the job again"
            )


def take_over(storage: Storage, job: str, time: float) -> Ownership:
    """Take over the checkpoints of a path; the runs that had them before are fenced from then on.

    Args:
        storage: the path.
        job: name of the job, for messages.
        time: of the takeover, Unix seconds, for people.

    Raises:
        StorageError: the record cannot be written, or the records cannot be listed.
    """
    identity = secrets.token_hex(4)
    while True:
        term = max((term for term, _ in _claims(storage)), default=0) + 1
        mine = (term, identity)
        record = {"version": _VERSION, "term": term, "job": job, "since": time}
        storage.write_atomic(_name(mine), json.dumps(record, indent=1).encode())
        claims = _claims(storage)
        if claims and claims[-1] == mine:
            break
        storage.delete(_name(mine))  # another run took the path over at the same moment
    for claim in claims[:-1]:
        storage.delete(_name(claim))
    return Ownership(storage, term, identity)


def owner_of(storage: Storage) -> str | None:
    """Describe the run that holds the checkpoints of a path: "job flights (term 3)"; None if none has held them.

    Raises:
        StorageError: the records cannot be listed.
    """
    claims = _claims(storage)
    return _described(storage, claims[-1]) if claims else None


def _claims(storage: Storage) -> list[_Claim]:
    """All claims, in the order of precedence."""
    matches = [match for match in map(_NAME.fullmatch, storage.files(_FOLDER)) if match]
    return sorted((int(match[1]), match[2]) for match in matches)


def _name(claim: _Claim) -> str:
    term, identity = claim
    return f"{_FOLDER}/{term:09d}-{identity}.json"


def _described(storage: Storage, claim: _Claim) -> str:
    """The job behind a claim, for messages."""
    try:
        return f"job {json.loads(storage.read(_name(claim)))['job']} (term {claim[0]})"
    except (StorageError, ValueError, KeyError, TypeError, RecursionError):
        return f"an unknown job (term {claim[0]})"
