"""Owns llama.cpp's server as a process: `llama_server.py FILE.gguf SLOTS TOKENS_PER_SLOT THREADS [CACHE_MIB]`.

Prints one JSON line when it listens, and serves until SIGTERM. Everything that is not named here is as it ships.
"""

import json
import re
import signal
import sys
from pathlib import Path

import xllamacpp


def own_pss_bytes() -> int:
    match = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def main() -> None:
    model, (num_slots, slot_tokens, num_threads) = sys.argv[1], map(int, sys.argv[2:5])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = num_slots
    params.n_ctx = num_slots * slot_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = num_threads
    params.n_gpu_layers = 0
    params.port = 0
    if len(sys.argv) > 5:
        params.cache_ram_mib = int(sys.argv[5])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    before = own_pss_bytes()
    server = xllamacpp.Server(params)
    ready = {
        "address": server.listening_address,
        "pss_before": before,
        "system": " ".join(xllamacpp.get_system_info().split()),
    }
    print(json.dumps(ready), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
