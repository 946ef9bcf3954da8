"""What goes over the wire: values, documents, tables, errors."""
