"""Owns a tool call's life: watching for it (in the engine's process) and dispatching it (in the gateway's)."""
