"""`verify`: everything that a graph refers to exists, can be read, and is consistent.

It uses nothing that this process has cached. It changes nothing, runs beside every other operation, and does not stop
at the first problem. A cleanup may expire what it is about to read. That is no damage, so it checks `oldest_retained`
again before it reports any.
"""

from dataclasses import replace

from omnigraph.errors import BadRequest, BranchNotFound
from omnigraph.manifest.branch.tags import Tag
from omnigraph.manifest.intent.intent import decode_intent
from omnigraph.manifest.model.document import decode_document
from omnigraph.manifest.model.manifest import Manifest
from omnigraph.manifest.model.paths import (
    RECOVERY,
    STAMP,
    TAGS,
    check_branch_name,
    intent_txn,
    parse_commit_id,
    tag_name,
)
from omnigraph.manifest.repository import Repository
from omnigraph.storage import meter
from omnigraph.storage.table.maintain.inspect import fresh_session
from omnigraph.storage.table.tables import Tables
from omnigraph.verify.branches import BranchChecks, LostHeads, find_ref
from omnigraph.verify.duckdb_scratch import open_scratch
from omnigraph.verify.report import Checked, Findings, VerifyProblem, VerifyReport
from omnigraph.verify.snapshot_checks import SnapshotChecks

__all__ = ["Checked", "VerifyProblem", "VerifyReport", "verify"]


def verify(repository: Repository, *, branch: str | None = None, full: bool = False, seed: int = 0) -> VerifyReport:
    """Check one branch, or all branches, tags and intents; everything with `full`, otherwise samples.

    The same seed selects the same samples.
    """
    if not isinstance(seed, int):
        raise BadRequest(f"The seed must be a whole number, not {seed!r}.")
    if branch is not None:
        check_branch_name(branch)
    uncached, found = _open_uncached(repository), Findings()
    try:
        with meter.operation("verify") as operation, open_scratch() as query:
            lost = LostHeads(uncached, repository.manifests.used_numbers())
            branches = _run_checks(
                uncached, SnapshotChecks(uncached, query, full=full, seed=seed), lost, found, branch, full, seed
            )
    finally:
        uncached.tables.close()
    return replace(found.report(branches, full, seed), cost=operation.cost)


def _open_uncached(repository: Repository) -> Repository:
    """The same graph with empty caches."""
    tables = Tables(repository.location, session=fresh_session())
    return Repository(
        repository.store,
        repository.stamp,
        runtime=repository.runtime,
        read_only=True,
        tables=tables,
        settings=repository.settings,
    )


def _run_checks(
    repository: Repository,
    states: SnapshotChecks,
    lost: LostHeads,
    found: Findings,
    branch: str | None,
    full: bool,
    seed: int,
) -> tuple[str, ...]:
    branches = BranchChecks(repository, states, full=full, seed=seed)
    with found.catching("the stamp"):
        _check_stamp(repository, found)
    refs = branches.check_refs(found, branch)
    if branch is not None:
        own = find_ref(refs, branch, repository.stamp.main_id)
        lost.check(found, refs, only=own.branch_id)
        living = branches.find_living(found, [own])
        if not living and not found.damaged:
            raise BranchNotFound(branch)
    else:
        lost.check(found, refs)
        living = branches.find_living(found, refs)
    for ref in living:
        branches.check(found, ref)
    if branch is None:
        _check_tags(repository, found, states)
        _check_intents(repository, found)
    return tuple(ref.branch for ref in living)


def _check_stamp(repository: Repository, found: Findings) -> None:
    stored = repository.store.get(STAMP)
    if stored is None:
        found.add("the stamp", f"{STAMP} is missing")
        return
    document = decode_document(stored.data, "the stamp")
    if document.get("main") != repository.stamp.main_id or document.get("graph_id") != repository.stamp.graph_id:
        found.add("the stamp", "it is not the one that the graph was opened with")


def _check_tags(repository: Repository, found: Findings, states: SnapshotChecks) -> None:
    """Each tag names a commit that can be read."""
    names = [name for listed in repository.store.list(TAGS) if (name := tag_name(listed.key)) is not None]
    for name in sorted(names):
        where = f"tag {name!r}"
        tentative = found.tentative()
        tag: Tag | None = None
        with tentative.catching(where):
            tag = repository.tags.find(name)
            if tag is not None:
                tentative.count("tags")
                _check_tag(repository, tentative, states, where, tag)
        if tentative.damaged and tag is not None and repository.tags.find(name) != tag:
            continue  # deleted meanwhile, so cleanup may have expired its commit
        found.absorb(tentative)


def _check_tag(repository: Repository, found: Findings, states: SnapshotChecks, where: str, tag: Tag) -> None:
    entry = repository.manifests.read(parse_commit_id(tag.commit_id), cached=False)
    if not isinstance(entry, Manifest):
        found.add(where, f"its commit {tag.commit_id} is {'missing' if entry is None else 'a stub'}")
        return
    state = repository.find_state(f"tag:{tag.name}")
    states.check(found, f"{where} ({tag.commit_id})", state, rows=True)


def _check_intents(repository: Repository, found: Findings) -> None:
    """Each intent can be read, and its base exists; one that ends meanwhile is skipped."""
    for listed in repository.store.list(RECOVERY):
        txn_id = intent_txn(listed.key)
        stored = None if txn_id is None else repository.store.get(listed.key)
        if txn_id is None or stored is None:
            continue
        where = f"the intent of {txn_id}"
        found.count("intents")
        with found.catching(where, "discard it with `recover`, and run its operation again"):
            intent = decode_intent(stored.data, txn_id)
            if repository.manifests.read(intent.base) is None:
                found.add(where, f"its base {intent.base} is missing")
