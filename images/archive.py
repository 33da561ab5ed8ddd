"""What is in an image's archive."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

__all__ = ["layer_sizes"]


def layer_sizes(archive: Path) -> list[int]:
    """Return the bytes of an image's layers, not compressed, the base first."""
    with tarfile.open(archive) as opened:
        member = opened.extractfile("manifest.json")
        assert member is not None, "manifest.json is no file"
        [image] = json.load(member)
        return [opened.getmember(name).size for name in image["Layers"]]
