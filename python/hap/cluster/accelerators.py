"""Known accelerators: dense peak figures from the makers' data sheets.

Sources: NVIDIA's product data sheets (P100, V100, T4, A10, A30, A40, A100, L4, L40S, H100, H200, HGX B200, RTX A4000,
A5000 and A6000, RTX 6000 Ada, Titan V) and the architecture white papers "Pascal GP104", "Turing", "Ampere GA102",
"Ada" and "RTX Blackwell" for the other cards (float32 is twice the cores times the boost clock); AMD's data sheets for
MI250 and MI300X; Habana's white paper for Gaudi 2. Tensor-core figures are those without sparsity and with
accumulation in float32, which is what PyTorch uses.

These are peaks, which no model reaches: they compare devices well, but only measured figures predict times well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hap.cluster.spelling import nearest

LAUNCH_OVERHEAD = 5e-6
"""Seconds to start one operator, where nothing else is known: a CUDA kernel launched by eager PyTorch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Data-sheet figures of one accelerator.

    Rates are in TFLOP/s, ``memory_bandwidth`` is in GB/s, ``memory`` in GB, ``pcie`` is the generation of its host
    interface. A rate of ``None`` says that there are no instructions for the element type: PyTorch then computes in
    float32. ``memory`` is the nominal size in units of 1e9 bytes: the 7% by which a "16 GB" card exceeds that is left
    to the driver.
    """

    float64: float
    float32: float
    tf32: float | None = None
    float16: float | None = None
    bfloat16: float | None = None
    memory_bandwidth: float
    memory: float
    pcie: int

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

    def lacks(self, dtype: str) -> bool:
        """Whether it has no fast instructions for ``"float16"`` or ``"bfloat16"``: fewer than for float32, or none."""
        rates = {"float16": self.float16, "bfloat16": self.bfloat16}
        rate = rates.get(dtype, self.float32)
        return rate is None or rate < self.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What the cards of a family share: rates as multiples of that of float32, and the generation of PCIe."""

    float64: float
    tf32: float | None = None
    float16: float
    bfloat16: float | None = None
    pcie: int

    def card(self, float32: float, memory_bandwidth: float, memory: float) -> Accelerator:
        """A card of the family, with figures in the units of :class:`Accelerator`."""
        return Accelerator(
            float64=self.float64 * float32,
            float32=float32,
            tf32=None if self.tf32 is None else self.tf32 * float32,
            float16=self.float16 * float32,
            bfloat16=None if self.bfloat16 is None else self.bfloat16 * float32,
            memory_bandwidth=memory_bandwidth,
            memory=memory,
            pcie=self.pcie,
        )


_PASCAL = Architecture(float64=1 / 32, float16=1 / 64, pcie=3)
_TURING = Architecture(float64=1 / 32, float16=4, pcie=3)
# GeForce cards accumulate in float32 at half the rate of the professional ones.
_AMPERE_GEFORCE = Architecture(float64=1 / 64, tf32=1, float16=2, bfloat16=2, pcie=4)
_AMPERE = Architecture(float64=1 / 64, tf32=2, float16=4, bfloat16=4, pcie=4)
_ADA_GEFORCE, _ADA = _AMPERE_GEFORCE, _AMPERE
_BLACKWELL_GEFORCE = Architecture(float64=1 / 64, tf32=1, float16=2, bfloat16=2, pcie=5)


_A100 = Accelerator(
    float64=9.7, float32=19.5, tf32=156, float16=312, bfloat16=312, memory_bandwidth=1555, memory=40, pcie=4
)
_H100 = Accelerator(
    float64=34, float32=67, tf32=494.5, float16=989.5, bfloat16=989.5, memory_bandwidth=3350, memory=80, pcie=5
)

