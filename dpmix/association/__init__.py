"""Associations of populations with columns of a table of samples: model, design and effects."""
