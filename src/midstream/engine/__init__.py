"""Owns decoding: which tokens are computed when, on which KV blocks. Never runs a tool, never speaks HTTP.

Dimensions, the same letters in every file of this room:

    T  tokens in the batch          H  query heads      B  block size (tokens a block)
    S  sequences that sample        G  KV heads         L  layers
    C  context of one sequence      D  head size        E  hidden size
                                    V  vocabulary       N  KV blocks
"""
