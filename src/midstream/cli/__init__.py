"""Owns the `midstream` command and the wiring of the rooms. Never does a room's work itself."""
