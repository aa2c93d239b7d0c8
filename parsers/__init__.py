"""One file a format. Every Parser and FileParser in this folder is found by listing it (lines/plugins.py)."""
