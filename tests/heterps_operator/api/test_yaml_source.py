"""YAML is parsed as kubectl parses it, and errors name their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.manifest import load_manifest
from heterps_operator.api.yaml_source import path_text, read_documents
from heterps_operator.errors import ManifestError
from tests.heterps_operator.api.samples import FILE, refused


def value_of(text: str) -> Any:
    [document], problems = read_documents(text, "f.yaml")
    assert problems == []
    return document.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-7", -7), ("0x10", 16), ("0b11", 3), ("010", 8), ("0o10", 8), ("08", 8), ("1_000", 1000),
        ("1.5", 1.5), ("2.0", 2), ("1e6", 1000000), (".5", 0.5), ("1e-3", 0.001),
        ("true", True), ("On", True), ("y", True), ("n", False), ("Off", False), ("no", False),
        ("", None), ("~", None), ("null", None),
        ("yess", "yess"), ("1:30", "1:30"), ("2013-01-01", "2013-01-01"), ("=", "="), ("1.2.3", "1.2.3"), ("e6", "e6"),
        ('"1"', "1"), ("'y'", "y"), ("!!str 1", "1"), ("|\n  a\n", "a\n"),
    ],
)  # fmt: skip
def test_a_scalar_means_what_kubectl_takes_it_for(text: str, value: Any) -> None:
    read = value_of(f"a: {text}")["a"]
    assert read == value
    assert type(read) is type(value)


def test_merged_mappings_give_way_to_own_fields() -> None:
    text = "base: &b {x: 1, y_: 2}\nmore: &m {<<: *b, z: 3}\nown: {x: 9, <<: [*m, {z: 4, w: 5}]}\n"
    assert value_of(text)["own"] == {"x": 9, "y_": 2, "z": 3, "w": 5}


def test_every_field_knows_its_line() -> None:
    [document], _ = read_documents("# remark\na:\n  - b: 1\n    c: 2\n  - 3\n", "f.yaml")
    assert document.line == 2
    assert document.source_of(("a", 0, "c")) == "f.yaml:4"
    assert document.source_of(("a", 1)) == "f.yaml:5"
    assert document.source_of(("a", 0, "missing", "deeper")) == "f.yaml:3"
    assert document.source_of(("elsewhere",)) == "f.yaml:2"


def test_a_path_is_written_as_users_write_it() -> None:
    assert path_text(("spec", "pools", 1, "name")) == "spec.pools[1].name"
    assert path_text(("spec", "nodeSelector", "a.b/c")) == "spec.nodeSelector[a.b/c]"
    assert path_text(()) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", "f.yaml:2: a: given twice, first on line 1; remove one of the two"),
        ("s:\n  a: 1\n  b: 1\n  a: 1\n", "f.yaml:4: s.a: given twice, first on line 2; remove one of the two"),
        ("s: {1: x}\n", 'f.yaml:1: s: names of fields must be strings, found 1; write it in quotes: "1"'),
        ("[a]: 1\n", "f.yaml:1: names of fields must be strings, found a list or mapping; "
         'write it in quotes: "a list or mapping"'),
        ("a: .nan\n", "f.yaml:1: a: .nan is not a number in JSON; give a finite number"),
        ("a: -.INF\n", "f.yaml:1: a: -.INF is not a number in JSON; give a finite number"),
        ("a: 1e999\n", "f.yaml:1: a: 1e999 is not a number in JSON; give a finite number"),
        ("a: 99999999999999999999\n", "f.yaml:1: a: 99999999999999999999 has more than 64 bits; "
         "give a smaller number, or write it in quotes"),
        ("a: !!int x\n", "f.yaml:1: a: x is no int; correct the value or its tag"),
        ("a: !python/name:os.system x\n", "f.yaml:1: a: values with the tag !python/name:os.system are not supported; "
         "remove the tag"),
        ("a: 1\n<<: 3\n", "f.yaml:2: << can only merge mappings; refer to a mapping, or remove <<"),
    ],
)  # fmt: skip
def test_yaml_that_json_cannot_hold_is_a_problem(text: str, expected: str) -> None:
    _, problems = read_documents(text, "f.yaml")
    assert [str(problem) for problem in problems] == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\nb: 3\n", "f.yaml:2: not valid YAML (while parsing a flow sequence expected ',' or ']', "
         "but got ':'); correct the YAML at column 2"),
        ("a:\n\tb: 1\n", "f.yaml:2: not valid YAML (while scanning for the next token found character '\\t' that "
         "cannot start any token); correct the YAML at column 1"),
        ("a: *b\n", "f.yaml:1: not valid YAML (found undefined alias 'b'); correct the YAML at column 4"),
        ("x: 1\na: \x07\n", "f.yaml:2: not valid YAML (special characters are not allowed, found number 7); "
         "remove the character"),
        ("a: &x [*x]\n", "f.yaml: the alias to line 1 refers to its own container; "
         "write it out without aliases (&, *)"),
        ("a: &x {<<: *x}\n", "f.yaml: the alias to line 1 refers to its own container; "
         "write it out without aliases (&, *)"),
    ],
)  # fmt: skip
def test_what_is_not_yaml_is_refused_with_its_place(text: str, expected: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_documents(text, "f.yaml")
    assert str(caught.value) == expected


def test_a_small_file_cannot_expand_without_bounds() -> None:
    text = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for outer, inner in zip("bcdefghi", "abcdefgh", strict=True):
        text += f"{outer}: &{outer} [{', '.join([f'*{inner}'] * 10)}]\n"
    with pytest.raises(ManifestError, match=r"^f\.yaml: the document has more than 100000 values; write it out"):
        read_documents(text, "f.yaml")


def test_documents_that_are_empty_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"---\n# nothing\n---\n{FILE}---\n")
    assert load_manifest(file).name == "flights"
    assert refused(tmp_path, "# nothing\n---\n") == [
        "job.yaml: the file is empty; add a document with kind: HeterPSJob"
    ]


def test_a_syntax_error_is_not_joined_by_what_follows_from_it(tmp_path: Path) -> None:
    assert refused(tmp_path, "a: [") == [
        "job.yaml:1: not valid YAML (while parsing a flow node expected the node content, but found "
        "'<stream end>'); correct the YAML at column 5"
    ]


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "a:\n  " + "- " * 63 + "1") != (deep := refused(tmp_path, "a:\n  " + "- " * 64 + "1"))
    assert deep == ["job.yaml:2: nested in more than 64 levels; write it with fewer levels"]
    assert refused(tmp_path, "- " * 10_000) == ["job.yaml: the YAML is nested too deeply; write it with fewer levels"]
    assert refused(tmp_path, "[" * 10_000) == [
        "job.yaml:1: not valid YAML (more than 100 nested brackets); correct the YAML at column 101"
    ]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(ManifestError) as caught:
            load_manifest(path)
        return str(caught.value)

    missing = tmp_path / "none.yaml"
    assert message(missing) == f"{missing}: the file does not exist; check the path"
    assert message(tmp_path) == f"{tmp_path}: is a folder; name the job file in it"
    assert message(missing / "x") == f"{missing / 'x'}: the file does not exist; check the path"
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\n")
    assert message(binary) == f"{binary}: is not UTF-8 text (byte 3); save it as UTF-8"
    binary.write_bytes(b"#" * (3 * 2**20 + 1))
    assert "is larger than 3145728 bytes" in message(binary)
    assert "cannot be read (Not a directory)" in message(binary / "x")
