"""The planning problem: measured layers, priced pools, a throughput floor.

`Problem.from_json` is the entry point for external input (problem files, profiles of a job): it checks every field and
names an invalid one. The dataclasses themselves are plain values for code with valid numbers. The equations over them
are in `cost_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.fields import Fields, check_integer, check_number
from heterps_planner.model.limits import (
    MAX_BYTES,
    MAX_COUNTS,
    MAX_INTERRUPTIONS,
    MAX_LAYERS,
    MAX_POOLS,
    MAX_PRICE,
    MAX_RATE,
    MAX_SECONDS,
    MAX_SEGMENTS,
    MAX_UNITS,
    MIN_SECONDS,
)
from heterps_planner.model.servers import Interruption, ParameterServer, read_interruption, read_servers

__all__ = [
    "DENSE_EXCHANGES",
    "DEVICE_TYPES",
    "Layer",
    "LayerTimes",
    "MeasuredTimes",
    "Pool",
    "Problem",
    "table_units",
]

DEVICE_TYPES = ("CPU", "GPU", "XPU")
DENSE_EXCHANGES = ("ParameterServer", "AllReduce")
VERSION = 1
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MeasuredTimes:
    """Measured times of a layer on several numbers of units, in place of Amdahl's law; one entry per number."""

    units: tuple[int, ...]  # ascending
    compute_seconds: tuple[float, ...]  # OCT on that number of units; more units may be slower


@dataclass(frozen=True)
class LayerTimes:
    """Times of one layer on one unit of one pool, for one batch of `Problem.batch_size` samples."""

    compute_seconds: float  # OCT: forward + backward
    parallel_fraction: float  # alpha: the part of OCT that k units divide by k
    transfer_seconds: float = 0.0  # ODT: activation to the next stage and its gradient back
    transfer_parallel_fraction: float = 0.0  # beta
    compute_fixed_seconds: float = 0.0  # the part of OCT that depends neither on the batch size nor on k
    transfer_fixed_seconds: float = 0.0  # the same for ODT
    processor_seconds: float | None = None  # over all processes of a job, with one worker; None: not measured
    processor_fixed_seconds: float = 0.0  # the part of it that every worker pays per piece of a batch
    transfer_processor_seconds: float = 0.0  # of both sides, if the next layer is in another stage
    transfer_processor_fixed_seconds: float = 0.0  # the part of it that every worker pays per piece
    server_seconds: float = 0.0  # the part of OCT in which a worker waits for one parameter server; m divide it by m
    server_fixed_seconds: float = 0.0  # the same of the fixed part of OCT
    measured: MeasuredTimes | None = None  # replaces compute_seconds and parallel_fraction
    spread: float = 0.0  # relative spread of the measurement; informational
    derived: str = ""  # how the numbers were computed, if they were not measured directly; informational
    source: str = ""  # origin of the numbers; informational


@dataclass(frozen=True)
class Layer:
    """One layer of the model, in the order of execution."""

    name: str
    pools: Mapping[str, LayerTimes]  # pool name -> times; a pool that is absent cannot run the layer
    kind: str = ""  # informational, as are the bytes
    input_bytes: float = 0.0  # per sample
    weight_bytes: float = 0.0
    dense_bytes: float | None = None  # of weight_bytes, those of parameters outside of tables; None: not known
    resident_bytes: float = 0.0  # held by every worker of the layer: weights, gradients, state of the optimiser
    activation_bytes: float = 0.0  # held per sample between forward and backward
    waits_for_commit: bool = False  # whether its stage begins a step only when the one before is committed


@dataclass(frozen=True)
class Pool:
    """Identical units (cores or cards) at one price."""

    name: str
    device_type: str  # one of DEVICE_TYPES
    price_per_unit_hour: float  # dollars
    max_units: int  # 0: no unit may be used
    units_per_pod: int = 1  # units are allocated in whole pods
    stage_seconds: float = 0.0  # overhead that each stage on this pool pays once per batch, on one unit
    stage_parallel_fraction: float = 0.0  # the part of it that k units divide by k
    stage_fixed_seconds: float = 0.0  # the part of it that depends neither on the batch size nor on k
    stage_processor_seconds: float = 0.0  # of each worker of a stage, per batch, besides those of its layers
    stage_serial_seconds: float = 0.0  # of a batch, in which one processor of a machine works and the others wait
    memory_bytes_per_pod: float | None = None  # None: not limited
    interruptions_per_unit_hour: float = 0.0  # how often the provider takes a unit back
    dense_exchange: str = ""  # one of DENSE_EXCHANGES, of its stages; empty: that of the device type

    @property
    def max_pods(self) -> int:
        """Whole pods within the limit."""
        return self.max_units // self.units_per_pod


