"""Installation and builds before a cluster starts, so that nothing is fetched while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from images.building import Builder, BuildError, is_current

from tests.cluster.building import FOR_TESTS, Program, Say, build
from tests.cluster.debian import unpack
from tests.cluster.errors import ClusterError
from tests.cluster.fetching import fetch
from tests.cluster.kueue import make_manifests
from tests.cluster.requirements import install_packages
from tests.cluster.schemas import make_schemas


def prepare(programs: Sequence[Program], say: Say) -> None:
    """Install missing packages and build missing programs.

    Raises:
        ClusterError: it fails, or no suitable Go is installed.
    """
    install_packages(say)
    build(programs, say)


def prepare_tests(say: Say) -> None:
    """The same, with everything that the tests need.

    Raises:
        ClusterError: it fails, or no suitable Go is installed.
    """
    prepare(FOR_TESTS, say)
    make_schemas(say)
    make_manifests(say)
    unpack(say)
    fetch(say)
    _build_image(say)


def _build_image(say: Say) -> None:
    """Build the operator's image, unless it is that of the present code."""
    if is_current("operator"):
        return
    try:
        builder = Builder(say)
        builder.build("operator", builder.default_base())
    except BuildError as error:
        raise ClusterError(str(error)) from None
