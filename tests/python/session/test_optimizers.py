"""Optimizers beyond SGD, Adam and AdamW: in sessions, and in 16 bits."""

import onnx
import onnx.parser
import pytest

torch = pytest.importorskip("torch")

from optimizer_kinds import OTHERS, STEPS, batches, steps_of  # noqa: E402

import steep  # noqa: E402


@pytest.mark.parametrize("name", OTHERS)
def test_sessions_know_them(name, tmp_path):
    """The numbers are attributes there, and all parameters count as one."""
    torch.manual_seed(0)
    weight, bias = torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.zeros(3))
    settings = {"lr": 0.02, "weight_decay": 0.01, **OTHERS[name]}
    optimizer = getattr(torch.optim, name.split()[0])([weight, bias], **settings)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4] x, float[4, 3] w, float[3] b) => (float[n, 3] y) { y = Gemm(x, w, b) }""")
    for key, value in (("w", weight), ("b", bias)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.detach().numpy(), key))
    del model.graph.input[1:]
    made = [
        steep.TrainingSession(model, loss="mse", optimizer=name.split()[0].lower(), **settings)
        for _ in range(2)
    ]
    step = steps_of(lambda x: x @ weight + bias, optimizer)
    for t, (x, y) in enumerate(batches()):
        if t == STEPS // 2:
            made[0].save_checkpoint(tmp_path / "run")
            made[1].load_checkpoint(tmp_path / "run")
        made[t >= STEPS // 2].step(x, y)
        step(x, y)
    ours = made[1].weights()
    for key, value in (("w", weight), ("b", bias)):
        torch.testing.assert_close(
            torch.from_dlpack(ours[key]), value.detach(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax])
def test_gradients_of_weights_are_not_rounded_in_bf16(kind):
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 16)
    optimizer = kind(net.parameters(), betas=(0.5, 0.9))
    trainer = steep.trainer(net, torch.nn.MSELoss(), optimizer, precision="bf16")
    trainer.step(torch.randn(8, 16), torch.randn(8, 16))
    gradient = optimizer.state[net.weight]["exp_avg"]  # half of it
    assert (gradient != gradient.bfloat16().float()).float().mean() > 0.9


@pytest.mark.parametrize("kind", ["muon", "adafactor"])
def test_products_that_an_update_reads_are_not_rounded_in_bf16(kind):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[n, 16] x) => (float[n, 16] y) <float[16, 16] w> { y = MatMul(x, w) }""")
    weight = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).numpy()
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    session = steep.TrainingSession(model, loss="mse", optimizer=kind, precision="bf16")
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    plan = session.dump(x, y)
    wide = [line for line in plan.splitlines() if "float32[16, 16]" in line and "MatMul(" in line]
    assert len(wide) >= (2 if kind == "muon" else 1), plan  # the gradient, and Muon's last product
