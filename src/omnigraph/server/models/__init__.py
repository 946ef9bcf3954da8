"""Request and error models, as OpenAPI describes them; responses are in `omnigraph.api`.

request_models.py   request bodies
error_models.py     error responses
"""
