"""`embed`: vectors for the rows that lack them, requested from a provider in batches and committed as they arrive.

Every commit is progress: a run that was interrupted or killed is resumed by running it again, because the rows that are
left are those whose vector is null. A text that changed while its vector was requested keeps the null, and is embedded
by the next pass. The commit that first fills a property records in the schema which model made its vectors.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omnigraph.engine import require_engine
from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.manifest.commit.plan import ConflictPolicy, DataChange, PublishPlan, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.stale_base import retry_if_base_swept
from omnigraph.manifest.commit.txn import Snapshot, WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import MAIN, Manifest, TableKey
from omnigraph.manifest.repository import Repository
from omnigraph.pipeline.compute import ComputeOptions, SparkProvider
from omnigraph.pipeline.embedding.tasks import Batch, Embedded, Pacer, Provider, Threads, embed_batch
from omnigraph.read.search.embedding import BATCH_TEXTS_MAX, Embedder, embedder_from, require_same_model
from omnigraph.schema.catalog import Catalog, Property, Schema, TypeDef
from omnigraph.schema.types import Vector
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost
from omnigraph.storage.table.table_content import TableContent
from omnigraph.storage.table.tables import Tables
from omnigraph.storage.util.runner import Runner
from omnigraph.write.stage import Stager

if TYPE_CHECKING:
    import pyarrow as pa

CHARACTERS_A_TOKEN = 4  # of English, about
COMMIT_EVERY = 100  # batches: enough rows for segments of the vector index
CONCURRENCY = 4
PASSES_MAX = 5


@dataclass(frozen=True, slots=True)
class EmbeddedProperty:
    """A vector that is made from a text."""

    definition: TypeDef
    vector: Property
    source: Property

    @property
    def dimension(self) -> int:
        assert isinstance(self.vector.type, Vector)
        return self.vector.type.dimension


@dataclass(frozen=True, slots=True)
class Estimate:
    """What filling one property takes: an estimate, for texts that are neither null nor blank."""

    type_name: str
    property_name: str
    rows: int
    characters: int
    requests: int
    skipped: int = 0  # rows without a text

    @property
    def tokens(self) -> int:
        return -(-self.characters // CHARACTERS_A_TOKEN)


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """What was found to do, and what was done of it."""

    estimates: tuple[Estimate, ...]
    provider: str
    model: str
    price_per_1k: float | None = None
    embedded: int = 0
    refused: tuple[tuple[str, str], ...] = ()  # rows whose text the provider does not take, and why
    commits: tuple[PublishedCommit, ...] = ()
    cost: Cost = field(default_factory=Cost)

    @property
    def rows(self) -> int:
        return sum(estimate.rows for estimate in self.estimates)

    @property
    def tokens(self) -> int:
        return sum(estimate.tokens for estimate in self.estimates)

    @property
    def price(self) -> float | None:
        return None if self.price_per_1k is None else self.tokens / 1000 * self.price_per_1k


def embed(
    repository: Repository,
    type_name: str | None = None,
    property_name: str | None = None,
    *,
    branch: str = MAIN,
    batch: int = BATCH_TEXTS_MAX,
    commit_every: int | None = COMMIT_EVERY,
    rate_limit: float | None = None,
    concurrency: int = CONCURRENCY,
    dry_run: bool = False,
    price_per_1k: float | None = None,
    compute: ComputeOptions,
    actor: str | None = None,
    embedder: Embedder | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> EmbedResult:
    """Fill the vectors of one property, of a type, or of all types; `rate_limit` is in requests a minute."""
    _check_options(batch, commit_every, rate_limit, concurrency, price_per_1k, compute.engine)
    chosen = embedder_from(os.environ, repository.runtime) if embedder is None else embedder
    with meter.operation("embed") as operation:
        if not dry_run:
            repository.require_writable("Embedding")
        snapshot = repository.snapshot(branch)
        targets = find_targets(snapshot.catalog, type_name, property_name)
        for target in targets:
            require_same_model(chosen, target.vector, target.definition.name)
        estimates = tuple(estimate(repository, snapshot, target, batch) for target in targets)
        result = EmbedResult(estimates, chosen.provider, chosen.model, price_per_1k)
        if not dry_run and result.rows:
            pause_s = 60.0 / rate_limit if rate_limit else 0.0
            with _choose_runner(repository, compute, concurrency, pause_s) as (runner, share_s):
                job = _EmbedRun(repository, branch, actor, chosen, runner, batch, commit_every, share_s, on_progress)
                job.total = result.rows
                for target in targets:
                    job.fill(target)
            result = replace(
                result,
                embedded=job.embedded,
                refused=tuple((f"{kind} {row}", why) for (kind, row), why in job.refused.items()),
                commits=tuple(job.commits),
            )
    return replace(result, cost=operation.cost)


def find_targets(catalog: Catalog, type_name: str | None, property_name: str | None) -> list[EmbeddedProperty]:
    """The vectors with `@embed` that are meant."""
    if type_name is not None and type_name not in catalog.by_name:
        raise BadRequest(f"The schema has no type {type_name!r}: its types are {', '.join(sorted(catalog.by_name))}.")
    found = [
        EmbeddedProperty(definition, prop, definition.by_name[prop.embed.source])
        for definition in catalog.types
        for prop in definition.properties
        if prop.embed is not None and type_name in (None, definition.name) and property_name in (None, prop.name)
    ]
    if not found:
        named = ".".join(part for part in (type_name, property_name) if part) or "The schema"
        raise BadRequest(f'{named} has no vector with @embed: declare one, such as `vec: Vector(256)? @embed("text")`.')
    return found


def estimate(repository: Repository, snapshot: Snapshot, target: EmbeddedProperty, batch: int) -> Estimate:
    rows = characters = skipped = 0
    for _, texts in _rows_without_vector(repository, snapshot, target):
        said = [text for text in texts if _has_text(text)]
        rows, characters = rows + len(said), characters + sum(map(len, said))
        skipped += len(texts) - len(said)
    return Estimate(target.definition.name, target.vector.name, rows, characters, -(-rows // batch), skipped)


class _EmbedRun:
    """One run: batches go out, vectors come back, and every so often there is a commit."""

    def __init__(
        self,
        repository: Repository,
        branch: str,
        actor: str | None,
        embedder: Embedder,
        runner: Runner,
        batch: int,
        commit_every: int | None,
        pause_s: float,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        self._repository = repository
        self._branch = branch
        self._actor = actor
        self._embedder = embedder
        self._runner = runner
        self._batch = batch
        self._commit_every = commit_every
        self._pause_s = pause_s
        self._on_progress = on_progress
        self.total = 0
        self.embedded = 0
        self.refused: dict[tuple[str, str], str] = {}  # by type and id
        self.commits: list[PublishedCommit] = []

    def fill(self, target: EmbeddedProperty) -> None:
        """Until no row that has a text lacks its vector, or those that do keep changing faster than we ask."""
        bases: list[Manifest] = []

        def is_filled() -> bool:
            snapshot = self._repository.snapshot(self._branch)
            bases[:] = (snapshot.manifest,)
            asked, before = 0, self.embedded
            for group in self._groups(snapshot, target):
                asked += sum(len(batch.ids) for batch in group)
                self._embed_and_commit(target, group)
            return not asked or self.embedded - before == asked

        for _ in range(PASSES_MAX):  # a pass that takes hours may outlive the state that it reads
            if retry_if_base_swept(self._repository, is_filled, lambda: bases):
                return

    def _embed_and_commit(self, target: EmbeddedProperty, group: list[Batch]) -> None:
        done: list[Embedded] = []
        seen: set[int] = set()

        def on_done(answer: Embedded) -> None:
            if answer.number not in seen:
                seen.add(answer.number)
                done.append(answer)
                if self._on_progress is not None:
                    self._on_progress(self.embedded + sum(len(one.ids) for one in done), self.total)

        try:
            self._runner.run(embed_batch, group, stage="embed", on_done=on_done)
        except BaseException:
            with suppress(OmnigraphError):  # what was paid for is kept, and the reason of the end is the first one
                self._commit(target, done)
            raise
        self._commit(target, done)

    def _commit(self, target: EmbeddedProperty, done: Sequence[Embedded]) -> None:
        """One commit of the vectors whose texts are still those that were asked about."""
        name = target.definition.name
        self.refused.update({(name, row): why for answer in done for row, why in answer.refused})
        vectors = vectors_by_id(done, target.dimension)
        if not vectors:
            return
        write = _VectorWrite(self._repository, self._branch, self._actor, self._embedder, target, vectors)
        commit = retry_if_base_swept(self._repository, write.commit, write.bases_in_use)
        if commit is not None:
            self.commits.append(commit)
            self.embedded += sum(touch.updated for touch in commit.commit.touched.values())

    def _groups(self, snapshot: Snapshot, target: EmbeddedProperty) -> Iterator[list[Batch]]:
        """Batches of rows that lack their vector, as many as make a commit."""
        group: list[Batch] = []
        ids: list[str] = []
        texts: list[str] = []
        provider = Provider.of(self._embedder)
        here = self._embedder if self._runner.name == "local" else None

        def closed() -> Batch:
            batch = Batch(len(group), tuple(ids), tuple(texts), target.dimension, provider, self._pause_s, here)
            ids.clear()
            texts.clear()
            return batch

        for some, said in _rows_without_vector(self._repository, snapshot, target):
            for row, text in zip(some, said, strict=True):
                if not _has_text(text) or (target.definition.name, row) in self.refused:
                    continue
                ids.append(row)
                texts.append(text)
                if len(ids) == self._batch:
                    group.append(closed())
                if self._commit_every is not None and len(group) == self._commit_every:
                    yield group
                    group = []
        if ids:
            group.append(closed())
        if group:
            yield group


def _rows_without_vector(
    repository: Repository, snapshot: Snapshot, target: EmbeddedProperty
) -> Iterator[tuple[list[str], list[Any]]]:
    """Ids and texts of the rows without a vector, some at a time."""
    from omnigraph.schema.arrow import arrow_schema

    content = snapshot.content(target.definition.table_key)
    if content is None:
        return
    source, vector, schema = target.source.column, target.vector.column, arrow_schema(target.definition)
    for batch in repository.tables.batches(content, ["id", source], f"`{vector}` IS NULL", schema=schema):
        ids: Any = batch.column("id").to_pylist()
        yield ids, batch.column(source).to_pylist()


def _has_text(text: str | None) -> bool:
    return text is not None and bool(text.strip())


def _check_options(
    batch: int,
    commit_every: int | None,
    rate_limit: float | None,
    concurrency: int,
    price_per_1k: float | None,
    engine: str,
) -> None:
    numbers = {
        "A batch": batch,
        "Concurrency": concurrency,
        "commit_every": 1 if commit_every is None else commit_every,
    }
    for what, number in numbers.items():
        if number < 1:
            raise BadRequest(f"{what} of {number} is invalid: give at least 1.")
    if batch > BATCH_TEXTS_MAX:
        raise BadRequest(f"A batch of {batch} texts is too large: providers take {BATCH_TEXTS_MAX} in a request.")
    if rate_limit is not None and not rate_limit > 0:
        raise BadRequest(f"A rate limit of {rate_limit} is invalid: give the requests a minute, or leave it out.")
    if price_per_1k is not None and price_per_1k < 0:
        raise BadRequest(f"A price of {price_per_1k} is invalid: give what 1,000 tokens cost.")
    require_engine(engine, ("local", "spark"))


@contextmanager
def _choose_runner(
    repository: Repository, compute: ComputeOptions, concurrency: int, pause_s: float
) -> Iterator[tuple[Runner, float]]:
    """Where batches are asked for, and how long each process pauses between two so that all keep to the limit."""
    if compute.engine == "local" and not compute.names_spark:
        yield Threads(concurrency, Pacer(pause_s, repository.runtime)), pause_s
        return
    with SparkProvider(compute) as provider:
        yield provider.session.runner, pause_s * provider.session.parallelism


def fill_vectors(
    tables: Tables, at: TableContent, target: EmbeddedProperty, vectors: "dict[str, tuple[str, Any]]"
) -> "pa.Table":
    """Whole rows with their vectors, of those that still lack one and have the text that it was made from."""
    import numpy as np
    import pyarrow as pa

    from omnigraph.schema.arrow import arrow_schema

    schema = arrow_schema(target.definition)
    rows = tables.lookup(at, vectors, schema=schema)
    texts, ids = rows.column(target.source.column).to_pylist(), rows.column("id").to_pylist()
    missing = rows.column(target.vector.column).is_null().to_pylist()
    wanted = [vectors[str(row)][0] == text and null for row, text, null in zip(ids, texts, missing, strict=True)]
    rows = rows.filter(pa.array(wanted, pa.bool_()))
    made = [vectors[str(row)][1] for row in rows.column("id").to_pylist()]
    index = schema.get_field_index(target.vector.column)
    kind: Any = schema.field(index).type
    flat: Any = pa.array(np.concatenate(made) if made else np.zeros(0, np.float32))
    column = pa.FixedSizeListArray.from_arrays(flat.cast(kind.value_type), type=kind)
    return rows.set_column(index, schema.field(index), column)


def vectors_by_id(done: Sequence[Embedded], dimension: int) -> "dict[str, tuple[str, Any]]":
    import numpy as np

    found: dict[str, tuple[str, Any]] = {}
    for answer in done:
        vectors = np.frombuffer(answer.vectors, np.float32).reshape(len(answer.ids), dimension)
        found.update(zip(answer.ids, zip(answer.texts, vectors, strict=True), strict=True))
    return found


def find_in_schema(catalog: Catalog, target: EmbeddedProperty) -> EmbeddedProperty | None:
    """The same vector in another schema; None if it, its text or its length is another now."""
    definition = next((one for one in catalog.types if one.id == target.definition.id), None)
    prop = next((p for p in definition.properties if p.id == target.vector.id), None) if definition else None
    if definition is None or prop is None or prop.embed is None or prop.type != target.vector.type:
        return None
    source = definition.by_name[prop.embed.source]
    return EmbeddedProperty(definition, prop, source) if source.id == target.source.id else None


def with_model(schema: Schema, target: EmbeddedProperty, embedder: Embedder) -> Schema:
    """The schema with the name of the model behind the vector."""
    assert target.vector.embed is not None
    by_whom = replace(target.vector.embed, provider=embedder.provider, model=embedder.model)
    prop = replace(target.vector, embed=by_whom)
    definition = replace(
        target.definition,
        properties=tuple(prop if one.id == prop.id else one for one in target.definition.properties),
    )
    types = tuple(definition if one.id == definition.id else one for one in schema.catalog.types)
    return Schema(replace(schema.catalog, types=types), schema.source)


class _VectorWrite(WriteOp):
    """One commit of vectors, of the rows whose texts have not changed since."""

    can_replan = True

    def __init__(
        self,
        repository: Repository,
        branch: str,
        actor: str | None,
        embedder: Embedder,
        target: EmbeddedProperty,
        vectors: "dict[str, tuple[str, Any]]",
    ) -> None:
        self._repository = repository
        self._branch = branch
        self._actor = actor
        self._embedder = embedder
        self._target = target
        self._vectors = vectors
        self._txn_id = repository.runtime.ids.txn_id()
        self._stager = Stager(repository.tables, repository.runtime.ids, repository.settings)

    def commit(self) -> PublishedCommit | None:
        txn = self._repository.open_txn(self._branch)
        return self._repository.publisher.publish(txn, self.first_plan(txn), self)

    def plan(self, txn: WriteTxn) -> PublishPlan:
        key = self._target.definition.table_key
        rows, schema = self._filled(txn)
        actions = (Upsert(key, rows),) if rows is not None and rows.num_rows else ()
        change = DataChange("embed", actions, schema=schema if actions else None)
        plan = PublishPlan(self._txn_id, ConflictPolicy.CONSTRUCTIVE, change, self._actor, read_rows=frozenset({key}))
        return self._stager.stage(txn, plan)

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        return self._stager.restage(txn, plan, tables, from_scratch)

    def _filled(self, txn: WriteTxn) -> "tuple[pa.Table | None, str | None]":
        """The rows with their vectors, as the base has them, and the schema that says who made them."""
        current = find_in_schema(txn.catalog, self._target)
        content = txn.content(self._target.definition.table_key) if current is not None else None
        if current is None or content is None:
            return None, None  # dropped meanwhile
        require_same_model(self._embedder, current.vector, current.definition.name)
        rows = fill_vectors(self._repository.tables, content, current, self._vectors)
        if current.vector.embed is not None and current.vector.embed.model == self._embedder.model:
            return rows, None
        return rows, self._repository.schemas.write(with_model(txn.schema, current, self._embedder))
