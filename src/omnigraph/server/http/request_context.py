"""One request to one graph: who asks, whether they may, a place to run in, a deadline, what it cost, and the answer."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from omnigraph.api.wire_model import Document
from omnigraph.cancellation import Stopped, StopToken
from omnigraph.engine import Engine
from omnigraph.errors import BadRequest, OmnigraphError
from omnigraph.server.auth import access
from omnigraph.server.auth.access import Action
from omnigraph.server.auth.tokens import Principal
from omnigraph.server.http.errors import PLACE_SHOWN_MAX, json_bytes, json_response, too_large
from omnigraph.server.http.pipe import Pipe, retrieve_exception, write_to_pipe
from omnigraph.server.http.request_body import StrictRequest
from omnigraph.server.jobs import Job
from omnigraph.server.metrics import REQUEST
from omnigraph.storage import meter
from omnigraph.storage.meter import Cost

if TYPE_CHECKING:
    from omnigraph.graph.graph import Graph
    from omnigraph.server.http.middleware import RequestInfo
    from omnigraph.server.service import Service

T = TypeVar("T")

COST_HEADER = "Omnigraph-Cost"
TIMEOUT_HEADER = "Request-Timeout"
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?\Z")
_WAIT = re.compile(r"\bwait\s*=\s*([0-9]{1,4})\b")


class RequestContext:
    """What a route needs. Made after somebody was identified, so there is no call without a principal."""

    def __init__(self, request: StrictRequest) -> None:
        self.request = request
        self.service: Service = request.app.state.service
        self.info: RequestInfo = request.state.info
        self.principal: Principal = request.state.principal
        self.graph_id: str = request.path_params["graph"]
        self.info.graph = self.graph_id[:PLACE_SHOWN_MAX]

    # Access

    def require(self, action: Action, branch: str | None) -> None:
        """Refuse what the token does not allow; None for a branch is the whole graph."""
        access.require(self.principal, action, self.graph_id, branch)

    def require_tag(self, tag: str) -> None:
        access.require_tag(self.principal, self.graph_id, tag)

    def open_graph(self) -> "Graph":
        """The graph, limited to what the token may see of it."""
        return access.visible_graph(self.principal, self.graph_id, self.service.hosted.open(self.graph_id))

    # Work

    @property
    def deadline_s(self) -> float:
        """The server's, or less if the caller says so."""
        limit = self.service.settings.limits.deadline_s
        wanted = self.request.headers.get(TIMEOUT_HEADER)
        if wanted is None:
            return limit
        if not _SECONDS.match(wanted) or float(wanted) <= 0:
            raise BadRequest(f"{TIMEOUT_HEADER} is a number of seconds above 0: correct it, or leave it out.")
        return min(limit, float(wanted))

    async def read(self, work: "Callable[[Graph], T]") -> T:
        """Run something that changes nothing: it ends at the deadline, and when its caller goes away."""
        deadline_s = self.deadline_s
        stop = StopToken()
        gone = asyncio.ensure_future(_stop_on_disconnect(self.request, stop))
        try:
            return await self._run(work, stop=stop, deadline_s=deadline_s)
        finally:
            gone.cancel()

    async def write(self, work: "Callable[[Graph], T]") -> T:
        """Run something that may change the graph: to its end, even if the client disconnects.

        A deadline that the caller gives ends it before its commit is sent; from then on only the store's answer counts.
        """
        asked = TIMEOUT_HEADER in self.request.headers
        return await self._run(work, deadline_s=self.deadline_s if asked else None, to_its_end=True)

    async def _run(
        self,
        work: "Callable[[Graph], T]",
        stop: StopToken | None = None,
        deadline_s: float | None = None,
        *,
        to_its_end: bool = False,
    ) -> T:
        def metered() -> T:
            with meter.operation(REQUEST) as operation:
                try:
                    return work(self.open_graph())
                finally:
                    self.info.cost = operation.cost

        workers = self.service.workers
        return await workers.run(
            self.principal.actor_key, metered, stop=stop, deadline_s=deadline_s, to_its_end=to_its_end
        )

    def engine(self, wanted: Engine) -> Engine:
        """Where to run what may run on Spark, which is the server's one session, started by the first who needs it."""
        if self.service.settings.spark:
            return wanted
        if wanted == "spark":
            raise BadRequest("This server does not run Spark: use the engine auto or local.")
        return "local"

    # Answers

    async def stream(
        self,
        produce: "Callable[[Graph, Pipe], None]",
        media_type: str,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] = {},  # noqa: B006  # never changed
    ) -> Response:
        """An answer that is written while it is read. Until its first piece it may still become an error."""
        stop = StopToken()
        admission = self.service.admission
        pipe = Pipe(stop, self.service.settings.limits.stall_s, lambda: admission.waiting > 0)
        late = Stopped(f"nothing came for {self.deadline_s:g} s", "ask for less, or allow more time")
        timer = asyncio.get_running_loop().call_later(self.deadline_s, stop.set, late)
        gone = asyncio.ensure_future(_stop_on_disconnect(self.request, stop))
        work = asyncio.ensure_future(self._run(lambda graph: write_to_pipe(pipe, lambda to: produce(graph, to)), stop))
        work.add_done_callback(retrieve_exception)  # the pieces raise its error, unless nobody reads them any more
        pieces = pipe.pieces(work)
        try:
            first = await anext(pieces, b"")
        except BaseException:
            await pieces.aclose()
            raise
        finally:
            timer.cancel()
            gone.cancel()
        sent = headers() if callable(headers) else headers
        return StreamedResponse(
            _with_failures(first, pieces, self.info), pieces, headers=dict(sent), media_type=media_type
        )

    async def respond_read(
        self,
        work: "Callable[[Graph], Any]",
        headers: Mapping[str, str] = {},  # never changed here, but perhaps by `work`
        *,
        bounded: bool = False,
    ) -> Response:
        """The document that a read makes, which is encoded in its thread: it may be long."""
        limit = self.service.settings.limits.result_bytes

        def text(graph: "Graph") -> bytes:
            found = json_bytes(work(graph))
            if bounded and len(found) > limit:
                raise too_large("The answer", limit, "bytes", "ask for less at once")
            return found

        return self.respond_text(await self.read(text), headers)

    def respond_text(self, text: bytes, headers: Mapping[str, str] = {}) -> Response:  # never changed
        """A document that is text already."""
        response = Response(text, headers=dict(headers), media_type="application/json")
        if self.info.cost is not None:
            response.headers[COST_HEADER] = cost_header(self.info.cost)
        return response

    def respond(self, document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """A short document; see `respond_read` for others."""
        response = json_response(document, status, headers)
        if self.info.cost is not None:
            response.headers[COST_HEADER] = cost_header(self.info.cost)
        return response

    # Jobs

    async def run_job(self, kind: str, work: "Callable[[Graph, Job], Document]", job: Job | None = None) -> Response:
        """Run as a job: 202 and where to ask, unless `Prefer: wait=N` and it ends in that time."""
        jobs = self.service.jobs
        made = jobs.new(kind, self.graph_id, self.principal.actor) if job is None else job
        made.grants = self.principal.grants
        jobs.submit(made, lambda running: work(self.open_graph(), running))
        self.info.facts["job"] = made.id
        wait_s = self.wait_s
        if await made.wait_for_end(wait_s):
            self.info.cost = made.cost
            if made.failure is not None:
                raise made.failure
            return self.respond(made.result)
        return self.respond_accepted(made)

    def respond_accepted(self, job: Job) -> Response:
        return self.respond(job.to_json(), 202, {"Location": f"/graphs/{self.graph_id}/jobs/{job.id}"})

    @property
    def wait_s(self) -> float:
        """How long a caller wants to wait for a job (RFC 7240); not at all by default."""
        match = _WAIT.search(self.request.headers.get("prefer", ""))
        return min(float(match[1]), self.service.settings.limits.deadline_s) if match else 0.0

    @property
    def wants_job(self) -> bool:
        return "respond-async" in self.request.headers.get("prefer", "")


class StreamedResponse(StreamingResponse):
    """A stream whose work ends with its answer, also where the reader went away before anything was sent."""

    def __init__(self, content: AsyncIterator[bytes], pieces: AsyncGenerator[bytes, None], **about: Any) -> None:
        super().__init__(content, **about)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()


def cost_header(cost: Cost) -> str:
    return f"requests={cost.requests}, stages={cost.stages}, bytes={cost.bytes}, retries={cost.retries}"


async def _stop_on_disconnect(request: Request, stop: StopToken) -> None:
    """Set the stop once the caller has hung up. The body has been read, so nothing else can come."""
    receive: Callable[[], Awaitable[Any]] = request.receive
    while (await receive())["type"] != "http.disconnect":
        continue
    stop.set(Stopped("the client went away", "ask again"))


async def _with_failures(
    first: bytes, pieces: AsyncGenerator[bytes, None], info: "RequestInfo"
) -> AsyncIterator[bytes]:
    """The error of a stream that has begun goes on to the edge, which cuts the connection."""
    try:
        if first:
            yield first
        async for piece in pieces:
            yield piece
    except OmnigraphError as error:
        info.failed(error)
        raise
    finally:
        await pieces.aclose()


async def request_context(request: Request) -> RequestContext:
    """Asynchronous, because FastAPI would send anything else to a thread first."""
    assert isinstance(request, StrictRequest), "a route of a graph is a GraphRoute"
    return RequestContext(request)


Context = Annotated[RequestContext, Depends(request_context)]
