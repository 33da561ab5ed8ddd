"""The state of a parameter server, or a copy of another one's, without sockets.

Gradients are kept until their step is committed and then applied at once, so that rows and dense parameters get the
gradient of the whole batch, as in a single process. Pushes are added in the order of the workers' names, so that the
sums do not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from heterps_runtime.checkpoint import (
    CheckpointManifest,
    FileEntry,
    Origin,
    RowFile,
    StateFile,
    Storage,
    count_rows,
    imported_values,
    iterate_rows,
    read_dense,
    read_manifest,
    read_pieces,
)
from heterps_runtime.config import RunConfig
from heterps_runtime.errors import TransientError
from heterps_runtime.partition.access import rules_of
from heterps_runtime.partition.pieces import DensePiece, Place
from heterps_runtime.partition.tables import Table
from heterps_runtime.ps.copying import Copier
from heterps_runtime.ps.division import WholeState
from heterps_runtime.ps.files import dense_files
from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.importing import import_dense, import_rows
from heterps_runtime.ps.increments import History, Saved, builds_on
from heterps_runtime.saver import Part
from heterps_runtime.slots import overlapping_servers, share_of_slots, slot_map
from heterps_runtime.store.changes import LOADED
from heterps_runtime.store.dense import LAST_STEP, DenseStore
from heterps_runtime.store.initial import EmbeddingInit, TableSpec
from heterps_runtime.store.keyed import ROWS, KeyedRows, KeyFilter
from heterps_runtime.store.keys import NUM_SLOTS, shard_of
from heterps_runtime.store.optimizers import DenseOptimizer, SparseOptimizer
from heterps_runtime.store.rows import RowStore
from heterps_runtime.store.spill import SpillSpace
from heterps_runtime.store.statistics import StatisticsStore
from heterps_runtime.store.team import ALONE, Team
from heterps_runtime.wire.messages import ShardState

__all__ = ["Shard"]

Array = np.ndarray[Any, Any]

_MARGIN = 1.02  # the rows of a part of the slots are not exactly its share


class Shard:
    """State of one parameter server.

    Args:
        config: the job.
        index: of the server that answers for it.
        spill: where rows that do not fit into memory go; None: all are in memory.
        team: threads that compute.
    """

    def __init__(self, config: RunConfig, index: int, spill: SpillSpace | None = None, team: Team = ALONE) -> None:
        self._config = config
        self._index = index
        self._sparse_optimizer = SparseOptimizer.from_manifest(config.sparse_optimizer)
        self._init = EmbeddingInit.from_manifest(config.embedding_init)
        self._dtype = np.dtype(config.dtype_name)
        self._spill, self._team = spill, team
        self.committed = 0  # steps in the rows
        self.dense_committed = 0  # steps in the dense parameters: one more during a commit
        self.tables: dict[int, Table] = {}
        self.stores: dict[int, RowStore] = {}  # by dimension
        self.dense = DenseStore(DenseOptimizer.from_manifest(config.dense_optimizer), team)
        self.statistics = StatisticsStore()
        self._places: dict[str, Place] = {}  # of the pieces in `dense`
        self._pushes: dict[int, dict[str, Gradients]] = {}
        self._restore: tuple[Storage, CheckpointManifest] | None = None
        self._verified: set[str] = set()  # files of dense parameters in the checkpoint to restore
        self.inherited: WholeState | None = None  # what `define` takes pieces from, if the division has changed
        self._num_servers = 1
        self._earlier_steps = 0
        self._history = History()
        self._copier: Copier | None = None  # of the last snapshot

    # --- membership ---------------------------------------------------------------------------------------------------

    def begin_generation(self, num_servers: int, earlier_steps: int = 0) -> None:
        """Drop uncommitted gradients of the previous generation.

        Args:
            num_servers: of the generation.
            earlier_steps: steps before this job's first that the optimizers' state is of, less the skipped ones.
        """
        self._pushes.clear()
        self._num_servers, self._earlier_steps = num_servers, earlier_steps

    def reset(self, storage: Storage, manifest: CheckpointManifest | None) -> None:
        """Drop all state and start from a checkpoint, or from scratch. `define` reads the checkpoint."""
        self.cancel_copies("the server went back to an earlier checkpoint")
        self._history.forget()
        self.stores.clear()
        self.tables.clear()
        self.dense = DenseStore(self.dense.optimizer)
        self._places.clear()
        self._verified.clear()
        self.statistics = StatisticsStore()
        self.committed = self.dense_committed = manifest.step if manifest else 0
        self._restore = (storage, manifest) if manifest else None
        self.inherited = None

    def define(self, tables: Iterable[Table], dense: Mapping[str, DensePiece], statistics: Mapping[str, Array]) -> None:
        """Add tables, pieces of dense parameters, and statistics; known ones keep their values.

        Raises:
            UserError: a parameter has another shape in the checkpoint to restore.
            StorageError, DamagedError: the checkpoint to restore cannot be read.
        """
        new = {t.index: t for t in tables if t.index not in self.tables}
        self.tables.update(new)
        by_dim: dict[int, dict[int, TableSpec]] = {}
        rules = rules_of(self.tables.values(), self._config.tables)
        for index, table in self.tables.items():
            spec = TableSpec(table.name, table.num_embeddings, self._init, table.padding_idx, rules[index])
            by_dim.setdefault(table.dim, {})[index] = spec
        for dim, specs in by_dim.items():
            if dim not in self.stores:
                layout = dim, self._dtype, self._sparse_optimizer
                self.stores[dim] = RowStore(*layout, self._config.seed, specs, self._spill, self._team)
        unknown = {n: piece for n, piece in dense.items() if n not in self._places}
        missing = {n: v for n, v in statistics.items() if n not in self.statistics.names}
        if self._restore is not None:
            self._load(bool(new), unknown, missing)
        else:
            for name, piece in unknown.items():
                self.dense.add(name, piece.values)
            inherited = self.inherited
            if inherited is not None and unknown:
                places = {name: piece.place for name, piece in unknown.items()}
                self.dense.load(self.dense.snapshot() | inherited.pieces(places))
            for name, value in missing.items():
                self.statistics.add(name, inherited.statistics.get(name, value) if inherited else value)
        self._places.update({name: piece.place for name, piece in unknown.items()})

    def files_to_verify(self, manifest: CheckpointManifest) -> list[FileEntry]:
        """The files of a checkpoint that `define` reads without a look at their checksums.

        Of the rows, these are the files that have some of this server's slots. `define` compares the checksums of files
        of dense parameters itself, as it depends on the pieces which of them it reads.
        """
        number = manifest.num_servers
        files = [entry for entry in manifest.files if entry.role != "dense"]
        if number is None:
            return files
        needed = overlapping_servers(self._index, self._num_servers, number)
        return [entry for entry in files if entry.role != "rows" or entry.index in needed]

    @property
    def restores_from(self) -> str:
        """Folder of the checkpoint that `define` reads; empty if there is none."""
        return self._restore[1].folder if self._restore else ""

    @property
    def bytes_to_load(self) -> int:
        """Bytes that `define` reads, about: those of dense parameters, this server's share of them, twice."""
        if self._restore is None:
            return 0
        manifest = self._restore[1]
        dense = sum(entry.bytes for entry in manifest.files_of("dense"))
        return sum(entry.bytes for entry in self.files_to_verify(manifest)) + 2 * dense // self._num_servers

    def _load(self, with_rows: bool, dense: Mapping[str, DensePiece], statistics: Mapping[str, Array]) -> None:
        assert self._restore is not None
        storage, manifest = self._restore
        if manifest.imported_from:
            self._load_imported(storage, manifest, with_rows, dense, statistics)
            return
        if with_rows:
            number = manifest.num_servers
            files = [entry for entry in self.files_to_verify(manifest) if entry.role == "rows"]
            self._reserve(storage, manifest, files)
            for entry in files:
                own = number and overlapping_servers(entry.index, number, self._num_servers) == {self._index}
                wanted = None if own else self._has
                for block in iterate_rows(storage, manifest, wanted, files=[entry]):
                    self.stores[block.dim].load(block.keys, block.rows, block.state)
                for block in iterate_rows(storage, manifest, wanted, files=[entry], kind="candidates"):
                    self.parts[f"candidates-{block.dim}"].load(block.keys, None, block.state)
            for store in self.stores.values():
                store.forget_admitted()
            if number == self._num_servers:  # otherwise these files have rows of other servers, too
                folder, origin = manifest.folder, manifest.origin
                earlier = tuple(entry.earlier(folder, origin) for entry in files)
                self._history.restored(Saved(folder, earlier, dict.fromkeys(self.parts, LOADED), self.num_rows))
        if dense:
            places = {name: piece.place for name, piece in dense.items()}
            found = read_pieces(storage, manifest, places, verified=self._verified)
            step = np.array(self._earlier_steps + self.committed, np.int64)
            self.dense.load({**self.dense.snapshot(), **found, LAST_STEP: step})
        if statistics:
            for name, value in read_dense(storage, manifest, list(statistics), role="buffers").items():
                self.statistics.add(name, value)

    def _reserve(self, storage: Storage, manifest: CheckpointManifest, files: list[FileEntry]) -> None:
        """Make room for the rows that this server loads from files."""
        number, expected = manifest.num_servers, dict.fromkeys(self.stores, 0.0)
        for entry in files:
            # Files that are not those of servers have any slots: a store grows while it loads them.
            share = share_of_slots(entry.index, number, self._index, self._num_servers) if number else 0.0
            for dim, count in count_rows(storage, manifest, entry).items():
                expected[dim] += share * count
        for dim, rows in expected.items():
            self.stores[dim].reserve(int(_MARGIN * rows))

    def _has(self, keys: Array) -> Array:
        """Which keys (n,) belong to this server, as a mask (n,)."""
        return _of_server(keys, self._index, self._num_servers)

    def _load_imported(
        self,
        storage: Storage,
        manifest: CheckpointManifest,
        with_rows: bool,
        dense: Mapping[str, DensePiece],
        statistics: Mapping[str, Array],
    ) -> None:
        """Load another model, by the names of its tables, parameters and statistics."""
        if with_rows:
            import_rows(storage, manifest, self.tables.values(), self.parts, self._has, self._earlier_steps)
            for store in self.stores.values():
                store.forget_admitted()
        import_dense(storage, manifest, dense, self.dense, self._verified)
        values = imported_values(storage, manifest, statistics, role="buffers")
        for name, value in statistics.items():
            self.statistics.add(name, values.get(name, value))

    # --- steps --------------------------------------------------------------------------------------------------------

    def pull(self, keys: Mapping[int, Array]) -> dict[int, Array]:
        """The rows of keys: dim -> (U,) becomes dim -> (U, dim)."""
        return {dim: self.stores[dim].pull(k) for dim, k in keys.items()}

    def read_ahead(self, keys: Mapping[int, Array]) -> None:
        """Read rows that are on disk, because `pull` will need these keys after the next commit."""
        if self._spill is not None:
            for dim, of_dim in keys.items():
                self.stores[dim].read_ahead(of_dim)

    def pull_dense(self, names: Collection[str]) -> dict[str, Array]:
        """This server's pieces of dense parameters (n,), and statistics, by name."""
        statistics = [n for n in names if n in self.statistics.names]
        dense = [n for n in names if n not in statistics]
        values = [*self.dense.pull(dense), *self.statistics.pull(statistics)]
        return dict(zip([*dense, *statistics], values, strict=True))

    def push(self, step: int, worker: str, gradients: Gradients) -> None:
        """Keep a worker's gradients until the step is committed; a repeated push is ignored."""
        if step >= self.committed:
            self._pushes.setdefault(step, {}).setdefault(worker, gradients)

    def commit_dense(self, step: int, batch_size: int) -> None:
        """The first half of a commit: dense parameters and statistics, because workers wait for them."""
        if step != self.dense_committed or step != self.committed:
            raise TransientError(f"commit of step {step}, but this server is at step {self.committed}")
        pushes = [push for _, push in sorted(self._pushes.get(step, {}).items())]
        dense = [push.dense for push in pushes if push.dense]
        if dense and self.dense.apply(dense, 1.0 / batch_size, self._number(step)):
            raise TransientError(f"step {step}: a dense gradient is not finite although its worker found none")
        self.statistics.apply([push.statistics for push in pushes], 1.0 / batch_size)
        self.dense_committed = step + 1

    def commit_rows(self, step: int, batch_size: int) -> dict[str, tuple[int, int]]:
        """The second half of a commit: rows.

        Returns:
            Rows that candidates got, and rows that were evicted, by the names of tables; only of those with any.
        """
        assert self.dense_committed == step + 1, "dense parameters are committed first"
        pushes = [push for _, push in sorted(self._pushes.pop(step, {}).items())]
        for dim, store in self.stores.items():
            given = [(keys, grads) for push in pushes for d, keys, grads in push.chunks if d == dim]
            if given and store.apply(given, 1.0 / batch_size, self._number(step)):
                raise TransientError(f"step {step}: a gradient is not finite although its worker found none")
            store.evict(self._number(step))
        self.committed = step + 1
        return {name: counts for store in self.stores.values() for name, counts in store.take_moved().items()}

    def skip(self, step: int) -> None:
        """Drop the gradients of a step that changes nothing; it counts as committed."""
        if step != self.committed:
            raise TransientError(f"step {step} is skipped, but this server is at step {self.committed}")
        self._pushes.pop(step, None)
        self.committed = self.dense_committed = step + 1
        self._earlier_steps -= 1

    def _number(self, step: int) -> int:
        """Number of a step for the optimizers, from 1: of those that were applied, and of those before this job."""
        return self._earlier_steps + step + 1

    # --- copies for other servers -------------------------------------------------------------------------------------

    def describe(self) -> ShardState:
        """All of the shard but its rows, for a server that copies it."""
        pieces = zip(self._places.items(), self.dense.pull(self._places), strict=True)
        dense = {name: DensePiece(place.start, place.shape, piece) for (name, place), piece in pieces}
        optimizer = {name: value for name, value in self.dense.snapshot().items() if name not in dense}
        # Workers have defined all of it before the first commit.
        folder = self.restores_from if self._restore and self._restore[1].step == self.committed else ""
        tables, statistics = tuple(self.tables.values()), self.statistics.snapshot()
        rows_and_notes = self._with_rows({name: store.notes.oldest for name, store in self.parts.items()})
        return ShardState(self._index, tables, dense, optimizer, statistics, folder, *rows_and_notes)

    def note(self) -> ShardState:
        """Note what changes from now on; return the shard's tables and notes, for a server that begins to copy rows."""
        rows_and_notes = self._with_rows({name: store.notes.take() for name, store in self.parts.items()})
        return ShardState(self._index, tuple(self.tables.values()), {}, {}, {}, "", *rows_and_notes)

    def _with_rows(self, notes: Mapping[str, int | None]) -> tuple[dict[str, int], dict[str, int]]:
        rows = {name: len(store) for name, store in self.parts.items()}
        return rows, {name: note for name, note in notes.items() if note is not None}

    def end_change(self) -> None:
        """Forget what a change of the division needs: none is under way."""
        self.inherited = None
        for store in self.parts.values():
            store.notes.end()

    def filter_of(self, target: int, num_servers: int) -> KeyFilter | None:
        """Which rows belong to a shard of a division among a number of servers; None: all of this one.

        Raises:
            ValueError: there is no such shard.
        """
        if not 0 <= target < num_servers <= NUM_SLOTS:
            raise ValueError(f"target: must be one of at most {NUM_SLOTS} servers, is {target} of {num_servers}")
        if (target, num_servers) == (self._index, self._num_servers):
            return None
        return lambda keys: _of_server(keys, target, num_servers)

    def begin_copy(self, state: ShardState, committed: int, storage: Storage) -> None:
        """Become a copy of another server's shard, without its rows, which `take_rows` adds.

        Args:
            state: what the other server's `describe` returned.
            committed: steps in it.
            storage: of the checkpoint that has what no worker has defined yet.

        Raises:
            StorageError, DamagedError: that checkpoint cannot be read.
        """
        manifest = read_manifest(storage, state.checkpoint) if state.checkpoint else None
        self.reset(storage, None)
        self.define(state.tables, state.dense, state.statistics)
        self.dense.load({name: piece.values for name, piece in state.dense.items()} | state.optimizer)
        self._restore = (storage, manifest) if manifest else None
        self.committed = self.dense_committed = committed

    def begin_division(
        self, whole: WholeState, tables: Iterable[Table], before: Shard | None, committed: int, storage: Storage
    ) -> None:
        """Become a shard of another division, without the rows that `take_rows` adds.

        Args:
            whole: dense parameters and statistics of all servers.
            tables: of the model.
            before: the shard of the same index in the division before, or with rows that were copied ahead. This one
                adds its rows to that one's, and `drop_foreign_rows` of one of them ends that.
            committed: steps in the state.
            storage: of the job's checkpoints.
        """
        self.reset(storage, None)
        if before is not None:
            self.stores.update(before.stores)
        self.define(tables, {}, {})
        self.inherited = whole
        self.committed = self.dense_committed = committed

    def drop_foreign_rows(self) -> Iterator[None]:
        """Remove rows and candidates of other shards, some in each step, after a change of the division."""
        for part in self.parts.values():
            start = 0
            while start >= 0:
                start = part.remove_some(lambda keys: ~self._has(keys), start)
                yield

    def take_rows(self, part: str, keys: Array, columns: Mapping[str, Array], *, ahead: bool = False) -> None:
        """Add rows (n, dim) of a part and their state, by the names of `RowChunk.columns`; see `KeyedRows.load`.

        Raises:
            ValueError: there is no such part, or they do not fit it.
        """
        state = {name.removeprefix("state/"): values for name, values in columns.items() if name != ROWS}
        self.part(part).load(keys, columns.get(ROWS), state, ahead=ahead)

    def part(self, name: str) -> KeyedRows:
        """A group of rows, or their candidates.

        Raises:
            ValueError: there is no such part.
        """
        if name not in self.parts:
            raise ValueError(f"part: must be one of {sorted(self.parts)}, is {name!r}")
        return self.parts[name]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def snapshot(self, lineage: int, folder: str, newest: str | None, wake: Callable[[], None]) -> Part:
        """Begin a copy of the state as it is now, as a part of a checkpoint; `copy_rows` goes on with it.

        Args:
            lineage: of this server's state.
            folder: of the checkpoint.
            newest: folder of the newest valid checkpoint, if there is one.
            wake: makes this server's thread call `copy_rows` again; called by the thread that writes.
        """
        origin, saved = Origin(self.committed, lineage), self._increment_of(newest)
        parts = self.parts
        begun = {
            name: store.begin_snapshot(saved.snapshots.get(name, LOADED) if saved else None)
            for name, store in parts.items()
        }
        copier = self._copier = Copier(parts, {name: copy for name, (_, copy) in begun.items()}, wake)
        num_rows, earlier = self.num_rows, saved.files if saved else ()
        added = num_rows - (saved.num_rows if saved else 0)
        files: list[RowFile | StateFile] = []
        if copier.parts or added or not saved:  # what was evicted changes the number of rows only
            files.append(RowFile(f"rows-{self._index}.safetensors", copier.parts, origin, self._index, added))

        def over(entries: tuple[FileEntry, ...] | None) -> None:
            if entries is None:
                copier.cancel("the checkpoint failed")
                return
            rows = tuple(entry.earlier(folder, origin) for entry in entries if entry.role == "rows")
            snapshots = {name: number for name, (number, _) in begun.items()}
            self._history.written(Saved(folder, earlier + rows, snapshots, num_rows))

        return Part(
            [*files, *dense_files(self._index, origin, self.dense, self._places, self.statistics)], earlier, over
        )

    def copy_rows(self) -> bool:
        """Go on with the snapshot in progress, for a few milliseconds; returns whether it can go on at once."""
        return self._copier is not None and self._copier.advance()

    def cancel_copies(self, reason: str) -> None:
        """Give up the snapshot in progress: its checkpoint fails. Without effect if there is none."""
        if self._copier is not None:
            self._copier.cancel(reason)

    def _increment_of(self, newest: str | None) -> Saved | None:
        """The checkpoint that the next one builds on; None: it has all rows."""
        saved = self._history.newest(newest)
        if saved is None:
            return None
        changed = sum(s.count_changed(saved.snapshots.get(n, LOADED)) * s.row_nbytes for n, s in self.parts.items())
        return saved if builds_on(saved, changed, sum(len(s) * s.row_nbytes for s in self.parts.values())) else None

    @property
    def parts(self) -> dict[str, KeyedRows]:
        """The rows and candidates of this server, by the name of their part of a file."""
        parts: dict[str, KeyedRows] = {}
        for dim, store in self.stores.items():
            parts[f"group-{dim}"] = store
            if store.candidates is not None:
                parts[f"candidates-{dim}"] = store.candidates
        return parts

    @property
    def num_rows(self) -> int:
        """Stored rows; any thread may ask."""
        return sum(len(store) for store in list(self.stores.values()))

    @property
    def num_candidates(self) -> int:
        """Ids that have no row yet; any thread may ask."""
        return sum(len(store.candidates) for store in list(self.stores.values()) if store.candidates is not None)

    @property
    def num_bytes(self) -> int:
        """Bytes of rows, state, dense parameters and statistics; any thread may ask, as the pulse does."""
        rows = sum(store.nbytes for store in list(self.stores.values()))
        return rows + self.dense.nbytes + self.statistics.nbytes


def _of_server(keys: Array, index: int, num_servers: int) -> Array:
    """Which keys (n,) belong to one of some servers, as a mask (n,)."""
    mask: Array = shard_of(keys, slot_map(num_servers)) == index
    return mask
