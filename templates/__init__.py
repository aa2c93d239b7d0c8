"""Templates of the report; package data."""
