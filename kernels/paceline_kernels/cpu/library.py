"""The C++ kernels as Python sees them: mirrored structures, checked signatures, one pool."""

import ctypes
import os
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch

from paceline_kernels.cpu import build
from paceline_kernels.errors import DTypeError, ImplUnavailableError

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
KV_FORMATS = {**FORMATS, torch.float8_e4m3fn: 3}
STORE, ADD, SILU_MUL = 0, 1, 2
# How long an idle thread spins before it sleeps. Loops inside a step follow each other within
# microseconds; the gap between steps is left to other processes.
SPIN_US = 50


class Weight(Structure):
    """gemm.h: a packed weight."""

    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("format", c_int32),
        ("gated", c_int32),
    )


class KvCache(Structure):
    """pointwise.h: one layer's cache."""

    _fields_ = (
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("format", c_int32),
    )


class AttentionArgs(Structure):
    """attention.h: one call of attention."""

    _fields_ = (
        ("q", c_void_p),
        ("out", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("block_tables", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("seq_lens", c_void_p),
        ("q_stride", c_int64),
        ("out_stride", c_int64),
        ("table_stride", c_int64),
        ("rows", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("format", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("cap", c_float),
    )


class Layer(Structure):
    """decoder.h: one layer's weights."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("qkv", Weight),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("o", Weight),
        ("post_norm", c_void_p),
        ("gate_up", Weight),
        ("down", Weight),
        ("window", c_int64),
    )


class Decoder(Structure):
    """decoder.h: a model."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("cos_sin", c_void_p),
        ("lm_head", Weight),
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("ffn", c_int32),
        ("rotary_dim", c_int32),
        ("embedding_format", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("cap", c_float),
        ("embedding_scale", c_float),
    )


class Batch(Structure):
    """decoder.h: one step."""

    _fields_ = (
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("seq_lens", c_void_p),
        ("logit_rows", c_void_p),
        ("logits", c_void_p),
        ("hidden_out", c_void_p),
        ("caches", POINTER(KvCache)),
        ("workspace", c_void_p),
        ("table_stride", c_int64),
        ("num_tokens", c_int32),
        ("num_rows", c_int32),
        ("num_logit_rows", c_int32),
    )


_STRUCTURES = (Weight, KvCache, AttentionArgs, Layer, Decoder, Batch)
_P, _I, _L = c_void_p, c_int32, c_int64
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "paceline_width": (_I, []),
    "paceline_struct_size": (_L, [_I]),
    "paceline_context": (_P, [_I, _I]),
    "paceline_context_free": (None, [_P]),
    "paceline_advise_huge": (None, [_P, _L]),
    "paceline_pack": (None, [_P, _P, _P, _I, _P, _I, _I]),
    "paceline_linear": (None, [_P, POINTER(Weight), _P, _P, _L, _I, _I]),
    "paceline_rms_norm": (None, [_P, _P, _P, _P, _P, _P, _L, _I, c_float]),
    "paceline_rotary": (None, [_P, _P, _P, _L, _L, _P, _P, _I, _I, _I, _I, _I]),
    "paceline_write_kv": (None, [_P, POINTER(KvCache), _P, _P, _L, _L, _P, _I]),
    "paceline_attention": (None, [_P, POINTER(AttentionArgs)]),
    "paceline_silu_mul": (None, [_P, _P, _P, _L, _I]),
    "paceline_embedding": (None, [_P, _P, _I, _P, _P, _I, _I]),
    "paceline_workspace_bytes": (_L, [POINTER(Decoder), _L]),
    "paceline_draw": (None, [_P, _P, _L, _I, _P, _P, _P, _P, _I, _P, _P]),
    "paceline_top": (None, [_P, _P, _L, _I, _P, _P, _P, _I, _I, _I, _P, _P, _P, _P, _P]),
    "paceline_probe_multiply_adds": (c_float, [_P, _L]),
    "paceline_probe_read": (c_float, [_P, _P, _L]),
    "paceline_forward": (None, [_P, POINTER(Decoder), POINTER(Batch)]),
}


@dataclass(slots=True)
class Runtime:
    """The loaded library and the process's pool of threads.

    Attributes:
        lib: signatures are set; every call takes `context` first where it computes.
        context: owns the threads; calls from several Python threads take turns.
        num_threads: of the pool, the caller included.
        panel: outputs in one packed panel (twice the vector width).
    """

    lib: ctypes.CDLL
    context: int
    num_threads: int
    panel: int


_runtime: Runtime | None = None


def runtime() -> Runtime:
    """The process's runtime; the first call loads (perhaps compiles) the library.

    Raises:
        ImplUnavailableError: no compiler, or it failed.
    """
    if _runtime is None:
        return configure(len(os.sched_getaffinity(0)))
    return _runtime


def configure(num_threads: int, spin_us: int = SPIN_US) -> Runtime:
    """Make the process's pool anew with so many threads. Nobody may be inside a kernel.

    Raises:
        ImplUnavailableError: no compiler, or it failed.
    """
    global _runtime
    if num_threads < 1:
        raise ImplUnavailableError(f"num_threads must be >= 1, got {num_threads}")
    if _runtime is None:
        lib = build.load_library()
        _declare(lib)
    else:
        if _runtime.num_threads == num_threads:
            return _runtime
        lib = _runtime.lib
        lib.paceline_context_free(_runtime.context)
    context = lib.paceline_context(num_threads, spin_us)
    _runtime = Runtime(
        lib=lib, context=context, num_threads=num_threads, panel=2 * lib.paceline_width()
    )
    return _runtime


def _forget_after_fork() -> None:
    """A forked child has the memory but not the threads: it makes a pool of its own."""
    global _runtime
    _runtime = None


os.register_at_fork(after_in_child=_forget_after_fork)


def unavailable_reason() -> str | None:
    """Why impl "cpu" cannot run here, or None when it can."""
    try:
        runtime()
    except ImplUnavailableError as error:
        return str(error)
    return None


def format_of(name: str, dtype: torch.dtype) -> int:
    """The C++ side's number for a format.

    Raises:
        DTypeError: a format that the C++ side does not know.
    """
    if dtype not in FORMATS:
        raise DTypeError(f"{name} must be float32, bfloat16 or float16 for impl 'cpu', got {dtype}")
    return FORMATS[dtype]


def _declare(lib: ctypes.CDLL) -> None:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    for which, structure in enumerate(_STRUCTURES):
        size = lib.paceline_struct_size(which)
        if size != ctypes.sizeof(structure):
            raise ImplUnavailableError(
                f"impl 'cpu': {structure.__name__} has {size} bytes in C++ and "
                f"{ctypes.sizeof(structure)} in Python; the installation is mixed up"
            )
