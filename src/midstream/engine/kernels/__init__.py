"""Fast paths that compute what the torch path decides. Each has its reference and its test."""
