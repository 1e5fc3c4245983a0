"""The few layers that Llama-like models are made of."""
