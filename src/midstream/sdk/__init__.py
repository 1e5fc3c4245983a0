"""Owns the Python client of a midstream server. Never imports the server's rooms."""
