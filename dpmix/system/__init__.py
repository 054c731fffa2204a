"""Services of the operating system: memory, locks, files, signals, and progress of long work."""
