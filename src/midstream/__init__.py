"""midstream: a streaming LLM inference server that runs a tool before its call has been fully decoded."""

__version__ = "0.1.0"
