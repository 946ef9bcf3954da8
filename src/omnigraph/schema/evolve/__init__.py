"""Schema changes: migration plans and merges of two schemas."""
