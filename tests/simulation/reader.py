"""A simple reader of the raw store, independent of the code under test: it knows `docs/format.md` and nothing else.

A `View` follows the writes of a run one by one. It remembers every manifest as it was first put, also after a cleanup
has overwritten it with a stub, so that the contents of every commit that ever was can be compared with the model. What
is still readable is decided by the objects that are there now.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from simulation.ops import EXTRAS, SPECS, Extra, StoreWrite

Rows: TypeAlias = Mapping[str, Mapping[str, Any]]  # id → columns, or properties
Tables: TypeAlias = Mapping[str, Rows]  # type → its rows
Number: TypeAlias = tuple[str, int]  # branch id, manifest number
LAST = 2**64 - 1
KNOWN_EXTRAS = {(extra.type_name, extra.name): extra for extra in EXTRAS}


class Unreadable(Exception):
    """Something that must be readable is missing, damaged or inconsistent."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as far as it changes during a run."""

    extras: frozenset[tuple[Extra, str]] = frozenset()  # with the column that has the values
    retired: frozenset[tuple[str, str]] = frozenset()  # type and column of dropped properties

    def columns(self, type_name: str) -> dict[str, str]:
        """Property → column, with id and an edge's ends."""
        spec = SPECS[type_name]
        names = ["id", *(() if spec.ends is None else ("src", "dst")), *(name for name, _ in spec.properties)]
        return {name: name for name in names} | {e.name: c for e, c in self.extras if e.type_name == type_name}

    def defaults(self, type_name: str) -> dict[str, Any]:
        return {extra.name: extra.default for extra, _ in self.extras if extra.type_name == type_name}


@dataclass(frozen=True, slots=True)
class LogCommit:
    """One commit as its manifest records it."""

    id: str
    txn_id: str
    kind: str
    is_logical: bool
    parent: str | None
    merged_parent: str | None
    actor: str | None
    authored_at: str
    touched: Mapping[str, Mapping[str, int]]
    recovered: Mapping[str, Any] | None
    token: str | None
    position: tuple[str, int, int]  # branch id, number, how many commits of the manifest up to this one
    step: int

    @property
    def author(self) -> str | None:
        """The name of the call whose work it is: recovery completes what another call began."""
        return self.actor if self.recovered is None else self.recovered.get("actor")


@dataclass(frozen=True)
class Document:
    """A manifest or a stub."""

    json: Mapping[str, Any]
    step: int

    @property
    def number(self) -> Number:
        return self.json["branch_id"], self.json["manifest_version"]

    @property
    def is_stub(self) -> bool:
        return bool(self.json.get("stub"))

    @property
    def is_tombstone(self) -> bool:
        return "tombstone" in self.json

    @property
    def logical_head(self) -> str:
        return str(self.json["logical_head"])

    @cached_property
    def commits(self) -> tuple[LogCommit, ...]:
        branch_id, number = self.number
        return tuple(
            LogCommit(
                one["id"],
                one["txn_id"],
                one["kind"],
                one["class"] == "logical",
                one["parent"],
                one["merged_parent"],
                one["actor"],
                one["authored_at"],
                one["touched"],
                one.get("recovered"),
                one.get("token"),
                (branch_id, number, place + 1),
                self.step,
            )
            for place, one in enumerate(self.json["commits"])
        )

    @property
    def ancestry(self) -> dict[str, tuple[int, int | None]]:
        """Branch id → number and how many of its commits; None is all of them (format 1)."""
        return {
            branch: (entry, None) if isinstance(entry, int) else (entry[0], entry[1])
            for branch, entry in self.json["ancestry"].items()
        }


@dataclass(slots=True)
class Life:
    """One life of a branch name."""

    name: str
    number: int
    branch_id: str
    fork: tuple[str, int] | None
    txn_id: str | None
    reserved: int  # step of the ref
    call: str  # that put it
    created: int | None = None  # step of manifest 1, which is not a tombstone
    ended: int | None = None  # step of the tombstone

    def is_alive(self, step: int) -> bool:
        return self.created is not None and self.created <= step and (self.ended is None or self.ended > step)


@dataclass(slots=True)
class TagLife:
    name: str
    commit: str
    actor: str | None
    created: int
    ended: int | None = None
    ended_by: str = ""  # the call


@dataclass(frozen=True, slots=True)
class IntentWrite:
    step: int
    txn_id: str
    document: Mapping[str, Any] | None
    call: str


