"""Tables: a recommender's embedding tables as ranks share them out.

As TorchRec places them (torchrec/distributed/planner, 1.8: enumerators.calculate_shard_sizes_and_
offsets, partitioners.GreedyPerfPartitioner) and FBGEMM keeps them (fbgemm_gpu 1.8,
split_table_batched_embeddings_ops_training.py: backward updates the rows that it comes to, and no
gradient of a table exists). TorchRec places whole tables by what it thinks they take in time, which
we do not: they are placed by their elements, the largest first, on the rank that has least.

Every rank runs lookups for the samples of all, and sends each rank the results of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memcore.cache import cached
from memcore.models.traced.expression import Sum
from memcore.models.traced.file import ModelFile, Table
from memcore.tape.dims import DP, Factor, Number, Shape, ceil_div, each_alone, is_array, reckoned
from memcore.tape.structure import Tables
from memcore.tape.tape import Cost, Storage, Tape
from memcore.words.training import BY_COLUMN, BY_ROW_OF_TABLE

LEAST_COLUMNS = 128  # of a piece of a table (torchrec/distributed/planner/constants.py: MIN_CW_DIM)
PARTS = 1000  # that CACHED and MISSED are counted in
LOOKUPS = ("embedding", "_embedding_bag")
BACKWARDS = ("embedding_dense_backward", "_embedding_bag_backward")
WRITTEN = 3  # of a row whose gradient came: read with it, and written
IDS = "int64"


@dataclass(frozen=True, slots=True)
class _Sized:
    """A table: its parameter's name, rows and columns, and what a forward looks up in it."""

    name: str
    rows: int
    columns: int
    of: Table

    @property
    def pieces(self) -> list[int]:
        """Columns of each piece that column-wise sharding cuts it into."""
        return [
            min(LEAST_COLUMNS, self.columns - at) for at in range(0, self.columns, LEAST_COLUMNS)
        ]


def tables_of(file: ModelFile) -> tuple[_Sized, ...]:
    """The tables of a model file, in the order of its parameters."""
    return tuple(
        _Sized(p.path, p.shape[0], p.shape[1], file.tables[p.path])
        for p in file.parameters
        if p.path in file.tables
    )


@cached
def fullest(tables: tuple[_Sized, ...], ranks: int, cut: bool) -> tuple[int, ...]:
    """Columns of each table that the fullest of so many ranks has; `cut`: tables are placed in
    pieces of columns, else whole."""
    pieces = [(t.rows * n, i, n) for i, t in enumerate(tables)
              for n in (t.pieces if cut else [t.columns])]  # fmt: skip
    held = [0] * ranks
    columns = [[0] * len(tables) for _ in range(ranks)]
    for elements, i, n in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        rank = held.index(min(held))
        held[rank] += elements
        columns[rank][i] += n
    return tuple(columns[held.index(max(held))])


