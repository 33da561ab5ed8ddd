"""What lies under the stores: memory that grows, kernels that compile once, warm-up."""

import mmap
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.store import memory
from heterps_runtime.store.kernel import kernel, view
from heterps_runtime.store.memory import Slab
from heterps_runtime.store.optimizers import DenseOptimizer
from heterps_runtime.store.warm import warm_up_server, warm_up_worker
from tests.heterps_runtime.helpers.store_reference import EXAMPLES, sparse_optimizer


def test_a_slab_keeps_its_contents_and_shows_zeros_beyond() -> None:
    slab = Slab(np.float32, (3,), capacity=10)
    slab.array[:] = np.arange(30).reshape(10, 3)
    for num_rows in (5, 11, 1_000, 500_000):  # the last is large enough for huge pages
        slab.reserve(num_rows)
        assert slab.capacity >= num_rows
        np.testing.assert_array_equal(slab.array[:10], np.arange(30).reshape(10, 3))
        assert not slab.array[10:].any()
        assert slab.array.flags.writeable
    assert slab.row_nbytes == 12


def test_a_slab_with_a_view_grows_by_copying() -> None:
    slab = Slab(np.int64, capacity=4)
    slab.array[:] = 7
    seen = slab.array[1:]
    slab.reserve(100)
    slab.array[0:100] = 8
    assert seen.tolist() == [7, 7, 7]  # the old memory is still valid, and is no longer the slab's
    slab.reserve(1_000)
    assert (slab.array[:100] == 8).all()


@pytest.mark.parametrize("watched", [False, True])
def test_a_slab_without_memory_to_grow_stays_as_it_was(watched: bool) -> None:
    slab = Slab(np.int64, capacity=4)
    slab.array[:] = 7
    seen = slab.array if watched else None
    with pytest.raises(MemoryError, match=r"no memory for \d+ rows of 8 bytes"):
        slab.reserve(1 << 58)
    assert slab.array.tolist() == [7, 7, 7, 7]
    assert seen is None or seen.tolist() == [7, 7, 7, 7]
    slab.reserve(8)
    assert slab.array[:4].tolist() == [7, 7, 7, 7]


def test_a_slab_grows_without_copying_where_the_system_can() -> None:
    slab = Slab(np.int64, capacity=mmap.PAGESIZE)
    before = slab._map
    slab.reserve(10 * mmap.PAGESIZE)
    assert slab._map is before


def test_a_slab_gives_the_memory_of_its_first_rows_back() -> None:
    slab = Slab(np.int64, capacity=1 << 20)  # 8 MiB
    slab.array[:] = 7
    slab.release((1 << 18) - 1)  # less than a unit of 2 MiB
    assert (slab.array == 7).all()
    slab.release((1 << 19) + 5)
    assert not slab.array[: 1 << 19].any()
    assert (slab.array[1 << 19 :] == 7).all()
    slab.release(1 << 20)
    assert not slab.array.any()


def test_a_slab_gives_the_memory_behind_its_first_rows_back() -> None:
    slab = Slab(np.int64, capacity=1 << 20)  # 8 MiB
    slab.array[:] = 7
    slab.release_after((1 << 19) - 5)  # up to the next unit of 2 MiB, memory stays
    assert (slab.array[: 1 << 19] == 7).all()
    assert not slab.array[1 << 19 :].any()
    slab.release_after(1 << 20)
    assert (slab.array[: 1 << 19] == 7).all()


def test_populated_memory_causes_no_faults() -> None:
    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

    try:
        mmap.mmap(-1, mmap.PAGESIZE).madvise(memory._POPULATE_WRITE)
    except OSError:
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    slab = Slab(np.int64, capacity=1 << 22)  # 32 MiB
    half = 1 << 21
    slab.populate(half)
    first = faults()
    slab.array[:half] += 1
    second = faults()
    slab.array[half:] += 1
    third = faults()
    assert third - second >= 8  # pages of 2 MiB or smaller
    assert second - first < 4


def test_a_view_costs_a_copy_only_where_the_kernels_could_not_read() -> None:
    array = np.arange(6.0)
    frozen = np.frombuffer(array.tobytes())
    assert view(array, np.float64) is array
    shown = view(frozen, np.float64)
    assert shown.flags.writeable
    assert np.shares_memory(shown, frozen)
    del frozen
    np.testing.assert_array_equal(shown, array)  # the view keeps the memory alive
    assert not np.shares_memory(view(array[::2], np.float64), array)
    assert view(np.frombuffer(b"x" + array.tobytes(), offset=1), np.float64).flags.aligned


