"""Bytes → events: the lines that some parser asked for, their prefixes and stamps, and what parsers make of them."""
