"""Which image a container runs: a tag such as `:latest` may stand for another image today than yesterday. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import CONTAINER

__all__ = ["RunningImage", "image_id", "moved_images"]


@dataclass(frozen=True)
class RunningImage:
    """What a process runs."""

    process: str
    pool: str
    image: str  # `image_id`


def image_id(pod: Json) -> str:
    """Return the image of the runtime's container as the kubelet reports it; empty: it does not yet.

    Source: `status.containerStatuses[].imageID`, which is the digest in the registry, `NAME@sha256:DIGEST`, or, of an
    image that came from no registry, the digest of its configuration, `sha256:DIGEST`.
    """
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            found = container.get("imageID")
            return found if isinstance(found, str) else ""
    return ""


def moved_images(measured: Mapping[str, str], running: Iterable[RunningImage]) -> dict[str, RunningImage]:
    """Return, by pool, a process whose image is another one than that with which the pool was measured.

    Args:
        measured: images of the profiles, by pool; empty: not known.
        running: what the job's processes run.
    """
    moved: dict[str, RunningImage] = {}
    for process in running:
        before = measured.get(process.pool)
        if before and process.image and _differ(before, process.image):
            moved.setdefault(process.pool, process)
    return moved


def _differ(one: str, other: str) -> bool:
    """Whether two IDs are of different images. Digests of different kinds cannot be compared, and say nothing."""
    (_, one_kind, digest), (_, other_kind, other_digest) = one.rpartition("@"), other.rpartition("@")
    return one_kind == other_kind and digest != other_digest