def test_a_kernel_compiles_where_no_cache_can_be_written() -> None:
    scope: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x\n", scope)  # code without a file has no place for a cache
    assert kernel(scope["double"])(21) == 42


def test_warm_up_leaves_nothing_to_compile(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from heterps_runtime.partition.access import TableRules
from heterps_runtime.store import values
from heterps_runtime.store.dense import DenseOptimizer, DenseStore
from heterps_runtime.store.half import decode, encode
from heterps_runtime.store.initial import TableSpec
from heterps_runtime.store.keys import UniqueKeys, partition
from heterps_runtime.store.lookup import Bags, bag_backward, bag_forward, gather, scatter_add
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.warm import warm_up_server, warm_up_worker
from tests.heterps_runtime.helpers.store_reference import sparse_optimizer

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("heterps_runtime.store.")]
    functions = {f for module in modules for f in vars(module).values() if hasattr(f, "signatures")}
    return {f.py_func.__qualname__: len(f.signatures) for f in functions}

sparse = sparse_optimizer("rowwise-adagrad")
dense = DenseOptimizer.from_manifest({"name": "adam", "learningRate": "0.1"})
warm_up_server(sparse, dense, np.float32, "fp16", rules=True, disk=Path(sys.argv[1]))
warm_up_worker(np.float32, "fp16", bags=True)
before = compiled()
# Kernels that others inline count only where the cache was cold; the ones called from here count always.
assert sum(count > 0 for count in before.values()) > 10, before

rows = RowStore(16, np.float32, sparse, 0, {0: TableSpec("t", 10**6)})
keys, inverse = UniqueKeys()(np.arange(5000) // 2)
for part in np.split(partition(keys, np.arange(1024, dtype=np.int32) % 2, 2).order, 2):
    wire = encode(rows.pull(keys[part]), "fp16").data
    frame = np.frombuffer(wire.tobytes(), np.uint16).reshape(wire.shape)
    rows.apply([(keys[part], decode(frame, "fp16", np.float32))] * 2, 1.0, 1)
rules = TableRules(min_steps=2, unused_steps=3, candidate_unused_steps=3)
ruled = RowStore(16, np.float32, sparse, 0, {0: TableSpec("t", 10**6, rules=rules)})
for step in range(1, 9):
    if step < 4:
        ruled.apply([(keys[:2000 // step], np.zeros((2000 // step, 16), np.float32))], 1.0, step)
    for part in (ruled, ruled.candidates):
        part.begin_snapshot()[1].advance() if len(part) else None
        part.end_snapshot()
    ruled.evict(step)
assert len(ruled) == len(ruled.candidates) == 0
pulled = rows.pull(keys)
scatter_add(gather(pulled, inverse), inverse, pulled, np.zeros(5000, bool))
bags = Bags(inverse, np.arange(0, 5000, 5), "mean")
pooled, winners = bag_forward(pulled, bags)
bag_backward(pooled, bags, winners, pulled)
parameters = DenseStore(dense)
parameters.add("w", np.zeros((3, 2), np.float32))
parameters.apply([{"w": np.frombuffer(bytes(24), np.float32).reshape(3, 2)}] * 2, 1.0, 1)
values._LEAST_FRAMES = 64
space = SpillSpace(Path(sys.argv[1]), 1)
rows = RowStore(16, np.float32, sparse, 0, {0: TableSpec("t", 10**6)}, space)
for step, each in enumerate((keys, keys[::2], keys[::4]), 1):
    for part in np.split(each[:600], 3):
        rows.apply([(part, np.ones((len(part), 16), np.float32))], 1.0, step)
        rows.pull(part)
assert space.num_read and space.num_written
assert compiled() == before, (before, compiled())
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)


def test_warm_up_takes_every_optimizer() -> None:
    dense = [DenseOptimizer.from_manifest({"name": name, "learningRate": "1"}) for name in ("sgd", "adagrad", "adam")]
    for name in EXAMPLES:
        warm_up_server(sparse_optimizer(name), dense[0], np.float64, "full", rules=False)
    for optimizer in dense:
        warm_up_server(sparse_optimizer("sgd"), optimizer, np.float64, "bf16", rules=True)
    warm_up_worker(np.float64, "full", bags=False)


def test_the_package_never_loads_torch() -> None:
    program = "import sys, heterps_runtime.store.warm; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
