"""Where things are, and how they are named: pure functions between names and keys."""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from omnigraph.errors import BadRequest, CommitNotFound
from omnigraph.manifest.model.manifest import MAIN, BranchId, CommitId, Point, Position, TxnId

STAMP = "_omnigraph.json"
REFS = "__refs"
RECOVERY = "__recovery"
TAGS = "__tags"
MANIFESTS = "__manifest"
_TOP = 2**64 - 1
_BRANCH_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}\Z")
_COMMIT_ID = re.compile(r"([a-z2-7]{13})\.([1-9][0-9]{0,19})(?:\.(0|[1-9][0-9]{0,3}))?\Z")
_BRANCH_ID = re.compile(r"[a-z2-7]{13}\Z")
_REF_KEY = re.compile(REFS + r"/([^/]+)/([1-9][0-9]*)\.(json|dead)\Z")


def manifest_folder(branch_id: str) -> str:
    return f"{MANIFESTS}/{branch_id}"


def manifest_key(point: Point) -> str:
    """Counts downwards, so that a listing in name order shows the newest first."""
    return f"{manifest_folder(point.branch_id)}/{_TOP - point.manifest_version:020d}.json"


def manifest_number(key: str) -> int | None:
    """The number of the manifest under this key; None for what lies beside the manifests."""
    name = key.rsplit("/", 1)[-1]
    return _TOP - int(name[:20]) if re.fullmatch(r"[0-9]{20}\.json", name) else None


def hint_key(branch_id: str) -> str:
    return f"{manifest_folder(branch_id)}/_hint"


def stubs_key(branch_id: str) -> str:
    """Beside the manifests: what cleanup has made stubs of, so that it need not look again."""
    return f"{manifest_folder(branch_id)}/_stubs"


def schema_key(schema_hash: str) -> str:
    return f"__schema/{schema_hash.removeprefix('sha256:')}.json"


def ref_folder(branch: str) -> str:
    return f"{REFS}/{quote(branch, safe='')}"


def ref_key(branch: str, life: int) -> str:
    return f"{ref_folder(branch)}/{life}.json"


def marker_key(branch: str, life: int) -> str:
    return f"{ref_folder(branch)}/{life}.dead"


def recovery_folder(txn_id: TxnId) -> str:
    """Where a long write keeps what it needs to be resumed. No id can leave the folder or hide in it."""
    quoted = quote(txn_id, safe="")
    return f"{RECOVERY}/{'%2E' + quoted[1:] if quoted.startswith('.') else quoted}"


def intent_key(txn_id: TxnId) -> str:
    return f"{recovery_folder(txn_id)}.json"


def intent_txn(key: str) -> TxnId | None:
    """The transaction whose intent lies under this key; None for what lies beside the intents."""
    match = re.fullmatch(RECOVERY + r"/([^/]+)\.json", key)
    return unquote(match[1]) if match else None


def tag_key(tag: str) -> str:
    return f"{TAGS}/{quote(tag, safe='')}.json"


def tag_name(key: str) -> str | None:
    """The tag under this key; None for what lies beside the tags."""
    match = re.fullmatch(TAGS + r"/([^/]+)\.json", key)
    return unquote(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class RefName:
    """What the key of a ref or of a death marker says."""

    branch: str
    life: int
    dead: bool


def parse_ref_key(key: str) -> RefName | None:
    match = _REF_KEY.match(key)
    return RefName(unquote(match[1]), int(match[2]), match[3] == "dead") if match else None


def require_name(what: str, name: object) -> None:
    """So that a commit, given where its id is wanted, is not taken for anything."""
    if not isinstance(name, str):
        raise BadRequest(f"{what} is named by text, not by {type(name).__name__}: give its name or id.")


def check_branch_name(branch: str) -> str:
    if branch == MAIN:
        return branch
    require_name("A branch", branch)
    segments = branch.split("/")
    if not _BRANCH_NAME.match(branch) or any(segment in ("", ".", "..") for segment in segments):
        raise BadRequest(
            f"{branch!r} can't name a branch: use up to 200 letters, digits and . _ / -, starting with a letter "
            "or digit, without empty, . or .. segments."
        )
    return branch


def commit_id(point: Point, index: int | None = None) -> CommitId:
    place = f"{point.branch_id}.{point.manifest_version}"
    return place if index is None else f"{place}.{index}"


def parse_commit_id(text: str) -> Point:
    branch_id, position = commit_position(text)
    return Point(branch_id, position.number)


def commit_position(commit: CommitId) -> tuple[BranchId, Position]:
    """The branch of a commit, and the position on it from which on the commit is contained."""
    match = _COMMIT_ID.match(commit)
    if not match:
        raise CommitNotFound(commit, "a commit id has the form <branch id>.<number>, see `commit list`")
    return match[1], Position(int(match[2]), 1 + int(match[3] or 0))


def parse_branch_id(value: object) -> BranchId:
    """A stored branch id, which becomes part of keys: nothing else may pass for one."""
    if not isinstance(value, str) or not _BRANCH_ID.match(value):
        raise ValueError(f"{value!r} is no branch id")
    return value


def looks_like_commit_id(text: str) -> bool:
    return bool(_COMMIT_ID.match(text))
