"""The run configuration: a JSON file that each process of a job reads (`$HETERPS_CONFIG`).

It contains the `HeterPSJob` manifest and its DevicePools with defaults applied, so that a job's file, its custom
resource and the runtime share one vocabulary. The controller has validated it against the CRDs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from heterps_runtime.contract import AUTO, RUN_CONFIG_VERSION, DenseExchange
from heterps_runtime.errors import UserError
from heterps_runtime.quantity import parse_bytes
from heterps_runtime.versions import check_version

__all__ = ["PoolConfig", "RunConfig", "SpillConfig"]

Consistency = Literal["sync", "hybrid", "async"]


@dataclass(frozen=True)
class PoolConfig:
    """A device pool."""

    name: str
    device_type: Literal["CPU", "GPU", "XPU"]
    torch_device: str  # cpu | cuda | xpu | auto
    units_per_pod: int
    max_units: int | None  # None: no limit


@dataclass(frozen=True)
class SpillConfig:
    """Where servers keep rows that do not fit into memory."""

    directory: Path
    memory: int  # bytes of rows and state of a server that stay in memory
    max_bytes: int | None  # of disk; None: no limit


@dataclass(frozen=True)
class RunConfig:
    """A job. Field names follow the manifest (docs/api.md)."""

    name: str
    entrypoint: str
    arguments: dict[str, Any]
    loss: str
    embedding_init: dict[str, Any]
    data: dict[str, Any]
    global_batch_size: int
    micro_batches: int
    epochs: int | None  # epochs or steps is set
    steps: int | None
    consistency: Consistency
    max_staleness: int  # in commits; 0 in sync
    staleness_warmup: int  # steps at the beginning of training whose reads are not stale
    dense_optimizer: dict[str, Any]
    sparse_optimizer: dict[str, Any]
    seed: int
    precision: str  # fp32, fp64, bf16, fp16, tf32; Auto: the one of allowed_precisions that a plan names
    wire_precision: Literal["full", "fp16", "bf16"]
    spill: SpillConfig | None  # None: servers keep all rows in memory
    replication: int  # number of servers that hold each row
    encrypted: bool  # links between processes
    checkpoint_path: str
    checkpoint_every: int  # steps
    checkpoint_keep: int
    checkpoint_increments: bool  # whether checkpoints have only the rows that changed, where that pays
    hang_timeout_seconds: float
    pools: dict[str, PoolConfig]
    work_directory: Path
    model_path: str  # path or address for the exported model
    python_path: tuple[str, ...]
    namespace: str  # on a cluster; "" on one machine
    code: dict[str, Any] | None = None  # spec.code; None: the image has all code
    init_from: str = ""  # path of another job's checkpoints, whose values the model begins with; "": of none
    keep_optimizer_state: bool = False  # begin with the optimizers' state of that job, too
    tables: tuple[dict[str, Any], ...] = ()  # model.tables: when their ids get rows and lose them
    allowed_precisions: tuple[str, ...] = ()  # empty: precision is not Auto
    # On CPU pools; None: the planner chooses it. Plans say it for each stage.
    dense_exchange: DenseExchange | None = DenseExchange.PARAMETER_SERVER

    @property
    def full_name(self) -> str:
        """The job's name, on a cluster with its namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def all_reduces_on(self, pool: PoolConfig) -> bool:
        """Whether workers on a pool hold replicas of dense parameters; otherwise the servers hold the parameters."""
        if pool.device_type != "CPU":
            return DenseExchange.of_pool(pool.device_type) == DenseExchange.ALL_REDUCE
        assert self.dense_exchange is not None, "the exchange is not chosen yet"
        return self.dense_exchange == DenseExchange.ALL_REDUCE

    @property
    def num_classes(self) -> int | None:
        """Number of classes that the data declares; None: it does not."""
        classes: int | None = self.data.get("classes")
        return classes

    @property
    def streams_data(self) -> bool:
        """Whether the data is read while training, in the order of windows."""
        return self.data.get("access") == "Streamed"

    def in_precision(self, precision: str | None) -> RunConfig:
        """The job in the precision that was chosen for it; None: it leaves no choice.

        Raises:
            UserError: a choice is missing, or is not one that the job allows.
        """
        if not self.allowed_precisions:
            return self
        if precision not in self.allowed_precisions:
            choices = ", ".join(self.allowed_precisions)
            raise UserError(f"training.precision Auto: a plan must choose one of {choices}, it chooses {precision}")
        return replace(self, precision=precision)

    @property
    def dtype_name(self) -> str:
        """Numpy's name of the type of parameters, optimizers and gradients."""
        assert self.precision != AUTO, "the precision is not chosen yet"
        return "float64" if self.precision == "fp64" else "float32"

    @property
    def product_dtype_name(self) -> str | None:
        """Torch's name of the type of products of matrices, as under `torch.autocast`; None: that of parameters."""
        return {"bf16": "bfloat16", "fp16": "float16"}.get(self.precision)

    @property
    def scales_loss(self) -> bool:
        """Whether losses are scaled, as small gradients would be zero in the type of products."""
        return self.precision == "fp16"

    def fingerprint(self) -> dict[str, Any]:
        """Settings that a run must have in common with the checkpoint that it resumes."""
        tensors = self.data.get("tensors")
        return {
            "model.entrypoint": self.entrypoint,
            "model.arguments": self.arguments,
            "model.loss": self.loss,
            "model.embeddingInit": self.embedding_init,
            **({"model.tables": list(self.tables)} if self.tables else {}),
            "data.label": self.data["label"],
            "data.dense": self.data["dense"],
            "data.sparse": self.data["sparse"],
            **({"data.tensors": tensors} if tensors else {}),
            **{f"data.{name}": self.data[name] for name in ("trainAfter", "trainThrough") if self.data.get(name)},
            **({"data.windowRows": self.data["windowRows"]} if self.streams_data else {}),  # the order depends on it
            "training.globalBatchSize": self.global_batch_size,
            "training.optimizer.dense": self.dense_optimizer,
            "training.optimizer.sparse": self.sparse_optimizer,
            "training.precision": self.precision,
            "training.seed": self.seed,
        }

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """Read a run configuration file.

        Raises:
            UserError: the file is missing, is not JSON, lacks a field, or has a newer version.
        """
        try:
            document = json.loads(Path(path).read_text())
        except OSError as error:
            raise UserError(f"run configuration {path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"run configuration {path}: not valid JSON: {error}") from error
        try:
            return cls.from_json(document)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"run configuration {path}: missing or malformed field {error}") from error

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> RunConfig:
        """Read a parsed run configuration.

        Raises:
            KeyError: a field is missing.
            UnsupportedVersionError: it is of a newer controller.
        """
        check_version("the run configuration", document["version"], RUN_CONFIG_VERSION)
        spec = document["job"]["spec"]
        model, training, servers = spec["model"], spec["training"], spec["parameterServer"]
        work = Path(document["workDirectory"])
        checkpoint = spec["checkpoint"]
        consistency = training["consistency"]
        return cls(
            name=document["job"]["metadata"]["name"],
            entrypoint=model["entrypoint"],
            arguments=model["arguments"],
            loss=model["loss"],
            embedding_init=model["embeddingInit"],
            data=spec["data"],
            global_batch_size=training["globalBatchSize"],
            micro_batches=training["microBatches"],
            epochs=training.get("epochs"),
            steps=training.get("steps"),
            consistency=consistency,
            max_staleness=0 if consistency == "sync" else training["maxStaleness"],
            staleness_warmup=training.get("stalenessWarmupSteps", 0),
            dense_optimizer=training["optimizer"]["dense"],
            sparse_optimizer=training["optimizer"]["sparse"],
            seed=training["seed"],
            precision=training["precision"],
            allowed_precisions=tuple(training.get("allowedPrecisions", ())),
            wire_precision=servers["wirePrecision"],
            spill=_spill(servers.get("spill"), work),
            replication=servers.get("replication", 1),
            encrypted=spec.get("encryption") == "Required",
            checkpoint_path=checkpoint.get("path") or str(work / "checkpoints"),
            checkpoint_every=checkpoint["everySteps"],
            checkpoint_keep=checkpoint["keep"],
            checkpoint_increments=checkpoint.get("increments") != "Disabled",
            hang_timeout_seconds=float(spec["runPolicy"]["hangTimeoutSeconds"]),
            pools={
                pool["metadata"]["name"]: PoolConfig(
                    pool["metadata"]["name"],
                    pool["spec"]["deviceType"],
                    pool["spec"]["torchDevice"],
                    pool["spec"]["unitsPerPod"],
                    pool["spec"].get("maxUnits"),
                )
                for pool in document["pools"]
            },
            work_directory=work,
            model_path=document.get("modelPath") or str(work / "model"),
            python_path=tuple(document.get("pythonPath", ())),
            namespace=document["job"]["metadata"].get("namespace") or "",
            init_from=(model.get("initFrom") or {}).get("path", ""),
            keep_optimizer_state=(model.get("initFrom") or {}).get("optimizerState") == "Keep",
            tables=tuple(model.get("tables", ())),
            code=spec.get("code"),
            dense_exchange=DenseExchange.of_job(
                training.get("denseExchange", DenseExchange.PARAMETER_SERVER),
                encrypted=spec.get("encryption") == "Required",
            ),
        )


def _spill(spill: dict[str, Any] | None, work: Path) -> SpillConfig | None:
    if spill is None:
        return None
    field, most = "spec.parameterServer.spill", spill.get("maxBytes")
    return SpillConfig(
        directory=Path(spill.get("directory") or work / "spill"),
        memory=parse_bytes(spill["memory"], f"{field}.memory"),
        max_bytes=None if most is None else parse_bytes(most, f"{field}.maxBytes"),
    )
