"""Tasks on Spark's executors: one Spark task for each item; results arrive as tasks end, errors keep their type.

Spark may run a task twice (a lost executor, speculation) and takes the result of one run: what a task writes must be
garbage unless its result is used, as `storage/util/runner.py` demands of every task.
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
_POLL_S = 0.2
_MARK = "omnigraph-error:"
_ENCODED = re.compile(_MARK + r"([A-Za-z0-9+/=]+)")
_REASON_MAX = 300


class SessionHandle(Protocol):
    """What the runner needs of a session: see `session.SparkSessionHandle`."""

    @property
    def spark(self) -> "SparkSession": ...

    @property
    def parallelism(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of one task, or an error that another attempt would not cure."""

    number: int
    answer: Any = None
    error: OmnigraphError | None = None


@dataclass(frozen=True, slots=True)
class UnexpectedFailure:
    """A failure that is not an `OmnigraphError`, as text."""

    reason: str
    trace: str


class TaskFailure(Exception):
    """Raised in a worker so that Spark tries the task again; the error passes through the JVM as text."""

    def __init__(self, failure: OmnigraphError | UnexpectedFailure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return _MARK + base64.b64encode(pickle.dumps(self.failure)).decode("ascii")


class SparkRunner:
    """A `Runner` whose tasks run on Spark. The session is started by the first job."""

    name = "spark"

    def __init__(self, session: SessionHandle) -> None:
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
        """The results, in the order of the items; `on_done` is called once for each, in this thread, as tasks end.

        Ctrl-C, or an error of `on_done`, cancels the job on the executors and is raised.
        """
        if not items:
            return []
        context = self._session.spark.sparkContext

        def collect(outcomes: "Accumulator[list[TaskOutcome]]") -> list[TaskOutcome]:
            return (
                context.parallelize(list(items), len(items))
                .mapPartitionsWithIndex(TaskFunction(task, outcomes))
                .collect()
            )

        return run_job(context, collect, stage=stage, on_done=on_done)


def run_job(
    context: "SparkContext",
    collect: "Callable[[Accumulator[list[TaskOutcome]]], list[TaskOutcome]]",
    *,
    stage: str,
    on_done: Callable[[R], None] | None = None,
) -> list[R]:
    """Run a job whose tasks return their outcomes and also add them to an accumulator; see `SparkRunner.run`."""
    return _SparkJob(context, stage).run(collect, on_done)


class _SparkJob:
    """One Spark job, in a thread of its own, so that this one can handle results and Ctrl-C meanwhile."""

    def __init__(self, context: "SparkContext", stage: str) -> None:
        self._context = context
        self._stage = stage
        self._group = f"omnigraph-{RandomIds().short_id()}"
        self._events: SimpleQueue[TaskOutcome | list[TaskOutcome] | Exception] = SimpleQueue()

    def run(
        self,
        collect: "Callable[[Accumulator[list[TaskOutcome]]], list[TaskOutcome]]",
        on_done: Callable[[R], None] | None,
    ) -> list[R]:
        from pyspark.accumulators import _accumulatorRegistry
        from pyspark.util import InheritableThread

        param: Any = TaskAccumulator(self._events)
        outcomes = self._context.accumulator([], param)
        thread = InheritableThread(target=self._collect, args=(collect, outcomes), daemon=True)
        try:
            self._start(thread)
            return [outcome.answer for outcome in self._receive(on_done)]
        except BaseException:
            self._cancel()
            if thread.ident is not None:
                thread.join(CANCEL_S)
            raise
        finally:
            _accumulatorRegistry.pop(outcomes.aid, None)  # Spark would keep it for as long as the process lives

    def _start(self, thread: "Thread") -> None:
        from py4j.protocol import Py4JError

        try:
            thread.start()
        except (Py4JError, OSError) as error:  # Java has died since: it is asked for what the thread inherits
            raise translate_error(error, self._stage) from error

    def _collect(
        self,
        collect: "Callable[[Accumulator[list[TaskOutcome]]], list[TaskOutcome]]",
        outcomes: "Accumulator[list[TaskOutcome]]",
    ) -> None:
        try:
            self._context.setJobGroup(self._group, self._stage, interruptOnCancel=True)
            self._events.put(collect(outcomes))
        except Exception as error:
            self._events.put(error)

    def _receive(self, on_done: Callable[[R], None] | None) -> list[TaskOutcome]:
        reported: set[int] = set()

        def report(outcome: TaskOutcome) -> None:
            if outcome.error is not None:
                raise outcome.error
            if on_done is not None and outcome.number not in reported:
                reported.add(outcome.number)
                on_done(outcome.answer)

        while True:
            event = self._next()
            if isinstance(event, TaskOutcome):
                report(event)
            elif isinstance(event, Exception):
                raise translate_error(event, self._stage) from event
            else:
                for outcome in event:
                    report(outcome)
                return event

    def _next(self) -> TaskOutcome | list[TaskOutcome] | Exception:
        """Wait in short intervals: a signal that another thread took, or a stop, is handled only between them."""
        while True:
            checkpoint()
            try:
                return self._events.get(timeout=_POLL_S)
            except Empty:
                continue

    def _cancel(self) -> None:
        """Cancel the jobs that run, and any that the thread is about to start."""
        from py4j.protocol import Py4JError

        try:
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
        except (Py4JError, AttributeError, OSError):
            pass  # Spark has ended: so has the job


class TaskFunction:
    """The function of a Spark task: runs the item's task and reports its outcome."""

    def __init__(self, task: Callable[[Any], Any], outcomes: "Accumulator[list[TaskOutcome]]") -> None:
        self._task = task
        self._heard = outcomes

    def __call__(self, number: int, items: Iterable[Any]) -> Iterator[TaskOutcome]:
        for item in items:
            outcome = run_task(number, self._task, item)
            self._heard.add([outcome])
            yield outcome


def run_task(number: int, task: Callable[[Any], Any], item: Any) -> TaskOutcome:
    """The outcome of a task. Failures that may be transient are raised, so that Spark tries again."""
    try:
        return TaskOutcome(number, task(item))
    except Unavailable as error:
        raise TaskFailure(error) from None
    except OmnigraphError as error:
        return TaskOutcome(number, error=error)
    except Exception as error:
        raise TaskFailure(describe_failure(error)) from None


def describe_failure(error: BaseException) -> UnexpectedFailure:
    return UnexpectedFailure(one_line(f"{type(error).__name__}: {error}"), "".join(traceback.format_exception(error)))


def translate_error(error: Exception, stage: str) -> Exception:
    """An error of Spark as the error of the task itself, or as one sentence."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JError | PySparkException | OSError):
        return error  # raised by this process, not by Spark
    message = java_message(error) if isinstance(error, Py4JJavaError) else str(error)
    found = _ENCODED.search(message)
    if found:
        failure = pickle.loads(base64.b64decode(found[1]))
        if isinstance(failure, OmnigraphError):
            return failure
        failed = JobFailed(stage, failure.reason)
        failed.add_note(failure.trace)
        return failed
    return JobFailed(stage, failure_reason(message))


def java_message(error: Any) -> str:
    from py4j.protocol import Py4JError

    try:
        return str(error.java_exception.toString())
    except (Py4JError, OSError):  # Java has ended meanwhile
        return str(error)


def failure_reason(message: str) -> str:
    """The line of Spark's message that names the cause."""
    if "No module named 'omnigraph" in message:
        return "the executors have no omnigraph: install it there, as it is here"
    if "PYTHON_VERSION_MISMATCH" in message:
        return "the executors run another version of Python: set PYSPARK_PYTHON to one like this"
    if "Python worker exited unexpectedly" in message or "worker crashed" in message:
        return "a Python worker died, most often for want of memory: allow it more, or use fewer cores"
    for mark in ("most recent failure: ", "Reason: ", "because "):
        _, found, rest = message.partition(mark)
        if found:
            message = rest
            break
    errors = [line for line in message.splitlines() if re.match(r"[A-Za-z_.]*(Error|Exception)\b", line.strip())]
    return one_line(errors[-1] if errors else message.strip().partition("\n")[0])


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_MAX else line[: _REASON_MAX - 1] + "…"


class TaskAccumulator:
    """Results of tasks on the driver as tasks end: a list in a worker; on the driver, items go into a queue.

    Spark adds a task's updates if, and only if, it takes the task's result: of two runs of one task the driver gets
    one. This is an `AccumulatorParam`, whose methods it has without being derived from it, which would need pyspark.
    """

    def __init__(self, queue: Any = None) -> None:
        self._queue = queue

    def __reduce__(self) -> tuple[type["TaskAccumulator"], tuple[()]]:
        return TaskAccumulator, ()  # a worker has no queue

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802
        if self._queue is None:
            return value1 + value2
        for item in value2:
            self._queue.put(item)
        return value1
