"""BatchNormalization in a training session: inference exports as they stand, training ones too."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import steep
from steep.dynamo.patches.cumulative_batch_norm import means_over_batches

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": RNG.normal(0, 0.3, (4, 2, 3, 3)).astype(np.float32),
    "scale": RNG.uniform(0.5, 1.5, 4).astype(np.float32),
    "bias": RNG.normal(0, 0.3, 4).astype(np.float32),
    "mean": RNG.normal(0, 0.3, 4).astype(np.float32),
    "variance": RNG.uniform(0.5, 1.5, 4).astype(np.float32),
}
X = RNG.normal(0, 1, (6, 2, 5, 5)).astype(np.float32)
LABELS = RNG.integers(0, 4, 6)


@pytest.mark.parametrize("kind", [torch.nn.InstanceNorm2d, torch.nn.BatchNorm2d])
def test_a_module_may_end_with_its_normalisation(kind):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), kind(4, affine=True))
    net = steep.ORTModule(copy.deepcopy(module))
    x, weights = torch.randn(3, 2, 8, 8), torch.randn(3, 4, 6, 6)
    for m in (module, net):
        (m(x) * weights).sum().backward()
    for wanted, found in zip(module.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-4)


def model(training: int, outputs: int = 1) -> onnx.ModelProto:
    """Convolution, normalisation, mean of each plane: four scores."""
    normalised = ["n", "running_mean", "running_variance"][:outputs]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization",
            ["c", "scale", "bias", "mean", "variance"],
            normalised,
            training_mode=training,
            momentum=0.8,
        ),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(v, k) for k, v in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(proto: onnx.ModelProto) -> steep.TrainingSession:
    return steep.TrainingSession(proto, loss="softmax_cross_entropy", optimizer="sgd", lr=0.1)


def scores(w: dict[str, torch.Tensor], x: torch.Tensor, training: bool) -> torch.Tensor:
    c = torch.nn.functional.conv2d(x, w["w"], padding=1)
    n = torch.nn.functional.batch_norm(
        c, w["mean"], w["variance"], w["scale"], w["bias"], training, 0.2, 1e-5
    )
    return n.relu().mean((2, 3))


@pytest.mark.parametrize("training", [0, 1])
def test_steps_are_those_of_torch(training: int) -> None:
    ours = session(model(training))
    theirs = {k: torch.tensor(v) for k, v in WEIGHTS.items()}
    trained = [theirs[k].requires_grad_() for k in ("w", "scale", "bias")]
    optimizer = torch.optim.SGD(trained, 0.1)
    assert sorted(ours.parameter_names) == ["bias", "scale", "w"]
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(
            scores(theirs, torch.tensor(X), bool(training)), torch.tensor(LABELS)
        )
        assert ours.step(X, LABELS).loss == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("outputs", [1, 3])
def test_running_statistics_follow_the_batches(outputs: int, tmp_path) -> None:
    ours = session(model(1, outputs))
    mean, variance = WEIGHTS["mean"], WEIGHTS["variance"]
    for _ in range(3):
        w = torch.from_dlpack(ours.state("w")).clone()
        c = torch.nn.functional.conv2d(torch.tensor(X), w, padding=1).numpy()
        mean = 0.8 * mean + 0.2 * c.mean((0, 2, 3))
        variance = 0.8 * variance + 0.2 * c.var((0, 2, 3))
        ours.step(X, LABELS)
    for name, wanted in (("mean", mean), ("variance", variance)):
        np.testing.assert_allclose(torch.from_dlpack(ours.state(name)), wanted, rtol=1e-5)

    # Evaluation normalises by them, and they travel with checkpoints.
    state = {k: torch.from_dlpack(ours.state(k)).clone() for k in WEIGHTS}
    wanted = scores(state, torch.tensor(X), False)
    np.testing.assert_allclose(
        torch.from_dlpack(ours.eval(X, LABELS).outputs[0]), wanted, rtol=1e-5, atol=1e-6
    )
    ours.save_checkpoint(str(tmp_path / "saved"), "null")
    fresh = session(model(1, outputs))
    fresh.load_checkpoint(str(tmp_path / "saved"))
    np.testing.assert_array_equal(
        torch.from_dlpack(fresh.state("variance")), torch.from_dlpack(ours.state("variance"))
    )


def test_a_bad_loss_leaves_the_statistics_alone() -> None:
    ours = session(model(1))
    with pytest.raises(steep.DataError):
        ours.step(np.full_like(X, np.nan), LABELS)
    np.testing.assert_array_equal(torch.from_dlpack(ours.state("mean")), WEIGHTS["mean"])


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4, momentum=0.3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 4),
    )


def assert_same_state(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    state = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        # ONNX's running variance is the population's, PyTorch's is not: 54 elements a channel.
        rtol = 2e-2 if name.endswith("running_var") else 1e-4
        torch.testing.assert_close(tensor, state[name], rtol=rtol, atol=1e-5)


def test_no_images_leave_the_statistics_alone() -> None:
    theirs, ours = network(), network()
    module = steep.ORTModule(ours)
    for x in (torch.tensor(X), torch.tensor(X[:0])):
        for of_torch in (theirs, module):
            of_torch.zero_grad()
            of_torch(x).sum().backward()
    assert_same_state(ours, theirs)
    assert all(not p.grad.any() for p in ours.parameters())


def test_statistics_that_are_given_may_be_of_any_float() -> None:
    net = torch.nn.BatchNorm2d(4).double().eval()
    net.running_var.mul_(3)
    x = torch.tensor(X).double().repeat(1, 2, 1, 1)
    torch.testing.assert_close(steep.ORTModule(net, fallback=None)(x), net(x))


def test_a_module_that_another_thread_runs_while_one_is_captured() -> None:
    norm, twin = (torch.nn.BatchNorm2d(2, momentum=None) for _ in range(2))
    for batch in torch.tensor(X).split(2):
        with means_over_batches(norm):
            norm(batch)
        twin(batch)
    assert all(map(torch.equal, norm.buffers(), twin.buffers()))


@pytest.mark.parametrize("how", ["module", "trainer"])
def test_torch_modules_keep_their_buffers(how: str) -> None:
    theirs, ours = network(), network()
    x, labels = torch.tensor(X), torch.tensor(LABELS)
    loss = torch.nn.CrossEntropyLoss()
    wanted = torch.optim.SGD(theirs.parameters(), 0.1)
    optimizer = torch.optim.SGD(ours.parameters(), 0.1)
    module = steep.ORTModule(ours)
    trainer = steep.trainer(ours, loss, optimizer)
    for _ in range(3):
        wanted.zero_grad()
        loss(theirs(x), labels).backward()
        wanted.step()
        if how == "trainer":
            trainer.step(x, labels)
        else:
            optimizer.zero_grad()
            loss(module(x), labels).backward()
            optimizer.step()
    assert_same_state(ours, theirs)
    ours.eval()
    theirs.eval()
    torch.testing.assert_close(steep.ORTModule(ours)(x), theirs(x), rtol=2e-2, atol=2e-2)
