"""Names and lives of branches, tags, and merge bases."""
