"""Manifests as values: their JSON, their keys, their ancestry.

manifest.py       Manifest, Commit, TableRef: frozen values
codec.py          their JSON
document.py       stored documents: format and checksum
paths.py          object keys, ids and name validation
request_key.py    idempotency keys: the actor and the request that they belong to
ancestry.py       ancestry vectors
table_columns.py  whether tables have the columns of the schema
"""
