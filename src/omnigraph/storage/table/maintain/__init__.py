"""How tables are stored: layout, compaction, orphaned files, inspection."""
