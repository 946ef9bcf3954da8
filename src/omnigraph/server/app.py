"""The application: one service, its routes, and the edge around them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute

from omnigraph import __version__
from omnigraph.runtime import Runtime
from omnigraph.server.http import errors
from omnigraph.server.http.middleware import Middleware
from omnigraph.server.openapi import openapi_document
from omnigraph.server.routes import (
    branches,
    bulk,
    data,
    graphs,
    health,
    history,
    maintenance,
)
from omnigraph.server.service import Service
from omnigraph.server.settings import GraphSource, ServerSettings
from omnigraph.server.tracing import Tracing, configure

ROUTERS = (
    health.router,
    health.metrics_router,
    graphs.all_router,
    graphs.router,
    data.router,
    bulk.router,
    data.stored_router,
    branches.router,
    history.router,
    graphs.schema_router,
    maintenance.router,
    maintenance.jobs_router,
)
_DESCRIPTION = "A typed property graph that lives in object storage. Every error is `{error, code, details}`."


def create_app(
    graphs: Mapping[str, GraphSource],
    settings: ServerSettings | None = None,
    *,
    runtime: Runtime | None = None,
    tracing: Tracing | None = None,
) -> FastAPI:
    """The application for these graphs, by their ids. They are opened when it starts."""
    settings, runtime = settings or ServerSettings(), runtime or Runtime()
    service = Service(graphs, settings, runtime)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Omnigraph",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: openapi_document(app, secured=settings.tokens is not None)  # type: ignore[method-assign]
    app.add_middleware(
        Middleware,
        runtime=runtime,
        metrics=service.metrics,
        redaction=service.hosted.redaction,
        tracing=configure() if tracing is None else tracing,
    )
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
