"""Owns HTTP: the OpenAI API, streams, limits, and the gateway's end of the engine's socket. Never computes a token."""
