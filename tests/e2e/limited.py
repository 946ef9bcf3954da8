"""A process with less than usual: no permission, or no room for its files. Run by `test_bad_input.py`.

Everything is imported and tried once before the limit, because neither may read the interpreter's own files later.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import omnigraph
from omnigraph.cli.main import main as command_line
from omnigraph.errors import OmnigraphError
from omnigraph.manifest.commit.plan import Append, Delete, Upsert
from support.catalogs import COMPANY, PERSON, company_rows, ids_of, people, person_rows

NOBODY = 65534
WRITES: dict[str, list[Any]] = {
    "append": [Append(PERSON, person_rows("eve"))],
    "first rows of a type": [Append(COMPANY, company_rows("acme"))],
    "upsert": [Upsert(PERSON, person_rows("ada", age=7))],
    "delete": [Delete(PERSON, ("ada",))],
}


def attempt(uri: str, verb: str) -> dict[str, Any]:
    try:
        if verb == "init":
            omnigraph.init(uri, people())
            return {"answer": None}
        graph = omnigraph.open(uri)
        if verb == "read":
            return {"answer": ids_of(graph.snapshot().to_arrow(PERSON))}
        if verb == "branch create":
            graph.branches.create("new")
            return {"answer": None}
        commit = graph.write(WRITES[verb])
        return {"answer": None if commit is None else commit.id}
    except OmnigraphError as error:
        return {"raised": type(error).__name__, **error.to_json()}


def warm_up() -> None:
    with tempfile.TemporaryDirectory() as folder:
        attempt(f"{folder}/graph", "init")
        for verb in ("append", "first rows of a type", "upsert", "read", "delete", "branch create"):
            attempt(f"{folder}/graph", verb)
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            command_line(["snapshot", f"{folder}/graph"])


def limit(name: str, value: int = resource.RLIM_INFINITY) -> None:
    if name == "nobody" and os.geteuid() == 0:  # root may do everything; others are limited by the file modes alone
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if name == "file size":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))  # the soft one: it is lifted again


def main() -> None:
    warm_up()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer: Any = None
        if order["do"] == "limit":
            limit(**{key: value for key, value in order.items() if key != "do"})
        elif order["do"] == "command":
            answer = command_line(order["arguments"])
        else:
            answer = attempt(order["uri"], order["verb"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
