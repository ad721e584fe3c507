"""What is assigned to an ORTModule, or called on it, does to the module what it does without."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from steep import ORTModule  # noqa: E402

X = torch.linspace(-1, 1, 20).view(5, 4)


class Net(nn.Module):
    """Whose forward reads attributes of all kinds of names."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self._scale, self.precision, self._loss, self.report = 1.0, 1.0, 1.0, 1.0

    def forward(self, x):
        x = F.dropout(F.relu(self.layer(x)), 0.5, self.training)
        factor = 2.0 if getattr(self, "_flag", False) else 1.0
        return self.last(x) * factor * self._scale * self.precision * self._loss * self.report


def set_private(model):
    model._scale = 3.0
    return model(X), model._scale


def set_new_private(model):
    model._flag = True
    return model(X)


def set_names_of_ort_module(model):
    model.precision, model._loss = 3.0, 5.0
    return model(X), model.precision, model._loss, model.report


def set_private_module(model):
    model._head = nn.Linear(2, 2)
    return len(model.state_dict())


def set_mode(model):
    model.train()
    model.training = False
    return model(X), model.training


def set_mode_of_each(model):
    model.train()
    model.apply(lambda part: setattr(part, "training", False))
    return model(X)


def replace_train(model):
    model.train = lambda mode=True: model
    nn.Sequential(model).train()
    return model(X), model.training


@pytest.mark.parametrize(
    "change",
    [
        *(set_private, set_new_private, set_names_of_ort_module, set_private_module),
        *(set_mode, set_mode_of_each, replace_train),
    ],
)
def test_an_attribute_is_assigned_to_the_module(change):
    torch.manual_seed(0)
    net = Net().eval()
    twin = copy.deepcopy(net)
    model = ORTModule(net)
    model(X)
    torch.testing.assert_close(change(model), change(twin))


class Own(nn.Module):
    """With methods in place of those of every module."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self._evaluated = 0

    def forward(self, x):
        return self.last(F.relu(self.layer(x)))

    def named_parameters(self, *args, **kwargs):
        yield "last.weight", self.last.weight

    def eval(self):
        self._evaluated += 1
        return super().eval()

    def requires_grad_(self, requires_grad=True):
        self.last.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        self.last.weight.grad = None

    def to(self, *args, **kwargs):
        super().to(*args, **kwargs)
        self.last.float()
        return self


def facts(model):
    model(X).sum().backward()
    model.zero_grad()
    model.requires_grad_(False).eval().to(torch.float64)
    return (
        len(list(model.parameters())),
        model._evaluated,
        [(p.requires_grad, p.grad is None, p.dtype) for p in model.layer.parameters()],
        [(p.requires_grad, p.grad is None, p.dtype) for p in model.last.parameters()],
    )


@pytest.mark.parametrize(
    "made", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_methods_that_a_class_replaces_run(made):
    net = Own()
    twin = copy.deepcopy(net)
    model = made(ORTModule(net))
    assert facts(model) == facts(twin)
    assert model.to(torch.float32) is model


def test_a_method_that_an_instance_replaces_runs():
    net = Own()
    net.zero_grad = lambda set_to_none=True: "replaced"
    assert ORTModule(net).zero_grad() == "replaced"
