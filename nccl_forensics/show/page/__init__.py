"""The rows of the HTML page, ready to print."""
