"""Splits: every line of a file is in exactly one, wherever they are cut and however the file is compressed."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.errors import BadRequest
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
from omnigraph.write.load.input import chunks as input_files
from omnigraph.write.load.input.chunks import LINE_BYTES_MAX, LineBlock, read_line_range, split_lines
from omnigraph.write.load.input.input_splits import Split, plan_splits
from omnigraph.write.load.input.sources import resolve_files
from omnigraph.write.load.parse.parse import parse_split
from omnigraph.write.load.parse.parsed import IdMinter
from support.s3 import S3Location
from write.parsing import every_type

CATALOG = every_type()
MINT = IdMinter(1_700_000_000_000, "job")


def notes(count: int) -> bytes:
    return b"".join(b'{"type":"Note","data":{"text":"n%d"}}\n' % number for number in range(count))


def read(source: Any, split_bytes: int = 2**25, options: Any = None, type_name: str | None = None) -> tuple[Any, ...]:
    """Texts with the line numbers that they have in the file, and what was rejected."""
    splits = plan_splits(resolve_files(source, CATALOG, type_name, options), split_bytes, options)
    found, rejected, ids, before = [], [], [], {0: 0}
    for split in splits:
        lines = before.setdefault(split.file, 0)
        for part in parse_split(split, CATALOG, options, MINT):
            for rows in part.types.values():
                numbers = (rows.numbers + lines).tolist()
                found += list(zip(numbers, rows.rows.column("text").to_pylist(), strict=True))
                ids += rows.rows.column("id").to_pylist()
            rejected += [(one.number + lines, str(one.reason)) for one in part.rejected]
            before[split.file] += part.lines
    return found, rejected, ids


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([b"", b"a", b"bb", b"ccccc"]), max_size=12), st.integers(1, 9), st.booleans(), st.data()
)
def test_each_line_is_in_the_split_in_which_it_begins(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], length: int, ended: bool, data: Any
) -> None:
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_files, "CHUNK_BYTES", data.draw(st.integers(1, 6)))
        patch.setattr(input_files, "TAIL_BYTES", data.draw(st.integers(1, 3)))
        parts = [
            b"".join(
                one.data
                for one in read_line_range(str(path), "cut", len(content), at, min(length, len(content) - at), None)
            )
            for at in range(0, len(content), length)
        ]

    assert b"".join(parts) == content
    for start, part in zip(range(0, len(content), length), parts, strict=True):
        begins = {
            at for at in range(start, min(start + length, len(content))) if at == 0 or content[at - 1 : at] == b"\n"
        }
        count = part.count(b"\n") + (not part.endswith(b"\n") and part != b"")
        assert count == len(begins)


def test_rows_and_line_numbers_do_not_depend_on_the_splits(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(notes(300) + b"{\n\n" + notes(200))
    whole = read(path)

    small = read(path, split_bytes=1000)

    assert small[:2] == whole[:2]
    assert len(plan_splits(resolve_files(path, CATALOG), 1000)) > 15
    assert len(set(small[2])) == 500
    assert [number for number, _ in whole[1]] == [301]


def test_a_split_parsed_again_gives_the_same_ids(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(notes(100))

    assert read(path, 500)[2] == read(path, 500)[2]


def test_a_gzipped_file_is_one_split_of_all_its_members(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + notes(100)[:-10]) + gzip.compress(notes(100)[-10:] + notes(50)))

    assert len(plan_splits(resolve_files(path, CATALOG), 100)) == 1
    assert [number for number, _ in read(path, 100)[0]] == list(range(1, 151))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            gzip.compress(notes(5000))[:-20],
            "notes.jsonl.gz is cut off and can't be read to its end: nothing was written",
        ),
        (notes(5), "notes.jsonl.gz is not gzipped"),
        (gzip.compress(notes(5000))[:300] + b"\xff" * 300, "notes.jsonl.gz is"),
    ],
)
def test_a_gzipped_file_that_is_not_whole_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "notes.jsonl.gz"
    path.write_bytes(content)

    with pytest.raises(BadRequest) as raised:
        read(path)

    assert sentence in str(raised.value)


def test_a_line_that_is_too_long_is_rejected_and_the_others_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(
        notes(2) + b'{"type":"Note","data":{"text":"' + b"x" * (LINE_BYTES_MAX + 2**20) + b'"}}\n' + notes(1)
    )

    for split_bytes in (2**25, 2**20):
        found, rejected, _ = read(path, split_bytes)

        assert [number for number, _ in found] == [1, 2, 4]
        assert [(number, reason.partition(":")[0]) for number, reason in rejected] == [
            (3, "the line is longer than 16 MiB")
        ]


def test_a_line_of_any_length_takes_no_more_memory_than_the_limit() -> None:
    """In a process of its own: of 200 MB without a newline never more than a few times the limit is held."""
    code = """
import resource
from omnigraph.write.load.input.chunks import split_lines
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
chunks = (b"x" * 2**22 for _ in range(50))
found = list(split_lines(chunks))
assert [one.too_long for one in found] == [True] and len(found[0].data) == 1000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(done.stdout) < 4 * LINE_BYTES_MAX // 2**20


def test_lines_are_cut_at_newlines_alone() -> None:
    data = "a\x0bb\x0cc\u2028d\x85e\r\nf".encode()

    assert list(split_lines(iter([data]))) == [LineBlock(data[:-1]), LineBlock(b"f")]


def test_a_split_goes_through_pickle_and_json(tmp_path: Path) -> None:
    split = Split(3, 1, "parquet", "/x/Person.parquet", "Person.parquet", 0, 10, (1, 2), "Person", 100, 99)

    assert pickle.loads(pickle.dumps(split)) == split
    assert Split.from_json(json.loads(json.dumps(split.to_json()))) == split


def test_csv_is_one_split_a_file_and_numbered_by_lines(tmp_path: Path) -> None:
    (tmp_path / "Note.csv").write_bytes(b'id,text\na,"1\n2"\nb,x\n' * 1)
    (tmp_path / "Note.csv.gz").write_bytes(gzip.compress(b"id,text\nc,y\n"))

    found, _, ids = read(tmp_path, 4)

    assert found == [(2, "1\n2"), (4, "x"), (2, "y")]
    assert ids == ["a", "b", "c"]


def test_a_file_that_changes_while_it_is_read_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_bytes(notes(10))
    files = resolve_files(path, CATALOG)
    path.write_bytes(notes(5))

    with pytest.raises(BadRequest, match="has become shorter while it was read"):
        [list(parse_split(split, CATALOG, None, MINT)) for split in plan_splits(files)]


@pytest.mark.s3
def test_objects_are_read_in_ranges_of_every_kind(s3: S3Location, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = open_store(parse_location(s3.uri, s3.options))
    pq.write_table(pa.table({"text": [f"n{n}" for n in range(100)]}), tmp_path / "x.parquet", row_group_size=10)
    store.put("in/a.jsonl", notes(100))
    store.put("in/b.jsonl.gz", gzip.compress(notes(100)))
    store.put("in/Note/c.csv", b"text\n" + b"".join(b"n%d\n" % n for n in range(100)))
    store.put("in/Note/d.parquet", (tmp_path / "x.parquet").read_bytes())

    found, rejected, ids = read(f"{s3.uri}/in", 500, s3.options)

    assert not rejected
    assert sorted(text for _, text in found) == sorted([f"n{n}" for n in range(100)] * 4)
    assert len(set(ids)) == 400
