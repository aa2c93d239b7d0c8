"""Stable aliases for whatever names a machine, a person or a customer."""
