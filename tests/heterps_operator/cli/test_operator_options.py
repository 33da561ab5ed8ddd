"""Options of `heterps operator`."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from heterps_operator.cli.options.operator import add_operator_options


def parser() -> ArgumentParser:
    made = ArgumentParser()
    add_operator_options(made)
    return made


def test_prometheus_reads_the_metrics_of_jobs_unless_peers_are_given() -> None:
    prometheus = {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    assert parser().parse_args([]).metrics_from == [{"namespaceSelector": {}, "podSelector": prometheus}]
    assert parser().parse_args(['--metrics-from=[{"ipBlock": {"cidr": "10.0.0.0/8"}}]']).metrics_from == [
        {"ipBlock": {"cidr": "10.0.0.0/8"}}
    ]
    assert parser().parse_args(["--metrics-from=[]"]).metrics_from == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prometheus", "must be JSON"),
        ("[" * 10_000, "must be JSON"),
        ("{}", "must be a list of NetworkPolicyPeers"),
        ('["prometheus"]', "must be a list of NetworkPolicyPeers"),
        ("[{}]", "must be a list of NetworkPolicyPeers"),
    ],
)
def test_what_is_no_list_of_peers_is_refused(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([f"--metrics-from={text}"])
    assert words in capsys.readouterr().err
