"""The order of semantic versions."""

from __future__ import annotations

import itertools

import pytest

from heterps_operator.api.semver import Version

# The example of https://semver.org, and some releases.
ORDERED = (
    "0.9.10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
    "1.0.0-rc.1", "1.0.0", "1.2.0", "1.10.0", "2.0.0",
)  # fmt: skip


def test_versions_have_the_order_of_the_standard() -> None:
    for earlier, later in itertools.combinations(map(Version.parse, ORDERED), 2):
        assert earlier < later
        assert later > earlier
        assert earlier != later


def test_build_metadata_has_no_precedence() -> None:
    assert Version.parse("1.0.0+linux.5") == Version.parse("1.0.0")


@pytest.mark.parametrize("text", ["1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0 ", "", "1.0.0.0"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no semantic version, such as 1\.2\.3"):
        Version.parse(text)
