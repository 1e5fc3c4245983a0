"""The decoders. One, driven by its config, serves the whole Llama family."""
