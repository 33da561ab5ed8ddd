"""Options of commands whose values are documents, files or addresses."""

from __future__ import annotations

from argparse import ArgumentTypeError

from heterps_operator.cli.options.operator import _peers
from heterps_operator.cli.plans.files import read_json
from heterps_operator.errors import UsageError
from heterps_operator.measure.measurement import PrometheusServer
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.files import memory_file


def _read_peers(data: bytes) -> None:
    for peer in _peers(data.decode(errors="replace")):
        assert isinstance(peer, dict)


def _read_file(data: bytes) -> None:
    with memory_file(data) as path:
        read_json(str(path), "--problem")


def _read_address(data: bytes) -> None:
    PrometheusServer(data.decode(errors="replace"))


TARGETS = [
    Target("options.peers", _read_peers, (ArgumentTypeError,),
           lambda: [b'[{"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}]'], Form.JSON),
    Target("options.file", _read_file, (UsageError,), lambda: [b'{"layers": []}'], Form.JSON),
    Target("options.prometheus", _read_address, (UsageError,), lambda: [b"http://prometheus.monitoring:9090/path"],
           Form.TEXT, longest=512),
]  # fmt: skip