@dataclass(frozen=True)
class Problem:
    """Input of all planning methods."""

    batch_size: int  # B_o: samples per batch at which the layers were measured
    samples: float  # samples to train on, over all epochs
    pools: tuple[Pool, ...]
    layers: tuple[Layer, ...]
    min_samples_per_second: float = 0.0  # the throughput floor; 0: none
    max_cost_per_hour: float | None = None  # dollars
    global_batch_size: int | None = None  # B: the batch size to train with; None: batch_size
    micro_batches: int = 1  # pieces of a worker's share of a batch in a pipelined stage
    parameter_server: ParameterServer | None = None  # None: servers are not charged
    interruption: Interruption = field(default_factory=Interruption)  # of units of pools that are interrupted
    provenance: Mapping[str, Any] = field(default_factory=dict)  # free form

    @property
    def training_batch_size(self) -> int:
        """B, the batch size that the plan is for."""
        return self.global_batch_size or self.batch_size

    def without_interruptions(self) -> Problem:
        """The problem as if no unit were interrupted."""
        if not any(pool.interruptions_per_unit_hour for pool in self.pools):
            return self
        return replace(self, pools=tuple(replace(pool, interruptions_per_unit_hour=0.0) for pool in self.pools))

    def pool_index(self, name: str) -> int:
        """Index of the pool called `name`, which must exist."""
        return next(i for i, pool in enumerate(self.pools) if pool.name == name)

    @classmethod
    def from_json(cls, value: Any) -> Problem:
        """Parse and validate the content of a problem file.

        Args:
            value: result of `json.load`.

        Raises:
            ProblemError: a field is missing, unknown, of the wrong type or out of range; the message names it.
        """
        top = Fields(value, "problem")
        version = top.take("version")
        if version != VERSION or isinstance(version, bool):
            raise ProblemError(top.at("version"), f"must be {VERSION}, is {version!r}")
        pools = tuple(_read_pool(path, item) for path, item in top.take_list("pools", most=MAX_POOLS))
        _refuse_duplicates("problem.pools", [pool.name for pool in pools])
        layers = tuple(_read_layer(path, item, pools) for path, item in top.take_list("layers", most=MAX_LAYERS))
        _refuse_duplicates("problem.layers", [layer.name for layer in layers])
        _refuse_large(pools, layers)
        batch_size = top.take_integer("batchSize", least=1, most=2**53)
        global_batch_size = (
            top.take_integer("globalBatchSize", least=1, most=2**53)
            if top.take("globalBatchSize", None) is not None
            else None
        )
        ceiling = top.take("maxCostPerHour", None)
        problem = cls(
            batch_size=batch_size,
            samples=top.take_number("samples", above=0, most=1e30),
            pools=pools,
            layers=layers,
            min_samples_per_second=top.take_number("minSamplesPerSecond", 0, least=0, most=MAX_RATE),
            max_cost_per_hour=None if ceiling is None else top.take_number("maxCostPerHour", above=0),
            global_batch_size=global_batch_size,
            micro_batches=top.take_integer("microBatches", 1, least=1, most=2**20),
            parameter_server=read_servers(top, {pool.name: pool.units_per_pod for pool in pools}),
            interruption=read_interruption(top),
            provenance=_read_provenance(top),
        )
        top.finish()
        return problem

    def to_json(self) -> dict[str, Any]:
        """Return the problem as a JSON object that `from_json` parses to an equal value."""
        result: dict[str, Any] = {
            "version": VERSION,
            "batchSize": self.batch_size,
            "samples": self.samples,
            "minSamplesPerSecond": self.min_samples_per_second,
        }
        if self.max_cost_per_hour is not None:
            result["maxCostPerHour"] = self.max_cost_per_hour
        if self.global_batch_size is not None:
            result["globalBatchSize"] = self.global_batch_size
        if self.micro_batches != 1:
            result["microBatches"] = self.micro_batches
        if self.parameter_server is not None:
            server = self.parameter_server
            numbers = {
                "units": server.units,
                "coresPerSamplePerSecond": server.cores_per_sample_per_second,
                "leastUnits": server.least_units or None,
            }
            known = {name: number for name, number in numbers.items() if number is not None}
            result["parameterServer"] = {"pool": server.pool, **known}
        if self.interruption != Interruption():
            result["interruption"] = {
                "workerSeconds": self.interruption.worker_seconds,
                "serverSeconds": self.interruption.server_seconds,
                "checkpointSamples": self.interruption.checkpoint_samples,
            }
        if self.provenance:
            result["provenance"] = dict(self.provenance)
        result["pools"] = [_pool_json(pool) for pool in self.pools]
        result["layers"] = [_layer_json(layer) for layer in self.layers]
        return result


