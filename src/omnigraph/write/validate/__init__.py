"""The one validator of all writes."""
