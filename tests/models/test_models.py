"""Models of the zoo, trained from the bare ONNX file and through ORTModule, against PyTorch.

The whole matrix of opsets and exporters is marked `matrix` (`make test-all`); each model runs
without it, but for three by ORTModule alone or not at all.
"""

from __future__ import annotations

import copy
import io
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from zoo import ZOO, Case, Scores, build  # noqa: E402

import steep  # noqa: E402

NEWEST = 23  # what torch.onnx writes
TRACED = (13, 15, 17, 18, 20)
EXPORTED = (18, 20, NEWEST)
STEPS, RATE = 10, 0.01


def export(case: Case, exporter: str, opset: int) -> bytes:
    if opset < 14 and isinstance(case.model, Scores):
        case.model.model.set_attn_implementation("eager")  # the other one begins with opset 14
    file = io.BytesIO()
    settings = {"input_names": ["x"], "output_names": ["scores"], "opset_version": opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "torch.export":
            program = torch.onnx.export(
                case.model, case.inputs, dynamo=True, optimize=False, verbose=False, **settings
            )
            return program.model_proto.SerializeToString()
        torch.onnx.export(
            case.model,
            case.inputs,
            file,
            dynamo=False,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            **settings,
        )
    return file.getvalue()


def assert_close(ours, theirs, name):
    """Within 1e-4 of the largest entry."""
    ours = np.asarray(ours)
    bound = 1e-4 * max(float(np.abs(theirs).max()), 1e-6)
    assert ours.shape == theirs.shape, name
    assert float(np.abs(ours - theirs).max()) <= bound, name


def torch_gradients(case: Case) -> dict[str, np.ndarray]:
    model = copy.deepcopy(case.model)
    case.loss(model(*case.inputs)).backward()
    return {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


def torch_losses(case: Case) -> list[float]:
    model = copy.deepcopy(case.model)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = case.loss(model(*case.inputs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_file(case: Case, exporter: str, opset: int) -> None:
    session = steep.TrainingSession(
        export(case, exporter, opset), loss="softmax_cross_entropy", optimizer="sgd", lr=RATE
    )
    arrays = [t.numpy() for t in (*case.inputs, case.labels)]
    _, gradients = session.gradients(*arrays)
    expected = torch_gradients(case)
    known = {name.removeprefix("model."): grad for name, grad in expected.items()}
    compared = 0
    for name, gradient in gradients.items():
        theirs = expected.get(name, known.get(name.removeprefix("model.")))
        if theirs is not None:  # recurrent weights are joined and reordered in the file
            assert_close(gradient, theirs, name)
            compared += 1
    assert compared >= min(len(expected), 4)
    losses = [float(session.step(*arrays).loss) for _ in range(STEPS)]
    np.testing.assert_allclose(losses, torch_losses(case), rtol=1e-4)


@pytest.fixture
def built(name, way, record_property):
    record_property("model", f"{name}|{way}")
    return build(name)


SLOW = {"efficientnet", "convnext"}  # of the kinds that mobilenet_v2 and the transformers have too
EACH_CHANGE = [pytest.param(n, marks=[pytest.mark.matrix] if n in SLOW else []) for n in ZOO]


# As a module mobilenet_v2 has what is not in resnet: convolutions of one channel each, and clips.
AS_MODULE = SLOW | {"mobilenet_v2"}
FILES = [pytest.param(n, marks=[pytest.mark.matrix] if n in AS_MODULE else []) for n in ZOO]


@pytest.mark.parametrize("way", ["torch.export 20"])
@pytest.mark.parametrize("name", FILES)
def test_file(built):
    train_file(built, "torch.export", 20)


@pytest.mark.parametrize("way", ["ORTModule"])
@pytest.mark.parametrize("name", EACH_CHANGE)
def test_ort_module(built):
    net = steep.ORTModule(copy.deepcopy(built.model))
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    expected = torch_gradients(built)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = built.loss(net(*built.inputs))
        loss.backward()
        if step == 0:
            for (name, _), p in zip(built.model.named_parameters(), net.parameters(), strict=True):
                if name in expected:
                    assert_close(p.grad.numpy(), expected[name], name)
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(losses, torch_losses(built), rtol=1e-4)


@pytest.mark.matrix
@pytest.mark.parametrize("way", [f"tracing {opset}" for opset in TRACED])
@pytest.mark.parametrize("name", ZOO)
def test_traced(built, way):
    train_file(built, "tracing", int(way.split()[1]))


@pytest.mark.matrix
@pytest.mark.parametrize("way", [f"torch.export {opset}" for opset in EXPORTED])
@pytest.mark.parametrize("name", ZOO)
def test_exported(built, way):
    train_file(built, "torch.export", int(way.split()[1]))