@dataclass
class View:
    """The store as the writes so far have made it."""

    tables: str | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[Number, Document] = field(default_factory=dict)  # as they were put
    current: dict[Number, Document] = field(default_factory=dict)  # as they are
    heads: dict[str, int] = field(default_factory=dict)  # branch id → highest number
    commits: dict[str, LogCommit] = field(default_factory=dict)
    lives: dict[str, Life] = field(default_factory=dict)  # by branch id
    tags: list[TagLife] = field(default_factory=list)
    intents: list[IntentWrite] = field(default_factory=list)
    schemas: dict[str, Schema] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    step: int = 0
    _rows: dict[Any, Rows] = field(default_factory=dict, repr=False)

    # What was written.

    def apply(self, write: StoreWrite) -> Document | None:
        """Take one write into account; the manifest that it added, if it did."""
        self.step = max(self.step, write.step)
        before = self.objects.get(write.key)
        if write.body is None:
            self.objects.pop(write.key, None)
        else:
            self.objects[write.key] = write.body
        try:
            return self._applied(write, before)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            self.problems.append(f"{write.key} written at step {write.step} is damaged: {error!r}")
            return None

    def _applied(self, write: StoreWrite, before: bytes | None) -> Document | None:
        folder, _, rest = write.key.partition("/")
        if folder == "__manifest" and rest.endswith(".json"):
            return self._put_manifest(write, rest)
        if folder == "__refs" and rest.endswith(".json"):
            self._put_ref(write, before)
        elif folder == "__tags":
            self._put_tag(write, before)
        elif folder == "__schema" and write.body is not None:
            name = rest.removesuffix(".json")
            self.schemas[f"sha256:{name}"] = _schema(json.loads(write.body))
        elif folder == "__recovery" and "/" not in rest and rest.endswith(".json"):
            document = None if write.body is None else json.loads(write.body)
            txn_id = self._unquoted(rest) if document is None else document["txn_id"]
            self.intents.append(IntentWrite(write.step, txn_id, document, write.call))
        return None

    @staticmethod
    def _unquoted(name: str) -> str:
        from urllib.parse import unquote

        return unquote(name.removesuffix(".json"))

    def _put_manifest(self, write: StoreWrite, rest: str) -> Document | None:
        branch_id, _, name = rest.partition("/")
        number = (branch_id, LAST - int(name.removesuffix(".json")))
        if write.body is None:
            self.problems.append(f"manifest {number} was deleted at step {write.step}")
            self.current.pop(number, None)
            return None
        document = Document(json.loads(write.body), write.step)
        if document.number != number:
            self.problems.append(f"{write.key} says that it is manifest {document.number}")
        known = self.manifests.get(number)
        self.current[number] = document
        if known is not None:
            said = [[(commit.id, commit.txn_id) for commit in one.commits] for one in (known, document)]
            if not document.is_stub or said[0] != said[1]:
                self.problems.append(f"manifest {number} was overwritten at step {write.step} by something else")
            return None
        self.manifests[number] = document
        self._check_place(document)
        self.heads[branch_id] = max(self.heads.get(branch_id, 0), number[1])
        for commit in document.commits:
            if commit.id in self.commits:
                self.problems.append(f"two commits are called {commit.id}")
            self.commits[commit.id] = commit
        life = self.lives.get(branch_id)
        if life is not None and document.is_tombstone:
            life.ended = write.step
        elif life is not None and number[1] == 1:
            life.created = write.step
        return document

    def _check_place(self, document: Document) -> None:
        """Numbers have no gaps, nothing follows a tombstone, and ids say where their commits are."""
        branch_id, number = document.number
        if document.is_stub:
            self.problems.append(f"manifest {document.number} was put as a stub")
        before = self.manifests.get((branch_id, number - 1))
        if number != 1 and before is None:
            self.problems.append(f"manifest {document.number} was put before the one below it")
        if before is not None and before.is_tombstone:
            self.problems.append(f"manifest {document.number} was put above a tombstone")
        if branch_id not in self.lives:
            self.problems.append(f"manifest {document.number} belongs to a branch id that no ref names")
        name = f"{branch_id}.{number}"
        count = len(document.commits)
        wanted = [name] if count == 1 else [f"{name}.{place}" for place in range(count)]
        if [commit.id for commit in document.commits] != wanted:
            self.problems.append(f"the commits of manifest {document.number} are not called {wanted}")

    def _put_ref(self, write: StoreWrite, before: bytes | None) -> None:
        if write.body is None or before is not None:
            self.problems.append(f"the ref {write.key} was changed at step {write.step}")
            return
        ref = json.loads(write.body)
        life = int(write.key.rpartition("/")[2].removesuffix(".json"))
        fork = None if ref["fork"] is None else (ref["fork"][0], ref["fork"][1])
        self.lives[ref["branch_id"]] = Life(
            ref["branch"], life, ref["branch_id"], fork, ref.get("txn_id"), write.step, write.call
        )

    def _put_tag(self, write: StoreWrite, before: bytes | None) -> None:
        """A tag is deleted by an object that says so, and the next tag of its name replaces that one."""
        known = None if before is None else json.loads(before)
        document = None if write.body is None else json.loads(write.body)
        if document is None or document.get("deleted"):
            for tag in self.tags:
                if known is not None and tag.name == known["tag"] and tag.ended is None:
                    tag.ended, tag.ended_by = write.step, write.call
            return
        if known is not None and not known.get("deleted"):
            self.problems.append(f"the tag {document['tag']} was overwritten at step {write.step}")
        self.tags.append(TagLife(document["tag"], document["commit"], document["actor"], write.step))

    def living(self, step: int | None = None) -> dict[str, Life]:
        """The branches by name that are alive after a step."""
        at = self.step if step is None else step
        return {life.name: life for life in self.lives.values() if life.is_alive(at)}

    def schema_of(self, number: Number) -> Schema:
        name = self.manifests[number].json["schema"]
        if name not in self.schemas:
            raise Unreadable(f"the schema {name} of manifest {number} does not exist")
        return self.schemas[name]

    def contents(self, number: Number, commits: int | None = None) -> dict[str, Rows]:
        """Every type that has rows, by property names, after some of a manifest's commits or all."""
        document = self.manifests[number]
        schema = self.schema_of(number)
        refs = document.json["tables"]
        extra: dict[str, list[int]] = {}
        if commits is not None and commits < len(document.commits):
            refs = self.manifests[number[0], number[1] - 1].json["tables"]
            for place in range(commits):
                for key in document.json["inline"][place]:
                    extra.setdefault(key, []).append(place)
        found: dict[str, Rows] = {}
        for key in {*refs, *extra}:
            name = key.partition(":")[2]
            if name not in SPECS:
                raise Unreadable(f"manifest {number} has a table {key}, which the schema does not have")
            tail = [] if key not in refs else refs[key]["tail"]
            tail = [tuple(entry) for entry in tail] + [(*number, 0, places) for places in _cut(extra.get(key))]
            stored = None if key not in refs or refs[key]["table_id"] is None else _stored(refs[key])
            found[name] = self._named(key, name, schema, stored, tuple(tail))
            if key in refs and key not in extra and len(found[name]) != refs[key]["rows"]:
                raise Unreadable(f"manifest {number} says {refs[key]['rows']} rows of {name}, not {len(found[name])}")
        return {name: rows for name, rows in found.items() if rows}

    def _named(
        self, key: str, name: str, schema: Schema, stored: tuple[str, int] | None, tail: tuple[Any, ...]
    ) -> Rows:
        """Rows by property names; a column that came after a row was written inline is null in it."""
        columns = schema.columns(name)
        at = ("named", key, tuple(sorted(columns.items())), stored, tail)
        if at not in self._rows:
            if stored is not None:
                self._require_columns(stored, columns)
            raw = self._raw(key, stored, tail)
            self._rows[at] = {id_: {p: row.get(c) for p, c in columns.items()} for id_, row in raw.items()}
        return self._rows[at]

    def _raw(self, key: str, stored: tuple[str, int] | None, tail: tuple[Any, ...]) -> Rows:
        """The rows of a table version with a tail on top: that of a shorter tail with one more entry."""
        at = (key, stored, tail)
        if at in self._rows:
            return self._rows[at]
        if not tail:
            rows: Rows = {} if stored is None else self._stored_rows(stored)
        else:
            branch_id, number, _, *more = tail[-1]
            count, filed_under = (*more, None, None)[:2]
            document = self.manifests.get((branch_id, number))
            if document is None:
                raise Unreadable(f"rows of {key} are in manifest {(branch_id, number)}, which does not exist")
            changed = dict(self._raw(key, stored, tail[:-1]))
            for place in range(len(document.json["inline"]) if count is None else count):
                upserts, deletes = self._inline(document, place, filed_under or key)
                for id_ in deletes:
                    changed.pop(id_, None)
                changed |= upserts
            rows = changed
        self._rows[at] = rows
        return rows

    def _inline(self, document: Document, place: int, key: str) -> tuple[Rows, list[str]]:
        change = document.json["inline"][place].get(key)
        if change is None:
            return {}, []
        at = ("inline", document.number, place, key)
        if at not in self._rows:
            rows = []
            if change["upserts"] is not None:
                rows = pa.ipc.open_stream(base64.b64decode(change["upserts"])).read_all().to_pylist()
            self._rows[at] = {row["id"]: row for row in rows}
        return self._rows[at], change["deletes"]

    # Lance tables.

    def _stored_rows(self, stored: tuple[str, int]) -> Rows:
        at = ("lance", stored)
        if at not in self._rows:
            rows = self.read_table(stored).to_pylist()
            found = {row["id"]: row for row in rows}
            if len(found) != len(rows):
                raise Unreadable(f"table version {stored} has two rows with one id")
            self._rows[at] = found
            self._rows["columns", stored] = {name: {} for name in self.read_table(stored).schema.names}
        return self._rows[at]

    def read_table(self, stored: tuple[str, int]) -> pa.Table:
        """All rows of a table version, straight from its files."""
        import lance

        if self.tables is None:
            raise Unreadable(f"table version {stored} is named, but no tables are stored")
        try:
            return lance.dataset(f"{self.tables}/{stored[0]}", version=stored[1]).to_table()
        except Exception as error:
            raise Unreadable(f"table version {stored} can't be read: {error}") from error

    def _require_columns(self, stored: tuple[str, int], columns: Mapping[str, str]) -> None:
        self._stored_rows(stored)
        lacking = sorted(set(columns.values()) - set(self._rows["columns", stored]))
        if lacking:
            raise Unreadable(f"table version {stored} lacks the columns {', '.join(lacking)} of its schema")

    # What is still there.

    def require_readable(self, number: Number, *, whole: bool = True, files_only: bool = False) -> None:
        """Everything that a reader of this state needs exists now.

        `whole=False`: of the rows that ride in it only. `files_only`: tables are not read, but their files are there.
        """
        document = self.current.get(number)
        if document is None or document.is_stub:
            raise Unreadable(f"manifest {number} is {'gone' if document is None else 'a stub'}")
        if not whole:
            return
        if f"__schema/{document.json['schema'].removeprefix('sha256:')}.json" not in self.objects:
            raise Unreadable(f"the schema of manifest {number} is gone")
        for key, ref in document.json["tables"].items():
            for entry in ref["tail"]:
                try:
                    self.require_readable((entry[0], entry[1]), whole=False)
                except Unreadable as error:
                    raise Unreadable(f"rows of {key} at {number} can't be read: {error}") from error
            if ref["table_id"] is not None and files_only:
                self._require_files(_stored(ref))
            elif ref["table_id"] is not None:
                self.require_table(_stored(ref))

    def _require_files(self, stored: tuple[str, int]) -> None:
        """Which files a table version has never changes."""
        at = ("files", stored)
        if at not in self._rows:
            self._rows[at] = {path: {} for path in self._files(stored)}
        missing = [path for path in self._rows[at] if not os.path.exists(path)]
        if missing:
            raise Unreadable(f"table version {stored} lacks the file {os.path.basename(missing[0])}")

    def _files(self, stored: tuple[str, int]) -> list[str]:
        import lance

        folder = f"{self.tables}/{stored[0]}"
        try:
            fragments = lance.dataset(folder, version=stored[1]).get_fragments()
        except Exception as error:
            raise Unreadable(f"table version {stored} can't be opened: {error}") from error
        files = [f"{folder}/data/{file.path}" for one in fragments for file in one.data_files()]
        files += [f"{folder}/{one.deletion_file()}" for one in fragments if one.deletion_file()]
        names = (f"{stored[1]}.manifest", f"{LAST - stored[1]:020}.manifest")
        return files + [path for name in names if os.path.exists(path := f"{folder}/_versions/{name}")]

    def require_table(self, stored: tuple[str, int]) -> None:
        at = ("now", self.step, stored)
        if at not in self._rows:
            self.read_table(stored)
            self._rows[at] = {}


def _stored(ref: Mapping[str, Any]) -> tuple[str, int]:
    return ref["table_id"], ref["table_version"]


def _cut(places: list[int] | None) -> list[int]:
    """How many commits of a group count for a table, as a tail entry says it."""
    return [] if not places else [places[-1] + 1]


def _schema(document: Mapping[str, Any]) -> Schema:
    extras, retired = set(), set()
    for entry in document["catalog"]["types"]:
        spec = SPECS[entry["name"]]
        known = {name for name, _ in spec.properties}
        for prop in entry.get("properties", ()):
            if prop["name"] not in known:
                extras.add((KNOWN_EXTRAS[entry["name"], prop["name"]], prop["column"]))
        retired |= {(entry["name"], column) for column in entry.get("retired_columns", ())}
    return Schema(frozenset(extras), frozenset(retired))
