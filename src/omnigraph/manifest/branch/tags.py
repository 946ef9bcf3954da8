"""Tags: names for commits, which cleanup keeps for as long as a tag names them.

A tag is one object, created if absent. It is put before a second look at the commit's branch, as the ref of a new
branch is (rule `branch-create`): a cleanup that lists tags after the put sees it, and one that listed them before has
raised `oldest_retained` already, so that the second look does.

The object of a tag is never removed. To delete a tag, exactly the object that was read is replaced by a marker, and to
use the name again, the marker is replaced by the next tag. A request that takes effect late finds another object and
changes nothing; a late DELETE would remove a tag that was created since.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from omnigraph.errors import (
    AlreadyExists,
    BadRequest,
    CommitNotFound,
    Damaged,
    OmnigraphError,
    TagNotFound,
    Unavailable,
)
from omnigraph.manifest.model.codec import decode_time, encode_time
from omnigraph.manifest.model.document import decode_document, encode_document
from omnigraph.manifest.model.manifest import CommitId, Point, Stub, TxnId
from omnigraph.manifest.model.paths import (
    TAGS,
    check_branch_name,
    looks_like_commit_id,
    parse_commit_id,
    require_name,
    tag_key,
    tag_name,
)
from omnigraph.manifest.model.request_key import request_of, require_same_request
from omnigraph.manifest.store.manifest_store import Manifests
from omnigraph.runtime import Runtime
from omnigraph.storage.objects.object_store import ETag as ObjectTag
from omnigraph.storage.objects.object_store import ObjectStore, PutOutcome, ReplaceOutcome, StoredObject
from omnigraph.threads import gather

PUT_ATTEMPTS_MAX = 8
FEED_STARTS = NOW, BEGINNING = "now", "beginning"
PREFIX = "tag:"  # says that a name is meant as a tag's, where it might be a branch's too


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a commit; `txn_id` tells one attempt to create it from another."""

    name: str
    commit_id: CommitId
    created_at: datetime
    actor: str | None
    txn_id: str
    request: str | None = None  # of a tag that was created under an idempotency key: a digest of the request


@dataclass(frozen=True, slots=True)
class _TagObject:
    """What lies under a tag's key: the tag, or that it is deleted."""

    name: str
    life: int  # counts the tags that had this name, so that no two objects under a key are ever alike
    tag: Tag | None
    seen: ObjectTag


