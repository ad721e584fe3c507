"""What `make arm64` and `make arm64-whole` build with, and what runs it here."""

from checkout import ROOT

SYSROOT = ROOT / "build" / "arm64-sysroot"
COMPILER = ("aarch64-linux-gnu-gcc", f"--sysroot={SYSROOT}")
EMULATOR = ("qemu-aarch64", "-L", str(SYSROOT))