def _refuse_duplicates(path: str, names: list[str]) -> None:
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in seen:
            raise ProblemError(f"{path}[{i}].name", f"{name!r} is already the name of {path}[{seen[name]}]")
        seen[name] = i


def _refuse_large(pools: tuple[Pool, ...], layers: tuple[Layer, ...]) -> None:
    size = len(layers) ** 2 * len(pools)
    if size > MAX_SEGMENTS:
        raise ProblemError(
            "problem.layers",
            f"{len(layers)} layers on {len(pools)} pools are too many (layers x layers x pools must be "
            f"<= {MAX_SEGMENTS}); group layers or leave pools out",
        )
    counts = max(len(table_units(pool, layers)) for pool in pools)
    if size * (1 + counts) > MAX_SEGMENTS:
        raise ProblemError(
            "problem.layers",
            f"tables with {counts} different numbers of units for {len(layers)} layers on {len(pools)} pools are too "
            f"many (layers x layers x pools x (1 + numbers) must be <= {MAX_SEGMENTS}); measure all layers at the same "
            "numbers of units",
        )


def table_units(pool: Pool, layers: tuple[Layer, ...]) -> list[int]:
    """Return the numbers of units at which any layer was measured on a pool, ascending."""
    tables = [times.measured for layer in layers if (times := layer.pools.get(pool.name)) is not None]
    return sorted({units for table in tables if table is not None for units in table.units})


def _read_pool(path: str, value: Any) -> Pool:
    item = Fields(value, path)
    stage_seconds = item.take_number("stageSeconds", 0, least=0, most=MAX_SECONDS)
    pool = Pool(
        name=item.take_name("name"),
        device_type=item.take_choice("deviceType", DEVICE_TYPES),
        price_per_unit_hour=item.take_number("pricePerUnitHour", least=0, most=MAX_PRICE),
        max_units=item.take_integer("maxUnits", least=0, most=MAX_UNITS),
        units_per_pod=item.take_integer("unitsPerPod", 1, least=1, most=MAX_UNITS),
        stage_seconds=stage_seconds,
        stage_parallel_fraction=item.take_number("stageParallelFraction", 0, least=0, most=1),
        stage_fixed_seconds=item.take_number("stageFixedSeconds", 0, least=0, most=stage_seconds),
        stage_processor_seconds=item.take_number("stageProcessorSeconds", 0, least=0, most=MAX_SECONDS),
        stage_serial_seconds=item.take_number("stageSerialSeconds", 0, least=0, most=MAX_SECONDS),
        memory_bytes_per_pod=None
        if item.take("memoryBytesPerPod", None) is None
        else item.take_number("memoryBytesPerPod", above=0, most=MAX_BYTES),
        interruptions_per_unit_hour=item.take_number("interruptionsPerUnitHour", 0, least=0, most=MAX_INTERRUPTIONS),
        dense_exchange=""
        if item.take("denseExchange", None) is None
        else item.take_choice("denseExchange", DENSE_EXCHANGES),
    )
    item.finish()
    return pool


