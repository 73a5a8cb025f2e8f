"""A GPU as a value: the limits that legality needs and the rates that the model needs.

Knows nothing of drivers: presets let a machine with no GPU plan for any card below, and the CUDA backend fills the same
value from the driver's attributes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import UnsupportedError


@dataclass(frozen=True)
class Device:
    """One GPU model.

    Units: bytes; `smem_per_cta_bytes` is the opt-in limit of dynamic shared memory a CTA; rates are whole-device,
    `tensor_tflops` dense 16-bit inputs with fp32 accumulation under sustained load, `dram_gbps` and `l2_gbps` in
    10^9 bytes a second, `launch_us` from the launch to the first instruction plus the drain.
    """

    name: str
    sm: tuple[int, int]
    num_sms: int
    smem_per_cta_bytes: int
    smem_per_sm_bytes: int
    registers_per_sm: int
    l2_bytes: int
    tensor_tflops: float
    dram_gbps: float
    l2_gbps: float
    launch_us: float

    @property
    def arch(self) -> str:
        """The target that NVRTC compiles for: wgmma and setmaxnreg exist only in the feature set with the `a`."""
        major, minor = self.sm
        return f"sm_{major}{minor}a" if major == 9 else f"sm_{major}{minor}"

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.sm[0]}{self.sm[1]}, {self.num_sms} SMs)"


_KIB = 1024
_MIB = 1024 * 1024

# Limits: CUDA C++ programming guide, technical specifications per compute capability. Rates of the H200: measured,
# H200, 2026-11-29 (sustained wgmma loop on normal data 857 TFLOPS; reads of 4 GiB 4666 GB/s; L2 reads 7900 GB/s;
# empty kernel in a graph 0.7 us). Rates of the others: vendor's datasheet, scaled by the H200's share of its own
# datasheet (857 of 989 TFLOPS, 4666 of 4800 GB/s); not measured.
_PRESETS: dict[str, Device] = {
    "h200": Device("NVIDIA H200", (9, 0), 132, 227 * _KIB, 228 * _KIB, 65536, 60 * _MIB, 857.0, 4666.0, 7900.0, 0.7),
    "h100": Device(
        "NVIDIA H100 SXM", (9, 0), 132, 227 * _KIB, 228 * _KIB, 65536, 50 * _MIB, 857.0, 3250.0, 7900.0, 0.7
    ),
    "h20": Device("NVIDIA H20", (9, 0), 78, 227 * _KIB, 228 * _KIB, 65536, 60 * _MIB, 128.0, 3890.0, 4700.0, 0.7),
    "a100": Device(
        "NVIDIA A100 SXM", (8, 0), 108, 163 * _KIB, 164 * _KIB, 65536, 40 * _MIB, 270.0, 1980.0, 4500.0, 1.0
    ),
    "rtx3090": Device("NVIDIA RTX 3090", (8, 6), 82, 99 * _KIB, 100 * _KIB, 65536, 6 * _MIB, 62.0, 910.0, 2000.0, 1.0),
    "rtx4090": Device(
        "NVIDIA RTX 4090", (8, 9), 128, 99 * _KIB, 100 * _KIB, 65536, 72 * _MIB, 143.0, 980.0, 4500.0, 1.0
    ),
}

PRESETS: tuple[str, ...] = tuple(_PRESETS)


def preset(name: str) -> Device:
    """The device called `name`, with no GPU present.

    Raises: UnsupportedError: no such preset.
    """
    found = _PRESETS.get(name.lower())
    if found is None:
        raise UnsupportedError(
            asked=f"device {name!r}",
            rule=f"presets are {', '.join(PRESETS)}",
            works="name one of them, or leave the device out to use the GPU that is present",
        )
    return found


def from_attributes(
    *,
    name: str,
    sm: tuple[int, int],
    num_sms: int,
    smem_per_cta_bytes: int,
    smem_per_sm_bytes: int,
    registers_per_sm: int,
    l2_bytes: int,
) -> Device:
    """The present GPU: limits as its driver reports them, rates of the preset that is most like it.

    Source of the rates: the preset with the same compute capability and the nearest number of SMs, with the tensor and
    L2 rates scaled by the SM count; a device of no preset's capability gets the a100's rates and is refused later, by
    the legality of every config, not here.
    """
    candidates = [value for value in _PRESETS.values() if value.sm == sm] or [_PRESETS["a100"]]
    named = [value for value in candidates if value.name.split()[1] in name.split()]
    like = min(named or candidates, key=lambda value: abs(value.num_sms - num_sms))
    scale = num_sms / like.num_sms
    return Device(
        name=name,
        sm=sm,
        num_sms=num_sms,
        smem_per_cta_bytes=smem_per_cta_bytes,
        smem_per_sm_bytes=smem_per_sm_bytes,
        registers_per_sm=registers_per_sm,
        l2_bytes=l2_bytes,
        tensor_tflops=like.tensor_tflops * scale,
        dram_gbps=like.dram_gbps,
        l2_gbps=like.l2_gbps * scale,
        launch_us=like.launch_us,
    )
