"""Owns the limits of a tool host. Enforces none."""

from dataclasses import dataclass

from midstream.protocol.envelope import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class HostLimits:
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_result_bytes: int = 1024 * 1024
    max_open_calls: int = 1024
    max_threads: int = 16
    """Sync tools at a time; further calls wait, on their own deadline."""
    max_abandoned: int = 8
    """Runs that go on after their end because nothing stops them; then the host makes way for a new one."""
    stop_grace_s: float = 0.25
    """How long a run that was told to stop may take before it counts as abandoned."""
    max_error_chars: int = 1000
    max_progress_chars: int = 200
