"""Owns tools: what they are called, how they are described and how a call reaches one. Knows no model."""

from midstream.tools.registry import Registry, Tool, tool

__all__ = ["Registry", "Tool", "tool"]
