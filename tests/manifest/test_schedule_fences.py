"""`changed-at` says what changed; `fenced_at`, by `fence-tokens`, says what may be gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from omnigraph.errors import ExpectedVersionMismatch
from omnigraph.manifest.commit.plan import Append, ConflictPolicy, Create, DataChange, Drop, PublishPlan, Upsert
from omnigraph.manifest.commit.publish import PublishedCommit
from omnigraph.manifest.commit.txn import WriteOp, WriteTxn
from omnigraph.manifest.model.manifest import Manifest, Stub, TableKey
from omnigraph.manifest.model.paths import commit_id
from omnigraph.storage.objects.object_store import PutOutcome
from omnigraph.write.stage import Stager
from support.catalogs import COMPANY, KNOWS, PERSON, company_rows, ids_of, knows_rows, person_rows

from .schedules import STAGED, Client, World, a_put_of_manifest, staged_only, stand_in_cleanup, stand_in_retire

# `changed-at`


def adopt(client: Client, source: Manifest) -> Manifest:
    """A fast-forward as merge will do it: main's next manifest takes over another branch's tables as they are."""
    base = client.head()
    number = base.manifest_version + 1
    commit = replace(
        base.commits[0], id=commit_id(replace(base.point, manifest_version=number)), txn_id="a merge", kind="merge"
    )
    head = replace(base, manifest_version=number, logical_head=commit.id, commits=(commit,), tables=source.tables)
    assert client.repository.manifests.create(head).outcome is PutOutcome.CREATED
    return head


def test_writes_at_one_number_on_two_branches_never_carry_one_stamp(world: World) -> None:
    client = world.client("client")
    client.graph.branches.create("b")

    on_main, on_b = client.insert("ada"), client.insert("bob", branch="b")

    assert on_main.manifest_version == on_b.manifest_version == 2
    stamps = [client.head(branch).tables[PERSON].changed_at for branch in ("main", "b")]
    assert stamps == [on_main.id, on_b.id]
    assert on_main.id != on_b.id


def test_a_strict_writer_sees_that_an_adoption_replaced_its_table_at_an_equal_number(world: World) -> None:
    writer, merger = world.client("writer"), world.client("merger")
    merger.insert("base")
    merger.graph.branches.create("b")
    merger.graph.branches.delete("b")
    merger.graph.branches.create("b")
    on_b = [merger.insert(person, branch="b") for person in ("x", "y")][-1]  # b's manifest 3
    mine = writer.insert("mine")  # main's manifest 3
    held = writer.graph.begin()
    adopt(merger, merger.head("b"))

    with pytest.raises(ExpectedVersionMismatch) as refusal:
        writer.graph.write([Upsert(PERSON, person_rows("mine", age=1))], txn=held)

    assert on_b.manifest_version == mine.manifest_version
    assert (refusal.value.expected, refusal.value.actual) == (mine.id, on_b.id)
    assert writer.people() == ["base", "x", "y"]


def test_a_fork_copies_the_stamps_as_they_are(world: World) -> None:
    client = world.client("client")
    client.insert("ada")
    client.insert("bob")

    client.graph.branches.create("b")

    assert client.head("b").manifest_version == 1
    assert client.head("b").tables == client.head().tables


def test_maintenance_leaves_the_stamps_alone_and_refuses_no_strict_writer(world: World) -> None:
    writer, cleaner = world.client("writer"), world.client("cleaner")
    writer.insert("ada")
    held = writer.graph.begin()
    fence = stand_in_cleanup(cleaner)
    assert fence.tables == held.base.tables

    commit = writer.graph.write([Upsert(PERSON, person_rows("ada", age=36))], txn=held)

    assert commit is not None
    assert commit.manifest_version == 4


@pytest.mark.parametrize("rows", [knows_rows(), knows_rows(("ada", "ada"))], ids=["without rows", "with rows"])
def test_getting_a_first_table_is_a_change(world: World, rows: object) -> None:
    writer, other = world.client("writer"), world.client("other")
    held = writer.graph.begin()
    created = other.graph.write([Create(KNOWS, rows)])  # type: ignore[arg-type]
    assert created is not None

    with pytest.raises(ExpectedVersionMismatch) as refusal:
        writer.graph.write([Append(KNOWS, knows_rows(("bob", "bob")))], txn=held)

    assert (refusal.value.table_key, refusal.value.expected, refusal.value.actual) == (KNOWS, None, created.id)


# `fence-tokens`


def commit_company(client: Client) -> None:
    client.graph.write([Append(COMPANY, company_rows("acme"))])


def commit_person(client: Client) -> None:
    client.insert("other")


def commit_nothing(client: Client) -> None:
    pass


@staged_only
@pytest.mark.parametrize("on_top", [commit_nothing, commit_company, commit_person])
@pytest.mark.parametrize("stubs", [False, True], ids=["manifests kept", "manifests retired"])
def test_a_fence_under_a_commit_still_makes_a_staged_loser_stage_again(
    world: World, on_top: Callable[[Client], None], stubs: bool
) -> None:
    writer, cleaner, other = world.client("writer"), world.client("cleaner"), world.client("other")
    writer.insert("base")
    before = world.table_files()
    with writer.start(lambda: writer.insert("ada")) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        staged = world.table_files() - before
        fence = stand_in_cleanup(cleaner, retire=stubs)
        for path in staged:  # the sweep: nothing marked refers to them
            path.unlink()
        on_top(other)
        stalled.run_to_end()
        commit = stalled.result()

    fresh = world.client("fresh")
    assert staged
    assert commit.manifest_version == other.head().manifest_version
    assert fresh.head().fenced_at == fence.manifest_version
    assert {"ada", "base"} <= set(fresh.people()), "every file that it names is there"


def test_a_first_table_that_was_swept_is_made_again(world: World) -> None:
    writer, cleaner = world.client("writer"), world.client("cleaner")
    with writer.start(lambda: writer.insert("ada")) as stalled:
        stalled.run_until(a_put_of_manifest(2))
        stand_in_cleanup(cleaner)
        for path in world.table_files():
            path.unlink()
        stalled.run_to_end()

        assert stalled.result().manifest_version == 3

    assert world.client("fresh").people() == ["ada"]


@staged_only
def test_a_strict_writer_stages_again_too(world: World) -> None:
    writer, cleaner = world.client("writer"), world.client("cleaner")
    writer.insert("base")
    held = writer.graph.begin()
    before = world.table_files()
    with writer.start(lambda: writer.graph.write([Upsert(PERSON, person_rows("base", age=9))], txn=held)) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        staged = world.table_files() - before
        stand_in_cleanup(cleaner)
        for path in staged:
            path.unlink()
        stalled.run_to_end()
        commit = stalled.result()

    assert staged
    assert commit is not None
    assert commit.manifest_version == 4
    assert world.client("fresh").graph.snapshot().to_arrow(PERSON).column("age").to_pylist() == [9]


def test_a_plan_that_staged_nothing_takes_a_fence_for_plain_maintenance(world: World) -> None:
    writer, cleaner = world.client("writer"), world.client("cleaner")
    writer.insert("ada")
    before = world.table_files()
    with writer.start(lambda: writer.graph.write([Drop(PERSON)])) as stalled:
        stalled.run_until(a_put_of_manifest(3))
        stand_in_cleanup(cleaner)
        assert world.told(stalled.run_to_end()) == ["create main/3", "get main/3", "get main/4", "create main/4"]
        commit = stalled.result()

    assert commit is not None
    assert world.table_files() == before
    assert PERSON not in writer.head().tables


class LongWrite(WriteOp):
    """A write with an intent, staged on the head of main, that records which tables it had to stage again."""

    def __init__(self, client: Client, intent: str, *ids: str) -> None:
        self._client = client
        self._stager = Stager(client.repository.tables, client.repository.runtime.ids, STAGED)
        self.txn = client.repository.open_txn()
        plan = PublishPlan(
            intent, ConflictPolicy.CONSTRUCTIVE, DataChange("load", (Append(PERSON, person_rows(*ids)),)), intent=intent
        )
        self.staged = self._stager.stage(self.txn, plan)
        self.staged_again: list[tuple[frozenset[TableKey], bool]] = []

    def publish(self) -> PublishedCommit:
        commit = self._client.repository.publisher.publish(self.txn, self.staged, self)
        assert commit is not None
        return commit

    def restage(self, txn: WriteTxn, plan: PublishPlan, tables: frozenset[TableKey], from_scratch: bool) -> PublishPlan:
        self.staged_again.append((tables, from_scratch))
        return self._stager.restage(txn, plan, tables, from_scratch)


FROM_SCRATCH = [(frozenset({PERSON}), True)]


@pytest.mark.parametrize(
    ("fences", "again"),
    [
        pytest.param([("job",)], [], id="one fence, honoured"),
        pytest.param([("other", "job"), ("job",)], [], id="both honoured"),
        pytest.param([(), ("job",)], FROM_SCRATCH, id="only the last honoured"),
        pytest.param([("job",), ()], FROM_SCRATCH, id="only the first honoured"),
        pytest.param([("job",), ("other",), ("job",)], FROM_SCRATCH, id="all but one honoured"),
    ],
)
@pytest.mark.parametrize("commit_on_top", [False, True], ids=["fence on top", "commit on top"])
def test_staged_work_survives_only_if_every_fence_since_its_base_honoured_its_intent(
    world: World, fences: list[tuple[str, ...]], again: list[object], commit_on_top: bool
) -> None:
    writer, cleaner = world.client("writer"), world.client("cleaner")
    writer.insert("base")
    stand_in_cleanup(cleaner)  # a fence before the base is nobody's concern
    job = LongWrite(writer, "job", "ada")
    for honoured in fences:
        stand_in_cleanup(cleaner, oldest_retained=1, honoured=honoured)
    if commit_on_top:
        commit_company(cleaner)

    job.publish()

    assert job.staged_again == again
    fresh = world.client("fresh")
    assert fresh.people() == ["ada", "base"]
    first_staged = job.staged.staged[PERSON].at
    assert (fresh.head().tables[PERSON].stored == first_staged) is (again == [])


def test_a_fence_that_has_become_a_stub_itself_is_not_believed_to_have_honoured_anything(world: World) -> None:
    writer, cleaner = world.client("writer"), world.client("cleaner")
    job = LongWrite(writer, "job", "ada")
    first = stand_in_cleanup(cleaner, oldest_retained=1, honoured=("job",))
    stand_in_cleanup(cleaner, oldest_retained=1, honoured=("job",))
    stand_in_retire(cleaner, world.main_id, range(1, 3))
    assert isinstance(cleaner.stored(world.main_id, first.manifest_version), Stub)

    job.publish()

    assert job.staged_again == FROM_SCRATCH


def test_every_manifest_carries_its_newest_fence_and_every_fence_names_the_one_before(world: World) -> None:
    client = world.client("client")
    client.insert("ada")
    first = stand_in_cleanup(client)
    client.insert("bob")
    second = stand_in_cleanup(client, honoured=("job",))
    client.insert("cleo")

    assert first.fence is not None
    assert second.fence is not None
    assert (first.fence.previous, second.fence.previous) == (0, first.manifest_version)
    assert second.fence.honoured == ("job",)
    head = client.head()
    assert (head.fenced_at, head.fence) == (second.manifest_version, None)


def test_a_new_branch_has_no_fence_of_its_own_yet(world: World) -> None:
    client = world.client("client")
    client.insert("ada")
    stand_in_cleanup(client)

    client.graph.branches.create("b")

    assert (client.head("b").fenced_at, client.head("b").oldest_retained) == (0, 1)
    assert ids_of(client.graph.snapshot("b").to_arrow(PERSON)) == ["ada"]
