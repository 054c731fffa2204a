"""What the commands do: each runs a job, and writes its files."""
