"""The files of a load, their kinds, and the types of their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from omnigraph.errors import AccessDenied, BadRequest, NotFound
from omnigraph.schema.lang.compile import compile_schema
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.input_files import known_file, options_for
from omnigraph.storage.objects.object_store import open_store
from omnigraph.write.load.input.sources import SourceFile, resolve_files
from support.proxy import Answer, Proxy, anything, error_body, gets
from support.s3 import S3Location

CATALOG = compile_schema("node Person { name: String @key }\nedge Knows: Person -> Person").catalog


def folder(tmp_path: Path, *names: str) -> Path:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return tmp_path


def names(files: list[SourceFile], root: str) -> list[str]:
    return [file.path.removeprefix(f"{root}/") for file in files]


def test_a_file_has_a_kind_a_size_and_a_name_to_show(tmp_path: Path) -> None:
    path = folder(tmp_path, "a.jsonl") / "a.jsonl"

    assert resolve_files(path, CATALOG) == [SourceFile(str(path), "a.jsonl", "ndjson", 5)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.jsonl", "ndjson"),
        ("x.ndjson", "ndjson"),
        ("x.jsonl.gz", "ndjson.gz"),
        ("x.ndjson.gz", "ndjson.gz"),
        ("Person.csv", "csv"),
        ("Person.csv.gz", "csv.gz"),
        ("Person.parquet", "parquet"),
    ],
)
def test_the_suffix_says_the_kind(tmp_path: Path, name: str, kind: str) -> None:
    assert resolve_files(folder(tmp_path, name) / name, CATALOG)[0].kind == kind


def test_a_directory_is_all_files_below_it_that_are_of_a_kind_by_name(tmp_path: Path) -> None:
    there = ["Person/part-1.parquet", "Person/part-0.parquet", "a.jsonl", "sub/b.jsonl.gz"]
    others = ["README.md", "_SUCCESS", "_temporary/c.jsonl", ".hidden.jsonl", "a.rejected-x.json"]

    found = resolve_files(folder(tmp_path, *there, *others), CATALOG)

    assert names(found, str(tmp_path)) == sorted(there)


def test_globs_and_lists_and_file_uris_are_files(tmp_path: Path) -> None:
    folder(tmp_path, "a.jsonl", "b.jsonl", "sub/c.jsonl", "with space.jsonl")

    assert names(resolve_files(f"{tmp_path}/[ab].jsonl", CATALOG), str(tmp_path)) == ["a.jsonl", "b.jsonl"]
    assert names(resolve_files(f"{tmp_path}/**/c.jsonl", CATALOG), str(tmp_path)) == ["sub/c.jsonl"]
    listed: list[str | Path] = [tmp_path / "b.jsonl", (tmp_path / "with space.jsonl").as_uri()]
    assert names(resolve_files(listed, CATALOG), str(tmp_path)) == ["b.jsonl", "with space.jsonl"]


def test_a_relative_path_is_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder(tmp_path, "a.jsonl"))

    assert resolve_files("a.jsonl", CATALOG)[0].path == str(tmp_path / "a.jsonl")


def test_files_of_one_name_are_shown_with_their_folders(tmp_path: Path) -> None:
    folder(tmp_path, "x/a.jsonl", "y/a.jsonl", "b.jsonl")

    assert [file.shown for file in resolve_files(tmp_path, CATALOG)] == [
        "b.jsonl",
        f"{tmp_path}/x/a.jsonl",
        f"{tmp_path}/y/a.jsonl",
    ]


# Types


@pytest.mark.parametrize(
    "name", ["Person.csv", "Person.parquet", "Person/part-0.parquet", "type=Person/x.csv", "Person/2026/01/x.parquet"]
)
def test_a_file_of_rows_has_the_type_that_it_or_a_folder_is_named_after(tmp_path: Path, name: str) -> None:
    assert resolve_files(folder(tmp_path, name), CATALOG)[0].type_name == "Person"


def test_the_name_of_a_file_counts_before_those_of_its_folders(tmp_path: Path) -> None:
    assert resolve_files(folder(tmp_path, "Person/Knows.csv"), CATALOG)[0].type_name == "Knows"


def test_a_given_type_counts_before_any_name(tmp_path: Path) -> None:
    assert resolve_files(folder(tmp_path, "Person.csv"), CATALOG, "Knows")[0].type_name == "Knows"


@pytest.mark.parametrize(
    ("name", "type_name", "sentence"),
    [
        ("people.csv", None, "The type of the rows of people.csv is unknown: give it (--type, type=…)"),
        ("people.csv", "Ghost", "The schema has no type 'Ghost': its types are Knows, Person."),
        ("a.jsonl", "Person", "every line of a.jsonl names its type: load it without --type (type=…)."),
    ],
)
def test_a_type_that_is_missing_unknown_or_not_wanted_is_one_sentence(
    tmp_path: Path, name: str, type_name: str | None, sentence: str
) -> None:
    with pytest.raises(BadRequest) as raised:
        resolve_files(folder(tmp_path, name), CATALOG, type_name)

    assert sentence in str(raised.value)


# What can't be found


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{0}/missing.jsonl", "{0}/missing.jsonl does not exist: check the path."),
        ("{0}/*.csv", "{0}/*.csv matches no file: check the pattern."),
        ("{0}/empty", "{0}/empty has no .jsonl, .ndjson, .jsonl.gz"),
        ("{0}/notes.txt", "{0}/notes.txt is not of a kind that can be loaded: give .jsonl, .ndjson"),
        ("", "An input to load is empty"),
        ("ftp://host/a.jsonl", "ftp://host/a.jsonl has the unknown scheme 'ftp'"),
        ("s3:///a.jsonl", "names no bucket: write s3://bucket/path."),
    ],
)
def test_what_can_not_be_found_is_one_sentence(tmp_path: Path, source: str, sentence: str) -> None:
    folder(tmp_path, "notes.txt", "a.jsonl")
    (tmp_path / "empty").mkdir()

    with pytest.raises(BadRequest) as raised:
        resolve_files(source.format(tmp_path), CATALOG)

    assert sentence.format(tmp_path) in str(raised.value)


def test_one_missing_file_of_a_list_refuses_all(tmp_path: Path) -> None:
    folder(tmp_path, "a.jsonl")

    with pytest.raises(BadRequest, match=r"b\.jsonl does not exist"):
        resolve_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], CATALOG)


def test_a_name_that_the_file_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"can't be read \(File name too long\): check the path"):
        resolve_files(tmp_path / f"{'x' * 300}.jsonl", CATALOG)


# Object stores


@pytest.fixture
def bucket(s3: S3Location) -> Callable[..., str]:
    """Puts objects below the location and answers its URI."""

    def put(*keys: str) -> str:
        store = open_store(parse_location(s3.uri, s3.options))
        for key in keys:
            store.put(key, b"12345")
        return s3.uri

    return put


@pytest.mark.s3
def test_an_object_a_prefix_and_a_glob_are_files(s3: S3Location, bucket: Callable[..., str]) -> None:
    uri = bucket("in/a.jsonl", "in/sub/b.jsonl", "in/Person/x.parquet", "in/_SUCCESS", "index.jsonl")

    def found(source: str) -> list[str]:
        return names(resolve_files(source, CATALOG, None, s3.options), uri)

    assert found(f"{uri}/in/a.jsonl") == ["in/a.jsonl"]
    assert found(f"{uri}/in") == ["in/Person/x.parquet", "in/a.jsonl", "in/sub/b.jsonl"]
    assert found(f"{uri}/in/") == found(f"{uri}/in")
    assert found(f"{uri}/in/*.jsonl") == ["in/a.jsonl"]
    assert found(f"{uri}/in/**/*.jsonl") == ["in/a.jsonl", "in/sub/b.jsonl"]
    assert found(f"{uri}/in/?.jsonl") == ["in/a.jsonl"]
    assert found(f"{uri}/in/[!b].jsonl") == ["in/a.jsonl"]
    assert resolve_files(f"{uri}/in/Person", CATALOG, None, s3.options)[0].type_name == "Person"
    assert resolve_files(f"{uri}/in/a.jsonl", CATALOG, None, s3.options)[0].size == 5


@pytest.mark.s3
def test_what_a_store_has_not_is_one_sentence(s3: S3Location, bucket: Callable[..., str]) -> None:
    uri = bucket("in/notes.txt")

    for source, sentence in {
        "in/a.jsonl": "does not exist: check the URI",
        "in/*.jsonl": "matches no object: check the pattern",
        "in": "has no .jsonl",
        "in/notes.txt": "is not of a kind that can be loaded",
    }.items():
        with pytest.raises(BadRequest, match=sentence):
            resolve_files(f"{uri}/{source}", CATALOG, None, s3.options)
    with pytest.raises(NotFound, match="The bucket 'there-is-no-such-bucket' does not exist"):
        resolve_files("s3://there-is-no-such-bucket/in", CATALOG, None, s3.options)


@pytest.mark.s3
@pytest.mark.parametrize("source", ["in.jsonl", "in/*.jsonl"])
def test_a_store_that_denies_access_is_one_sentence(s3_proxied: S3Location, proxy: Proxy, source: str) -> None:
    proxy.on(anything, Answer(403, error_body("AccessDenied")), times=None)

    with pytest.raises(AccessDenied, match="check credentials and permissions"):
        resolve_files(f"{s3_proxied.uri}/{source}", CATALOG, None, s3_proxied.options)


@pytest.mark.s3
def test_a_read_that_fails_once_is_repeated(s3_proxied: S3Location, proxy: Proxy) -> None:
    open_store(parse_location(s3_proxied.uri, s3_proxied.options)).put("a.jsonl", b"12345")
    (file,) = resolve_files(f"{s3_proxied.uri}/a.jsonl", CATALOG, None, s3_proxied.options)
    proxy.on(gets("a.jsonl"), Answer(503, b""))

    assert known_file(file.path, file.size, s3_proxied.options).read(1, 3) == b"234"


def test_options_of_the_graph_serve_for_stores_of_the_same_kind_only() -> None:
    options = {"aws_endpoint": "http://localhost:9", "allow_http": "true", "fsync": "false"}

    assert options_for("s3://bucket/a", options) == {"aws_endpoint": "http://localhost:9", "allow_http": "true"}
    assert options_for("gs://bucket/a", options) == {}
    assert options_for("/a", options) == {}
