"""Measures what the project exists for: tools that run while the model writes."""
