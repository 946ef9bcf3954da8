"""Tables: immutable Lance versions, with the rows of small commits on top."""
