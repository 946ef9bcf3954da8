"""The results of a verification as values, and the collector of its checks."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias

from omnigraph.errors import BadRequest, Damaged, NotFound, OmnigraphError, UnsupportedFormat
from omnigraph.storage.meter import Cost

PROBLEMS_KEPT_MAX = 1_000
DAMAGE: "ProblemSeverity" = "damage"
NOTICE: "ProblemSeverity" = "notice"

ProblemSeverity: TypeAlias = Literal["damage", "notice"]  # a notice is about derived data on which nothing depends

RESTORE = (
    "restore it from a copy of the store, or continue from an undamaged state (`branch create NAME --from COMMIT`)"
)
REWRITE = "write the missing or wrong rows again, or use `revert`, and report this as a bug"


@dataclass(frozen=True, slots=True)
class VerifyProblem:
    """One problem: where, what, and the remedy."""

    where: str
    what: str
    remedy: str
    severity: ProblemSeverity = "damage"

    @property
    def sentence(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}."


@dataclass(frozen=True, slots=True)
class Checked:
    """How much was checked."""

    branches: int = 0
    refs: int = 0
    manifests: int = 0
    schemas: int = 0
    states: int = 0  # manifests whose tables were checked
    table_versions: int = 0
    files: int = 0
    files_compared: int = 0  # with their recorded checksum; only with `full`
    files_not_recorded: int = 0  # without a comparable record: only presence and size were checked
    fragments: int = 0  # read back with all columns
    tail_entries: int = 0
    rows: int = 0  # whose ids were compared
    ends: int = 0  # of edges
    constraints: int = 0
    indexes: int = 0
    lookups: int = 0  # compared between an index and a scan
    unindexed_rows: int = 0  # that no index segment covers: slower, never wrong
    adjacencies: int = 0
    tags: int = 0
    intents: int = 0
    overtaken: int = 0  # states that a cleanup expired meanwhile


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification checked and found; `ok` if nothing is damaged."""

    branches: tuple[str, ...]
    full: bool
    seed: int
    checked: Checked
    problems: tuple[VerifyProblem, ...]
    more: int = 0  # problems beyond those that are listed
    cost: Cost = field(default_factory=Cost)

    @property
    def ok(self) -> bool:
        return not self.more and all(problem.severity != DAMAGE for problem in self.problems)

    @property
    def damage(self) -> tuple[VerifyProblem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == DAMAGE)


class Findings:
    """Collects problems and counts. Findings that may be a false alarm are collected with `tentative`."""

    def __init__(self) -> None:
        self._problems: dict[VerifyProblem, None] = {}  # each once, in order
        self._more = 0
        self._counts: Counter[str] = Counter()
        self._seen: set[object] = set()
        self._outer: Findings | None = None

    def add(self, where: str, what: str, remedy: str = RESTORE, severity: ProblemSeverity = DAMAGE) -> None:
        problem = VerifyProblem(where, what, remedy, severity)
        if problem in self._problems:
            return
        if len(self._problems) < PROBLEMS_KEPT_MAX:
            self._problems[problem] = None
        else:
            self._more += 1

    def count(self, name: str, by: int = 1) -> None:
        self._counts[name] += by

    def is_first(self, *key: object) -> bool:
        """Whether this is the first time that something is checked: it need not be checked again."""
        if key in self:
            return False
        self._seen.add(key)
        return True

    def __contains__(self, key: tuple[object, ...]) -> bool:
        return key in self._seen or (self._outer is not None and key in self._outer)

    def tentative(self) -> "Findings":
        """Findings that are added with `absorb`, or dropped as if nothing had been checked."""
        made = Findings()
        made._outer = self
        return made

    def absorb(self, tentative: "Findings") -> None:
        for problem in tentative._problems:
            self.add(problem.where, problem.what, problem.remedy, problem.severity)
        self._more += tentative._more
        self._counts.update(tentative._counts)
        self._seen |= tentative._seen

    @property
    def damaged(self) -> bool:
        return any(problem.severity == DAMAGE for problem in self._problems)

    @contextmanager
    def catching(self, where: str, remedy: str = RESTORE) -> Iterator[None]:
        """Report as damage what can't be read; errors of the store itself are still raised."""
        try:
            yield
        except (Damaged, UnsupportedFormat, BadRequest, NotFound) as error:
            self.add(where, _reason(error), remedy)
        except OmnigraphError:
            raise
        except (OSError, ValueError, RuntimeError, TypeError, KeyError, IndexError, AssertionError) as error:
            self.add(where, _reason(error), remedy)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # a panic of a native library on damaged data
                raise
            self.add(where, _reason(error), remedy)

    def report(self, branches: tuple[str, ...], full: bool, seed: int) -> VerifyReport:
        names = {entry.name for entry in fields(Checked)}
        checked = replace(Checked(), **{name: count for name, count in self._counts.items() if name in names})
        return VerifyReport(branches, full, seed, checked, tuple(self._problems), self._more)


def _reason(error: BaseException) -> str:
    if isinstance(error, Damaged):
        return f"{error.what} can't be read: {error.reason}"
    text = " ".join(str(error).split())[:300].rstrip(".")
    return text if isinstance(error, OmnigraphError) else f"{type(error).__name__}: {text}"


def named(ids: "list[str] | tuple[str, ...]", count: int) -> str:
    """The first of some ids, the others counted."""
    shown = ", ".join(repr(entity) for entity in ids[:3])
    return shown + (f" and {count - 3:,} more" if count > 3 else "")
