"""Findings → hypotheses weighed against each other → incidents with a verdict."""
