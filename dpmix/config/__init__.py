"""The configuration: one schema, its problems in words, and YAML."""
