"""The config of a run: its schema, reading, writing, and error messages."""
