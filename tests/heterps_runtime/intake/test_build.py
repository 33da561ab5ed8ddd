"""Building the user's module: tables cost nothing, the rest is as in PyTorch, and every mistake is explained."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterps_runtime.intake import build_model, trace_model
from heterps_runtime.intake.errors import EmbeddingError, EntrypointError, IntakeError

Write = Callable[[str], str]
HEAD = "import numpy as np\nimport torch\nfrom torch import nn\n"  # three lines: the user's first line is the fourth


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a user's module below three import lines and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def _write(source: str) -> str:
        name = f"users_model_{len(written)}"
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source).lstrip("\n"))
        written.append(name)
        return name

    yield _write
    for name in written:
        sys.modules.pop(name, None)


def build(entrypoint: str, arguments: dict[str, Any] | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
    return build_model(entrypoint, arguments or {}, seed=3, dtype=dtype)


def test_a_table_of_2_to_the_40_rows_costs_nothing(write: Write) -> None:
    name = write("""
        def build(rows):
            tables = {"table": nn.Embedding(rows, 64), "bag": nn.EmbeddingBag(rows, 8)}
            return nn.ModuleDict({**tables, "out": nn.Linear(64, 1)})
    """)
    module = build(f"{name}:build", {"rows": 2**40})
    assert module["table"].weight.is_meta  # type: ignore[index]
    assert module["bag"].weight.is_meta  # type: ignore[index]
    assert module["out"].weight.device.type == "cpu"  # type: ignore[index]
    assert nn.Embedding(2, 2).weight.device.type == "cpu", "the constructor is restored"


def test_building_and_tracing_do_not_import_torchs_compiler() -> None:
    script = (
        "import sys, torch; from heterps_runtime.intake import build_model, trace_model\n"
        "models = 'tests.heterps_runtime.helpers.models'\n"
        "module = build_model(f'{models}:build_two_tower', {}, seed=0, dtype=torch.float32)\n"
        "model = trace_model(module); model.stage(0, len(model.layers) - 1)\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{paths}"}
    )
    assert done.returncode == 0


def test_dense_parameters_are_those_of_plain_pytorch_when_tables_come_last(write: Write) -> None:
    name = write("""
        def build():
            return nn.ModuleDict({"out": nn.Linear(8, 4), "norm": nn.LayerNorm(4), "table": nn.Embedding(9, 8)})
    """)
    before = torch.get_rng_state()
    module = build(f"{name}:build")
    assert torch.equal(torch.get_rng_state(), before), "the caller's generator is left alone"
    torch.manual_seed(3)
    expected = nn.Linear(8, 4)
    torch.testing.assert_close(module["out"].weight, expected.weight, rtol=0, atol=0)  # type: ignore[index]


def test_tables_draw_no_random_numbers_and_numpy_is_seeded(write: Write) -> None:
    name = write("""
        def build(rows):
            tables = nn.ModuleList([nn.Embedding(rows, 3) for _ in range(rows)])
            out = nn.Linear(3, 1)
            with torch.no_grad():
                out.bias.fill_(float(np.random.rand()))
            return nn.ModuleDict({"tables": tables, "out": out})
    """)
    first, second = build(f"{name}:build", {"rows": 2}), build(f"{name}:build", {"rows": 7})
    for one, other in zip(first["out"].parameters(), second["out"].parameters(), strict=True):  # type: ignore[index]
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_everything_floating_has_the_dtype_asked_for(write: Write) -> None:
    name = write("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(2, 1)
                self.low = nn.Parameter(torch.zeros(2, dtype=torch.float16))
                self.table = nn.Embedding(5, 2)
                self.register_buffer("counts", torch.arange(3))
    """)
    module = build(f"{name}:Model", dtype=torch.float64)
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert module.counts.dtype == torch.int64
    assert torch.get_default_dtype() == torch.float32


def test_initialising_a_table_in_place_is_a_warning_that_reaches_the_user(write: Write) -> None:
    name = write("""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(5, 2)
                nn.init.xavier_uniform_(self.table.weight)
                self.table.weight.data.mul_(0.1)
            def forward(self, ids):
                return self.table(ids).sum(1)
    """)
    warnings = trace_model(build(f"{name}:Model")).warnings
    assert [w.split(".py:")[1].split(":")[0] for w in warnings] == ["8", "9"]
    assert all("has no effect" in w and "model.embeddingInit" in w for w in warnings)


