"""Owns the reference tokenizer of the tests: llama.cpp's own, behind the `/tokenize` route of its server."""

import http.client
import json
from pathlib import Path
from types import TracebackType

import xllamacpp


class LlamaCppTokenizer:
    """llama.cpp with `path` loaded. The wheel has no vocabulary-only door: it loads the weights too."""

    def __init__(self, path: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = params.n_batch = params.n_ubatch = 32
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cache_ram_mib = 0
        params.verbosity = -1
        params.warmup = params.fit_params = params.enable_chat_template = False
        self._server = xllamacpp.Server(params)
        self._connection = http.client.HTTPConnection(self._server.listening_address.removeprefix("http://"))

    def __enter__(self) -> "LlamaCppTokenizer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        del self._server

    def ids(self, text: str, *, parses_special: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": parses_special})
        self._connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
        ids: list[int] = json.loads(self._connection.getresponse().read())["tokens"]
        return ids
