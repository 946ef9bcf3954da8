"""The engines that `optimize` may be told to use."""

from typing import Literal, TypeAlias

from omnigraph.errors import BadRequest

Engine: TypeAlias = Literal["auto", "local", "spark"]
ENGINES = ("auto", "local", "spark")


def require_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise BadRequest(f"There is no engine {engine!r}: choose {', '.join(ENGINES[:-1])} or {ENGINES[-1]}.")