EMBEDDING_ERRORS = {
    "from_pretrained": ("nn.Embedding.from_pretrained(torch.ones(3, 2))", ["given its values", "model.embeddingInit"]),
    "weight argument": ("nn.EmbeddingBag(3, 2, _weight=torch.ones(3, 2))", ["given its values", "buffer"]),
    "max_norm": ("nn.Embedding(3, 2, max_norm=1.0)", ["max_norm=1.0", "leave max_norm out"]),
    "scale_grad_by_freq": ("nn.Embedding(3, 2, scale_grad_by_freq=True)", ["scale_grad_by_freq", "leave"]),
    "too many rows": ("nn.Embedding(2**48 + 1, 2)", ["2^48", "lower num_embeddings"]),
    "too many bytes": ("nn.Embedding(2**48, 2**14)", ["2^63 bytes", "lower"]),
}


@pytest.mark.parametrize("case", EMBEDDING_ERRORS)
def test_an_unsupported_table_names_the_line_that_creates_it(write: Write, case: str) -> None:
    expression, words = EMBEDDING_ERRORS[case]
    name = write(f"""
        def build():
            return nn.Sequential({expression})
    """)
    with pytest.raises(EmbeddingError) as caught:
        build(f"{name}:build")
    assert caught.value.where.endswith(f"{name}.py:5")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("statement", "line", "words"),
    [
        ("table.weight = nn.Parameter(torch.ones(3, 2))", 5, "is assigned after its creation"),
        ("table.weight.data.copy_(torch.ones(3, 2))", 6, "values are copied into an embedding table"),
        ("table.load_state_dict({'weight': torch.ones(3, 2)})", 6, "values are copied into an embedding table"),
        ("nn.utils.parametrizations.weight_norm(table)", 5, "is computed from other parameters"),
    ],
)
def test_values_given_to_a_table_later_are_refused(write: Write, statement: str, line: int, words: str) -> None:
    name = write(f"""
        def build():
            table = nn.Embedding(3, 2)
            {statement}
            return nn.Sequential(table)
    """)
    with pytest.raises(EmbeddingError, match=words) as caught:
        build(f"{name}:build")
    assert caught.value.where.endswith(f"{name}.py:{line}")


@pytest.mark.parametrize(
    ("source", "attribute", "line", "words"),
    [
        ("import no_such_package", "build", 4, ["raised ModuleNotFoundError", "no_such_package", "python -c"]),
        ("x = 1\n1 / 0", "build", 5, ["raised ZeroDivisionError: division by zero"]),
        ("def build(:\n    pass", "build", 4, ["raised SyntaxError"]),
        ("def build():\n    pass", "biuld", None, ["has no 'biuld'", "did you mean 'build'"]),
        ("build = 3", "build", None, ["is int, which cannot be called"]),
        (
            "def build():\n    return inner()\ndef inner():\n    raise KeyError('k')",
            "build",
            7,
            ["raised KeyError: 'k'"],
        ),
        ("def build():\n    return 3", "build", 4, ["returned int, not an nn.Module"]),
        ("def build(size):\n    pass", "build", 4, ["missing a required argument: 'size'", "(size)"]),
        (
            "def build():\n    return nn.Linear(2, 2, device='meta')",
            "build",
            None,
            ["weight is created on device meta"],
        ),
    ],
)
def test_a_bad_entry_point_says_what_and_where(
    write: Write, source: str, attribute: str, line: int | None, words: list[str]
) -> None:
    name = write(source)
    with pytest.raises(EntrypointError) as caught:
        build(f"{name}:{attribute}")
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "To do: " in text
    assert caught.value.where.endswith(f"{name}.py:{line}") if line else caught.value.where == "", text


def test_an_entry_point_that_is_no_entry_point_shows_the_form() -> None:
    with pytest.raises(EntrypointError, match=r"not of the form module:callable.*flights\.model:build"):
        build("flights.model.build")
    with pytest.raises(EntrypointError, match="there is no module 'no_such_module' to import"):
        build("no_such_module:build")


def test_an_argument_that_the_callable_does_not_have_names_those_it_has() -> None:
    with pytest.raises(EntrypointError, match="unexpected keyword argument 'dimm'") as caught:
        build("tests.heterps_runtime.helpers.models:build_flights", {"dimm": 3})
    assert "To do: its parameters are (dim: 'int' = 4" in str(caught.value)
    assert isinstance(caught.value, IntakeError)
    assert isinstance(caught.value, ValueError)
