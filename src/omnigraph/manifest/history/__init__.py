"""The commit log: listing, time travel, and lookup of transactions."""
