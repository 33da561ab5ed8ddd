"""What is installed and built before a cluster is started, so that nothing has to be fetched while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from tests.cluster.building import FOR_TESTS, Program, Say, build
from tests.cluster.requirements import install_packages
from tests.cluster.schemas import make_schemas


def prepare(programs: Sequence[Program], say: Say) -> None:
    """Install packages and build programs that are not there.

    Raises:
        ClusterError: it fails, or there is no Go that can.
    """
    install_packages(say)
    build(programs, say)


def prepare_tests(say: Say) -> None:
    """The same, with everything that the tests need.

    Raises:
        ClusterError: it fails, or there is no Go that can.
    """
    prepare(FOR_TESTS, say)
    make_schemas(say)
