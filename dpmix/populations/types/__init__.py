"""Cell types of events, from a table or from examples."""
