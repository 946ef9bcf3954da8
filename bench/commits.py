"""Small commits: one durable row beside an engine with a log of its own, and many writers on a store with latency.

python -m bench.commits [--report PATH] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import omnigraph
from bench.timing import timed_ms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.proxy import Proxy
from support.s3 import S3Location, S3Server

SCHEMA = """
node Note { text: String  stars: I64? }
node Person { name: String @key  age: I64? }
edge Knows: Person -> Person
"""
NEW = "query add($text: String) { insert Note { text: $text, stars: 3 } }"
KEYED = "query add($text: String) { insert Person { name: $text, age: 36 } }"
RTT_S = 0.02
IMAGE_BYTES = 256 * 2**20
DURABLE_AIM, CROWD_AIM = 2.0, 20.0
WRITERS, PROCESSES = 64, 12
RUNS = 5  # of what is flushed: from one to the next the ratio differs by a tenth, with how fast the processor is then
ROUNDS = 300
WARM = 30
VERDICT = {True: "met", False: "**missed**"}


Durable = dict[str, list[float]]  # what a run took, by engine and kind of row


def durables(directory: Path) -> list[Durable]:
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as place:
            runs.append(durable(Path(place)))
    return runs


def durable(directory: Path) -> Durable:
    """Milliseconds of one-row inserts that are on the disk when the call returns; the engines take turns."""
    import ladybug

    connection: Any = ladybug.Connection(ladybug.Database(str(directory / "ladybug")))
    connection.execute("CREATE NODE TABLE Person(name STRING PRIMARY KEY, age INT64)")
    graph = omnigraph.init(directory / "graph", SCHEMA)
    insert = "CREATE (:Person {name: $text, age: 36})"
    calls: dict[str, Callable[[str], object]] = {
        "ladybug, a keyed row": lambda name: connection.execute(insert, {"text": name}),
        "omnigraph, a new row": lambda name: graph.mutate(NEW, params={"text": name}),
        "omnigraph, a keyed row": lambda name: graph.mutate(KEYED, params={"text": name}),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(timed_ms(lambda call=call, number=number: call(f"row-{number}")))  # type: ignore[misc]
    graph.maintenance.close()  # before its directory goes
    return {name: found[WARM:] for name, found in times.items()}


@contextmanager
def journalled() -> Iterator[Path | None]:
    """A directory on an ext4 as mkfs makes it, in a file that lies here; None where one may not mount.

    What a flush costs is the file system's: without a journal, as on some virtual machines, it is unusually cheap.
    """
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as here:
        image, folder = Path(here) / "image", Path(here) / "mounted"
        folder.mkdir()
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        mounted = _done("mkfs.ext4", "-q", str(image)) and _done("mount", "-o", "loop", str(image), str(folder))
        try:
            yield folder if mounted else None
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", str(folder)], check=True)  # the engines hold it until the end


def _done(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def file_system(directory: Path) -> str:
    """What a directory lies on, and whether that has a journal, as far as it says."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    place = directory.resolve()
    inside = [mount for mount in mounts if place.is_relative_to(mount[1])]
    device, _, kind, *_ = max(inside, key=lambda mount: len(mount[1]))
    if kind != "ext4":
        return kind
    journal = Path("/proc/fs/jbd2").glob(f"{Path(device).name}-*")
    return "ext4 with a journal" if any(journal) else "ext4 without a journal"


