"""The server: the same graph over HTTP.

settings.py  what a server is told at its start, all limits among it
app.py       the application: everything below wired together
run.py       uvicorn around it: where it binds, how it ends
edge.py      the outermost layer: request ids, headers, one log line and one measurement a request, no error unanswered
bodies.py    request bodies: size, gzip, depth and text are checked before anything looks at them
auth.py      who is asking: tokens in a file, hashed
access.py    what they may do: the one gate
service.py   what all requests share
call.py      one request to one graph: admission, deadline, cost, and the answer
limits.py    how much may run at once; the threads it runs in
hosted.py    the graphs that are served, and those that can't be opened
stored.py    queries from a directory, by name
jobs.py      long work: id, progress, cancel, result
streams.py   bytes between threads and sockets, no faster than they are read
files.py     bodies that are files: spooled, unpacked, packed
metrics.py   what Prometheus sees
logs.py      one JSON object a line
tracing.py   OpenTelemetry spans, when configured
models.py    requests as OpenAPI describes them
answered.py  and the answers
routes/      one module for each group of routes
"""
