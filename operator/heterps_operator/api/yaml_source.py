"""YAML parsed as kubectl parses it, with the line of every field.

PyYAML has its own reading of YAML 1.1: it accepts duplicate keys, turns strings into dates and `1:30` into a number,
and keeps `1e6` and `y` as strings, which kubectl reads as a number and as true. A manifest must mean the same on a
laptop and on a cluster, so plain scalars are resolved here as kubectl does (sigs.k8s.io/yaml), and values that JSON
cannot hold are problems. `schema` checks the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from heterps_operator.documents import MOST_LEVELS
from heterps_operator.errors import MISSING, FieldError, ManifestError

__all__ = ["Document", "Path", "path_text", "read_documents"]

Path = tuple[str | int, ...]  # ("spec", "pools", 1, "name")

_MAX_BRACKETS = 100  # nested ones; PyYAML looks at all open ones for each token
_MAX_NODES = 100_000  # aliases can expand a small file without bound
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Document:
    """One document of a file, or an object of a program."""

    value: Any  # plain JSON values
    source: str = ""  # name of the file, or where the object was given
    line: int = 0  # first line, from 1; 0: not from a file
    lines: dict[Path, int] = field(default_factory=dict, repr=False)  # line of every field and item, from 1
    texts: dict[Path, str] = field(default_factory=dict, repr=False)  # plain scalars that are not strings, as written

    def source_of(self, path: Path) -> str:
        """Return file and line of a field, or of its nearest existing parent."""
        while path and path not in self.lines:
            path = path[:-1]
        line = self.lines.get(path, self.line)
        return f"{self.source}:{line}" if line else self.source


def path_text(path: Path) -> str:
    """Format a path as users write it: `spec.pools[1].name`."""
    text = ""
    for step in path:
        if isinstance(step, str) and _NAME.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{step}]"
    return text


class _Loader(yaml.SafeLoader):
    """Resolve plain scalars as kubectl does, and refuse too many open brackets."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # as in the base class

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803  # as in the base class
        """See `yaml.scanner.Scanner`."""
        if self.flow_level >= _MAX_BRACKETS:
            raise yaml.scanner.ScannerError(None, None, f"more than {_MAX_BRACKETS} nested brackets", self.get_mark())
        super().fetch_flow_collection_start(TokenClass)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool",
    re.compile(r"(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$"),
    list("yYnNtTfFoO"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[0-9][0-9_]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<$"), ["<"])

_BOOLEANS = {"y": True, "yes": True, "true": True, "on": True, "n": False, "no": False, "false": False, "off": False}


def read_documents(text: str, name: str) -> tuple[list[Document], list[FieldError]]:
    """Read all documents of a file; empty ones are skipped.

    Args:
        text: the file's text.
        name: the file's name, for messages.

    Returns:
        The documents, and the problems that keep them from being JSON.

    Raises:
        ManifestError: the text is not YAML; nothing after the error was read.
    """
    documents: list[Document] = []
    problems: list[FieldError] = []

    def refuse(message: str, fix: str, line: int | None) -> ManifestError:
        source = name if line is None else f"{name}:{line}"
        return ManifestError([*problems, FieldError("", MISSING, message, fix, source=source)])

    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node() found one"
            if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
                continue
            reader = _Reader(name)
            value = reader.read(node, ())
            problems += reader.problems
            documents.append(Document(value, name, node.start_mark.line + 1, reader.lines, reader.texts))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        assert mark is not None, "errors of the parser have a place"
        what = " ".join(part for part in (error.context, error.problem) if part)
        fix = f"correct the YAML at column {mark.column + 1}"
        raise refuse(f"not valid YAML ({what})", fix, mark.line + 1) from error
    except yaml.reader.ReaderError as error:
        message = f"not valid YAML ({error.reason}, found number {error.character!r})"
        raise refuse(message, "remove the character", text.count("\n", 0, error.position) + 1) from error
    except RecursionError as error:
        raise refuse("the YAML is nested too deeply", "write it with fewer levels", None) from error
    except _TooDeepError as error:
        raise refuse(f"nested in more than {MOST_LEVELS} levels", "write it with fewer levels", error.line) from error
    except _TooLargeError as error:
        raise refuse(str(error), "write it out without aliases (&, *)", None) from error
    return documents, problems


class _TooLargeError(Exception):
    pass


class _TooDeepError(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def _endless(node: yaml.Node) -> _TooLargeError:
    return _TooLargeError(f"the alias to line {node.start_mark.line + 1} refers to its own container")


class _Reader:
    """Converts the nodes of one document to values and records their lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Path, int] = {}
        self.texts: dict[Path, str] = {}
        self.problems: list[FieldError] = []
        self._num_nodes = 0
        self._open: set[int] = set()  # ids of the nodes being read: an alias to one of them is a cycle

    def read(self, node: yaml.Node, path: Path) -> Any:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise _TooLargeError(f"the document has more than {_MAX_NODES} values")
        if id(node) in self._open:
            raise _endless(node)
        if len(path) >= MOST_LEVELS and not isinstance(node, yaml.ScalarNode):
            raise _TooDeepError(node.start_mark.line + 1)
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._read_mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.ScalarNode)
            return self._read_scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _read_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                for name, pair in self._merged_pairs(value_node, path):
                    merged.setdefault(name, pair)
                continue
            key = self._read_key(key_node, path)
            if key is None:
                continue
            if key in own:
                first = own[key][0].start_mark.line + 1
                self._problem((*path, key), key_node, f"given twice, first on line {first}", "remove one of the two")
                continue
            own[key] = (key_node, value_node)
        result = {}
        for key, (key_node, value_node) in {**merged, **own}.items():
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.read(value_node, (*path, key))
        return result

    def _merged_pairs(self, node: yaml.Node, path: Path) -> Iterator[tuple[str, tuple[yaml.Node, yaml.Node]]]:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(source, yaml.MappingNode):
                self._problem(path, source, "<< can only merge mappings", "refer to a mapping, or remove <<")
                continue
            if id(source) in self._open:
                raise _endless(source)
            self._open.add(id(source))
            inner: list[yaml.Node] = []
            for key_node, value_node in source.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    inner.append(value_node)
                    continue
                key = self._read_key(key_node, path)
                if key is not None:
                    yield key, (key_node, value_node)
            for value_node in inner:
                yield from self._merged_pairs(value_node, path)
            self._open.discard(id(source))

    def _read_key(self, node: yaml.Node, path: Path) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
            return str(node.value)
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        self._problem(path, node, f"names of fields must be strings, found {text}", f'write it in quotes: "{text}"')
        return None

    def _read_scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind in ("bool", "int", "float"):
            self.texts[path] = text
        try:
            if kind == "bool":
                return _BOOLEANS[text.lower()]
            if kind == "null":
                return None
            if kind == "int":
                whole = _integer(text)
                if -(2**63) <= whole < 2**63:
                    return whole
                self._problem(
                    path, node, f"{text} has more than 64 bits", "give a smaller number, or write it in quotes"
                )
                return None
            if kind == "float":
                number = float(text.replace("_", "")) if text[-1] not in "fFnN" else math.nan
                if math.isfinite(number):
                    return int(number) if number.is_integer() and abs(number) < 2**63 else number
                self._problem(path, node, f"{text} is not a number in JSON", "give a finite number")
                return None
        except (KeyError, ValueError):
            self._problem(path, node, f"{text} is no {kind}", "correct the value or its tag")
            return None
        if kind not in ("str", "binary"):
            self._problem(path, node, f"values with the tag {node.tag} are not supported", "remove the tag")
        return text

    def _problem(self, path: Path, node: yaml.Node, message: str, fix: str) -> None:
        source = f"{self.name}:{node.start_mark.line + 1}"
        self.problems.append(FieldError(path_text(path), MISSING, message, fix, source=source))


def _integer(text: str) -> int:
    """Parse an integer as Go does with base 0: prefixes 0x and 0b, a leading 0 for octal."""
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return sign * int(digits, 10 if set(digits) & {"8", "9"} else 8)
    return sign * int(digits, 0)