class Tags:
    def __init__(self, store: ObjectStore, manifests: Manifests, runtime: Runtime) -> None:
        self._store = store
        self._manifests = manifests
        self._runtime = runtime

    def create(self, name: str, commit: CommitId, actor: str | None = None, txn_id: TxnId | None = None) -> Tag:
        """Name a commit that can still be read; the caller has seen that no branch has the name."""
        check_tag_name(name)
        point = parse_commit_id(commit)
        self._require_retained(commit, point)
        now = self._runtime.clock.now()
        own_id = self._runtime.ids.txn_id() if txn_id is None else txn_id
        tag = self._put(Tag(name, commit, now, actor, str(own_id), request_of(own_id)), own_id)
        try:
            self._require_retained(commit, point, own=name)
        except OmnigraphError:
            with suppress(OmnigraphError):  # a tag of an expired commit names a stub, and is refused when it is used
                self._delete(tag)
            raise
        return tag

    def find_created_by(self, name: str, txn_id: TxnId) -> Tag | None:
        """The tag that an earlier call under the same key made, if it is there and keeps its commit."""
        found = self.find(name)
        if found is None or found.txn_id != txn_id:
            return None
        require_same_request(txn_id, found)
        self._require_retained(found.commit_id, parse_commit_id(found.commit_id), own=name)
        return found

    def find(self, name: str) -> Tag | None:
        """A tag is trusted only if it has that name: some file systems don't tell upper from lower case."""
        found = self._read(check_tag_name(name))
        if found is None or found.name != name or found.tag is None:
            return None
        self._manifests.record_reference(parse_commit_id(found.tag.commit_id), f"tag {name!r} names it")
        return found.tag

    def _read(self, name: str) -> _TagObject | None:
        stored = self._store.get(tag_key(name))
        if stored is None:
            return None
        found = _decode(stored, name)
        if found.name.casefold() != name.casefold():
            raise Damaged(f"tag {name!r}", f"it names the tag {found.name!r}")
        return found

    def all(self) -> list[Tag]:
        """All tags, by name."""
        names = [name for listed in self._store.list(TAGS) if (name := tag_name(listed.key)) is not None]
        found = gather([partial(self.find, name) for name in sorted(names)])
        return [tag for tag in found if tag is not None]

    def delete(self, name: str) -> None:
        tag = self.find(name)
        if tag is None:
            raise TagNotFound(name)
        self._delete(tag)

    def _delete(self, tag: Tag) -> None:
        """Replace exactly this tag's object; if another one is there, this tag is gone already."""
        for attempt in range(PUT_ATTEMPTS_MAX):
            found = self._read(tag.name)
            if found is None or found.tag != tag:
                return
            if self._store.replace(tag_key(tag.name), _encode_deleted(found), found.seen) is ReplaceOutcome.REPLACED:
                return
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the tag {tag.name!r}", "it may be deleted, or not: look, and try again")

    def pins(self) -> list[Point]:
        """The manifests that tags keep from cleanup."""
        return [parse_commit_id(tag.commit_id) for tag in self.all()]

    def protect(self, point: Point, *, but: str | None = None) -> bool:
        """Whether a tag, other than `but`, keeps this manifest: it may be read though cleanup has passed it."""
        return any(parse_commit_id(tag.commit_id) == point for tag in self.all() if tag.name != but)

    def _put(self, tag: Tag, txn_id: TxnId) -> Tag:
        """Create the tag's object, or replace the one of a deleted tag.

        A lost answer is settled by reading: the same attempt, another's tag, or not there yet.
        """
        reason = ""
        for attempt in range(PUT_ATTEMPTS_MAX):
            answer = self._store.create(tag_key(tag.name), _encode(tag, life=1))
            if answer.outcome is PutOutcome.CREATED:
                return tag
            found, reason = self._read(tag.name), answer.reason
            if found is not None and found.name != tag.name:
                raise BadRequest(
                    f"{tag.name!r} can't name a tag, because this file system does not tell it from the tag "
                    f"{found.name!r}: choose a name that differs in more than upper and lower case."
                )
            if found is not None and found.tag is None and self._reuse_name(tag, found):
                return tag
            if found is not None and found.tag is not None:
                if found.tag.txn_id == tag.txn_id:
                    require_same_request(txn_id, found.tag)
                    return found.tag
                raise AlreadyExists(
                    f"The tag {tag.name!r} of commit {found.tag.commit_id}", "choose another name, or delete it first"
                )
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the tag {tag.name!r}", reason)

    def _reuse_name(self, tag: Tag, deleted: _TagObject) -> bool:
        swap = self._store.replace(tag_key(tag.name), _encode(tag, deleted.life + 1), deleted.seen)
        return swap is ReplaceOutcome.REPLACED

    def _require_retained(self, commit: CommitId, point: Point, own: str | None = None) -> None:
        """That cleanup has not passed the commit, and that a later one will ask for tags before it does.

        Nothing marks the way of a cleanup on a deleted branch, so its commits can't be protected any more.
        """
        entry = self._manifests.read(point, cached=False)
        if entry is None or all(known.id != commit for known in entry.commits):
            raise CommitNotFound(commit, "there is no such commit, see `commit list`")
        if isinstance(entry, Stub):
            raise CommitNotFound(commit, "cleanup has expired it, so it can't be tagged")
        head = self._manifests.read_head(point.branch_id)
        if head is None or head.tombstone is not None:
            raise CommitNotFound(
                commit, f"its branch {entry.branch!r} was deleted, so it can't be tagged: tag the commit that merged it"
            )
        if head.oldest_retained > point.manifest_version and not self.protect(point, but=own):
            raise CommitNotFound(commit, "cleanup has expired it, so it can't be tagged")


def check_tag_name(name: str) -> str:
    """A tag may stand wherever a commit id or a time may: it must not look like one."""
    require_name("A tag", name)
    try:
        check_branch_name(name)
    except BadRequest:
        raise BadRequest(
            f"{name!r} can't name a tag: use up to 200 letters, digits and . _ / -, starting with a letter "
            "or digit, without empty, . or .. segments."
        ) from None
    if name in FEED_STARTS:
        raise BadRequest(
            f"{name!r} can't name a tag, because `changes poll --start` has it for a place in the feed: choose another "
            "name."
        )
    if looks_like_commit_id(name) or looks_like_time(name):
        raise BadRequest(f"{name!r} can't name a tag, because it reads as a commit id or a time: choose another name.")
    return name


def looks_like_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _encode(tag: Tag, life: int) -> bytes:
    return encode_document(
        {
            "tag": tag.name,
            "commit": tag.commit_id,
            "created_at": encode_time(tag.created_at),
            "actor": tag.actor,
            "txn_id": tag.txn_id,
            **({} if tag.request is None else {"request": tag.request}),
            **({} if life == 1 else {"life": life}),
        }
    )


def _encode_deleted(found: _TagObject) -> bytes:
    return encode_document({"tag": found.name, "deleted": True, "life": found.life})


def _decode(stored: StoredObject, name: str) -> _TagObject:
    what = f"tag {name!r}"
    document = decode_document(stored.data, what)
    try:
        own_name, life = str(document["tag"]), int(document.get("life", 1))
        if document.get("deleted"):
            return _TagObject(own_name, life, None, stored.etag)
        parse_commit_id(document["commit"])
        actor = document["actor"]
        tag = Tag(
            own_name,
            document["commit"],
            decode_time(document["created_at"]),
            None if actor is None else str(actor),
            str(document["txn_id"]),
            document.get("request"),
        )
        return _TagObject(own_name, life, tag, stored.etag)
    except (KeyError, TypeError, ValueError, CommitNotFound) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
