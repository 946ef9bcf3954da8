"""Request and response models, as OpenAPI describes them.

request_models.py   request bodies
response_models.py  responses
job_models.py       responses of jobs
error_models.py     error responses
"""
