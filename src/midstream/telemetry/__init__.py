"""Owns what the server tells of itself: metrics and logs. Changes nothing."""
