"""Known accelerators: dense peak figures from the makers' data sheets.

Sources: NVIDIA's product data sheets (P100, V100, T4, A10, A30, A40, A100, L4, L40S, H100, H200, RTX A6000, RTX 6000
Ada) and the architecture white papers "Turing", "Ampere GA102", "Ada" and "RTX Blackwell" for the GeForce cards;
AMD's data sheet for the MI300X. Tensor-core figures are those without sparsity and with accumulation in float32, which
is what PyTorch uses.

These are peaks, which no model reaches: they compare devices well, but only measured figures predict times well.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

LAUNCH_OVERHEAD = 5e-6
"""Seconds to start one operator, where nothing else is known: a CUDA kernel launched by eager PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Data-sheet figures of one accelerator.

    Rates are in TFLOP/s, ``memory_bandwidth`` is in GB/s, ``memory`` in GB. A rate of ``None`` is that of float32.
    ``memory`` is the nominal size in units of 1e9 bytes: the 7% by which a "16 GB" card exceeds that is left to the
    driver and to the library's context.
    """

    float64: float
    float32: float
    tf32: float | None = None
    float16: float | None = None
    bfloat16: float | None = None
    memory_bandwidth: float
    memory: float

    def flops(self, *, tf32: bool) -> dict[str, float]:
        """FLOP/s by element type; with ``tf32``, float32 work runs in TensorFloat-32 where the accelerator has it."""
        float32 = self.tf32 if tf32 and self.tf32 is not None else self.float32
        rates = {
            "default": float32,
            "float64": self.float64,
            "float32": float32,
            "float16": self.float16,
            "bfloat16": self.bfloat16,
        }
        return {name: (self.float32 if rate is None else rate) * 1e12 for name, rate in rates.items()}


# The white papers give float64 as a fraction of float32: 1/32 for Turing, 1/64 for GA102, Ada and RTX Blackwell.
ACCELERATORS = {
    "P100": Accelerator(float64=4.7, float32=9.3, float16=18.7, memory_bandwidth=732, memory=16),
    "V100": Accelerator(float64=7.8, float32=15.7, float16=125, memory_bandwidth=900, memory=16),
    "V100-32GB": Accelerator(float64=7.8, float32=15.7, float16=125, memory_bandwidth=900, memory=32),
    "T4": Accelerator(float64=8.1 / 32, float32=8.1, float16=65, memory_bandwidth=320, memory=16),
    "RTX 2080 Ti": Accelerator(float64=13.4 / 32, float32=13.4, float16=53.8, memory_bandwidth=616, memory=11),
    "A10": Accelerator(
        float64=31.2 / 64, float32=31.2, tf32=62.5, float16=125, bfloat16=125, memory_bandwidth=600, memory=24
    ),
    "A30": Accelerator(float64=5.2, float32=10.3, tf32=82, float16=165, bfloat16=165, memory_bandwidth=933, memory=24),
    "A40": Accelerator(
        float64=37.4 / 64, float32=37.4, tf32=74.8, float16=149.7, bfloat16=149.7, memory_bandwidth=696, memory=48
    ),
    "A100-40GB": Accelerator(
        float64=9.7, float32=19.5, tf32=156, float16=312, bfloat16=312, memory_bandwidth=1555, memory=40
    ),
    "A100-80GB": Accelerator(
        float64=9.7, float32=19.5, tf32=156, float16=312, bfloat16=312, memory_bandwidth=2039, memory=80
    ),
    "RTX 3080": Accelerator(
        float64=29.8 / 64, float32=29.8, tf32=29.8, float16=59.5, bfloat16=59.5, memory_bandwidth=760, memory=10
    ),
    "RTX 3090": Accelerator(
        float64=35.6 / 64, float32=35.6, tf32=35.6, float16=71, bfloat16=71, memory_bandwidth=936, memory=24
    ),
    "RTX A6000": Accelerator(
        float64=38.7 / 64, float32=38.7, tf32=77.4, float16=154.8, bfloat16=154.8, memory_bandwidth=768, memory=48
    ),
    "RTX 4090": Accelerator(
        float64=82.6 / 64, float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, memory_bandwidth=1008, memory=24
    ),
    "RTX 6000 Ada": Accelerator(
        float64=91.1 / 64, float32=91.1, tf32=182.1, float16=364.2, bfloat16=364.2, memory_bandwidth=960, memory=48
    ),
    "RTX 5090": Accelerator(
        float64=104.8 / 64, float32=104.8, tf32=104.8, float16=209.5, bfloat16=209.5, memory_bandwidth=1792, memory=32
    ),
    "L4": Accelerator(
        float64=30.3 / 64, float32=30.3, tf32=60, float16=121, bfloat16=121, memory_bandwidth=300, memory=24
    ),
    "L40S": Accelerator(
        float64=91.6 / 64, float32=91.6, tf32=183, float16=362, bfloat16=362, memory_bandwidth=864, memory=48
    ),
    "H100": Accelerator(
        float64=34, float32=67, tf32=494.5, float16=989.5, bfloat16=989.5, memory_bandwidth=3350, memory=80
    ),
    "H100-PCIe": Accelerator(
        float64=26, float32=51, tf32=378, float16=756, bfloat16=756, memory_bandwidth=2000, memory=80
    ),
    "H200": Accelerator(
        float64=34, float32=67, tf32=494.5, float16=989.5, bfloat16=989.5, memory_bandwidth=4800, memory=141
    ),
    "MI300X": Accelerator(
        float64=81.7, float32=163.4, tf32=653.7, float16=1307.4, bfloat16=1307.4, memory_bandwidth=5300, memory=192
    ),
}
"""By name. V100, A100, H100 and H200 are the SXM modules, P100 is the PCIe card."""


def canonical_name(name: str) -> str | None:
    """The table's spelling of a name, whatever its case, spaces and dashes; ``None`` for an unknown one."""
    return _SPELLINGS.get(_squeezed(name))


def nearest_names(name: str) -> list[str]:
    """Up to three known names that look most like ``name``, best first."""
    wanted = _squeezed(name)
    starting = [spelling for squeezed, spelling in _SPELLINGS.items() if wanted and squeezed.startswith(wanted)]
    alike = [_SPELLINGS[match] for match in difflib.get_close_matches(wanted, _SPELLINGS, n=3, cutoff=0.4)]
    return list(dict.fromkeys(starting + alike))[:3]


def _squeezed(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


_SPELLINGS = {_squeezed(name): name for name in ACCELERATORS}
