"""A process of the day's work: some writers of one-row commits, or a reader that checks what it sees.

    mixed_load.py write URI OPTIONS NAMES COMMITS FOLDER
    mixed_load.py read  URI OPTIONS NAME  0       FOLDER

NAMES are those of the process's writers, with commas between: each is a thread, and makes so many commits. A writer
says in FOLDER/NAME how many of its events it was told have landed. A reader looks there first, so whatever it then
reads must have them all; it ends when FOLDER/done appears. Both print one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import omnigraph
from omnigraph.graph.graph import Graph

SCHEMA = """
node Writer { slug: String @key  last: I64 }
node Event { slug: String @key  writer: String @index  number: I64  text: String }
node Draft { text: String }
edge Made: Writer -> Event
"""
KINDS = (
    5  # one-row commits of a round: an event, its edge, an event, an update of the writer, a draft that comes or goes
)
PAUSE_MAX_S = 2.0
EVENT = (
    "query q($s: String, $w: String, $n: I64, $t: String) "
    "{ insert Event { slug: $s, writer: $w, number: $n, text: $t } }"
)
MADE = "query q($w: String, $e: String) { insert Made { from: $w, to: $e } }"
LAST = "query q($w: String, $n: I64) { update Writer set { last: $n } where slug = $w }"
DRAFT = "query q($t: String) { insert Draft { text: $t } }"
DROPPED = "query q($t: String) { delete Draft where text = $t }"
EVENTS = "query q() { match { $e: Event } return { $e.slug, $e.writer, $e.number } }"
EDGES = "query q() { match { $w: Writer $w made $e } return { $w.slug as writer, $e.slug as event } }"
WRITERS = "query q() { match { $w: Writer } return { $w.slug, $w.last } }"
OF_ONE = "query q($w: String) { match { $e: Event { writer: $w } } return { count($e) as n } }"


def write(graph: Graph, names: list[str], commits: int, folder: Path) -> dict[str, Any]:
    """By the name of each writer: how many events it made, and how long its commits took."""
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: write_as(graph, name, commits, folder), names))
    graph.maintenance.settle(60)
    return dict(zip(names, answers, strict=True))


def write_as(graph: Graph, name: str, commits: int, folder: Path) -> dict[str, Any]:
    seconds: list[float] = []
    events = 0
    for number in range(commits):
        started = time.monotonic()
        match number % KINDS:
            case 0 | 2:
                params = {"s": f"{name}-{events}", "w": name, "n": events, "t": f"said by {name}"}
                landed = graph.mutate(EVENT, params=params, actor=name)
                events += 1
            case 1:
                landed = graph.mutate(MADE, params={"w": name, "e": f"{name}-{events - 1}"}, actor=name)
            case 3:
                landed = graph.mutate(LAST, params={"w": name, "n": events - 1}, actor=name)
            case _:
                gone = (number // KINDS) % 2 == 1
                text = f"{name}-{number // (2 * KINDS)}"
                landed = graph.mutate(DROPPED if gone else DRAFT, params={"t": text}, actor=name)
        assert landed is not None, (name, number)
        seconds.append(time.monotonic() - started)
        (folder / f"{name}.new").write_text(str(events))
        (folder / f"{name}.new").rename(folder / name)
    seconds.sort()
    return {"events": events, "median_s": seconds[len(seconds) // 2], "slowest_s": seconds[-1]}


def read(graph: Graph, folder: Path) -> dict[str, Any]:
    looks = 0
    while True:
        last = (folder / "done").exists()
        told = {path.name: int(path.read_text()) for path in folder.glob("w*") if path.suffix != ".new"}
        started = time.monotonic()
        look(graph, told)
        looks += 1
        if not last:
            time.sleep(min(time.monotonic() - started, PAUSE_MAX_S))  # looks half of the time, however large the graph
        if last:
            return {"looks": looks}


def look(graph: Graph, told: dict[str, int]) -> None:
    """One look at one state: everything that was acknowledged is there, nothing twice, and every edge has its ends."""
    commit = graph.snapshot().commit_id
    events = graph.query(EVENTS, at=commit).rows
    per_writer = Counter(row["e.writer"] for row in events)
    assert len({row["e.slug"] for row in events}) == len(events), commit
    for writer, count in per_writer.items():
        assert sorted(row["e.number"] for row in events if row["e.writer"] == writer) == list(range(count)), commit
        assert graph.query(OF_ONE, params={"w": writer}, at=commit).rows == [{"n": count}], commit
    for writer, count in told.items():
        assert per_writer[writer] >= count, (commit, writer, count, per_writer)
    sizes = {summary.type_name: summary.rows for summary in graph.snapshot(at=commit).types}
    edges = graph.query(EDGES, at=commit).rows
    assert (sizes["Event"], sizes["Made"]) == (len(events), len(edges)), commit
    assert len({row["event"] for row in edges}) == len(edges), commit
    slugs = {row["e.slug"] for row in events}
    assert all(row["event"] in slugs and row["event"].startswith(f"{row['writer']}-") for row in edges), commit
    for row in graph.query(WRITERS, at=commit).rows:
        assert row["w.last"] < max(per_writer[row["w.slug"]], 1), commit


def main() -> None:
    verb, uri, options, names, commits, folder = sys.argv[1:]
    graph = omnigraph.open(uri, json.loads(options))
    if verb == "write":
        answer = write(graph, names.split(","), int(commits), Path(folder))
    else:
        answer = read(graph, Path(folder))
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
