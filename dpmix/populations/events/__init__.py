"""What the events of populations show: proportions, levels, names and pictures."""
