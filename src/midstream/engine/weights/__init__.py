"""From a model's files to tensors by their Hugging Face names."""
