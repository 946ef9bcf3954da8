"""The HTTP server.

run.py       assembles the application, runs it in uvicorn: binding, shutdown, JSON log lines
settings.py  settings and limits
service.py   state shared by all requests: the graphs that are served, stored queries
jobs.py      long work: id, progress, cancel, result
scratch.py   temporary files, and request bodies that are spooled to files
openapi.py   the OpenAPI document
metrics.py   Prometheus metrics
tracing.py   OpenTelemetry spans
auth/        authentication and authorization
http/        middleware, admission, bodies, streams, errors
models/      request and error models
routes/      the routes, one module for each group
"""
