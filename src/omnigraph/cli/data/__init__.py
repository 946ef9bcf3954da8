"""Commands that read and write data and schemas."""
