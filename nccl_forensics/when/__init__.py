"""Stamps → one clock: years, zones, boots, offsets between hosts, and what may be said about an order."""
