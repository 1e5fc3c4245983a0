"""Owns the names of workloads and figures, which measuring and judging share."""

# --- workloads ---

TTFT_UNIQUE = "40-token prompts one by one, nothing to reuse"
TTFT_SHARED = "40-token prompts one by one, head reused"
SECOND_TURN = "second turn of a 1,000-token chat"
MIXED = "a 2,000-token prompt among 8 streams"
KERNELS = "engine alone, Q4_0"
RESOURCES = "resources, Q4_0"
NEIGHBOUR = "a process that keeps one core busy, Q4_0"
MEMORY = "memory, Q4_0, 16 slots of 512 tokens, filled"
TOOLS = "tool calls"
TOOLS_OTHER = "tool calls, another model"

# --- figures ---

DECODE = "decode, tokens/s"
WHOLE = "prefill and decode, tokens/s"
TTFT = "TTFT p50, ms"
PREFILL = "prefill, tokens/s"
PROMPT_TOKENS = "prompt tokens"
TTFT_COLD = "TTFT cold, ms"
TTFT_SECOND = "TTFT second turn, ms"
TTFT_ALLOWED = "TTFT allowed, ms"
EXCESS = "computed beyond the new tokens"
GAP_RATIO = "longest gap after / p50 gap before"
BANDWIDTH = "read bandwidth, GB/s"
CPU_SHARE = "CPU of gateway and tool host, % of the engine's"
SYSCALLS = "system calls per token"
IDLE = "CPU when idle, % of a core"
BESIDE = "decode beside it, tokens/s"
UNDISTURBED = "decode without it, tokens/s"
TOTAL_MEMORY = "all processes (PSS), MiB"
GROWN = "weights, KV and buffers, MiB"
ON_TOP = "on top of weights and KV, MiB"


def streams(model_type: str, num_streams: int) -> str:
    return f"{model_type}, {num_streams} stream{'s' if num_streams > 1 else ''}"


def prefill(num_streams: int) -> str:
    return f"1,000-token prompts, Q4_0, {num_streams} at once"


def overhead(num_streams: int) -> str:
    return f"last needed token to the tool's function, {num_streams} at once, ms"


OTHERS = "CPU that other processes took, % of a core"
STEAL = "CPU that other guests took, % of a core"


# --- facts ---

WEIGHT_BYTES = "weight bytes that a step reads, Q4_0"
