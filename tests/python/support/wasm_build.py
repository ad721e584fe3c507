"""The runtime for browsers, which `make wasm` builds."""

import shutil

import pytest
from checkout import ROOT

WASM = ROOT / "build" / "wasm"


def needs_wasm() -> None:
    """Skips the test where there is no such runtime, or nothing to run it."""
    if not (WASM / "steep_runtime.wasm").exists():
        pytest.skip("build/wasm has no runtime for browsers: `make wasm`, which needs emscripten")
    if shutil.which("node") is None:
        pytest.skip("node, which runs the runtime for browsers, is not installed")
