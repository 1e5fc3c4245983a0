"""Serving on a CUDA device: the torch model, replayed as graphs, sampled where its logits are."""
