"""Settings of a server. Every limit has a default, and every default a reason to be finite."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GraphSource:
    """Where a graph is; its options may hold secrets, so it is never printed."""

    uri: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of single requests, and of all that run at once."""

    connections: int = 4096  # of all peers; less if the process may not open twice as many files
    connections_per_peer: int = 1024  # a proxy is one peer
    head_s: float = 10.0  # until a request's line and headers are here
    head_bytes: int = 16 * 1024
    headers: int = 100
    json_bytes: int = 16 * MIB  # of a body that is parsed as a whole, unpacked
    json_depth: int = 64
    json_values: int = 250_000
    bodies_bytes: int = 512 * MIB  # of memory, for all bodies that are being read or were parsed for a request
    bodies_bytes_per_actor: int = 384 * MIB
    load_bytes: int = 64 * 1024 * MIB  # of a body that is spooled to disk, unpacked
    result_rows: int = 1_000_000
    result_bytes: int = 256 * MIB  # of an answer that is held in memory; a stream is not
    query_bytes: int = 1024 * MIB  # of memory for one query; the setting of the same name replaces it
    unread_bytes: int = 1024 * MIB  # of all answers that wait for their readers
    changes: int = 100_000  # of one answer; more come page by page
    commits: int = 10_000
    deadline_s: float = 60.0  # of reads; a request may ask for less
    body_s: float = 60.0  # until a body that is parsed as a whole is here
    stall_s: float = 60.0  # without a byte of a body, or of a stream's reader
    running: int = 32  # requests that work at once
    running_per_actor: int = 24
    waiting: int = 256  # requests in line for that
    waiting_s: float = 20.0
    jobs_running: int = 2
    jobs_waiting: int = 16
    jobs_per_actor: int = 12  # running or waiting: some places are left for others
    jobs_kept: int = 200
    job_ttl_s: float = 3600.0  # how long the result of a job is kept


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`tokens` and `queries` are paths; without tokens everybody who can connect may do everything."""

    tokens: Path | None = None
    queries: Path | None = None
    limits: Limits = field(default_factory=Limits)
    local_only: bool = False  # without tokens: refuse requests to other than a loopback name
    spark: bool = True  # whether requests may start Spark here, which takes memory and a while
    spool: Path | None = None  # where bodies and results lie; by default the system's temporary directory
    grace_s: float = 30.0  # for what is in flight when the server ends
    reopen_s: float = 10.0  # until a graph that could not be opened is tried again
    metrics_every_s: float = 15.0  # between looks at how tables are stored
