"""A small model and its files, for tests of on-device training under the old names."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from steep.compat.onnxblock import artifacts

NAMES = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
SHAPES = [(16, 8), (16,), (4, 16), (4,)]


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return {
        n: (rng.standard_normal(s) * 0.3).astype(np.float32)
        for n, s in zip(NAMES, SHAPES, strict=True)
    }


def mlp(opset=17, values=None):
    """x [n, 8] → hidden relu of 16 → scores [n, 4], with weights laid out as PyTorch's are."""
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "fc2.weight", "fc2.bias"], ["scores"], transB=1),
    ]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "mlp",
            [helper.make_tensor_value_info("x", 1, ["n", 8])],
            [helper.make_tensor_value_info("scores", 1, ["n", 4])],
            [numpy_helper.from_array(v, n) for n, v in (values or weights()).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=9,
    )


def write(folder, model=None, loss=artifacts.LossType.CrossEntropyLoss, **options):
    """Write the files of the model into the folder, with AdamW unless told otherwise."""
    settings = {"requires_grad": NAMES, "optimizer": artifacts.OptimType.AdamW, **options}
    artifacts.generate_artifacts(
        mlp() if model is None else model, loss=loss, artifact_directory=folder, **settings
    )
    return folder


def opened(folder, checkpoint="checkpoint"):
    """Return state, module and optimizer of the files in a folder."""
    from steep.compat.on_device.training_module import Module
    from steep.compat.on_device.training_optimizer import Optimizer
    from steep.compat.on_device.training_state import CheckpointState

    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    return state, module, Optimizer(folder / "optimizer_model.onnx", module)


def batches(count, seed=1, n=12):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((n, 8)).astype(np.float32), rng.integers(0, 4, n))
        for _ in range(count)
    ]


def checked(folder):
    for name in ("training_model", "eval_model", "optimizer_model"):
        onnx.checker.check_model(str(folder / f"{name}.onnx"), full_check=True)
