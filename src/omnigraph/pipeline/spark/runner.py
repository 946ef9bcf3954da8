"""Tasks on Spark's executors: one Spark task an item, answers heard as they come, errors that arrive as themselves.

Spark may run a task twice (a lost executor, speculation) and takes the answer of one: what a task writes must be
garbage unless its answer is used, which is the rule of `runner.py` already.
"""

import base64
import pickle
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from omnigraph.cancellation import checkpoint
from omnigraph.errors import JobFailed, OmnigraphError, Unavailable
from omnigraph.runtime import RandomIds

if TYPE_CHECKING:
    from threading import Thread

    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

CANCEL_S = 20  # how long a cancelled job may take to end before we go on without it
_TURN_S = 0.2
_MARK = "omnigraph-error:"
_CARRIED = re.compile(_MARK + r"([A-Za-z0-9+/=]+)")
_REASON_MAX = 300


class Started(Protocol):
    """What the runner asks of a session: see `session.Session`."""

    @property
    def spark(self) -> "SparkSession": ...

    @property
    def parallelism(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one task came to: its answer, or the error that running it again would not cure."""

    number: int
    answer: Any = None
    error: OmnigraphError | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A failure that is not one of our errors, as far as it can be carried."""

    reason: str
    trace: str


class TaskFailure(Exception):
    """Raised in a worker so that Spark tries the task again; carries what happened through the JVM as text."""

    def __init__(self, carried: OmnigraphError | Unknown) -> None:
        super().__init__(carried)
        self.carried = carried

    def __str__(self) -> str:
        return _MARK + base64.b64encode(pickle.dumps(self.carried)).decode("ascii")


class SparkRunner:
    """A `Runner` whose tasks run on Spark. The session is started by the first job."""

    name = "spark"

    def __init__(self, session: Started) -> None:
        self._session = session

    @property
    def spark(self) -> "SparkSession":
        return self._session.spark

    @property
    def parallelism(self) -> int:
        return self._session.parallelism

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        stage: str,
        on_done: Callable[[R], None] | None = None,
    ) -> list[R]:
        """The answers, in the order of the items; `on_done` hears each once, in this thread, as it comes.

        Ctrl-C, or an error of `on_done`, cancels the job on the executors and goes on up.
        """
        if not items:
            return []
        context = self._session.spark.sparkContext

        def collect(heard: "Accumulator[list[Outcome]]") -> list[Outcome]:
            return context.parallelize(list(items), len(items)).mapPartitionsWithIndex(Attempt(task, heard)).collect()

        return run_job(context, collect, stage=stage, on_done=on_done)


def run_job(
    context: "SparkContext",
    collect: "Callable[[Accumulator[list[Outcome]]], list[Outcome]]",
    *,
    stage: str,
    on_done: Callable[[R], None] | None = None,
) -> list[R]:
    """The answers of a job whose tasks tell their outcomes, also to `heard` as they come; see `SparkRunner.run`."""
    return _Job(context, stage).answers(collect, on_done)


