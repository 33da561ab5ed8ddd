"""CEL selectors of devices decide as the scheduler does."""

from __future__ import annotations

import tracemalloc

import pytest

from heterps_operator.kubernetes.reading.selectors import SelectorError, selects
from tests.heterps_operator.helpers.devices import DRIVER, make_class

DEVICE = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "Example-A100-80G"},
        "cores": {"int": 108},
        "ecc": {"bool": False},
        "driverVersion": {"version": "550.54.15"},
        "dra.example.org/numa": {"int": 1},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}
OWN = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (f'device.driver == "{DRIVER}"', True),
        ('device.driver == "other.example.com"', False),
        (f'{OWN}.model == "Example-A100-80G"', True),
        (f'{OWN}.model.lowerAscii().matches("a100")', True),
        (f'{OWN}["model"] in ["a", "b"]', False),
        (f"{OWN}.cores >= 108 && !{OWN}.ecc", True),
        (f"has({OWN}.ecc) && {OWN}.ecc", False),
        (f"has({OWN}.missing)", False),
        (f'"missing" in {OWN}', False),
        ('device.attributes["dra.example.org"].numa == 1', True),
        # A domain that the device lacks is empty; a name that it lacks is an error unless another part decides.
        ('has(device.attributes["other.example.com"].model)', False),
        ('"model" in device.attributes["other.example.com"]', False),
        ('device.driver == "o" && device.attributes["other.example.com"].model == "x"', False),
        ('device.attributes["other.example.com"].model == "x" && device.driver == "o"', False),
        (f'{MEMORY}.compareTo(quantity("40Gi")) > 0', True),
        (f'{MEMORY}.isLessThan(quantity("80Gi"))', False),
        (f'{MEMORY} == quantity("81920Mi")', True),
        (f'{OWN}.driverVersion.isGreaterThan(semver("550.9.0"))', True),
        (f'{OWN}.driverVersion.compareTo(semver("550.54.15")) == 0', True),
        ("!device.allowMultipleAllocations", True),
    ],
)
def test_an_expression_has_the_scheduler_s_value(expression: str, expected: bool) -> None:
    assert selects(make_class(expression)["spec"]["selectors"], DRIVER, DEVICE) is expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (f'{OWN}.missing == "x"', "missing"),
        ('device.attributes["other.example.com"].model == "x"', "model"),
        (f'{OWN}.model.isGreaterThan(quantity("1"))', "no such overload"),
        (f'{OWN}.driverVersion.isGreaterThan(quantity("1"))', "no such overload"),
        (f'semver("1").isLessThan({OWN}.driverVersion)', "semver"),
        (f"{OWN}.cores", "is no condition"),
        ("int(1e400) == 1", "int(1e400) == 1"),  # beyond what cel-python expects
        ('["a"].exists(1, true)', "exists"),
        ("device.driver ==", "device.driver =="),
        ("(" * 2000 + "true" + ")" * 2000, "("),
        (f"cel.bind(own, {OWN}, own.ecc)", "cel.bind"),  # cel-python has no such macro
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_an_error_that_says_why(expression: str, words: str) -> None:
    with pytest.raises(SelectorError) as failed:
        selects(make_class(expression)["spec"]["selectors"], DRIVER, DEVICE)
    assert words in str(failed.value)
    assert len(str(failed.value)) <= 200


def test_a_device_must_fulfil_all_selectors_and_a_class_without_any_has_every_device() -> None:
    two = make_class(f'device.driver == "{DRIVER}"', f"{OWN}.cores > 200")["spec"]["selectors"]
    assert not selects(two, DRIVER, DEVICE)
    assert selects(two[:1], DRIVER, DEVICE)
    assert selects([], DRIVER, DEVICE)


def test_a_selector_of_a_later_kubernetes_is_an_error() -> None:
    with pytest.raises(SelectorError, match="another kind than cel"):
        selects([{"rego": {"expression": "true"}}], DRIVER, DEVICE)


@pytest.mark.parametrize("operator", ["&&", "||"])
def test_many_errors_in_one_expression_take_little_memory(operator: str) -> None:
    """A selector for the devices of one driver fails at those of another one, in each of its parts."""
    expression = f" {operator} ".join(f'device.attributes["other.example.com"].a{i} == "x"' for i in range(20))
    tracemalloc.start()
    try:
        with pytest.raises(SelectorError, match="a0"):
            selects(make_class(expression)["spec"]["selectors"], DRIVER, DEVICE)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
