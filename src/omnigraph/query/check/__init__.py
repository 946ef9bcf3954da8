"""The type checker: from AST to IR."""
