"""The HTTP server.

app.py             assembles the application
run.py             runs it in uvicorn: binding, shutdown
settings.py        settings and limits
service.py         state shared by all requests
graph_registry.py  the graphs that are served
stored_queries.py  queries of a directory, by name
jobs.py            long work: id, progress, cancel, result
scratch.py         temporary files
openapi.py         the OpenAPI document
metrics.py         Prometheus metrics
logs.py            JSON log lines
tracing.py         OpenTelemetry spans
auth/              authentication and authorization
http/              middleware, admission, bodies, streams, errors
models/            request and response models
routes/            the routes, one module for each group
"""
