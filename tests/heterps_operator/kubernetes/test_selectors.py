"""CEL selectors of devices decide as the scheduler does."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from heterps_operator.documents import Json
from heterps_operator.kubernetes.reading import selectors
from heterps_operator.kubernetes.reading.selectors import SelectorError, Selectors
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
EIGHT = "[1, 2, 3, 4, 5, 6, 7, 8]"


def _select(device: Json, *expressions: str) -> bool:
    return Selectors(make_class(*expressions)["spec"]["selectors"]).select(DRIVER, device)


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
    assert _select(DEVICE, expression) is expected


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
        _select(DEVICE, expression)
    assert words in str(failed.value)
    assert len(str(failed.value)) <= 240


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        # Nested macros: 8^5 sums; a text, a list and a tree that double again and again.
        (f"{EIGHT}.all(a, {EIGHT}.all(b, {EIGHT}.all(c, {EIGHT}.all(d, {EIGHT}.all(e, a+b+c+d+e > 0)))))", "steps"),
        ('["ab"]' + ".map(a, a + a)" * 30 + ".size() > 0", "steps"),
        (f"[{EIGHT}]" + ".map(a, a + a)" * 13 + ".size() > 0", "steps"),
        ("[1]" + ".map(a, [a, a])" * 30 + ".size() > 0", "steps"),
        (f'device.driver == "{"x" * 10_240}"', "at most 10,240"),
        # The lexer would try all ways to read their escape sequences.
        ("device.driver == '" + "\\" * 2_000 + "x", "a text has no end"),
        ("device.driver == '''" + "\r" * 2_000, "a text has no end"),
        ('device.driver == "' + "\\123" * 500 + '\n"', "a text has no end"),
        ('r"\\" + "\'' + "\\" * 200 + '" == device.driver', "no text may be raw"),
    ],
)  # fmt: skip
def test_what_costs_too_much_is_an_error_that_says_so(expression: str, words: str) -> None:
    with pytest.raises(SelectorError, match=words):
        _select(DEVICE, expression)


def test_the_selectors_of_a_class_share_the_steps_for_a_device() -> None:
    half = f"{EIGHT}.all(a, {EIGHT}.all(b, [1, 2, 3, 4].all(c, a+b+c > 0)))"
    assert _select(DEVICE, half)
    with pytest.raises(SelectorError, match="20,000 steps for one device"):
        _select(DEVICE, half, f"{half} || false")


def test_the_devices_of_a_class_share_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "_MOST_STEPS_OF_ALL", 1000)
    both = Selectors(make_class(f"{OWN}.cores + 1 > 0")["spec"]["selectors"])
    devices = [{**DEVICE, "attributes": {"cores": {"int": cores}}} for cores in range(100)]
    assert all(both.select(DRIVER, device) for device in devices[:10])
    with pytest.raises(SelectorError, match="1,000 steps for all devices"):
        all(both.select(DRIVER, device) for device in devices)


def test_texts_with_many_escape_sequences_are_read() -> None:
    pattern = "|".join(f"{model}\\\\.[0-9]+\\\\s?" for model in ("a100", "h100", "x", "y", "z"))  # 20 backslashes
    assert _select(DEVICE, f'"a100.80".matches("^({pattern})$") // it\'s a comment')
    assert _select(DEVICE, f"'''a100.80'''.matches('''^({pattern})$''') && \"\\\\\" == '\\\\'")


def test_an_expression_of_the_length_that_kubernetes_allows_is_evaluated() -> None:
    expression = " && ".join(f"{OWN}.cores > {i}" for i in range(100))
    assert 4_000 < len(expression) < 10_240
    assert _select(DEVICE, expression)


def test_a_device_must_fulfil_all_selectors_and_a_class_without_any_has_every_device() -> None:
    two = (f'device.driver == "{DRIVER}"', f"{OWN}.cores > 200")
    assert not _select(DEVICE, *two)
    assert _select(DEVICE, two[0])
    assert Selectors([]).select(DRIVER, DEVICE)


def test_a_selector_of_a_later_kubernetes_is_an_error() -> None:
    with pytest.raises(SelectorError, match="another kind than cel"):
        Selectors([{"rego": {"expression": "true"}}]).select(DRIVER, DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        # A selector for the devices of one driver fails at those of another one, in each of its parts.
        *(f" {o} ".join(f'device.attributes["o.example.com"].a{i} == "x"' for i in range(20)) for o in ("&&", "||")),
        *(f"{list(range(20))}.{macro}(i, device.attributes['o.example.com'].a0 == i)" for macro in ("all", "exists")),
    ],
)
def test_many_errors_in_one_expression_take_little_memory(expression: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SelectorError, match="a0"):
            _select(DEVICE, expression)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


BOTH_AT_ONCE = """
import threading
from heterps_operator.api import cel
from heterps_operator.kubernetes.reading.selectors import Selectors

barrier, done = threading.Barrier(4), []

def rule():
    barrier.wait()
    done.append(cel.holds("self.x > 1", {"x": 2}))

def selector():
    barrier.wait()
    found = Selectors([{"cel": {"expression": "device.driver == 'a'"}}])
    done.append(found.select("a", {"attributes": {"model": {"string": "x"}}}))

threads = [threading.Thread(target=target) for target in (rule, selector, rule, selector)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert done == [True] * 4, done
"""


def test_threads_may_use_cel_for_the_first_time_at_once() -> None:
    """A job's rules and the selectors of devices are evaluated in different threads of the operator."""
    ran = subprocess.run([sys.executable, "-c", BOTH_AT_ONCE], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
