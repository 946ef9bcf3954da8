"""The other clients of a server under attack, in a process of their own: `python -m hostile.monitor URL TOKEN QUERY`.

Three of them ask at fixed times, whatever the answers before took: one asks `/healthz` and one a point query on a
connection that is kept alive, the third opens a connection for each `/healthz`. The latency of a request counts from
the time at which it was due: if a server stalls for a second, all requests that were due in that second show it.
When standard input ends they stop, and the process prints what they saw: `{kind: [[due, seconds, status], …]}`, with
times of CLOCK_MONOTONIC; the status is 0 where there was no answer.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

PERIODS_S = {"healthz": 0.02, "point": 0.05, "connect": 0.05}
TIMEOUT_S = 60.0
SAMPLES_MIN = 5  # of each kind, before it is said that they poll
Sample = tuple[float, float, int]


def ask(connection: http.client.HTTPConnection, path: str, body: bytes | None, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    if body is None:
        connection.request("GET", path, headers=headers)
    else:
        connection.request("POST", path, body, headers | {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def poll(kind: str, once: Callable[[], int], stop: threading.Event, seen: list[Sample]) -> None:
    due, period_s = time.monotonic(), PERIODS_S[kind]
    while not stop.is_set():
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            status = once()
        except (OSError, http.client.HTTPException):
            status = 0
        seen.append((due, time.monotonic() - due, status))
        if len(seen) <= SAMPLES_MIN:  # of the idle server: on a busy machine more would pile up from the start
            period_s = max(period_s, 2 * seen[-1][1])
            due = time.monotonic()
        due += period_s
        if not status:  # a server that refuses at once is not asked without end
            due = max(due, time.monotonic() + 0.1)


def main(url: str, token: str, query: str) -> None:
    address = urlsplit(url).netloc

    def kept(path: str, body: bytes | None) -> Callable[[], int]:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)

        def once() -> int:
            try:
                return ask(connection, path, body, token)
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request opens it again
                raise

        return once

    def connect() -> int:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        try:
            return ask(connection, "/healthz", None, token)
        finally:
            connection.close()

    clients = {
        "healthz": kept("/healthz", None),
        "point": kept("/graphs/default/query", query.encode()),
        "connect": connect,
    }
    stop = threading.Event()
    seen: dict[str, list[Sample]] = {kind: [] for kind in clients}
    threads = [threading.Thread(target=poll, args=(kind, once, stop, seen[kind])) for kind, once in clients.items()]
    for thread in threads:
        thread.start()
    while any(len(samples) < SAMPLES_MIN for samples in seen.values()):
        time.sleep(0.01)
    print("polling", flush=True)
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
