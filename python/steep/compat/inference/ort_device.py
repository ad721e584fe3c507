"""``OrtDevice``: the device of a value. All values are in CPU memory."""

from __future__ import annotations

import enum

from steep.errors import DataError

_TYPES = ("cpu", "cuda", "fpga", "npu")


class OrtMemType(enum.IntEnum):
    """A kind of memory of a device, for ``OrtDevice``; all values are in the CPU's."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDevice:
    """A kind of device, a kind of memory, and a device number; most devices do not exist here.

    >>> OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    OrtDevice(cpu, 0)
    """

    def __init__(self, device_type: int, mem_type: int = 0, device_id: int = 0) -> None:
        self._place = (int(device_type), int(mem_type), int(device_id))

    @classmethod
    def make(cls, ort_device_name: str, device_id: int = 0) -> OrtDevice:
        """Return the device of a name, such as "cpu". Raises DataError for an unknown name."""
        if ort_device_name.lower() not in _TYPES:
            raise DataError(
                "There is no such kind of device.",
                expected=", ".join(_TYPES),
                received=repr(ort_device_name),
            )
        return cls(_TYPES.index(ort_device_name.lower()), 0, device_id)

    @staticmethod
    def cpu() -> int:
        """Return the number for the kind "cpu"."""
        return 0

    @staticmethod
    def cuda() -> int:
        """Return the number for the kind "cuda"."""
        return 1

    @staticmethod
    def default_memory() -> int:
        """Return the number for a device's own memory."""
        return 0

    def device_type(self) -> int:
        """Return the number of the kind of device."""
        return self._place[0]

    def mem_type(self) -> int:
        """Return the number of the kind of memory."""
        return self._place[1]

    def device_id(self) -> int:
        """Return the number of the device among those of its kind."""
        return self._place[2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrtDevice) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    def __repr__(self) -> str:
        kind, _, number = self._place
        return f"OrtDevice({_TYPES[kind] if kind < len(_TYPES) else kind}, {number})"


def require_cpu(device: OrtDevice | str, device_id: int = 0) -> None:
    """Raise DataError unless a device, given as an object or by name, is the CPU."""
    if isinstance(device, OrtDevice):
        here, text = device.device_type() == OrtDevice.cpu(), repr(device)
    else:
        here, text = (str(device).lower(), device_id) == ("cpu", 0), f"{device!r}, {device_id}"
    if not here:
        raise DataError(
            "Values can be in CPU memory only.",
            expected='device_type "cpu", device_id 0',
            received=text,
            remedy='OrtDevice.make("cpu", 0)',
        )
