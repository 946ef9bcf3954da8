"""Where a graph lives: the forms of a URI, and where its settings come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnigraph.errors import BadRequest
from omnigraph.graph import graph as omnigraph
from omnigraph.manifest.commit.plan import Append
from omnigraph.manifest.settings import Settings
from omnigraph.storage.location import parse_location
from omnigraph.storage.objects.object_store import open_store
from support.catalogs import PERSON, ids_of, people, person_rows
from support.s3 import S3Location

NO_VARIABLES: dict[str, str] = {}


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/data/graph", "/data/graph"),
        ("/data/graph/", "/data/graph"),
        ("/data/./x/../graph", "/data/graph"),
        ("file:///data/graph", "/data/graph"),
        ("file:///data/graph/", "/data/graph"),
        ("file://localhost/data/graph", "/data/graph"),
        ("file:///data/my%20graph", "/data/my graph"),
        ("/data/my%20graph", "/data/my%20graph"),
        ("s3://bucket/graph", "s3://bucket/graph"),
        ("s3://bucket/deep/graph/", "s3://bucket/deep/graph"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket/graph", "s3://bucket/graph"),
        ("gs://bucket/graph", "gs://bucket/graph"),
        ("az://container/graph", "az://container/graph"),
    ],
)
def test_the_forms_of_a_uri(given: str, uri: str) -> None:
    assert parse_location(given, environ=NO_VARIABLES).uri == uri


def test_a_relative_path_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    location = parse_location("graph")

    monkeypatch.chdir("/")

    assert location.uri == str(tmp_path / "graph")
    assert location.path == tmp_path / "graph"


def test_a_path_object_and_a_home_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert parse_location(tmp_path / "graph").uri == str(tmp_path / "graph")
    assert parse_location("~/graph").uri == str(tmp_path / "graph")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("ftp://host/graph", "'ftp'"),
        ("https://host/graph", "'https'"),
        ("S4://bucket/graph", "'s4'"),
        ("s3:///graph", "no bucket"),
        ("s3://bucket/graph?region=x", "query or fragment"),
        ("s3://bucket/graph#1", "query or fragment"),
        ("file://host/graph", "names a host"),
        ("file:///graph#1", "query or fragment"),
        ("file:///graph?x", "query or fragment"),
        ("/data/\0graph", "NUL"),
    ],
)
def test_a_uri_that_can_not_be_meant_is_refused_by_name(given: str, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        parse_location(given, environ=NO_VARIABLES)


def test_a_directory_bucket_is_reached_by_its_own_endpoint_unless_one_is_given() -> None:
    bucket, endpoint = "s3://base--usw2-az1--x-s3/graph", {"aws_endpoint": "http://127.0.0.1:9"}

    assert parse_location(bucket, environ=NO_VARIABLES).options["aws_s3_express"] == "true"
    assert parse_location(bucket, {"aws_s3_express": "false"}, NO_VARIABLES).options["aws_s3_express"] == "false"
    assert "aws_s3_express" not in parse_location(bucket, endpoint, NO_VARIABLES).options
    assert "aws_s3_express" not in parse_location("s3://bucket/graph", environ=NO_VARIABLES).options


def test_which_stores_list_in_name_order() -> None:
    assert parse_location("s3://bucket/graph", environ=NO_VARIABLES).lists_in_name_order
    assert not parse_location("/data/graph", environ=NO_VARIABLES).lists_in_name_order
    assert not parse_location("s3://base--usw2-az1--x-s3/graph", environ=NO_VARIABLES).lists_in_name_order


def test_s3_settings_come_from_the_usual_variables() -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_REGION": "eu-north-1",
        "AWS_ENDPOINT_URL": "https://s3.example",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "UNRELATED": "x",
    }

    assert parse_location("s3://bucket/graph", environ=environ).options == {
        "aws_access_key_id": "id",
        "aws_secret_access_key": "secret",
        "aws_session_token": "token",
        "aws_region": "eu-north-1",
        "aws_endpoint": "https://s3.example",
        "aws_virtual_hosted_style_request": "true",
    }


@pytest.mark.parametrize(
    ("environ", "option", "value"),
    [
        ({"AWS_DEFAULT_REGION": "b"}, "aws_region", "b"),
        ({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, "aws_region", "a"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": "b"}, "aws_region", "b"),
        ({"AWS_ENDPOINT": "https://c"}, "aws_endpoint", "https://c"),
        ({"AWS_ENDPOINT": "https://c", "AWS_ENDPOINT_URL": "https://b"}, "aws_endpoint", "https://b"),
        ({"AWS_ENDPOINT_URL": "https://b", "AWS_ENDPOINT_URL_S3": "https://a"}, "aws_endpoint", "https://a"),
        ({"AWS_ALLOW_HTTP": "1"}, "allow_http", "1"),
    ],
)
def test_of_several_variables_the_more_specific_one_wins(environ: dict[str, str], option: str, value: str) -> None:
    assert parse_location("s3://bucket/graph", environ=environ).options == {option: value}


@pytest.mark.parametrize("name", ["aws_region", "region", "AWS_REGION", "aws_default_region"])
def test_a_storage_option_wins_over_a_variable_under_each_of_its_names(name: str) -> None:
    location = parse_location("s3://bucket/graph", {name: "given"}, {"AWS_REGION": "from the environment"})

    assert location.options == {"aws_region": "given"}


def test_plain_http_is_allowed_for_an_http_endpoint_unless_forbidden() -> None:
    endpoint = {"aws_endpoint": "http://127.0.0.1:9000"}

    assert parse_location("s3://b/g", endpoint, NO_VARIABLES).options["allow_http"] == "true"
    assert parse_location("s3://b/g", {}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}).options["allow_http"] == "true"
    assert parse_location("s3://b/g", endpoint | {"allow_http": "false"}, NO_VARIABLES).options["allow_http"] == "false"
    assert "allow_http" not in parse_location("s3://b/g", {"aws_endpoint": "https://s3.example"}, NO_VARIABLES).options


@pytest.mark.parametrize("uri", ["/data/graph", "gs://bucket/graph", "az://container/graph"])
def test_aws_variables_are_for_s3_alone(uri: str) -> None:
    assert parse_location(uri, environ={"AWS_REGION": "eu-north-1"}).options == {}


def test_secrets_are_not_shown() -> None:
    location = parse_location("s3://bucket/graph", {"aws_secret_access_key": "hush"}, {"AWS_SESSION_TOKEN": "psst"})

    assert "hush" not in repr(location)
    assert "psst" not in f"{location}"
    assert "s3://bucket/graph" in repr(location)


@pytest.mark.parametrize("value", ["0", "false", "False", "no", "OFF"])
def test_fsync_is_turned_off_by_an_option_or_a_variable(value: str) -> None:
    assert not parse_location("/data/graph", {"fsync": value}, NO_VARIABLES).fsync
    assert not parse_location("/data/graph", {}, {"OMNIGRAPH_FSYNC": value}).fsync
    assert parse_location("/data/graph", {"fsync": "true"}, {"OMNIGRAPH_FSYNC": value}).fsync


def test_fsync_is_on_unless_turned_off_and_is_no_option_of_the_store() -> None:
    assert parse_location("/data/graph", {}, NO_VARIABLES).fsync
    assert parse_location("s3://bucket/graph", {"fsync": "false"}, NO_VARIABLES).options == {}


@pytest.mark.parametrize("folder", ["with space", "per%20cent", "hash#question?", "ünïcode", "quote'\""])
def test_a_path_is_taken_as_it_is_by_all_who_write_below_it(tmp_path: Path, folder: str) -> None:
    graph = omnigraph.init(tmp_path / folder, people(), settings=Settings(inline_rows=0))
    graph.write([Append(PERSON, person_rows("ada"))])

    again = omnigraph.open(tmp_path / folder)

    assert ids_of(again.snapshot().to_arrow(PERSON)) == ["ada"]
    assert os.listdir(tmp_path) == [folder]
    assert {"__manifest", "__refs", "__schema", "_omnigraph.json", "tables"} == set(os.listdir(tmp_path / folder))


@pytest.mark.s3
def test_the_variables_alone_reach_an_http_server_by_path_style(s3: S3Location) -> None:
    environ = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3.endpoint,
    }
    store = open_store(parse_location(s3.uri, environ=environ))

    store.put("a", b"here")

    assert open_store(parse_location(s3.uri, s3.options)).get("a").data == b"here"  # type: ignore[union-attr]


@pytest.mark.s3
@pytest.mark.parametrize("folder", ["", "/", "/a b", "/per%20cent", "/ünïcode", "/deep/er"])
def test_a_prefix_means_the_same_to_all_who_write_below_it(s3: S3Location, folder: str) -> None:
    uri = f"s3://{s3.bucket}{folder}"
    graph = omnigraph.init(uri, people(), s3.options, settings=Settings(inline_rows=0))
    graph.write([Append(PERSON, person_rows("ada"))])

    top = {entry.key.split("/", 1)[0] for entry in graph.repository.store.list("")}

    assert ids_of(omnigraph.open(uri, s3.options).snapshot().to_arrow(PERSON)) == ["ada"]
    assert top == {"__manifest", "__recovery", "__refs", "__schema", "_omnigraph.json", "tables"}
