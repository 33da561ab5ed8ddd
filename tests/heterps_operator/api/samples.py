"""Sample manifests, and ways to change them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.api.manifest import load_manifest
from heterps_operator.errors import ManifestError

CPU = """\
apiVersion: heterps.io/v1alpha1
kind: DevicePool
metadata: {name: cpu}
spec: {deviceType: CPU, unitsPerPod: 2, maxUnits: 8, pricePerUnitHour: "0.04"}
"""
GPU = """\
apiVersion: heterps.io/v1alpha1
kind: DevicePool
metadata: {name: v100}
spec: {deviceType: GPU, maxUnits: 8, pricePerUnitHour: "2.42"}
"""
JOB = """\
apiVersion: heterps.io/v1alpha1
kind: HeterPSJob
metadata: {name: flights}
spec:
  model: {entrypoint: "flights.model:build"}
  data: {train: data/train, label: late, dense: [distance], sparse: [carrier, origin]}
  training: {globalBatchSize: 4096}
  pools: [{name: cpu}, {name: v100}]
"""
FILE = f"{CPU}---\n{GPU}---\n{JOB}"


def parsed(text: str) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load(text)
    return value


def changed(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of a manifest with one field set; `...` removes it. Steps between dots are names or indices."""
    result = copy.deepcopy(manifest)
    place: Any = result
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    if value is ...:
        del place[last]
    elif isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return result


def dumped(*manifests: dict[str, Any]) -> str:
    """A file with these objects. JSON is YAML, but PyYAML would drop the quotes of "1e-8", which kubectl needs."""
    return "\n---\n".join(json.dumps(manifest) for manifest in manifests)


def refused(folder: Path, text: str) -> list[str]:
    """Return the problems of an invalid file, one per line."""
    file = folder / "job.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_manifest(file)
    lines = [str(problem) for problem in caught.value.problems]
    assert str(caught.value).splitlines()[-len(lines) :] == lines
    return lines
