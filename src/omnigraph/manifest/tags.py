"""Tags: names for commits, which cleanup keeps for as long as a tag names them.

A tag is one object, created if absent and removed to delete it. It is put before a second look at the commit's branch,
as the ref of a new branch is (rule 12): a cleanup that lists tags after the put sees it, and one that listed them
before has raised `oldest_retained` already, so that the second look does.
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
from omnigraph.manifest.codec import decode_json, decode_time, encode_json, encode_time
from omnigraph.manifest.keys import (
    TAGS,
    check_branch_name,
    looks_like_commit_id,
    parse_commit_id,
    require_name,
    tag_key,
    tag_name,
)
from omnigraph.manifest.model import FORMAT, CommitId, Point, Stub, TxnId
from omnigraph.manifest.store import Manifests
from omnigraph.runtime import Runtime
from omnigraph.storage.objects import ObjectStore, Outcome
from omnigraph.storage.parallel import gather

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


class Tags:
    def __init__(self, store: ObjectStore, manifests: Manifests, runtime: Runtime) -> None:
        self._store = store
        self._manifests = manifests
        self._runtime = runtime

    def create(self, name: str, commit: CommitId, actor: str | None = None, txn_id: TxnId | None = None) -> Tag:
        """Name a commit that can still be read; the caller has seen that no branch has the name."""
        check_tag_name(name)
        point = parse_commit_id(commit)
        self._require_kept(commit, point)
        now = self._runtime.clock.now()
        tag = self._put(Tag(name, commit, now, actor, self._runtime.ids.txn_id() if txn_id is None else txn_id))
        try:
            self._require_kept(commit, point, own=name)
        except OmnigraphError:
            with suppress(OmnigraphError):  # a tag of an expired commit names a stub, and is refused when it is used
                self._store.delete(tag_key(name))
            raise
        return tag

    def made_earlier(self, name: str, txn_id: TxnId) -> Tag | None:
        """The tag that an earlier call under the same key made, if it is there and keeps its commit."""
        found = self.find(name)
        if found is None or found.txn_id != txn_id:
            return None
        self._require_kept(found.commit_id, parse_commit_id(found.commit_id), own=name)
        return found

    def find(self, name: str) -> Tag | None:
        stored = self._store.get(tag_key(check_tag_name(name)))
        return None if stored is None else _decode(stored.data, name)

    def all(self) -> list[Tag]:
        """All tags, by name."""
        names = [name for listed in self._store.list(TAGS) if (name := tag_name(listed.key)) is not None]
        found = gather([partial(self.find, name) for name in sorted(names)])
        return [tag for tag in found if tag is not None]

    def delete(self, name: str) -> None:
        if self.find(name) is None:
            raise TagNotFound(name)
        self._store.delete(tag_key(name))

    def pins(self) -> list[Point]:
        """The manifests that tags keep from cleanup."""
        return [parse_commit_id(tag.commit_id) for tag in self.all()]

    def protect(self, point: Point, *, but: str | None = None) -> bool:
        """Whether a tag, other than `but`, keeps this manifest: it may be read though cleanup has passed it."""
        return any(parse_commit_id(tag.commit_id) == point for tag in self.all() if tag.name != but)

    def _put(self, tag: Tag) -> Tag:
        """A lost answer is settled by reading: the same attempt, another's tag, or nothing yet."""
        for attempt in range(PUT_ATTEMPTS_MAX):
            answer = self._store.create(tag_key(tag.name), _encode(tag))
            if answer.outcome is Outcome.CREATED:
                return tag
            found = self.find(tag.name)
            if found is not None and found.txn_id == tag.txn_id:
                return found
            if found is not None:
                raise AlreadyExists(
                    f"The tag {tag.name!r} of commit {found.commit_id}", "choose another name, or delete it first"
                )
            self._runtime.clock.sleep(self._runtime.jitter(0.05 * 2.0**attempt))
        raise Unavailable(f"the tag {tag.name!r}", answer.reason)

    def _require_kept(self, commit: CommitId, point: Point, own: str | None = None) -> None:
        """That cleanup has not passed the commit, and that a later one will ask for tags before it does.

        Nothing marks the way of a cleanup on a deleted branch, so its commits can't be protected any more.
        """
        entry = self._manifests.read(point, cached=False)
        if entry is None or all(known.id != commit for known in entry.commits):
            raise CommitNotFound(commit, "there is no such commit, see `commit list`")
        if isinstance(entry, Stub):
            raise CommitNotFound(commit, "cleanup has expired it, so it can't be tagged")
        head = self._manifests.head(point.branch_id)
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


def _encode(tag: Tag) -> bytes:
    return encode_json(
        {
            "format": FORMAT,
            "tag": tag.name,
            "commit": tag.commit_id,
            "created_at": encode_time(tag.created_at),
            "actor": tag.actor,
            "txn_id": tag.txn_id,
        }
    )


def _decode(data: bytes, name: str) -> Tag:
    what = f"tag {name!r}"
    document = decode_json(data, what)
    try:
        parse_commit_id(document["commit"])
        actor = document["actor"]
        return Tag(
            name,
            document["commit"],
            decode_time(document["created_at"]),
            None if actor is None else str(actor),
            str(document["txn_id"]),
        )
    except (KeyError, TypeError, ValueError, CommitNotFound) as error:
        raise Damaged(what, f"{type(error).__name__}: {error}") from error
