"""Attention over the paged KV cache. `reference.py` decides what every faster path must give; `decode.py` is one."""
