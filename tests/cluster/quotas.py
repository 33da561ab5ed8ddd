"""CPU quotas of running pods: a simulated slow machine that can change at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster, cgroup_hierarchies

Json = dict[str, Any]

# Short, so that a pod is slow rather than stopped for a while, and the kernel's minimum quota is a twentieth of it.
PERIOD_MICROSECONDS = 20_000


def limit_processor(cluster: Cluster, pod: Json, cores: float) -> None:
    """Limit each container of a pod to a share of one processor.

    Args:
        cluster: the pod's cluster.
        pod: pod from the API server.
        cores: limit, at least 0.05.
    """
    quota = round(cores * PERIOD_MICROSECONDS)
    groups = _containers(cluster, str(pod["metadata"]["uid"]))
    assert groups, f"no control group of {pod['metadata']['name']}"
    for group in groups:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        else:
            # The two are written one after the other, and each intermediate pair must be valid too.
            (group / "cpu.cfs_quota_us").write_text("-1")
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota))


@contextlib.contextmanager
def preferred(cluster: Cluster) -> Iterator[None]:
    """Give the pods the processor time of their quotas, whatever else this machine runs."""
    most = {"cpu.weight": "10000", "cpu.shares": "262144"}
    tops = [top / cluster.place.folder.name for top in cgroup_hierarchies()]
    files = [top / name for top in tops for name in most if (top / name).exists()]
    before = {file: file.read_text() for file in files}
    for file in files:
        file.write_text(most[file.name])
    try:
        yield
    finally:
        for file, value in before.items():
            file.write_text(value)


def _containers(cluster: Cluster, uid: str) -> list[Path]:
    """Return the control groups of a pod's containers that limit the processor."""
    names = (f"pod{uid}", f"pod{uid.replace('-', '_')}.slice")
    found = []
    for top in cgroup_hierarchies():
        for name in names:
            for group in (top / cluster.place.folder.name).rglob(name):
                with contextlib.suppress(FileNotFoundError):
                    inner = [path for path in group.iterdir() if path.is_dir()]
                    limited = ("cpu.max", "cpu.cfs_quota_us")
                    found += [path for path in inner if any((path / file).exists() for file in limited)]
    return found
