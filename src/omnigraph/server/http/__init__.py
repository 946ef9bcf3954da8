"""HTTP: middleware, admission, bodies, streams, errors.

connections.py      limits of connections, deadlines of clients, what HTTP is refused
middleware.py       request ids, headers, one log line and one measurement for each request
request_context.py  one request to one graph: identity, admission, deadline, cost, response
admission.py        limits of concurrent work, and its threads
request_body.py     query parameters and headers of a route; who may send a body, how large it is, how it is encoded
json_body.py        JSON of anybody, parsed strictly and in steps
pipe.py             bytes between threads and sockets, with backpressure
errors.py           error responses
"""
