"""Authentication: bearer tokens in a file.

A token is 256 random bits, so one round of SHA-256 is enough to make the file useless to a reader. A
presented token is compared with every hash in constant time, so that the response time reveals nothing about them. The
file is replaced as a whole and read again when it changed: a token that is revoked ends with the next request.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from omnigraph.api.models import iso_time
from omnigraph.errors import BadRequest, NotFound, OmnigraphError

FORMAT = 1
PREFIX = "og_"
TOKEN_BYTES = 32
ACTOR_LENGTH_MAX = 200
ROLES = ("read", "write", "admin")
ANY = "*"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_log = logging.getLogger("omnigraph.server")
_GRANT = re.compile(r"(read|write|admin)(?:@([^:]+)(?::(.+))?)?\Z")

Role: TypeAlias = Literal["read", "write", "admin"]


@dataclass(frozen=True, slots=True)
class Grant:
    """A role on the graphs and branches that the patterns fit; `*` fits any text, slashes too."""

    role: Role
    graph: str = ANY
    branch: str = ANY

    def __str__(self) -> str:
        return f"{self.role}@{self.graph}:{self.branch}"


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `actor` is recorded as the author of its commits."""

    actor: str | None
    grants: tuple[Grant, ...]
    token_id: str | None = None

    @property
    def actor_key(self) -> str:
        """Whom limits are counted for."""
        return self.actor or "anonymous"


EVERYBODY = Principal(None, (Grant("admin"),))  # of a server without tokens


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token as the file has it: a hash instead of its text."""

    id: str
    actor: str
    sha256: str
    grants: tuple[Grant, ...]
    created_at: str

    def to_json(self) -> dict[str, Any]:
        grants = [{"role": one.role, "graph": one.graph, "branch": one.branch} for one in self.grants]
        return {"id": self.id, "actor": self.actor, "created_at": self.created_at, "grants": grants}


def parse_grant(text: str) -> Grant:
    """`write`, `write@people`, `write@people:agent/*`."""
    match = _GRANT.match(text)
    if match is None:
        roles = ", ".join(ROLES)
        raise BadRequest(f"{text!r} is no grant: write ROLE, ROLE@GRAPH or ROLE@GRAPH:BRANCH, ROLE one of {roles}.")
    role, graph, branch = match.groups()
    return Grant(_role(role), graph or ANY, branch or ANY)


def create_token(path: Path, actor: str, grants: Sequence[Grant], now: datetime) -> tuple[StoredToken, str]:
    """A new token and its text, which is shown only this once."""
    if not (0 < len(actor) <= ACTOR_LENGTH_MAX and actor.isprintable()) or actor.startswith("omnigraph:"):
        raise BadRequest(
            f"An actor has 1 to {ACTOR_LENGTH_MAX} printable characters and does not start with omnigraph:, "
            "which is how the graph names itself."
        )
    if not grants:
        raise BadRequest("A token without a grant may do nothing: give at least one, such as read.")
    text = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    with _lock(path):
        known = read_tokens(path) if path.exists() else ()
        token = StoredToken(_new_id(known), actor, _hash(text), tuple(grants), iso_time(now))
        _write(path, (*known, token))
    return token, text


def _new_id(known: Sequence[StoredToken]) -> str:
    taken = {one.id for one in known}
    return next(name for name in iter(lambda: secrets.token_hex(4), None) if name not in taken)


def revoke_token(path: Path, token_id: str) -> StoredToken:
    with _lock(path):
        known = read_tokens(path)
        gone = next((one for one in known if one.id == token_id), None)
        if gone is None:
            raise NotFound(f"There is no token {token_id!r} in {path}: see `token list`.")
        _write(path, tuple(one for one in known if one is not gone))
    return gone


def read_tokens(path: Path) -> tuple[StoredToken, ...]:
    with _open_tokens(path) as file:
        return _parse_tokens(path, file.read())


@contextmanager
def _open_tokens(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise NotFound(f"There is no token file {path}: make one with `token create`.") from None
    except OSError as error:
        raise BadRequest(f"The token file {path} can't be read ({type(error).__name__}): restore it.") from error


def _parse_tokens(path: Path, data: bytes) -> tuple[StoredToken, ...]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The token file {path} can't be read ({type(error).__name__}): restore it.") from error
    try:
        if document["format"] != FORMAT:
            raise BadRequest(f"The token file {path} has format {document['format']!r}, this release reads {FORMAT}.")
        return tuple(_token(entry) for entry in document["tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"The token file {path} is no such file ({type(error).__name__}): restore it.") from error


def _token(entry: dict[str, Any]) -> StoredToken:
    grants = tuple(Grant(_role(one["role"]), str(one["graph"]), str(one["branch"])) for one in entry["grants"])
    digest = str(entry["sha256"])
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("sha256")
    return StoredToken(str(entry["id"]), str(entry["actor"]), digest, grants, str(entry["created_at"]))


def _role(text: object) -> Role:
    match text:
        case "read" | "write" | "admin":
            return text
        case _:
            raise ValueError(f"{text!r} is no role")


def _write(path: Path, tokens: Sequence[StoredToken]) -> None:
    """As a whole or not at all; for the owner's eyes only, or for those whom its owner let read it before."""
    entries = [{**token.to_json(), "sha256": token.sha256} for token in tokens]
    path = path.resolve()  # a link stays one
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"format": FORMAT, "tokens": entries}, file, indent=2)
            file.flush()
            _keep_owner_and_mode(path, file.fileno())
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise BadRequest(f"{path} can't be written ({error.strerror}): nothing was changed.") from error
    finally:
        partial.unlink(missing_ok=True)


