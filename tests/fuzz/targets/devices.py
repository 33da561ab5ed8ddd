"""Devices of DRA drivers, as the operator counts them for pools."""

from __future__ import annotations

import json
from collections.abc import Callable

from heterps_operator.api import cel
from heterps_operator.api.shapes import UnreadableError
from heterps_operator.controller.capacity.devices import DeviceCounter
from heterps_operator.controller.stores.devices import DeviceStores
from heterps_operator.kubernetes.reading import selectors
from heterps_operator.kubernetes.reading.readable import CLAIM, DEVICE_CLASS, SLICE, check
from heterps_operator.kubernetes.reading.selectors import SelectorError, Selectors
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.heterps_operator.helpers.devices import (
    DRIVER,
    card_node,
    card_pool,
    make_claim,
    make_class,
    make_device,
    make_slice,
)

_ERRORS = (UnreadableError, NotJsonError)
_OWN = f'device.attributes["{DRIVER}"]'
_MEMORY = f'device.capacity["{DRIVER}"].memory'
_EXPRESSIONS = (
    f'device.driver == "{DRIVER}" && {_OWN}.model in ["a100", "x"]',
    f'{_OWN}.model.lowerAscii().matches("a[0-9]+") || has({_OWN}.ecc) && !{_OWN}.ecc',
    f'{_MEMORY}.compareTo(quantity("40Gi")) > 0 && {_OWN}.driverVersion.isGreaterThan(semver("550.9.0"))',
    f'["a", "b"].exists(name, name in device.attributes["dra.example.org"]) ? {_OWN}.cores % 2 == 0 : false',
    "!device.allowMultipleAllocations && device.attributes.size() > 0 && duration('1s') < duration('2s')",
)
_DEVICE = make_device(
    "card-0",
    "a100",
    capacity={"memory": {"value": "80Gi"}},
    taints=[{"key": "driver.example.org/broken", "effect": "None"}],
    consumesCounters=[],
    allowMultipleAllocations=False,
)
_DEVICE["attributes"] |= {
    "cores": {"int": 108}, "ecc": {"bool": False}, "driverVersion": {"version": "550.54.15-rc.1"},
    "dra.example.org/numa": {"int": 1},
}  # fmt: skip
_CARDS = [_DEVICE, make_device("card-1")]
_LINES_OF_STEPS = 4_000_000  # of the steps that the selectors may take for a device, each about 120 lines of cel-python
_POOL, _NODES = card_pool(), [card_node("a"), card_node("b")]
_USERS = {"worker": ("card", 1), "other": ("other", 1)}
_DEFAULTS = {
    DEVICE_CLASS: make_class(_EXPRESSIONS[0], _EXPRESSIONS[2]),
    SLICE: make_slice("a", _CARDS),
    CLAIM: make_claim("worker", "a", "card-0"),
}


def _reader(kind: str) -> Callable[[bytes], None]:
    """Count devices after a watch has reported an object of a kind, beside sound ones of the others."""

    def read(data: bytes) -> None:
        if kind != CLAIM:  # which no selector reads
            _forget()
        item = parse(data)
        check(kind, item)
        stores = DeviceStores(served=True)
        for other, known in _DEFAULTS.items():
            stores.of(other).put(known)
        stores.of(kind).put(item)
        if kind == SLICE:  # one of an older generation, and one without a node
            stores.of(kind).put(make_slice("b", [_DEVICE]))
        _count(stores)
        stores.of(kind).remove(item)

    return read


def _count(stores: DeviceStores) -> None:
    found = DeviceCounter(stores).count(_POOL, _NODES, _USERS)
    assert found is not None
    for offer in found.offers.values():
        assert 0 <= offer.left <= offer.whole
        assert 0 <= offer.orphaned <= offer.whole - offer.left
    for note in found.notes:
        note.encode()


def _select(data: bytes) -> None:
    """Evaluate a selector for a device."""
    _forget()
    Selectors([{"cel": {"expression": data.decode("utf-8", "replace")}}]).select(DRIVER, _DEVICE)


def _forget() -> None:
    """Forget what earlier inputs have left, which would hide what an input costs."""
    selectors._evaluate.cache_clear()
    cel._program.cache_clear()


def _seeds(kind: str) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(_DEFAULTS[kind]).encode()]


TARGETS = [
    Target("devices.slice", _reader(SLICE), _ERRORS, _seeds(SLICE), Form.JSON, lines_per_byte=200.0),
    Target(
        "devices.class",
        _reader(DEVICE_CLASS),
        _ERRORS,
        _seeds(DEVICE_CLASS),
        Form.JSON,
        lines=len(_CARDS) * _LINES_OF_STEPS,
        lines_per_byte=1000.0,
        memory_per_byte=4096.0,
    ),
    Target("devices.claim", _reader(CLAIM), _ERRORS, _seeds(CLAIM), Form.JSON),
    Target(
        "devices.selector",
        _select,
        (SelectorError,),
        lambda: [text.encode() for text in _EXPRESSIONS],
        Form.TEXT,
        longest=2048,
        lines=_LINES_OF_STEPS,
        lines_per_byte=1000.0,
    ),
]
