"""Two servers and a command line write one branch on S3: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import omnigraph
from support.s3 import S3Location
from support.server import ADD, PEOPLE, SCHEMA, ServerProcess

WRITERS = 4
WRITES = 8
COMMANDS = 3


@pytest.mark.s3
def test_two_servers_and_a_command_line_write_one_branch(s3: S3Location) -> None:
    graph = omnigraph.init(s3.uri, SCHEMA, s3.options)
    options = [word for key, value in s3.options.items() for word in ("--storage-option", f"{key}={value}")]
    with ServerProcess("--store", s3.uri, *options) as one, ServerProcess("--store", s3.uri, *options) as two:

        def write(job: tuple[ServerProcess, str]) -> list[str]:
            server, name = job
            made = []
            with server.client() as client:
                for number in range(WRITES):
                    body = {"query": ADD, "params": {"slug": f"{name}-{number}"}}
                    answer = client.post("/graphs/default/mutate", json=body)
                    assert answer.status_code == 200, answer.text
                    made.append(answer.json()["commit"]["id"])
            return made

        def command(number: int) -> list[str]:
            words = ["mutate", "-e", ADD, "--params", json.dumps({"slug": f"cli-{number}"}), "--json"]
            run = subprocess.run(
                [sys.executable, "-m", "omnigraph", *words, "--store", s3.uri, *options], capture_output=True, text=True
            )
            assert run.returncode == 0, run.stderr
            return [json.loads(run.stdout)["commit"]["id"]]

        jobs = [(server, f"{place}-{number}") for place, server in enumerate((one, two)) for number in range(WRITERS)]
        with ThreadPoolExecutor(len(jobs) + 1) as pool:
            served = [pool.submit(write, job) for job in jobs]
            typed = [pool.submit(command, number) for number in range(COMMANDS)]
            made = [commit for future in (*served, *typed) for commit in future.result()]

    expected = 2 * WRITERS * WRITES + COMMANDS
    assert len(set(made)) == expected
    assert {commit.id for commit in graph.commits(limit=None)} >= set(made)
    assert len(graph.commits(limit=None)) == expected + 1
    assert len(graph.query(PEOPLE).rows) == expected
    assert graph.verify().ok
