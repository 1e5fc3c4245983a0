"""Owns the bytes between the decoder and a tool: BTIF frames and the stream envelope. Does no I/O."""
