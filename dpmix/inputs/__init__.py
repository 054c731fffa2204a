"""From files to events: sources, channels, transforms, atoms and their preparation."""
