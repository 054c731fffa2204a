"""The populations of a run: one set for all its draws, with memberships."""
