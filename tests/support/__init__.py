"""What the tests stand on: a store to talk to, and ways to disturb the talk.

s3.py     moto's S3 server in a process of its own, every request atomic
proxy.py  an HTTP proxy before it: counts, delays, caps and breaks the requests of any library
steps.py  clients driven request by request in one process, to replay a schedule of docs/protocol.md
"""
