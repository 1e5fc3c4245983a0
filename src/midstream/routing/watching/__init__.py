"""Owns what is seen of a tool call in the tokens: dialects, arguments, grammar. Runs in the engine's process."""
