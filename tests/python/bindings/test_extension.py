"""How the compiled part stands in a process that it shares with others."""

import re
import subprocess
import sys

from checkout import ROOT

from steep import _steep


def test_exports_only_its_entry_point() -> None:
    # The `onnx` package and PyTorch have their own ONNX, protobuf and nanobind in the process.
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", _steep.__file__], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["PyInit__steep"]


def test_reads_no_structs_of_cpython() -> None:
    """The wheel of all Pythons from 3.12 on has the stable ABI, where those structs are hidden.

    Builds for an older Python compile them all the same.
    """
    fields = r"(?:->|\.)(?:tp|ob|bf|nb|sq|mp|am)_\w+"
    macros = r"\bPy[A-Z]\w+_(?:GET_(?:ITEM|SIZE|LENGTH)|SET_ITEM|AS_\w+|DATA|KIND)\b"
    found = [
        f"{file.name}:{number}: {line.strip()}"
        for file in sorted((ROOT / "python" / "bindings").iterdir())
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(f"{fields}|{macros}", line)
    ]
    assert not found, "\n".join(found)


def test_lives_beside_other_copies_of_onnx() -> None:
    # In a new process, so that the order of the imports is ours.
    script = """
        import steep._steep, onnx.checker, onnx.parser
        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Relu(x)}')
        onnx.checker.check_model(model, full_check=True)
        import onnxruntime, torch
        onnxruntime.InferenceSession(model.SerializeToString())
    """
    code = "\n".join(line.strip() for line in script.splitlines())
    for order in (code, f"import onnx, torch\n{code}"):
        subprocess.run([sys.executable, "-c", order], check=True, timeout=300)


def test_says_nothing_at_the_end_of_a_process() -> None:
    # A loss that is still there, as in most scripts.
    script = """
        import torch, steep
        model = steep.ORTModule(torch.nn.Linear(4, 3))
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
    """
    code = "\n".join(line.strip() for line in script.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout + done.stderr == ""
