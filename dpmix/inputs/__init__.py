"""Read data files and prepare their events for the sampler."""
