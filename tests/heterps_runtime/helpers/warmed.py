"""On import, compiles the kernels of the jobs in `jobs.py`, for the processes that fork from this one."""

from __future__ import annotations

from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.warm import warm_up_server, warm_up_worker

_SPARSE = SparseOptimizer.from_manifest({"name": "adagrad", "learningRate": "0.1"})
_DENSE = DenseOptimizer.from_manifest({"name": "adam", "learningRate": "0.01"})

warm_up_server(_SPARSE, _DENSE, "float64", "full", rules=False)
warm_up_worker("float64", "full", bags=True)
