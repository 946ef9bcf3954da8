"""Where an operation runs: in this process (`local`), on Spark, or wherever its size suggests (`auto`)."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from omnigraph.errors import BadRequest

Engine: TypeAlias = Literal["auto", "local", "spark"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


def require_engine(engine: str, known: Sequence[str] = ENGINES) -> None:
    """Refuse an engine that does not exist, or that an operation does not have."""
    if engine not in known:
        raise BadRequest(f"Unknown engine {engine!r}: use {', '.join(known[:-1])} or {known[-1]}.")
