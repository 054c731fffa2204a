"""The tree of a density: its modes, where they merge, and where to cut it."""
