"""Ids: what a column's values become, and that plain Python gives the same."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_runtime.data.ids import MISSING_ID, column_ids, list_ids, text_id
from tests.heterps_runtime.helpers.data_files import properties


def feature_id(value: int | str | None) -> int:
    """The rule as the module's documentation gives it to users."""
    if isinstance(value, int):
        return value
    return int.from_bytes(hashlib.blake2b((value or "").encode(), digest_size=8).digest(), "little", signed=True)


def test_the_hash_of_a_text_never_changes() -> None:
    # Trained models hold these numbers: another value here would break every one of them.
    assert text_id("AA") == -7269185837285224124
    assert MISSING_ID == text_id("") == text_id(b"")


@properties
@given(st.lists(st.one_of(st.none(), st.text(max_size=8)), max_size=40))
def test_text_columns_follow_the_rule_for_users(values: list[str | None]) -> None:
    expected = [feature_id(v) for v in values]
    assert column_ids(pa.array(values, pa.string())).tolist() == expected
    assert column_ids(pa.array(values, pa.large_string())).tolist() == expected
    assert column_ids(pa.array(values, pa.string()).dictionary_encode()).tolist() == expected


@properties
@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=40))
def test_integer_columns_keep_their_values(values: list[int | None]) -> None:
    assert column_ids(pa.array(values, pa.int64())).tolist() == [feature_id(v) for v in values]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int32(), pa.uint64()])
def test_integers_of_any_width_are_the_same_ids(kind: pa.DataType) -> None:
    assert column_ids(pa.array([0, 7, 100, None], kind)).tolist() == [0, 7, 100, MISSING_ID]


def test_large_unsigned_integers_become_their_twos_complement() -> None:
    assert column_ids(pa.array([2**64 - 1, 2**63], pa.uint64())).tolist() == [-1, -(2**63)]


def test_booleans_are_0_and_1() -> None:
    assert column_ids(pa.array([True, False, None])).tolist() == [1, 0, MISSING_ID]


def test_a_column_without_any_value_is_missing_throughout() -> None:
    assert column_ids(pa.nulls(3)).tolist() == [MISSING_ID] * 3


def test_dictionaries_of_integers_give_the_integers() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 1], pa.int8()), pa.array([30, 40]))
    assert column_ids(array).tolist() == [40, 30, MISSING_ID, 40]


def test_a_missing_value_inside_a_dictionary_is_missing() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["AA", None]))
    assert column_ids(array).tolist() == [text_id("AA"), MISSING_ID]


def test_slices_are_read_from_their_start() -> None:
    array = pa.array(["a", "b", None, "c"]).slice(1, 3)
    assert column_ids(array).tolist() == [text_id("b"), MISSING_ID, text_id("c")]
    lists = pa.array([["a"], ["b", "c"], None, [], ["d"]]).slice(1)
    ids, lengths = list_ids(lists)
    assert ids.tolist() == [text_id(t) for t in "bcd"]
    assert lengths.tolist() == [2, 0, 0, 1]


def test_ids_modulo_a_table_are_never_negative() -> None:
    ids = column_ids(pa.array([f"N{i}" for i in range(1000)]))
    assert (ids < 0).any()
    rows = np.remainder(ids, 997)
    assert rows.min() >= 0
    assert rows.max() < 997
    assert rows.tolist() == [feature_id(f"N{i}") % 997 for i in range(1000)]
