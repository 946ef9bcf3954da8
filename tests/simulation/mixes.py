"""Mixes: which operations a run has, in which proportion, under which faults and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from omnigraph.manifest.settings import Settings
from simulation.faults import Rates

# Every row rides in a manifest, and nothing is stored as a table: no run pays for Lance.
INLINE = Settings(
    inline_rows=100_000,
    inline_bytes=1 << 24,
    tail_manifests=100_000,
    tail_bytes=1 << 30,
    tails_manifests=100_000,
    maintenance=0,
)
STAGED = Settings(inline_rows=2, maintenance=0)  # what changes more than two rows is staged

# Every mix has all faults of requests, if only a few.
CALM = Rates(
    fail=0.003,
    lose=0.003,
    late=0.004,
    duplicate=0.004,
    own_exists=0.01,
    crash=0.0005,
    outage=0.0003,
    pause=0.01,
    stop=0.001,
    elapse=0.002,
    late_deletes=True,
)
ROUGH = Rates(
    fail=0.01,
    lose=0.01,
    late=0.01,
    duplicate=0.01,
    own_exists=0.03,
    crash=0.002,
    outage=0.001,
    pause=0.015,
    stop=0.003,
    elapse=0.003,
    clock=0.002,
    store_clock=0.001,
    late_deletes=True,
)

# While one thread is about to put its commit, others of its process gather behind it.
GATHERING = {"insert": 0.25, "update": 0.25, "upsert": 0.25, "delete": 0.25, "undo": 0.25}
WRITES = {"insert": 6, "update": 5, "delete": 4, "edge": 3, "several": 3, "upsert": 5}


@dataclass(frozen=True)
class Mix:
    name: str
    weights: Mapping[str, int]
    rates: Rates = CALM
    settings: Settings = INLINE
    processes: tuple[int, int] = (2, 3)
    threads: tuple[int, int] = (1, 3)
    operations: int = 44
    unordered: float = 0.3  # share of runs whose store lists in an order of its own
    pages: tuple[int, ...] = (1000, 3)
    main_share: float = 0.6
    newest_share: float = 0.0
    same_machine: float = 0.3
    branches: int = 3
    slow_clock: float = 0.2
    stores_tables: bool = field(default=False)


def _mix(name: str, weights: Mapping[str, int], **more: object) -> Mix:
    return Mix(name, weights, **more)  # type: ignore[arg-type]  # checked where it is used


EVERYDAY = _mix(
    "everyday",
    {
        **WRITES,
        "strict": 3,
        "conditional": 3,
        "repeat": 4,
        "held": 2,
        "load": 3,
        "create_branch": 3,
        "delete_branch": 1,
        "merge": 4,
        "create_tag": 3,
        "delete_tag": 1,
        "revert": 2,
        "cleanup": 2,
        "read": 3,
        "diff": 2,
        "poll": 5,
        "list_branches": 1,
        "list_tags": 1,
        "list_commits": 2,
    },
    rates=ROUGH,
)
GROUPS = _mix(
    "groups",
    {
        "insert": 9,
        "update": 3,
        "delete": 2,
        "undo": 5,
        "upsert": 4,
        "strict": 4,
        "conditional": 2,
        "fork_group": 5,
        "create_branch": 1,
        "delete_branch": 1,
        "merge": 2,
        "merge_fork": 6,
        "cleanup": 4,
        "read": 1,
        "list_commits": 1,
    },
    rates=replace(CALM, pause=0.02, steps=25, delays=GATHERING, long_delays=3),
    processes=(1, 2),
    threads=(3, 4),
    main_share=0.8,
    operations=48,
)
BRANCHES = _mix(
    "branches",
    {
        "insert": 5,
        "update": 3,
        "delete": 2,
        "create_branch": 8,
        "delete_branch": 4,
        "merge": 8,
        "create_tag": 4,
        "delete_tag": 2,
        "revert": 1,
        "cleanup": 4,
        "read": 2,
        "list_branches": 2,
    },
    rates=ROUGH,
    unordered=0.7,
    pages=(2, 3, 5),
    branches=7,
    main_share=0.4,
)
SCHEMAS = _mix(
    "schemas",
    {
        "insert": 5,
        "update": 3,
        "delete": 1,
        "upsert": 2,
        "apply_schema": 2,
        "add_property": 7,
        "fork_early": 8,
        "delete_branch": 2,
        "merge": 4,
        "fold": 7,
        "revert": 1,
        "read": 3,
        "diff": 1,
    },
    rates=replace(CALM, stop=0.002, steps=40, delays={"add_property": 0.5, "apply_schema": 0.4, "merge": 0.4}),
    newest_share=0.6,
    branches=6,
    main_share=0.7,
    stores_tables=True,
    processes=(3, 4),
    threads=(1, 2),
)
JOBS = _mix(
    "jobs",
    {
        "job": 10,
        "recover": 8,
        "new_job": 1,
        "cleanup": 6,
        "upsert": 4,
        "delete": 2,
        "insert": 2,
        "fold": 2,
        "read": 2,
    },
    rates=replace(
        CALM,
        pause=0.005,
        elapse=0.0005,
        crash=0.001,
        clock=0.001,
        steps=200,
        stalls={"job": 0.4, "recover": 0.2},
        crashes={"job": 0.08},
    ),
    stores_tables=True,
    processes=(3, 4),
    threads=(1, 1),
    main_share=0.9,
)
CLOCKS = _mix(
    "clocks",
    {"new_job": 8, "job": 2, "cleanup": 8, "upsert": 4, "delete": 3, "fold": 3, "recover": 1, "read": 2},
    rates=replace(
        CALM,
        stop=0.002,
        elapse=0.0,
        clock=0.004,
        store_clock=0.004,
        steps=150,
        delays={"new_job": 0.6, "job": 0.4},
        steps_back={"new_job": 0.05},
    ),
    stores_tables=True,
    processes=(3, 4),
    threads=(1, 1),
    main_share=0.9,
)
TABLES = _mix(
    "tables",
    {
        **WRITES,
        "load": 4,
        "load_from": 2,
        "new_job": 2,
        "job": 2,
        "recover": 1,
        "fold": 3,
        "compact": 2,
        "index": 1,
        "optimize": 3,
        "create_branch": 3,
        "delete_branch": 1,
        "merge": 4,
        "cleanup": 4,
        "strict": 2,
        "repeat": 2,
        "revert": 2,
        "read": 3,
        "diff": 1,
        "poll": 2,
        "add_property": 1,
    },
    rates=ROUGH,
    settings=STAGED,
    stores_tables=True,
)
CROWDS = _mix(
    "crowds",  # groups beside tables, jobs and cleanups
    {
        "insert": 9,
        "update": 4,
        "delete": 3,
        "undo": 3,
        "upsert": 5,
        "edge": 2,
        "strict": 2,
        "load": 1,
        "new_job": 1,
        "job": 2,
        "recover": 1,
        "fold": 3,
        "optimize": 2,
        "fork_group": 3,
        "merge_fork": 4,
        "merge": 1,
        "cleanup": 3,
        "add_property": 1,
        "read": 1,
        "poll": 1,
    },
    rates=replace(CALM, pause=0.02, steps=25, stalls={"job": 0.2}, delays=GATHERING, long_delays=3),
    settings=STAGED,
    stores_tables=True,
    processes=(1, 2),
    threads=(3, 4),
    main_share=0.8,
    operations=48,
)

MIXES: Mapping[str, Mix] = {
    mix.name: mix for mix in (EVERYDAY, GROUPS, BRANCHES, SCHEMAS, JOBS, CLOCKS, TABLES, CROWDS)
}
INLINE_MIXES = tuple(mix for mix in MIXES.values() if not mix.stores_tables)
TABLE_MIXES = tuple(mix for mix in MIXES.values() if mix.stores_tables)
# Six runs of fourteen store tables.
ROTATION = (
    EVERYDAY,
    GROUPS,
    JOBS,
    BRANCHES,
    EVERYDAY,
    SCHEMAS,
    GROUPS,
    BRANCHES,
    CLOCKS,
    EVERYDAY,
    CROWDS,
    JOBS,
    GROUPS,
    TABLES,
)


def mix_of(seed: int) -> Mix:
    """Several mixes in rotation."""
    return ROTATION[seed % len(ROTATION)]
