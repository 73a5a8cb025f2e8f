"""Whether a device can run a compiled unit. Asks no driver."""

from __future__ import annotations

from tilewright.backends.driver import version_text
from tilewright.device import Device
from tilewright.errors import UnsupportedError
from tilewright.jit.source import Binary

_ELF = b"\x7fELF"


def check_loadable(binary: Binary, device: Device, driver_version: int) -> None:
    """Raises UnsupportedError: machine code for another device, or none at all."""
    if not binary.cubin.startswith(_ELF):
        raise UnsupportedError(
            asked=f"{binary.name} made by {binary.compiler}",
            rule="its cubin is not an ELF file; PTX is never given to the driver, since one for CUDA "
            f"{version_text(driver_version)} refuses the PTX of a newer compiler",
            works="build it for a real architecture such as sm_90a",
        )
    if not runs_on(binary.arch, device):
        raise UnsupportedError(
            asked=f"{binary.name} built for {binary.arch} on {device}",
            rule="code for an `a` target runs on exactly that compute capability, other code within its major",
            works=f"plan for this device: {device.arch}",
        )


def runs_on(arch: str, device: Device) -> bool:
    """Whether machine code for `arch` runs on the device. Source: CUDA programming guide, binary compatibility."""
    if arch.endswith("a"):
        return arch == device.arch
    digits = arch.removeprefix("sm_")
    if not digits.isdigit():
        return False
    major, minor = int(digits[:-1]), int(digits[-1])
    return major == device.sm[0] and minor <= device.sm[1]