ACCELERATORS = {
    # Data centre.
    "P100": Accelerator(float64=4.7, float32=9.3, float16=18.7, memory_bandwidth=732, memory=16, pcie=3),
    "V100": Accelerator(float64=7.8, float32=15.7, float16=125, memory_bandwidth=900, memory=16, pcie=3),
    "V100-32GB": Accelerator(float64=7.8, float32=15.7, float16=125, memory_bandwidth=900, memory=32, pcie=3),
    "T4": Accelerator(float64=8.1 / 32, float32=8.1, float16=65, memory_bandwidth=320, memory=16, pcie=3),
    "A10": _AMPERE.card(31.2, 600, 24),
    "A10G": _AMPERE_GEFORCE.card(35, 600, 24),
    "A30": Accelerator(
        float64=5.2, float32=10.3, tf32=82, float16=165, bfloat16=165, memory_bandwidth=933, memory=24, pcie=4
    ),
    "A40": _AMPERE.card(37.4, 696, 48),
    "A100-40GB": _A100,
    "A100-80GB": replace(_A100, memory_bandwidth=2039, memory=80),
    "L4": _ADA.card(30.3, 300, 24),
    "L40S": _ADA.card(91.6, 864, 48),
    "H100": _H100,
    "H100-PCIe": Accelerator(
        float64=26, float32=51, tf32=378, float16=756, bfloat16=756, memory_bandwidth=2000, memory=80, pcie=5
    ),
    "H200": replace(_H100, memory_bandwidth=4800, memory=141),
    "B200": Accelerator(
        float64=37, float32=75, tf32=1125, float16=2250, bfloat16=2250, memory_bandwidth=7700, memory=180, pcie=5
    ),
    "MI250": Accelerator(
        float64=45.3, float32=45.3, float16=181, bfloat16=181, memory_bandwidth=1638, memory=64, pcie=4
    ),
    "MI300X": Accelerator(
        float64=81.7,
        float32=163.4,
        tf32=653.7,
        float16=1307.4,
        bfloat16=1307.4,
        memory_bandwidth=5300,
        memory=192,
        pcie=5,
    ),
    # The maker publishes bfloat16 only; float32 is taken as an eighth of that, as on other matrix engines.
    "Gaudi 2": Accelerator(
        float64=54 / 64, float32=54, float16=432, bfloat16=432, memory_bandwidth=2460, memory=96, pcie=4
    ),
    # Desktop.
    "GTX 1060": _PASCAL.card(4.4, 192, 6),
    "GTX 1080": _PASCAL.card(8.9, 320, 8),
    "GTX 1080 Ti": _PASCAL.card(11.3, 484, 11),
    "Titan Xp": _PASCAL.card(12.1, 548, 12),
    "Titan V": Accelerator(float64=7.45, float32=14.9, float16=110, memory_bandwidth=653, memory=12, pcie=3),
    "RTX 2080 Ti": _TURING.card(13.4, 616, 11),
    "RTX 3060": _AMPERE_GEFORCE.card(12.7, 360, 12),
    "RTX 3060 Ti": _AMPERE_GEFORCE.card(16.2, 448, 8),
    "RTX 3070": _AMPERE_GEFORCE.card(20.3, 448, 8),
    "RTX 3070 Ti": _AMPERE_GEFORCE.card(21.7, 608, 8),
    "RTX 3080": _AMPERE_GEFORCE.card(29.8, 760, 10),
    "RTX 3080-12GB": _AMPERE_GEFORCE.card(30.6, 912, 12),
    "RTX 3080 Ti": _AMPERE_GEFORCE.card(34.1, 912, 12),
    "RTX 3090": _AMPERE_GEFORCE.card(35.6, 936, 24),
    "RTX 3090 Ti": _AMPERE_GEFORCE.card(40, 1008, 24),
    "RTX 4060": _ADA_GEFORCE.card(15.1, 272, 8),
    "RTX 4060 Ti": _ADA_GEFORCE.card(22.1, 288, 8),
    "RTX 4060 Ti-16GB": _ADA_GEFORCE.card(22.1, 288, 16),
    "RTX 4070": _ADA_GEFORCE.card(29.1, 504, 12),
    "RTX 4070 Super": _ADA_GEFORCE.card(35.5, 504, 12),
    "RTX 4070 Ti": _ADA_GEFORCE.card(40.1, 504, 12),
    "RTX 4070 Ti Super": _ADA_GEFORCE.card(44.1, 672, 16),
    "RTX 4080": _ADA_GEFORCE.card(48.7, 717, 16),
    "RTX 4080 Super": _ADA_GEFORCE.card(52.2, 736, 16),
    "RTX 4090": _ADA_GEFORCE.card(82.6, 1008, 24),
    "RTX 5090": _BLACKWELL_GEFORCE.card(104.8, 1792, 32),
    # Workstation.
    "RTX A4000": _AMPERE.card(19.2, 448, 16),
    "RTX A5000": _AMPERE.card(27.8, 768, 24),
    "RTX A6000": _AMPERE.card(38.7, 768, 48),
    "RTX 6000 Ada": _ADA.card(91.1, 960, 48),
}
"""By name.

V100, A100, H100, H200 and B200 are the SXM modules, P100 is the PCIe card. MI250 is one of the two dies of a module,
which is what PyTorch calls a device.
"""


def canonical_name(name: str) -> str | None:
    """The table's spelling of a name; ``None`` for an unknown one.

    Case, spaces, dashes and the maker's words before it do not count: ``"3090"`` and ``"NVIDIA GeForce RTX 3090"`` are
    ``"RTX 3090"``.
    """
    squeezed = _squeezed(name)
    return _SPELLINGS.get(squeezed) or _SHORT.get(squeezed)


def recognised_name(name: str, memory: float) -> str | None:
    """The accelerator that a driver calls so, such as ``"Tesla V100-SXM2-32GB"``; ``None`` for an unknown one.

    Args:
        name: of ``torch.cuda.get_device_name()``.
        memory: its bytes in all, which tell apart those that come in several sizes.
    """
    words = [word for word in re.split(r"[\s\-]+", name.split("/")[-1]) if word and not _DETAIL.fullmatch(word)]
    base = _squeezed(" ".join(words)) + ("pcie" if words[-1:] == ["H100"] and "pcie" in name.lower() else "")
    sizes = [known for known in ACCELERATORS if _squeezed(_SIZE.sub("", known)) == base]
    near = [known for known in sizes if 0.75 < ACCELERATORS[known].memory * 1e9 / memory < 1.25]
    return min(near, key=lambda known: abs(ACCELERATORS[known].memory * 1e9 - memory), default=None)


def nearest_names(name: str) -> list[str]:
    """Up to three known names that look most like ``name``, best first."""
    return nearest(_squeezed(name), _SPELLINGS | _SHORT, cutoff=0.4)


# What drivers add to a name: the form factor, the kind and the amount of memory.
_DETAIL = re.compile(r"(?i)SXM\d*|PCIE|OAM|HBM\w*|\d+GB|DGXS|FHHL|VF|Generation")
_SIZE = re.compile(r"-\d+GB$")


def _squeezed(name: str) -> str:
    plain = "".join(character for character in name.lower() if character.isalnum())
    return re.sub(r"^(?:nvidia|amd|intel|habana)?(?:geforce|tesla|instinct)?", "", plain)


_SPELLINGS = {_squeezed(name): name for name in ACCELERATORS}
# As people say them: 3090 for RTX 3090, A6000 for RTX A6000.
_SHORT = {re.sub("^(?:gtx|rtx)", "", squeezed): name for squeezed, name in _SPELLINGS.items()}
