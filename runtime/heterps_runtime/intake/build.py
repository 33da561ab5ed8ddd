"""Build the user's module without its embedding tables.

Tables belong to the parameter servers, so the weights of `nn.Embedding` and `nn.EmbeddingBag` are created on the meta
device: a table of 2^40 rows takes no memory. Everything else is on the CPU and initialised as usual.

Tables draw no random numbers. The dense parameters are those of plain PyTorch with the same seed, if its embeddings
draw none either, for instance because they are created after the dense layers. Python's and numpy's global generators
are seeded too, so that each process of a job builds the same module.
"""

from __future__ import annotations

import functools
import inspect
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_runtime.intake.entrypoint import resolve_entrypoint
from heterps_runtime.intake.errors import EmbeddingError, EntrypointError, IntakeError
from heterps_runtime.intake.location import error_location, frame_location, function_location

__all__ = ["BUILD_WARNINGS", "MAX_ROWS", "PROCESS_STATE", "build_model", "embedding_location"]

#: Building and tracing change state of the whole process: the seed, the default dtype, constructors of embeddings, and,
#: by torch.fx, `nn.Module`. Members of a job that share a process must take turns.
PROCESS_STATE = threading.RLock()

#: Maximum number of rows of a table, because a row's key is (table << 48) | id.
MAX_ROWS = 2**48
#: Attribute of a built module with warnings for the user.
BUILD_WARNINGS = "_heterps_build_warnings"
_LOCATION = "_heterps_location"
#: Initialisers, which are skipped on meta tensors: they would import torch's compiler, which takes seconds.
_ONLY_VALUES = frozenset({"normal_", "uniform_", "fill_", "zero_"})
_FIELD = "model.entrypoint"
_NO_VALUES = (
    "drop the assignment and name the rows' initial distribution in model.embeddingInit; a small fixed table of "
    "given values can be a buffer, read as self.table[ids]"
)
EmbeddingModule = nn.Embedding | nn.EmbeddingBag


def build_model(entrypoint: str, arguments: dict[str, Any], seed: int, dtype: torch.dtype) -> nn.Module:
    """Call the user's entry point; returns its module, with tables on the meta device and everything else on the CPU.

    Args:
        entrypoint: `module:callable`; the callable returns an `nn.Module`.
        arguments: keyword arguments of the callable.
        seed: of the dense initialisation. The global generators keep their state.
        dtype: default dtype during the call; floating-point parameters and buffers of another dtype are converted.

    Raises:
        EntrypointError: the entry point cannot be imported or called, raises, or does not return a module.
        EmbeddingError: a table has given values, or an option or size that is not supported.
    """
    target = resolve_entrypoint(entrypoint, _FIELD)
    if not callable(target):
        raise EntrypointError(
            f"{_FIELD}: {entrypoint!r} is {type(target).__name__}, which cannot be called.",
            fix="name a function that returns an nn.Module, or the module's class.",
        )
    _check_arguments(target, entrypoint, arguments)
    writes = _TableWrites()
    with PROCESS_STATE, _seeded(seed), _default_dtype(dtype), _tables_on_meta(), writes:
        try:
            module = target(**arguments)
        except IntakeError:
            raise
        except Exception as error:
            writes.raise_if_values_were_given()
            raise EntrypointError(
                f"{_FIELD}: {entrypoint!r} raised {type(error).__name__}: {error}",
                fix="make the call work in plain PyTorch on the CPU, without moving the module to a device.",
                where=error_location(error, outside=__file__),
            ) from error
    if not isinstance(module, nn.Module):
        raise EntrypointError(
            f"{_FIELD}: {entrypoint!r} returned {type(module).__name__}, not an nn.Module.",
            fix="return the module from the callable.",
            where=function_location(target),
        )
    writes.raise_if_values_were_given()
    _check_placement(module)
    module.to(dtype)
    module.__dict__[BUILD_WARNINGS] = tuple(writes.warnings)
    return module


def embedding_location(module: nn.Module) -> str:
    """`file:line` of the creation of an embedding in `build_model`, or an empty string."""
    return str(module.__dict__.get(_LOCATION, ""))