class _Job:
    """One Spark job: it runs in a thread of its own so that this one can hear answers and Ctrl-C."""

    def __init__(self, context: "SparkContext", stage: str) -> None:
        self._context = context
        self._stage = stage
        self._group = f"omnigraph-{RandomIds().short_id()}"
        self._events: SimpleQueue[Outcome | list[Outcome] | Exception] = SimpleQueue()

    def answers(
        self, collect: "Callable[[Accumulator[list[Outcome]]], list[Outcome]]", on_done: Callable[[R], None] | None
    ) -> list[R]:
        from pyspark.accumulators import _accumulatorRegistry
        from pyspark.util import InheritableThread

        heard = self._context.accumulator([], _ear()(self._events))
        thread = InheritableThread(target=self._collect, args=(collect, heard), daemon=True)
        try:
            self._start(thread)
            outcomes = self._listen(on_done)
            return [outcome.answer for outcome in outcomes]
        except BaseException:
            self._cancel()
            if thread.ident is not None:
                thread.join(CANCEL_S)
            raise
        finally:
            _accumulatorRegistry.pop(heard.aid, None)  # Spark would keep it for as long as the process lives

    def _start(self, thread: "Thread") -> None:
        from py4j.protocol import Py4JError

        try:
            thread.start()
        except (Py4JError, OSError) as error:  # Java has died since: it is asked for what the thread inherits
            raise explained(error, self._stage) from error

    def _collect(
        self,
        collect: "Callable[[Accumulator[list[Outcome]]], list[Outcome]]",
        heard: "Accumulator[list[Outcome]]",
    ) -> None:
        try:
            self._context.setJobGroup(self._group, self._stage, interruptOnCancel=True)
            self._events.put(collect(heard))
        except Exception as error:
            self._events.put(error)

    def _listen(self, on_done: Callable[[R], None] | None) -> list[Outcome]:
        told: set[int] = set()

        def tell(outcome: Outcome) -> None:
            if outcome.error is not None:
                raise outcome.error
            if on_done is not None and outcome.number not in told:
                told.add(outcome.number)
                on_done(outcome.answer)

        while True:
            event = self._next()
            if isinstance(event, Outcome):
                tell(event)
            elif isinstance(event, Exception):
                raise explained(event, self._stage) from event
            else:
                for outcome in event:
                    tell(outcome)
                return event

    def _next(self) -> Outcome | list[Outcome] | Exception:
        """Waits in short turns: a signal that another thread took, or a stop, is acted on only between them."""
        while True:
            checkpoint()
            try:
                return self._events.get(timeout=_TURN_S)
            except Empty:
                continue

    def _cancel(self) -> None:
        """Cancel what runs, and what the thread may be about to start."""
        from py4j.protocol import Py4JError

        try:
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
        except (Py4JError, AttributeError, OSError):
            pass  # Spark has ended: so has the job


class Attempt:
    """What a Spark task does: run the item's task, and say how it went."""

    def __init__(self, task: Callable[[Any], Any], heard: "Accumulator[list[Outcome]]") -> None:
        self._task = task
        self._heard = heard

    def __call__(self, number: int, items: Iterable[Any]) -> Iterator[Outcome]:
        for item in items:
            outcome = attempted(number, self._task, item)
            self._heard.add([outcome])
            yield outcome


def attempted(number: int, task: Callable[[Any], Any], item: Any) -> Outcome:
    """Run a task: its answer, or its error; what may pass is raised, for Spark to try again."""
    try:
        return Outcome(number, task(item))
    except Unavailable as error:
        raise TaskFailure(error) from None
    except OmnigraphError as error:
        return Outcome(number, error=error)
    except Exception as error:
        raise TaskFailure(unknown(error)) from None


def unknown(error: BaseException) -> Unknown:
    return Unknown(one_line(f"{type(error).__name__}: {error}"), "".join(traceback.format_exception(error)))


def explained(error: Exception, stage: str) -> Exception:
    """What Spark threw as what happened: the error of the task itself, or one sentence."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JError | PySparkException | OSError):
        return error  # of this process, and no doing of Spark's
    said = str(error)
    if isinstance(error, Py4JJavaError):
        said = message_of(error)
    found = _CARRIED.search(said)
    if found:
        carried = pickle.loads(base64.b64decode(found[1]))
        if isinstance(carried, OmnigraphError):
            return carried
        failed = JobFailed(stage, carried.reason)
        failed.add_note(carried.trace)
        return failed
    return JobFailed(stage, reason_of(said))


def message_of(error: Any) -> str:
    from py4j.protocol import Py4JError

    try:
        return str(error.java_exception.toString())
    except (Py4JError, OSError):  # Java has ended meanwhile
        return str(error)


def reason_of(said: str) -> str:
    """The telling part of a message of Spark, in a line."""
    if "No module named 'omnigraph" in said:
        return "the executors have no omnigraph: install it there, as it is here"
    if "PYTHON_VERSION_MISMATCH" in said:
        return "the executors run another version of Python: set PYSPARK_PYTHON to one like this"
    if "Python worker exited unexpectedly" in said or "worker crashed" in said:
        return "a Python worker died, most often for want of memory: allow it more, or use fewer cores"
    for mark in ("most recent failure: ", "Reason: ", "because "):
        _, found, rest = said.partition(mark)
        if found:
            said = rest
            break
    errors = [line for line in said.splitlines() if re.match(r"[A-Za-z_.]*(Error|Exception)\b", line.strip())]
    return one_line(errors[-1] if errors else said.strip().partition("\n")[0])


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_MAX else line[: _REASON_MAX - 1] + "…"


def _ear() -> Any:
    """The class of an accumulator that passes on what it hears instead of keeping it. Made late: it needs pyspark."""
    from omnigraph.pipeline.spark.task_accumulator import Ear

    return Ear
