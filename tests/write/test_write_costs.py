"""The cost of writes, from query text to commit, in requests to an S3 server, not in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.proxy import Log, Proxy
from support.s3 import S3Location, S3Server
from write.world import PEOPLE, World, make_world

pytestmark = pytest.mark.s3

RTT_S = 0.02  # long enough for requests that are sent together to overlap, also on a busy machine
TRIES = 4
TYPES = (5, 50, 500)
INSERT_SERIAL_MAX = 6
EDGE_SERIAL_MAX = 7
NODE = 'insert Person {{ slug: "p{0}", name: "P{0}", age: 3 }}'
UNKEYED = 'insert Note {{ text: "n{0}", rank: {0} }}'
EDGE = 'insert Likes {{ from: "ada", to: "bob" }}'
COUNTED_EDGE = 'insert WorksAt {{ from: "p{0}", to: "acme" }}'


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with Proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def worlds(s3_server: S3Server, proxy: Proxy) -> dict[int, World]:
    """Warm graphs with so many types: every table that is used has rows."""
    return {count: warm(s3_server.bucket().via(proxy.endpoint), count) for count in TYPES}


def warm(place: S3Location, types: int) -> World:
    more = "\n".join(f"node More{number} {{ name: String @key }}" for number in range(types - 7))
    world = make_world(place.uri, PEOPLE + more, place.options)
    world.mutate(
        """
        insert Person { slug: "ada", name: "Ada" } insert Person { slug: "bob", name: "Bob" }
        insert Company { name: "acme" } insert Note { text: "x" }
        insert Likes { from: "ada", to: "bob" } insert WorksAt { from: "ada", to: "acme" }
        """
    )
    for number in range(TRIES * 4):
        world.mutate(NODE.format(f"-{number}"))
    world.mutate(EDGE.format(0))
    return world


_numbers = iter(range(1_000_000))


def measured(
    world: World, proxy: Proxy, body: str, serial_max: int, prepare: Callable[[int], Any] | None = None
) -> Log:
    """One run, alone. A hiccup of the scheduler may add a round trip and never takes one away: then it is run again."""
    for _ in range(TRIES):
        number = next(_numbers)
        if prepare is not None:
            prepare(number)
        proxy.delay_s = RTT_S
        try:
            with proxy.recording() as log:
                commit = world.mutate(body.format(number))
        finally:
            proxy.delay_s = 0.0
        assert commit is not None
        assert commit.cost.requests == len(log), log.describe()
        if log.serial <= serial_max:
            break
    return log


CASES = {
    "keyed node": (NODE, INSERT_SERIAL_MAX),
    "unkeyed node": (UNKEYED, INSERT_SERIAL_MAX),
    "edge": (EDGE, EDGE_SERIAL_MAX),
    "edge with a cardinality": (COUNTED_EDGE, EDGE_SERIAL_MAX),
}


@pytest.mark.parametrize("case", CASES)
def test_a_staged_insert_keeps_its_promise_and_is_flat_in_the_number_of_types(
    worlds: dict[int, World], proxy: Proxy, case: str
) -> None:
    body, serial_max = CASES[case]
    serial = {}
    for types, world in worlds.items():
        prepare = (lambda n, world=world: world.mutate(NODE.format(n))) if body is COUNTED_EDGE else None
        log = measured(world, proxy, body, serial_max, prepare)
        assert log.serial <= serial_max, f"{types} types\n{log.describe()}"
        serial[types] = log.serial
    assert len(set(serial.values())) == 1, serial


def test_both_ends_of_an_edge_are_looked_up_at_the_same_time(worlds: dict[int, World], proxy: Proxy) -> None:
    """Each end in a table that another process has changed: neither waits for the other."""
    world = worlds[5]

    def elsewhere(number: int) -> None:
        world.mutate(NODE.format(f"x{number}"))
        world.mutate(f'insert Company {{ name: "c{number}" }}')

    log = measured(world, proxy, 'insert WorksAt {{ from: "px{0}", to: "c{0}" }}', EDGE_SERIAL_MAX, elsewhere)

    assert log.serial <= EDGE_SERIAL_MAX, log.describe()


def test_the_schema_is_read_once_and_each_table_opened_at_most_once(
    s3_server: S3Server, proxy: Proxy, worlds: dict[int, World]
) -> None:
    """Another process's first write: the schema was read once, and each table's version file is read once."""
    from omnigraph.manifest.repository import open_repository

    location = worlds[50].repository.location
    cold = World(open_repository(location.uri, location.options))

    with proxy.recording() as log:
        cold.mutate('insert Person { slug: "cold", name: "Cold" } insert Likes { from: "cold", to: "ada" }')

    assert log.count("GET", "__schema/") == 0, "opening the graph has read it"
    versions = [request.path for request in log if "_versions/" in request.path and request.method == "GET"]
    assert len(versions) == len(set(versions)), log.describe()

    with proxy.recording() as log:
        cold.mutate('insert Person { slug: "warm", name: "Warm" } insert Likes { from: "warm", to: "ada" }')

    assert log.count("GET", "__schema/") == 0
    assert not [request for request in log if "_versions/" in request.path and request.method in ("GET", "HEAD")]


def test_a_refused_insert_writes_nothing_to_the_store(worlds: dict[int, World], proxy: Proxy) -> None:
    from omnigraph.errors import ConstraintViolation

    with proxy.recording() as log, pytest.raises(ConstraintViolation):
        worlds[5].mutate('insert Likes { from: "ada", to: "nobody" }')

    assert log.count("PUT") == 0, log.describe()


def test_a_load_of_many_types_stages_them_side_by_side(proxy: Proxy, s3_server: S3Server, tmp_path: Path) -> None:
    place = s3_server.bucket().via(proxy.endpoint)
    more = "\n".join(f"node More{number} {{ name: String @key }}" for number in range(8))
    world = make_world(place.uri, more, place.options)
    entities = [{"type": f"More{number}", "data": {"name": "x"}} for number in range(8)]
    world.load(entities)

    proxy.delay_s = RTT_S
    with proxy.recording() as log:
        world.load([entity | {"data": {"name": "y"}} for entity in entities])
    proxy.delay_s = 0.0

    assert log.serial <= 8, log.describe()
