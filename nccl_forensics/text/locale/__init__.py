"""Translations, made with Babel: CONTRIBUTING.md says how."""
