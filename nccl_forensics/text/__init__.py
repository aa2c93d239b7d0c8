"""One vocabulary for all that is said: sentences that can be translated, phrases, times, text fit to show."""
