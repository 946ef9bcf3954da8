"""HTTP: middleware, admission, bodies, streams, errors.

middleware.py       request ids, headers, one log line and one measurement for each request
request_context.py  one request to one graph: identity, admission, deadline, cost, response
admission.py        limits of concurrent work, and its threads
parameters.py       query parameters and headers that a route declares
request_body.py     size, encoding and depth of JSON bodies
pipe.py             bytes between threads and sockets, with backpressure
errors.py           error responses
"""
