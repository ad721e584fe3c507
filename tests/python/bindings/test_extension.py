"""How the compiled part stands in a process that it shares with others."""

import subprocess
import sys

from steep import _steep


def test_exports_only_its_entry_point() -> None:
    # The `onnx` package and PyTorch have their own ONNX, protobuf and nanobind in the process.
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", _steep.__file__], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["PyInit__steep"]


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
