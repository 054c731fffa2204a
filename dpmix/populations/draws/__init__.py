"""The draws of a run: one set of populations for all, with memberships."""