def crowd(graph: omnigraph.Graph, text: str, writers: int, seconds: float, prefix: str) -> tuple[list[int], float]:
    """How many commits each of so many threads made, and in how long."""
    counts = [0] * writers
    begin, until = threading.Barrier(writers + 1), [0.0]

    def run(number: int) -> None:
        begin.wait()
        while time.monotonic() < until[0]:
            graph.mutate(text, params={"text": f"{prefix}-{number}-{counts[number]}"})
            counts[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    until[0] = started + seconds
    begin.wait()
    for thread in threads:
        thread.join()
    return counts, time.monotonic() - started


def one_process(uri: str, options: dict[str, str], seconds: float, name: str) -> dict[str, Any]:
    """A writer by itself, as one of many processes: what it got done, how often it lost, its slowest commit."""
    graph = omnigraph.open(uri, options)
    graph.mutate(NEW, params={"text": f"{name}-first"})
    print("ready", flush=True)
    sys.stdin.readline()
    made, retries, slowest = 0, [0], 0.0
    until = time.monotonic() + seconds
    while (before := time.monotonic()) < until:
        commit = graph.mutate(NEW, params={"text": f"{name}-{made}"})
        assert commit is not None
        made += 1
        retries.append(commit.cost.retries)
        slowest = max(slowest, time.monotonic() - before)
    return {"made": made, "retries": sum(retries), "most": max(retries), "slowest_s": slowest}


def many_processes(place: S3Location, seconds: float) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "bench.commits", "--worker", place.uri]
    workers = [
        subprocess.Popen(
            [*command, json.dumps(place.options), f"p{number}", "--seconds", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    answers = []
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            out, _ = worker.communicate(timeout=seconds + 120)
            answers.append(json.loads(out.splitlines()[-1]))
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
    return answers


def distant(seconds: float) -> tuple[list[Sequence[Any]], list[dict[str, Any]]]:
    """On S3, every request twenty milliseconds on its way."""
    rows: list[Sequence[Any]] = []
    with S3Server() as server, Proxy(server.endpoint) as proxy:
        direct = server.bucket()
        omnigraph.init(direct.uri, SCHEMA, direct.options)
        place = direct.via(proxy.endpoint)
        graph = omnigraph.open(place.uri, place.options)
        for text in (NEW, KEYED):
            graph.mutate(text, params={"text": "first"})
        proxy.delay_s = RTT_S
        for what, text in (("a new row", NEW), ("a keyed row", KEYED)):
            one = 0.0
            for writers in (1, WRITERS):
                with proxy.recording() as log:
                    counts, took = crowd(graph, text, writers, seconds, f"{writers}")
                rate = sum(counts) / took
                one = one or rate
                rows.append(
                    (
                        what,
                        writers,
                        rate,
                        rate / one,
                        sum(counts) / log.count("PUT", "__manifest"),
                        min(counts),
                        max(counts),
                    )
                )
        fresh = server.bucket()
        omnigraph.init(fresh.uri, SCHEMA, fresh.options)
        return rows, many_processes(fresh.via(proxy.endpoint), seconds)


def durable_table(where: str, runs: list[Durable]) -> list[str]:
    peer = "ladybug, a keyed row"
    text = [
        "",
        f"| insert, on {where} | ms | 90 % | times ladybug in each run | in the middle (aim: {DURABLE_AIM:.0f}) |",
        "|---|---|---|---|---|",
    ]
    for name in runs[0]:
        every = [took for run in runs for took in run[name]]
        ratios = [statistics.median(run[name]) / statistics.median(run[peer]) for run in runs]
        middle = statistics.median(ratios)
        aim = "" if name == peer else f" ({VERDICT[middle <= DURABLE_AIM]})"
        each = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        figures = f"{statistics.median(every):.2f} | {statistics.quantiles(every, n=10)[8]:.2f}"
        text.append(f"| {name} | {figures} | {each} | {middle:.2f}{aim} |")
    return text


def report(
    flushed: dict[str, list[Durable]],
    crowds: list[Sequence[Any]],
    processes: list[dict[str, Any]],
    seconds: float,
) -> str:
    text = [
        "# Small commits",
        "",
        f"Written by `make bench`; do not edit. {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "One row, on the disk when the call returns (fsync on; median and 90th percentile of "
        f"{ROUNDS - WARM} calls that took turns, in each of {RUNS} runs):",
        *(line for where, runs in flushed.items() for line in durable_table(where, runs)),
        "",
        f"Writers in one process on one branch on S3, every request {RTT_S * 1000:.0f} ms on its way, {seconds:.0f} s:",
        "",
        f"| each commit | writers | commits/s | times one (aim: {CROWD_AIM:.0f}) | commits a put | of each writer |",
        "|---|---|---|---|---|---|",
    ]
    for what, writers, rate, ratio, a_put, least, most in crowds:
        aim = "" if writers == 1 else f" ({VERDICT[ratio >= CROWD_AIM]})"
        text.append(f"| {what} | {writers} | {rate:.0f} | {ratio:.1f}{aim} | {a_put:.1f} | {least} to {most} |")
    made = [answer["made"] for answer in processes]
    text += [
        "",
        f"{PROCESSES} processes with one writer each, on the same branch: {sum(made) / seconds:.0f} commits/s and no",
        f"failure; {min(made)} to {max(made)} of each, {sum(a['retries'] for a in processes) / max(sum(made), 1):.1f} "
        f"tries again a commit, {max(a['most'] for a in processes)} at most; slowest commit "
        f"{max(a['slowest_s'] for a in processes):.1f} s.",
        "",
    ]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--worker", nargs=3, metavar=("URI", "OPTIONS", "NAME"))
    chosen = parser.parse_args()
    if chosen.worker is not None:
        uri, options, name = chosen.worker
        print(json.dumps(one_process(uri, json.loads(options), chosen.seconds, name)), flush=True)
        return
    flushed = {file_system(Path.cwd()): durables(Path.cwd())}
    with journalled() as folder:
        if folder is not None and file_system(folder) not in flushed:
            flushed[file_system(folder)] = durables(folder)
    text = report(flushed, *distant(chosen.seconds), chosen.seconds)
    if chosen.report is not None:
        chosen.report.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
