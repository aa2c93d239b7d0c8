"""Whole incidents, as a customer would mail them, with the right answer in expected.json. All names and numbers are
invented; make.py writes them."""
