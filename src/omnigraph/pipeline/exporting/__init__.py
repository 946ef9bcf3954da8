"""Export: parts written by tasks, in files that load again."""
