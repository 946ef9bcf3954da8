"""What goes over the wire: values, documents, tables, errors.

decode.py  documents -> results, where a wire model is not enough
errors.py  error bodies -> errors
tables.py  Arrow streams -> query results
upload.py  the body of a load
values.py  values as JSON, and back
"""
