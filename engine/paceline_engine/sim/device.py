"""Step time of a machine that was not recorded: a roofline over a model's shape.

A step takes the longer of its arithmetic and its memory traffic, and an overhead. Attention and the
dense part are bound separately, because a decode reads its context whatever the weights do.

Source: Williams, Waterman, Patterson, Roofline (CACM 2009).
"""

from dataclasses import dataclass
from types import MappingProxyType

from paceline_engine.core.step_features import StepFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder.

    Attributes:
        num_params: weights that every token passes, the vocabulary projection not included.
        weight_bytes, kv_bytes: of one number.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_params: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @property
    def kv_token_bytes(self) -> float:
        """Keys and values of one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.kv_bytes

    @property
    def total_bytes(self) -> float:
        """All weights, the vocabulary once."""
        return (self.num_params + self.vocab_size * self.hidden_size) * self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A machine, as far as the roofline sees it.

    Attributes:
        flops_per_s: of matrix products in the model's format, as reached, not as advertised.
        bytes_per_s: of memory, as reached.
        memory_bytes: of the device.
        step_overhead_ms: of any step; row_overhead_ms: for each of its requests.
    """

    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    step_overhead_ms: float
    row_overhead_ms: float = 0.0


MODELS = MappingProxyType(
    {
        "smollm2-135m": ModelShape(
            num_layers=30,
            hidden_size=576,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            vocab_size=49_152,
            num_params=106_200_000,
        ),
        "llama-3.1-8b": ModelShape(
            num_layers=32,
            hidden_size=4096,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128_256,
            num_params=6_980_000_000,
        ),
        "llama-3.1-70b": ModelShape(
            num_layers=80,
            hidden_size=8192,
            num_heads=64,
            num_kv_heads=8,
            head_dim=128,
            vocab_size=128_256,
            num_params=68_450_000_000,
        ),
    }
)

_GB = 1e9
_GIB = float(1 << 30)
_TFLOPS = 1e12

# Advertised dense bfloat16 rates and bandwidths times 0.6 and 0.8: what good kernels reach.
DEVICES = MappingProxyType(
    {
        "a100-80gb": Device(
            flops_per_s=0.6 * 312 * _TFLOPS,
            bytes_per_s=0.8 * 2039 * _GB,
            memory_bytes=80 * _GIB,
            step_overhead_ms=1.5,
        ),
        "h100": Device(
            flops_per_s=0.6 * 989 * _TFLOPS,
            bytes_per_s=0.8 * 3350 * _GB,
            memory_bytes=80 * _GIB,
            step_overhead_ms=1.0,
        ),
        "l4": Device(
            flops_per_s=0.6 * 121 * _TFLOPS,
            bytes_per_s=0.8 * 300 * _GB,
            memory_bytes=24 * _GIB,
            step_overhead_ms=1.5,
        ),
        "cpu-2-cores": Device(
            flops_per_s=0.15 * _TFLOPS,
            bytes_per_s=20 * _GB,
            memory_bytes=8 * _GIB,
            step_overhead_ms=2.0,
            row_overhead_ms=0.1,
        ),
    }
)


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A `StepCost` from a model's shape and a device."""

    model: ModelShape
    device: Device

    def predict_ms(self, sizes: StepFeatures) -> float:
        """The roofline of the dense part, of attention and of the logits, and the overheads."""
        model, device = self.model, self.device
        dense = max(
            2 * model.num_params * sizes.num_tokens / device.flops_per_s,
            model.num_params * model.weight_bytes / device.bytes_per_s,
        )
        logits = 0.0
        if sizes.num_sampled:
            vocabulary = model.vocab_size * model.hidden_size
            logits = max(
                2 * vocabulary * sizes.num_sampled / device.flops_per_s,
                vocabulary * model.weight_bytes / device.bytes_per_s,
            )
        pair_flops = 4 * model.num_layers * model.num_heads * model.head_dim
        attention = max(
            pair_flops * sizes.attention_pairs / device.flops_per_s,
            model.kv_token_bytes * sizes.kv_tokens_read / device.bytes_per_s,
        )
        overhead = device.step_overhead_ms + device.row_overhead_ms * sizes.num_rows
        return 1e3 * (dense + logits + attention) + overhead


def num_kv_blocks(
    model: ModelShape, device: Device, *, block_size: int, memory_share: float
) -> int:
    """Blocks that fit beside the weights, block 0 included; activations get a tenth of the rest.

    Raises:
        ValueError: the weights alone do not fit.
    """
    room = device.memory_bytes * memory_share - model.total_bytes
    blocks = int(0.9 * room / (model.kv_token_bytes * block_size)) if room > 0 else 0
    if blocks < 2:
        raise ValueError(
            f"the weights need {model.total_bytes / _GIB:.1f} GiB and the device has "
            f"{device.memory_bytes / _GIB:.0f}; choose a smaller model or a larger device"
        )
    return blocks
