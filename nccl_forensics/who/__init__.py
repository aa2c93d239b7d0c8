"""Who is who: rank ↔ host ↔ process ↔ GPU, from all that the pile tells."""
