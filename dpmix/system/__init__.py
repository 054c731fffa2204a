"""What dpmix needs of the machine: memory, locks, whole files, and progress of long work."""
