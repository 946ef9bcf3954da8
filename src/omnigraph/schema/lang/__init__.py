"""The schema language: grammar, parser, printer, compiler."""
