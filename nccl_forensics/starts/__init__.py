"""One pile → jobs, and each job → its starts, each with its own events and dumps."""