def _read_layer(path: str, value: Any, pools: tuple[Pool, ...]) -> Layer:
    item = Fields(value, path)
    name = item.take_name("name")
    kind = item.take_name("kind", "")
    input_bytes = item.take_number("inputBytes", 0, least=0)
    weight_bytes = item.take_number("weightBytes", 0, least=0)
    dense_bytes = item.take_number("denseBytes", least=0) if item.take("denseBytes", None) is not None else None
    resident_bytes = item.take_number("residentBytes", 0, least=0, most=MAX_BYTES)
    activation_bytes = item.take_number("activationBytes", 0, least=0, most=MAX_BYTES)
    waits = item.take_flag("waitsForCommit")
    times = Fields(item.take("pools"), item.at("pools"))
    item.finish()
    names = [pool.name for pool in pools]
    for pool in times.value:
        if pool not in names:
            raise UnknownNameError(times.at(pool), "pool", pool, names)
    read = {pool: _read_times(times.at(pool), entry) for pool, entry in times.value.items() if entry != {}}
    if not read:
        raise ProblemError(times.path, f"no pool can run layer {name!r}; give the times of at least one pool")
    return Layer(
        name=name,
        pools=read,
        kind=kind,
        input_bytes=input_bytes,
        weight_bytes=weight_bytes,
        dense_bytes=dense_bytes,
        resident_bytes=resident_bytes,
        activation_bytes=activation_bytes,
        waits_for_commit=waits,
    )


def _read_times(path: str, value: Any) -> LayerTimes:
    item = Fields(value, path)
    measured = None if item.take("measured", None) is None else _read_table(item)
    # With a table, the two parameters of Amdahl's law are only an optional summary for readers.
    defaults = [()] * 2 if measured is None else [(measured.compute_seconds[0],), (_fit_fraction(measured),)]
    compute = item.take_number("computeSeconds", *defaults[0], above=0, least=MIN_SECONDS, most=MAX_SECONDS)
    shortest = compute if measured is None else min(compute, *measured.compute_seconds)
    transfer = item.take_number("transferSeconds", 0, least=0, most=MAX_SECONDS)
    known = item.take("processorSeconds", None) is not None
    processor = item.take_number("processorSeconds", least=0, most=MAX_SECONDS) if known else 0.0
    sending = item.take_number("transferProcessorSeconds", 0, least=0, most=MAX_SECONDS)
    fixed = item.take_number("computeFixedSeconds", 0, least=0, most=shortest)
    fraction = item.take_number("parallelFraction", *defaults[1], least=0, most=1)
    # Workers do not share the wait: it lies in the part that their number does not divide.
    undivided = (compute - fixed) * (1 - fraction) if measured is None else shortest - fixed
    waiting = item.take_number("serverSeconds", 0, least=0, most=undivided * (1 + _ROUNDING) + MIN_SECONDS)
    times = LayerTimes(
        compute_seconds=compute,
        parallel_fraction=fraction,
        transfer_seconds=transfer,
        transfer_parallel_fraction=item.take_number("transferParallelFraction", 0, least=0, most=1),
        compute_fixed_seconds=fixed,
        transfer_fixed_seconds=item.take_number("transferFixedSeconds", 0, least=0, most=transfer),
        processor_seconds=processor if known else None,
        processor_fixed_seconds=item.take_number("processorFixedSeconds", 0, least=0, most=processor),
        transfer_processor_seconds=sending,
        transfer_processor_fixed_seconds=item.take_number("transferProcessorFixedSeconds", 0, least=0, most=sending),
        server_seconds=waiting,
        server_fixed_seconds=item.take_number("serverFixedSeconds", 0, least=0, most=fixed),
        measured=measured,
        spread=item.take_number("spread", 0, least=0),
        derived=item.take_name("derived", ""),
        source=item.take_name("source", ""),
    )
    item.finish()
    return times


