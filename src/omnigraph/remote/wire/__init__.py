"""What goes over the wire: values, documents, tables, errors.

decode.py       documents -> results
errors.py       error bodies -> errors
tables.py       Arrow streams -> query results
json_stream.py  long JSON documents, read incrementally
upload.py       the body of a load
values.py       values as JSON, and back
"""
