"""The commands of dpmix."""
