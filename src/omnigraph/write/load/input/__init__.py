"""Where the input of a load comes from, and how it is split."""