def _check_arguments(target: Callable[..., Any], entrypoint: str, arguments: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(target)
    except ValueError:  # some builtins have none; the call itself will fail
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise EntrypointError(
            f"model.arguments: {entrypoint!r} cannot be called with {sorted(arguments)}: {error}.",
            fix=f"its parameters are {signature}.",
            where=function_location(target),
        ) from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        # load_state_dict warns about copying into a meta tensor, which _TableWrites reports as an error.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter.*")
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _tables_on_meta() -> Iterator[None]:
    originals: list[tuple[type[nn.Module], Any]] = [(cls, cls.__init__) for cls in (nn.Embedding, nn.EmbeddingBag)]
    for cls, original in originals:
        cls.__init__ = _meta_constructor(original)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for cls, original in originals:
            cls.__init__ = original  # type: ignore[method-assign]


def _meta_constructor(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        where = frame_location()
        _check_table(type(self).__name__, call.arguments, where)
        call.arguments["device"] = "meta"
        original(*call.args, **call.kwargs)
        self.__dict__[_LOCATION] = where

    return construct


def _check_table(kind: str, options: dict[str, Any], where: str) -> None:
    if options["_weight"] is not None:
        raise EmbeddingError(
            f"this {kind} is given its values (from_pretrained), but tables live at the parameter servers.",
            fix=f"create it as nn.{kind}(num_embeddings, embedding_dim); {_NO_VALUES}.",
            where=where,
        )
    if options["max_norm"] is not None:
        raise EmbeddingError(
            f"{kind}(max_norm={options['max_norm']}) is not supported: it changes rows while they are read.",
            fix="leave max_norm out, and normalise what was looked up instead.",
            where=where,
        )
    if options["scale_grad_by_freq"]:
        raise EmbeddingError(
            f"{kind}(scale_grad_by_freq=True) is not supported: the frequency depends on how a batch is split.",
            fix="leave scale_grad_by_freq out.",
            where=where,
        )
    rows = options["num_embeddings"]
    if rows > MAX_ROWS:
        raise EmbeddingError(
            f"{kind}(num_embeddings={rows}) is larger than 2^48 = {MAX_ROWS} rows.",
            fix="lower num_embeddings: ids are taken modulo num_embeddings, and rows cost nothing until touched.",
            where=where,
        )
    if rows * options["embedding_dim"] * 8 >= 2**63:
        raise EmbeddingError(
            f"{kind}({rows}, {options['embedding_dim']}) is larger than 2^63 bytes, the largest tensor there is.",
            fix="lower num_embeddings or embedding_dim.",
            where=where,
        )


class _TableWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Detects in-place writes to tables (meta tensors) while a module is built."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.warnings: list[str] = []
        self._values_given_at: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; True would import torch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            name = str(func._schema.name).removeprefix("aten::")
            self._record(name, args)
            if name in _ONLY_VALUES:
                return args[0]
        return func(*args, **(kwargs or {}))

    def _record(self, name: str, args: tuple[Any, ...]) -> None:
        if _inside_table_constructor():
            return
        where = frame_location()
        if any(isinstance(arg, torch.Tensor) and not arg.is_meta and arg.dim() > 0 for arg in args[1:]):
            self._values_given_at = self._values_given_at or where
            return
        text = (
            f"{where}: initialising an embedding table in place ({name}) has no effect; "
            "rows are initialised as model.embeddingInit says"
        )
        if text not in self.warnings:
            self.warnings.append(text)

    def raise_if_values_were_given(self) -> None:
        if self._values_given_at is not None:
            raise EmbeddingError(
                "values are copied into an embedding table, but tables live at the parameter servers.",
                fix=f"{_NO_VALUES}.",
                where=self._values_given_at,
            )


def _inside_table_constructor() -> bool:
    """Whether the current write is by `reset_parameters`, called in a table's constructor."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "construct" and frame.f_code.co_filename == __file__:
            return True
        frame = frame.f_back
    return False


def _check_placement(module: nn.Module) -> None:
    for name, child in module.named_modules():
        if not isinstance(child, EmbeddingModule):
            continue
        label, where = name or type(child).__name__, embedding_location(child)
        weight = child._parameters.get("weight")
        if weight is None:
            raise EmbeddingError(
                f"the weight of {label} is computed from other parameters (a parametrization such as weight_norm).",
                fix="remove the parametrization: parameter servers hold plain rows.",
                where=where,
            )
        if not weight.is_meta:
            raise EmbeddingError(
                f"the weight of {label} is assigned after its creation, but tables live at the parameter servers.",
                fix=f"{_NO_VALUES}.",
                where=where,
            )
    tables = {id(c.weight) for c in module.modules() if isinstance(c, EmbeddingModule)}
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in tensors:
        if id(tensor) in tables or tensor.device.type == "cpu":
            continue
        raise EntrypointError(
            f"{_FIELD}: {name} is created on device {tensor.device}.",
            fix="build everything on the CPU; each stage is moved to its pool's device later.",
        )
