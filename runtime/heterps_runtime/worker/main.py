"""The start of a worker process."""

from __future__ import annotations

import zmq

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import DenseExchange, worker_name
from heterps_runtime.data import DataSpec, open_dataset
from heterps_runtime.intake import resolve_loss
from heterps_runtime.processes.process import log
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.store.warm import warm_up_worker
from heterps_runtime.wire.link import ControlLink, Credentials
from heterps_runtime.wire.messages import Failed
from heterps_runtime.wire.ports import FREE_PORTS, Ports
from heterps_runtime.worker.member import Place, WorkerMember
from heterps_runtime.worker.model import UserModel, Workload, choose_device, set_precision
from heterps_runtime.worker.steps.source import Data

__all__ = ["open_data", "open_worker"]


def open_data(config: RunConfig, link: ControlLink | None = None) -> Data:
    """Open the job's data sets; `link` shows the progress."""
    spec = DataSpec.from_manifest(config.data, config.loss, config.work_directory / "cache")

    def progress(fraction: float, text: str) -> None:
        if link is not None:
            link.status = f"{text} {fraction:.0%}"

    train = open_dataset(spec, "train", progress)
    evaluation = open_dataset(spec, "evaluation", progress) if spec.evaluation else None
    return Data(train, evaluation)


def open_worker(
    config: RunConfig,
    credentials: Credentials,
    stage: int,
    index: int,
    pool: str,
    host: str,
    ports: Ports = FREE_PORTS,
    dense_exchange: DenseExchange | None = None,
) -> WorkerMember:
    """Load data and model of worker `index` of a stage, and listen on `host` and `ports`.

    Args:
        config: the job.
        credentials: of the job.
        stage: index in the plan.
        index: of the worker in its stage.
        pool: of the stage.
        host: address to listen on.
        ports: to listen on.
        dense_exchange: of the stage; None: that of the pool's device type.
    """
    exchange = dense_exchange or DenseExchange.of_pool(config.pools[pool].device_type)
    all_reduces = exchange == DenseExchange.ALL_REDUCE
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = ControlLink(credentials, worker_name(stage, index))
    try:
        link.status = "loading the model"
        log(f"{link.name} on pool {pool}: loading data and model")
        data = open_data(config, link) if stage == 0 else None
        features = data.train.schema.features if data else feature_names(config)
        model = UserModel.build(config, features)
        if data is not None:
            data.train.check_features(model.layered.inputs)
        device = choose_device(config.pools[pool], index)
        set_precision(config, device)
        loss = resolve_loss(config.loss)
        link.status = "compiling kernels"
        bags = any(site.kind == "bag" for site in model.layered.stage(0, len(model.layered.layers) - 1).sites)
        replica = DenseOptimizer.from_manifest(config.dense_optimizer) if all_reduces and device.type == "cpu" else None
        warm_up_worker(config.dtype_name, config.wire_precision, bags=bags, replica=replica)
    except Exception as error:
        permanent = isinstance(error, ValueError)
        reason = type(error).__name__ if permanent else "WorkerError"
        link.send(Failed(reason, str(error), permanent))
        link.close()
        raise
    log(f"{link.name}: ready to compute on {device}")
    place = Place(stage, index, pool, host, ports, all_reduces=all_reduces)
    workload = Workload(model, loss, device)
    return WorkerMember(config, link, context, credentials, place, workload, data)


def feature_names(config: RunConfig) -> tuple[str, ...] | None:
    """Possible features according to the manifest. Which ones are multi-valued, only the data shows."""
    spec = DataSpec.from_manifest(config.data, config.loss, config.work_directory / "cache")
    dense = ("dense",) if spec.dense else ()
    return (*spec.sparse, *(f"{n}_offsets" for n in spec.sparse), *(t.name for t in spec.tensors), *dense)
