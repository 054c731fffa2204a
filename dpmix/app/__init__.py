"""The local page of dpmix: what it shows and does, and the server."""