def _keep_owner_and_mode(path: Path, descriptor: int) -> None:
    """A server that runs as another user must be able to read the file after a change as before it."""
    try:
        before = path.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):  # only root gives files away
        os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & ~OTHERS_WRITE)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two commands that change the file at once must not undo one another."""
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BadRequest(f"{path} can't be written ({error.strerror}): choose another file.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class TokenFile:
    """The tokens of a server, as the file has them now.

    The file is believed only while nobody but its owner, or root, can write it, at each reading as at the start. One
    that went away, broke or became writable for others lets nobody in. The tokens of before are not kept: the change
    may have been meant to end them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._seen: os.stat_result | None
        self._tokens, self._seen = self._read()
        self._owner = self._seen.st_uid
        self.refused: OmnigraphError | None = None
        self.refusals = 0

    def principal(self, presented: str) -> Principal | None:
        """Whose token it is; None if it is nobody's. Every hash is compared, whichever fits."""
        digest = _hash(presented)
        found: StoredToken | None = None
        for token in self._refresh():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return None if found is None else Principal(found.actor, found.grants, found.id)

    def is_believed(self) -> bool:
        """Whether the file can be read, and is as safe as at the start."""
        self._refresh()
        return self.refused is None

    def _refresh(self) -> tuple[StoredToken, ...]:
        """The tokens, read again if the file has changed in any way; none while it is refused."""
        with self._lock:
            found = self._stat()
            if _identity(found) == _identity(self._seen):
                return self._tokens
            try:
                self._tokens, self._seen = self._read()
                self.refused = None
                _log.info("The token file was read again.", extra={"fields": {"tokens": len(self._tokens)}})
            except OmnigraphError as error:
                self._tokens, self._seen, self.refused = (), found, error
                self.refusals += 1
                _log.error("The token file is refused: nobody is let in.", extra={"fields": {"error": str(error)}})
            return self._tokens

    def _stat(self) -> os.stat_result | None:
        try:
            return self._path.stat()
        except OSError:
            return None

    def _read(self) -> tuple[tuple[StoredToken, ...], os.stat_result]:
        """What is judged is what is read: both by one descriptor."""
        with _open_tokens(self._path) as file:
            found = os.fstat(file.fileno())
            if found.st_mode & OTHERS_WRITE:
                raise BadRequest(
                    f"Others may write {self._path} and so give themselves tokens: see `token list` for what it holds "
                    "now, then chmod go-w it."
                )
            if self._owner is not None and found.st_uid not in (self._owner, 0):
                raise BadRequest(
                    f"{self._path} belongs to another user than when the server started: see `token list` for what it "
                    "holds now, then chown it back, or start the server again."
                )
            return _parse_tokens(self._path, file.read()), found


def _identity(found: os.stat_result | None) -> tuple[int, ...] | None:
    """What changes whenever a file is written or gets other rights; its times alone can be set to anything."""
    if found is None:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode, found.st_uid
