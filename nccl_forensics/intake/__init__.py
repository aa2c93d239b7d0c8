"""Paths → sources: everything in a pile of files, unpacked as it is read, nothing written to disk."""
