"""The work of the commands: each module runs a job, and has its files written."""
