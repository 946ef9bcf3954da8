"""What a user may tune; the defaults are those of the design."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from omnigraph.errors import BadRequest

_PREFIX = "OMNIGRAPH_"
HARD_LIMIT = 4  # times the limits at which a fold is due: then it runs in front of the writer
EXIT_LIMIT = 2  # times those limits: then a one-shot command folds before it exits


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of what rides in manifests, and of groups that share one.

    `inline_rows` 0 stages every commit. `maintenance` 0 leaves folding and the rest to `optimize`, and nothing else is
    done in the background either. `clock_ahead_s` is how far this machine's clock may be ahead of the store's; 0: any.
    `query_bytes` is the memory that one query may use; 0: a quarter of this machine's, and what a server's limits say.
    """

    inline_rows: int = 512  # of one commit
    inline_bytes: int = 64 * 1024
    tail_manifests: int = 32  # of one table, above which a fold is due
    tail_bytes: int = 512 * 1024
    tails_manifests: int = 128  # that all tables together name
    group_commits: int = 256  # in one manifest
    group_bytes: int = 1024 * 1024
    maintenance: int = 1
    clock_ahead_s: int = 300
    query_bytes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: object = getattr(self, field.name)
            if not isinstance(value, int) or value < 0:
                raise BadRequest(f"The setting {field.name} is a number from 0 on, not {value!r}.")


def settings_from(environment: Mapping[str, str] | None = None) -> Settings:
    """The defaults, but for what variables such as `OMNIGRAPH_INLINE_ROWS` say."""
    found = os.environ if environment is None else environment
    given: dict[str, int] = {}
    for field in fields(Settings):
        text = found.get(_PREFIX + field.name.upper())
        if text:
            if not text.isascii() or not text.isdigit():
                raise BadRequest(f"{_PREFIX}{field.name.upper()} is a number from 0 on, not {text!r}.")
            given[field.name] = int(text)
    return Settings(**given)
