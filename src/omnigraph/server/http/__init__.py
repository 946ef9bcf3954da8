"""HTTP: middleware, admission, bodies, streams, errors.

connections.py      limits of connections, deadlines of clients, what HTTP is refused
middleware.py       request ids, headers, one log line and one measurement for each request
request_context.py  one request to one graph: identity, admission, deadline, cost, response
admission.py        limits of concurrent work, and its threads
parameters.py       query parameters and headers that a route declares
request_body.py     who may send a body, how large it is, its encoding; the threads that unpack and parse
json_body.py        JSON of anybody, parsed strictly and in steps
pipe.py             bytes between threads and sockets, with backpressure
errors.py           error responses
"""
