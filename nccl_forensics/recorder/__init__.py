"""Flight Recorder dumps → tables, decoded without importing or calling anything."""