class Shared:
    """What one rank has of a model's tables, as factors of shapes."""

    def __init__(self, file: ModelFile, how: Tables):
        self.tables, self.how = tables_of(file), how
        self.by_row = how.sharding == BY_ROW_OF_TABLE
        self.cut = how.sharding == BY_COLUMN
        self.way = f"{how.sharding}-wise"  # a part of every factor's text, by which it is known

    def _columns(self, sizes: Mapping[str, Number], i: int) -> Number:
        """Columns of a table on the fullest rank, as many as it has where rows are shared out."""
        if self.by_row:
            return self.tables[i].columns

        def alone(one: Mapping[str, Number]) -> Number:
            return fullest(self.tables, one[DP.name], self.cut)[i]

        ranks = {DP.name: sizes[DP.name]}
        return each_alone(ranks, alone) if is_array(sizes[DP.name]) else alone(ranks)

    def _rows(self, sizes: Mapping[str, Number], i: int) -> Number:
        rows = self.tables[i].rows
        if self.by_row:
            return ceil_div(rows, sizes[DP.name])
        return rows * (self._columns(sizes, i) > 0)

    def shape(self, i: int) -> tuple[Factor, Factor]:
        """Rows and columns of a table on a rank."""
        t = self.tables[i]
        names = frozenset({DP.name})
        rows = reckoned(
            f"rows of {t.name}, {t.rows:,} {self.way}", names, lambda sizes: self._rows(sizes, i)
        )
        columns = reckoned(
            f"columns of {t.name}, {t.columns:,} {self.way}", names,
            lambda sizes: self._columns(sizes, i),
        )  # fmt: skip
        return rows, columns

    def slots(self, i: int) -> Factor:
        """Rows of a table that a rank caches."""
        return reckoned(
            f"cached rows of {self.tables[i].name}, {self.way}", frozenset({DP.name, "CACHED"}),
            lambda sizes: ceil_div(self._rows(sizes, i) * sizes["CACHED"], PARTS),
        )  # fmt: skip

    def missed(self, i: int) -> Factor:
        """Rows of a table that a step reads of a rank's and that its cache lacks."""
        read = self.tables[i].of.read
        return reckoned(
            f"missed rows of {self.tables[i].name}, {read} {self.way}",
            read.names | {DP.name, "MISSED"},
            lambda sizes: self._read(sizes, i) * sizes["MISSED"] // PARTS,
        )  # fmt: skip

    def _read(self, sizes: Mapping[str, Number], i: int) -> Number:
        """Rows that lookups read in a rank's part of a table, for the samples of all ranks."""
        read = self.tables[i].of.read.value(sizes)
        if self.by_row:
            return read  # of all ranks' a part as large as this rank's own
        return sizes[DP.name] * read * (self._columns(sizes, i) > 0)

    @property
    def ids(self) -> Factor:
        """Rows that are asked of a rank, by number."""
        names = frozenset({DP.name}).union(*(t.of.read.names for t in self.tables))
        return reckoned(
            f"rows asked of a rank, {self._text('read')}", names,
            lambda sizes: sum(self._read(sizes, i) for i in range(len(self.tables))),
        )  # fmt: skip

    def results(self, pooled: Sequence[bool] = (True, False)) -> Factor:
        """Elements of what a rank's lookups make, before they are sent to whose samples they are
        of; none where one rank has all."""

        def each(sizes: Mapping[str, Number], i: int) -> Number:
            of, columns = self.tables[i].of, self._columns(sizes, i)
            made = of.made.value(sizes)
            alone = self.by_row and not of.pooled  # of a row that is not summed one rank has all
            ranks = sizes[DP.name]
            return made * columns * (ranks > 1) * (1 if alone else ranks)

        which = [i for i, t in enumerate(self.tables) if t.of.pooled in pooled]
        names = frozenset({DP.name}).union(*(self.tables[i].of.made.names for i in which))
        return reckoned(
            f"results of a rank's lookups, {self._text('made')}, {len(which)}", names,
            lambda sizes: sum(each(sizes, i) for i in which),
        )  # fmt: skip

    def own(self, what: str, pooled: Sequence[bool] = (True, False)) -> Sum:
        """Rows that a rank's own samples read, or elements that are made of them."""
        found = Sum.number(0)
        for t in self.tables:
            if t.of.pooled in pooled:
                each = t.of.read if what == "read" else t.of.made * Sum.number(t.columns)
                found = found + each
        return found

    def _text(self, what: str) -> str:
        return f"{len(self.tables)} tables, {self.own(what)} of a rank, {self.way}"

    @property
    def traffic(self) -> Sum:
        """Elements of rows that the mean rank's lookups read: as many as its own samples ask
        for."""
        found = Sum.number(0)
        for t in self.tables:
            found = found + t.of.read * Sum.number(t.columns)
        return found


def shape_of(sums: tuple[Sum, ...]) -> Shape:
    """A shape of the engine: whole numbers, and what is reckoned from dimensions."""
    return tuple(s.value({}) if not s.names else reckoned(str(s), s.names, s.value) for s in sums)


def add_parameter(t: Tape, shared: Shared, name: str) -> None:
    """A table as a rank has it."""
    i = next(i for i, table in enumerate(shared.tables) if table.name == name)
    rows, columns = shared.shape(i)
    storage = t.parameter(name, (rows, columns)).storage
    storage.table = shared.how.optimizer
    if shared.how.cached:
        storage.cached = ((shared.slots(i), columns), (shared.missed(i), columns))


def add_exchange(
    t: Tape, shared: Shared, lookups: tuple[int, int], backward: tuple[int, int]
) -> None:
    """What ranks send each other, what they hold of it, and what their lookups move. `lookups`,
    `backward`: when the first begins and the last is over, in the tape's clock."""
    dtype = t.parameter_dtype

    def add(name: str, shape: tuple[Factor, ...], of: str, kind: str, times: tuple[int, int],
            saved: str = "") -> None:  # fmt: skip
        made = Storage(t._named(name), shape, of, kind, *times, made_by=name, own_name=name)
        made.last_use = times[1]
        made.saved_by = [saved] if saved else []
        t.storages.append(made)

    results = (shared.results(),)
    add("rows asked of this GPU", (shared.ids,), IDS, "activation", (lookups[0], backward[1]),
        "lookups")  # fmt: skip
    add("results before they are sent", results, dtype, "temporary", lookups)
    add("gradients of results", results, dtype, "temporary", backward)
    own = {p: shape_of((shared.own("made", (p,)),)) for p in (True, False)}
    t.send("rows asked for", "all-to-all", DP, shape_of((shared.own("read"),)), IDS)
    for pooled, shape in own.items():
        if not any(table.of.pooled == pooled for table in shared.tables):
            continue
        if shared.by_row and pooled:
            summed = (shared.results((True,)),)
            t.send("results of lookups", "reduce-scatter", DP, summed, dtype)
            t.send("gradients of lookups", "all-gather", DP, summed, dtype, backward=True)
        else:
            t.send("results of lookups", "all-to-all", DP, shape, dtype)
            t.send("gradients of lookups", "all-to-all", DP, shape, dtype, backward=True)
    rows = shape_of((shared.traffic,))
    for name, phase, times in (("lookups", "forward", 1), ("lookups, update", "backward", WRITTEN)):
        cost = Cost(t._named(name), phase, [], [(rows, dtype)] * times)
        cost.parts = t._parts
        t.work.append(cost)
