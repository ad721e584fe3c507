"""What a step needs is said before it runs, and does not grow."""

import json
import logging
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkout import ROOT, SUPPORT
from onnx import TensorProto, helper, numpy_helper

import steep

torch = pytest.importorskip("torch")

import steep_program  # noqa: E402
from compiled_graphs import compiled_graph  # noqa: E402
from torch import nn  # noqa: E402

sys.path.insert(0, str(ROOT / "examples" / "transformer_lm"))
from model import TransformerModel, causal_mask  # noqa: E402

WORDS, LENGTH, BATCH = 500, 20, 8


def mlp(*widths):
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i, (k, n) in enumerate(pairwise(widths)):
        weights.append(numpy_helper.from_array(rng.normal(size=(k, n)).astype("f4") / k, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [f"h{i}"]))
        value = f"h{i}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", widths[0]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["rows", widths[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def language_model():
    torch.manual_seed(0)
    model = TransformerModel(WORDS, width=64, heads=2, hidden=128)
    text = torch.randint(0, WORDS, (LENGTH, BATCH))
    return model, text, causal_mask(LENGTH), torch.randint(0, WORDS, (LENGTH * BATCH,))


def cross_entropy(scores, target):
    return nn.functional.cross_entropy(scores.view(-1, WORDS), target)


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, text, mask, target):
        return cross_entropy(self.model(text, mask), target)


def test_plan_of_an_mlp_is_what_its_steps_take():
    session = steep.TrainingSession(
        mlp(40, 60, 50, 10), loss="mse", optimizer="adam", step_outputs=["h2"]
    )
    x, y = np.ones((300, 40), "f4"), np.ones((300, 10), "f4")
    plan = session.plan(x, y)
    assert session.peak_bytes < plan.peak_bytes / 2
    for _ in range(3):
        session.step(x, y)
    assert session.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.02)
    assert plan.parameter_bytes == 4 * (40 * 60 + 60 * 50 + 50 * 10)
    assert plan.optimizer_bytes == 2 * plan.parameter_bytes
    assert plan.output_bytes >= 4 * 300 * 10
    assert plan.arena_bytes > 4 * 300 * 60


def test_plan_of_a_transformer_is_what_its_steps_take():
    model, *inputs = language_model()
    trainer = steep.trainer(model, cross_entropy, torch.optim.AdamW(model.parameters()))
    trainer.compile(*inputs)
    plan = trainer.plan()
    for _ in range(3):
        trainer.step(*inputs)
    assert trainer.session.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.02)
    assert plan.parameter_bytes == sum(4 * p.numel() for p in model.parameters())


def test_plan_of_a_module_is_what_its_steps_take():
    model, *inputs = language_model()
    module = steep.ORTModule(WithLoss(model))
    module(*inputs).backward()
    graph = compiled_graph(module)
    arrays = [np.empty(shape, dtype) for dtype, shape in graph.types]
    plan = graph.engine_graph.program.plan(arrays, True)
    assert graph.engine_graph.program.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.02)
    assert plan.output_bytes >= sum(4 * p.numel() for p in model.parameters())  # gradients


def test_the_plan_is_logged_once_before_the_first_step(caplog):
    caplog.set_level(logging.INFO, "steep")
    session = steep.TrainingSession(mlp(8, 4), loss="mse")
    x, y = np.ones((3, 8), "f4"), np.ones((3, 4), "f4")
    with pytest.raises(steep.DataError, match="label"):
        session.step(x=x)
    assert not [r for r in caplog.records if "planned" in r.getMessage()]
    session = steep.TrainingSession(mlp(8, 4), loss="mse")
    session.step(x=x, label=y)
    session.step(x, y)
    model, *inputs = language_model()
    module = steep.ORTModule(model)
    module(*inputs[:2])
    module(*inputs[:2])
    said = [r.getMessage() for r in caplog.records if "planned" in r.getMessage()]
    assert len(said) == 2
    assert re.fullmatch(r"step planned: [\d.]+ KiB \(parameters 0\.1, .*\)", said[0])
    assert re.fullmatch(r"step planned: [\d.]+ MiB \(outputs .*, arena .*\)", said[1])


LONG_RUN = """
import re, sys
from pathlib import Path
sys.path[:0] = {here!r}
import test_planned_memory as t
import torch, steep

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))

torch.set_num_threads(1)
model, *inputs = t.language_model()
if sys.argv[1] == "session":
    session = steep.TrainingSession(t.mlp(40, 60, 50, 10), loss="mse", optimizer="adam")
    step = lambda: session.step(t.np.ones((300, 40), "f4"), t.np.ones((300, 10), "f4"))
elif sys.argv[1] == "gradients":
    session = steep.GradientSession(t.mlp(40, 60, 50, 10), wrt=["x", "w0"], outputs=["h2"])
    def step():
        outputs, run = session.forward([t.np.ones((300, 40), "f4")])
        session.backward(run, {{"h2": t.np.ones((300, 10), "f4")}})
elif sys.argv[1] == "trainer":
    trainer = steep.trainer(model, t.cross_entropy, torch.optim.AdamW(model.parameters()))
    step = lambda: trainer.step(*inputs)
else:
    module = steep.ORTModule(t.WithLoss(model))
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        optimizer.zero_grad()
        module(*inputs).backward()
        optimizer.step()
sizes = {{}}
for number in range(1, 1001):
    step()
    if number in (10, 1000):
        sizes[number] = resident()
print(sizes[10], sizes[1000])
"""


@pytest.mark.matrix
@pytest.mark.parametrize("front", ["session", "gradients", "trainer", "module"])
def test_memory_of_a_thousand_steps_is_that_of_ten(front):
    code = LONG_RUN.format(here=[str(Path(__file__).parent), str(SUPPORT)])
    done = subprocess.run(
        [sys.executable, "-c", code, front], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ten, thousand = map(int, done.stdout.split())
    assert thousand <= 1.01 * ten


@pytest.mark.matrix
def test_memory_of_a_thousand_steps_of_the_program_is_that_of_ten(tmp_path):
    onnx.save(mlp(40, 60, 50, 10), tmp_path / "m.onnx")
    rows = {"x": np.ones((3000, 40), "f4"), "label": np.ones((3000, 10), "f4")}
    np.savez(tmp_path / "d.npz", **rows)
    command = [
        steep_program.built("steep"),
        "train",
        tmp_path / "m.onnx",
        "--data",
        tmp_path / "d.npz",
    ]
    command += ["--loss", "mse", "--batch", "300", "--epochs", "100", "--json"]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    status = Path(f"/proc/{process.pid}/status")
    sizes = {}
    for report in map(json.loads, process.stdout):
        if report["report"] == "epoch" and report["step"] in (10, 990):
            sizes[report["step"]] = int(re.search(r"VmRSS:\s+(\d+)", status.read_text()).group(1))
    assert process.wait() == 0
    assert sizes[990] <= 1.01 * sizes[10]


def test_the_program_says_it_too(tmp_path):
    onnx.save(mlp(8, 4), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.ones((64, 8), "f4"), label=np.ones((64, 4), "f4"))
    words = ("train", tmp_path / "m.onnx", "--data", tmp_path / "d.npz", "--loss", "mse")
    lines = steep_program.steep(*words, "--batch", 16).splitlines()
    planned = [i for i, line in enumerate(lines) if line.startswith("step planned: ")]
    assert len(planned) == 1
    assert planned[0] < next(i for i, line in enumerate(lines) if line.startswith("epoch"))
