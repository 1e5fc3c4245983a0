"""Owns everything in a model's files that is not tensor maths. Never imports torch.

`resolve` finds the files, `GgufFile` and `check_safetensors` read headers, `ModelConfig` holds the
hyperparameters, `Tokenizer` turns text into ids and back, `ChatTemplate` turns messages into text.
"""
