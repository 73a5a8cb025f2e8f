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

    Units: bytes; `smem_per_cta_bytes` is the opt-in limit of dynamic shared memory a CTA; `tensor_flops_per_cycle` of
    one SM, dense 16-bit inputs with fp32 accumulation; `clock_ghz` the SM clock under tensor load before the power
    limit acts; `dram_gbps` and `l2_gbps` in 10^9 bytes a second; `power_w` the board's limit; `launch_us` from the
    launch to the first instruction plus the drain.
    """

    name: str
    sm: tuple[int, int]
    num_sms: int
    smem_per_cta_bytes: int
    smem_per_sm_bytes: int
    registers_per_sm: int
    l2_bytes: int
    tensor_flops_per_cycle: int
    clock_ghz: float
    dram_gbps: float
    l2_gbps: float
    power_w: float
    launch_us: float

    @property
    def arch(self) -> str:
        """The target that NVRTC compiles for: wgmma and setmaxnreg exist only in the feature set with the `a`."""
        major, minor = self.sm
        return f"sm_{major}{minor}a" if major == 9 else f"sm_{major}{minor}"

    @property
    def peak_tflops(self) -> float:
        """What all SMs multiply at the full clock; what the power limit leaves of it, model.py knows."""
        return self.num_sms * self.tensor_flops_per_cycle * self.clock_ghz / 1e3

    def clusters_at_once(self, size: int) -> int:
        """Clusters of `size` CTAs, one CTA an SM, that run at the same time; more wait for one to end.

        A cluster stays within a GPC, whose SMs are not a multiple of 4 everywhere. Source: the driver's count, H200,
        2026-11-30: 66 of 2, 30 of 4, 15 of 8, so 120 of 132 SMs (benchmarks/results, narrow). Which SMs are left of a
        GPC differs from card to card; that other cards lose the same share is a judgement.
        """
        return max(1, (self.num_sms if size <= 2 else self.num_sms * 10 // 11) // size)

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.sm[0]}{self.sm[1]}, {self.num_sms} SMs)"


_KIB = 1024
_MIB = 1024 * 1024


def _preset(
    name: str,
    sm: tuple[int, int],
    num_sms: int,
    smem_kib: int,
    l2_mib: int,
    rates: tuple[int, float, float, float],
) -> Device:
    """A preset: `rates` are tensor FLOPs a cycle of one SM, clock in GHz, DRAM GB/s, watts."""
    flops_per_cycle, clock_ghz, dram_gbps, power_w = rates
    return Device(
        name=name,
        sm=sm,
        num_sms=num_sms,
        smem_per_cta_bytes=(smem_kib - 1) * _KIB,
        smem_per_sm_bytes=smem_kib * _KIB,
        registers_per_sm=65536,
        l2_bytes=l2_mib * _MIB,
        tensor_flops_per_cycle=flops_per_cycle,
        clock_ghz=clock_ghz,
        dram_gbps=dram_gbps,
        l2_gbps=60.0 * num_sms,  # measured, H200, 2026-11-29: 7,929 GB/s over 132 SMs
        power_w=power_w,
        launch_us=0.7,  # measured, H200, 2026-11-29: an empty kernel in a graph
    )


# Limits: CUDA C++ programming guide, technical specifications per compute capability. Rates of the H200: measured,
# H200, 2026-11-29 (wgmma loop on normal data: 1.755 GHz in the first 10 ms; reads of 4 GiB at 4,666 GB/s). Rates of the
# others: vendor's data sheet, DRAM scaled by the H200's share of its own (4,666 of 4,800 GB/s); not measured.
_PRESETS: dict[str, Device] = {
    "h200": _preset("NVIDIA H200", (9, 0), 132, 228, 60, (4096, 1.755, 4666.0, 700.0)),
    "h100": _preset("NVIDIA H100 SXM", (9, 0), 132, 228, 50, (4096, 1.755, 3250.0, 700.0)),
    "h20": _preset("NVIDIA H20", (9, 0), 78, 228, 60, (1024, 1.755, 3890.0, 500.0)),
    "a100": _preset("NVIDIA A100 SXM", (8, 0), 108, 164, 40, (2048, 1.41, 1980.0, 400.0)),
    "rtx3090": _preset("NVIDIA RTX 3090", (8, 6), 82, 100, 6, (512, 1.695, 910.0, 350.0)),
    "rtx4090": _preset("NVIDIA RTX 4090", (8, 9), 128, 100, 72, (512, 2.52, 980.0, 450.0)),
}

PRESETS: tuple[str, ...] = tuple(_PRESETS)


def preset(name: str) -> Device:
    """The device called `name`, with no GPU present.

    Raises: UnsupportedError: no such preset.
    """
    found = _PRESETS.get(name.lower()) if isinstance(name, str) else None
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

    Source of the rates: the preset with the same compute capability and the nearest number of SMs, with the L2
    rate scaled by the SM count; a device of no preset's capability gets the a100's rates and is refused later, by
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
        tensor_flops_per_cycle=like.tensor_flops_per_cycle,
        clock_ghz=like.clock_ghz,
        dram_gbps=like.dram_gbps,
        l2_gbps=like.l2_gbps * scale,
        power_w=like.power_w,
        launch_us=like.launch_us,
    )
