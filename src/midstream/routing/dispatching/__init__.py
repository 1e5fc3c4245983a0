"""Owns what becomes of a call that was seen: its run, its result, its way back. Runs in the gateway's process."""
