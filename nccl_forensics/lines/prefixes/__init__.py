"""What collectors, launchers and loggers put before a message, taken off layer by layer."""
