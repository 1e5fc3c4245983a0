"""Owns how an engine is put together from options. Runs nothing."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch
from gguf import GGMLQuantizationType

from midstream.engine.blocks import BlockPool
from midstream.engine.drafting import PromptLookup
from midstream.engine.gpu.runner import DeviceRunner
from midstream.engine.kernels.cpu.compile import Unavailable, load_library
from midstream.engine.kernels.cpu.native_model import NativeModel, Sizes
from midstream.engine.kv_cache import KVCache, KVShape
from midstream.engine.loop import Engine, Port, Runner
from midstream.engine.models.decoder import Decoder
from midstream.engine.native_runner import NativeRunner
from midstream.engine.runner import TorchModel, TorchRunner
from midstream.engine.scheduler import Scheduler
from midstream.engine.sequence import Drafter
from midstream.engine.step_logits import Sampling
from midstream.engine.watch import WatchFactory
from midstream.engine.weights.load import load_weights, open_weights
from midstream.engine.weights.packed import load_packed, unpackable
from midstream.errors import ConfigError, ModelFileError
from midstream.messages import EngineOptions
from midstream.modelfile.folder_config import FOLDER_ARCHITECTURES, folder_architecture
from midstream.modelfile.model_config import ModelConfig
from midstream.modelfile.read_config import read_config
from midstream.modelfile.resolve import ModelFiles, ModelKind
from midstream.modelfile.tokenizer import Tokenizer

log = structlog.get_logger()

_CPU = torch.device("cpu")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


_QUANTIZED = {None: None, "q8": GGMLQuantizationType.Q8_0, "q4": GGMLQuantizationType.Q4_0}


@dataclass(frozen=True)
class KVBudget:
    num_blocks: int
    max_model_len: int


def plan_kv(options: EngineOptions, shape: KVShape, dtype: torch.dtype) -> KVBudget:
    """How many blocks the budget buys and the longest context they hold.

    Raises ConfigError when the asked-for context does not fit: the pool must hold one full context.
    """
    block_bytes = options.block_size * shape.num_values * dtype.itemsize
    num_blocks = options.kv_cache_bytes // block_bytes
    capacity = num_blocks * options.block_size
    wanted = options.max_model_len or min(shape.max_positions, capacity)
    if wanted > shape.max_positions:
        raise ConfigError(f"max_model_len is {wanted}; the model was made for {shape.max_positions}; lower it")
    if wanted == 0 or wanted > capacity:
        needed = max(1, -(-wanted // options.block_size)) * block_bytes
        raise ConfigError(
            f"kv_cache_bytes of {options.kv_cache_bytes} holds {capacity} tokens; max_model_len is {wanted}; "
            f"raise kv_cache_bytes to {needed} or lower max_model_len"
        )
    return KVBudget(num_blocks, wanted)


def check_vocabulary(vocab_size: int, tokenizer: Tokenizer) -> None:
    """Raises ModelFileError when the tokenizer has ids that the model has no row for."""
    if tokenizer.vocab_size > vocab_size:
        raise ModelFileError(
            f"the tokenizer has ids up to {tokenizer.vocab_size - 1}; the model has rows for {vocab_size}; "
            "take the tokenizer that belongs to the weights, or resize the embedding"
        )


def build_runner(options: EngineOptions, files: ModelFiles, tokenizer: Tokenizer) -> tuple[Runner, KVBudget]:
    """Load the weights and take the KV budget: on the compiled kernels where they serve the model, else on torch."""
    device = _device(options)
    if files.kind is ModelKind.FOLDER and folder_architecture(files.path) not in FOLDER_ARCHITECTURES:
        _say_torch(options, f"{files.name} runs through transformers' own model")
        return _build_transformers(options, files, tokenizer)
    config = read_config(files)
    check_vocabulary(config.vocab_size, tokenizer)
    if device.type == "cuda":
        _warn_of_quantize(options)
        return _build_cuda(options, files, config, tokenizer, device)
    native = (
        build_native(options, files, config, tokenizer) if options.kernels else Unavailable("they are switched off")
    )
    if isinstance(native, Unavailable):
        _say_torch(options, native.reason)
        return _build_torch(options, files, config, tokenizer)
    return native


def _say_torch(options: EngineOptions, why: str) -> None:
    log.info("kernels_unavailable", why=why, instead="torch")
    _warn_of_quantize(options)


def _warn_of_quantize(options: EngineOptions) -> None:
    if options.quantize is not None:
        log.warning("quantize_ignored", quantize=options.quantize, why="only the compiled kernels round weights")


def _device(options: EngineOptions) -> torch.device:
    """Raises ConfigError for a device that is not there."""
    has_cuda = options.device != "cpu" and torch.cuda.is_available()
    if options.device == "cuda" and not has_cuda:
        raise ConfigError("device is cuda, and torch sees no CUDA device; install a CUDA build of torch, or take cpu")
    return torch.device("cuda" if has_cuda else "cpu")


def _dtype(options: EngineOptions, device: torch.device) -> torch.dtype:
    if options.dtype != "auto":
        return _DTYPES[options.dtype]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def build_native(
    options: EngineOptions, files: ModelFiles, config: ModelConfig, tokenizer: Tokenizer
) -> "tuple[Runner, KVBudget] | Unavailable":
    """The runner on the compiled kernels, or why there is none."""
    obstacle = unpackable(config)
    if obstacle is not None:
        return Unavailable(f"they do not serve {files.name}: {obstacle}")
    library = load_library()
    if isinstance(library, Unavailable):
        return library
    budget = plan_kv(options, KVShape.of(config), torch.float16)
    weights = load_packed(open_weights(files, config), config, _QUANTIZED[options.quantize])
    sizes = Sizes(
        num_blocks=budget.num_blocks,
        block_size=options.block_size,
        max_model_len=budget.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_threads=options.num_threads or len(os.sched_getaffinity(0)),
    )
    model = NativeModel(library, config, weights, sizes)
    runner = NativeRunner(model, vocab_size=tokenizer.vocab_size, eos_token_ids=tuple(tokenizer.eos_token_ids))
    runner.warm_up(min(options.max_num_batched_tokens, budget.max_model_len))
    return runner, budget


def _build_torch(
    options: EngineOptions, files: ModelFiles, config: ModelConfig, tokenizer: Tokenizer
) -> tuple[Runner, KVBudget]:
    dtype, shape = _dtype(options, _CPU), KVShape.of(config)
    budget = plan_kv(options, shape, dtype)
    weights = load_weights(files, config, dtype)
    model = Decoder(config, weights, max_model_len=budget.max_model_len)
    return _torch_runner(options, model, shape, budget, tokenizer), budget


def _build_cuda(
    options: EngineOptions, files: ModelFiles, config: ModelConfig, tokenizer: Tokenizer, device: torch.device
) -> tuple[Runner, KVBudget]:
    dtype, shape = _dtype(options, device), KVShape.of(config)
    budget = plan_kv(options, shape, dtype)
    weights = {name: tensor.to(device) for name, tensor in load_weights(files, config, dtype).items()}
    model = Decoder(config, weights, max_model_len=budget.max_model_len)
    cache = _cache(shape, budget.num_blocks + 1, options.block_size, dtype, device)  # one block for padding
    sampling = Sampling(tokenizer.vocab_size, tuple(tokenizer.eos_token_ids))
    runner = DeviceRunner(model, cache, sampling, device)
    runner.warm_up(min(options.max_num_batched_tokens, budget.max_model_len))
    return runner, budget


def _build_transformers(options: EngineOptions, files: ModelFiles, tokenizer: Tokenizer) -> tuple[Runner, KVBudget]:
    from midstream.engine.models.transformers_model import TransformersModel  # transformers is a second to import

    model = TransformersModel.load(files.path, _dtype(options, _CPU))
    check_vocabulary(model.vocab_size, tokenizer)
    budget = plan_kv(options, model.kv_shape, _dtype(options, _CPU))
    return _torch_runner(options, model, model.kv_shape, budget, tokenizer), budget


def _torch_runner(
    options: EngineOptions, model: TorchModel, shape: KVShape, budget: KVBudget, tokenizer: Tokenizer
) -> TorchRunner:
    torch.set_num_threads(options.num_threads or torch.get_num_threads())
    cache = _cache(shape, budget.num_blocks, options.block_size, _dtype(options, _CPU), _CPU)
    runner = TorchRunner(model, cache, vocab_size=tokenizer.vocab_size, eos_token_ids=tuple(tokenizer.eos_token_ids))
    runner.warm_up(min(options.max_num_batched_tokens, budget.max_model_len))
    return runner


def _cache(shape: KVShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    return KVCache(
        num_layers=shape.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
        device=device,
    )


def build_engine(
    options: EngineOptions,
    port: Port,
    runner: Runner,
    budget: KVBudget,
    tokenizer: Tokenizer,
    make_watch: WatchFactory,
    on_idle: Callable[[], object] = lambda: None,
) -> Engine:
    token_bytes = tokenizer.all_token_bytes(frozenset(options.shown_token_ids))

    def make_drafter() -> Drafter:
        return PromptLookup(token_bytes, lambda text: tokenizer.encode(text, at_start=False), budget.max_model_len)

    blocks = BlockPool(budget.num_blocks, options.block_size)
    scheduler = Scheduler(
        blocks, max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens
    )
    return Engine(
        port,
        scheduler,
        runner,
        make_watch=make_watch,
        token_bytes=token_bytes,
        eos_token_ids=tuple(tokenizer.eos_token_ids),
        max_model_len=budget.max_model_len,
        make_drafter=make_drafter if options.prompt_lookup else None,
        on_idle=on_idle,
    )