def _read_table(times: Fields) -> MeasuredTimes:
    item = Fields(times.take("measured"), times.at("measured"))
    units: list[int] = []
    for path, value in item.take_list("units", most=MAX_COUNTS):
        units.append(check_integer(path, value, least=1, most=MAX_UNITS))
        if len(units) > 1 and units[-1] <= units[-2]:
            raise ProblemError(path, f"must be larger than the {units[-2]} before it, is {units[-1]}")
    if len(units) < 2:
        raise ProblemError(item.at("units"), "must have at least 2 entries; for one, give computeSeconds instead")
    seconds = [
        check_number(path, value, above=0, least=MIN_SECONDS, most=MAX_SECONDS)
        for path, value in item.take_list("computeSeconds", most=MAX_COUNTS)
    ]
    if len(seconds) != len(units):
        raise ProblemError(
            item.at("computeSeconds"), f"must have one entry for each of the {len(units)} units, has {len(seconds)}"
        )
    item.finish()
    return MeasuredTimes(tuple(units), tuple(seconds))


def _fit_fraction(measured: MeasuredTimes) -> float:
    """Return the parallel fraction with which Amdahl's law fits both ends of a table."""
    ratio = measured.compute_seconds[-1] / measured.compute_seconds[0]
    saved = 1 - measured.units[0] / measured.units[-1]
    return min(max((1 - ratio) / saved, 0.0), 1.0)


def _read_provenance(top: Fields) -> dict[str, Any]:
    value = top.take("provenance", {})
    return Fields(value, top.at("provenance")).value


def _pool_json(pool: Pool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": pool.name,
        "deviceType": pool.device_type,
        "pricePerUnitHour": pool.price_per_unit_hour,
        "maxUnits": pool.max_units,
        "unitsPerPod": pool.units_per_pod,
    }
    if pool.stage_seconds or pool.stage_parallel_fraction:
        result["stageSeconds"] = pool.stage_seconds
        result["stageParallelFraction"] = pool.stage_parallel_fraction
        result["stageFixedSeconds"] = pool.stage_fixed_seconds
    if pool.stage_processor_seconds:
        result["stageProcessorSeconds"] = pool.stage_processor_seconds
    if pool.stage_serial_seconds:
        result["stageSerialSeconds"] = pool.stage_serial_seconds
    if pool.memory_bytes_per_pod is not None:
        result["memoryBytesPerPod"] = pool.memory_bytes_per_pod
    if pool.interruptions_per_unit_hour:
        result["interruptionsPerUnitHour"] = pool.interruptions_per_unit_hour
    if pool.dense_exchange:
        result["denseExchange"] = pool.dense_exchange
    return result


def _layer_json(layer: Layer) -> dict[str, Any]:
    result: dict[str, Any] = {"name": layer.name}
    if layer.kind:
        result["kind"] = layer.kind
    result["inputBytes"] = layer.input_bytes
    result["weightBytes"] = layer.weight_bytes
    if layer.dense_bytes is not None:
        result["denseBytes"] = layer.dense_bytes
    if layer.resident_bytes:
        result["residentBytes"] = layer.resident_bytes
    if layer.activation_bytes:
        result["activationBytes"] = layer.activation_bytes
    if layer.waits_for_commit:
        result["waitsForCommit"] = True
    result["pools"] = {name: _times_json(times) for name, times in layer.pools.items()}
    return result


def _times_json(times: LayerTimes) -> dict[str, Any]:
    result: dict[str, Any] = {
        "computeSeconds": times.compute_seconds,
        "parallelFraction": times.parallel_fraction,
        "transferSeconds": times.transfer_seconds,
        "transferParallelFraction": times.transfer_parallel_fraction,
    }
    table = times.measured
    if times.processor_seconds is not None:
        result["processorSeconds"] = times.processor_seconds
    optional: dict[str, Any] = {
        "measured": table and {"units": list(table.units), "computeSeconds": list(table.compute_seconds)},
        "computeFixedSeconds": times.compute_fixed_seconds,
        "transferFixedSeconds": times.transfer_fixed_seconds,
        "processorFixedSeconds": times.processor_fixed_seconds,
        "transferProcessorSeconds": times.transfer_processor_seconds,
        "transferProcessorFixedSeconds": times.transfer_processor_fixed_seconds,
        "serverSeconds": times.server_seconds,
        "serverFixedSeconds": times.server_fixed_seconds,
        "spread": times.spread,
        "derived": times.derived,
        "source": times.source,
    }
    return result | {name: value for name, value in optional.items() if value}
