"""Operators by ATen's names: other results than the first have values, and no gradient."""

import copy

import pytest

torch = pytest.importorskip("torch")

from module_pairs import assert_same_gradients, seed  # noqa: E402, F401

from steep import ORTModule  # noqa: E402

ATEN = torch.ops.aten
MEAN, VARIANCE = torch.linspace(-1, 1, 4), torch.linspace(0.5, 2, 4)


class Scaled(torch.nn.Module):
    """An operator on a tensor [3, 4, 4] and two weights [4]; all results are used."""

    def __init__(self, function):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.bias = torch.nn.Parameter(torch.linspace(-1, 1, 4))
        self.function = function

    def forward(self, x):
        results = self.function(x, self.weight, self.bias)
        return sum((r * r * r).sum() for r in results if isinstance(r, torch.Tensor))


def _normalize_batches(x, weight, bias, *, trains):
    statistics = MEAN.clone(), VARIANCE.clone()
    return torch.native_batch_norm(x, weight, bias, *statistics, trains, 0.1, 1e-5)


def _update_functionally(x, weight, bias):
    statistics = torch.zeros(4), torch.ones(4)
    function = ATEN._native_batch_norm_legit_functional
    return function(x, weight, bias, *statistics, True, 0.1, 1e-5)


CALLS = {
    "native_layer_norm": lambda x, w, b: torch.native_layer_norm(x, [4], w, b, 1e-5),
    "aten.native_layer_norm": lambda x, w, b: ATEN.native_layer_norm(x, [4], w, b, 1e-5),
    "an overload": lambda x, w, b: ATEN.native_layer_norm.default(x, [4], w, b, 1e-5),
    "native_group_norm": lambda x, w, b: torch.native_group_norm(x, w, b, 3, 4, 4, 2, 1e-5),
    "native_batch_norm": lambda x, w, b: _normalize_batches(x, w, b, trains=True),
    "in evaluation": lambda x, w, b: _normalize_batches(x, w, b, trains=False),
    "_native_batch_norm_legit": lambda x, w, b: torch._native_batch_norm_legit(
        x, w, b, True, 0.1, 1e-5
    ),
    "_native_batch_norm_legit_functional": _update_functionally,
    "log_sigmoid_forward": lambda x, w, b: ATEN.log_sigmoid_forward(x * w),
    "_weight_norm_interface": lambda x, w, b: torch._weight_norm_interface(x, w[:3].view(3, 1, 1)),
    "native_dropout of nothing": lambda x, w, b: torch.native_dropout(x * w, 0.0, True),
    "native_dropout of all": lambda x, w, b: torch.native_dropout(x * w, 1.0, True),
    "flash attention": lambda x, w, b: ATEN._scaled_dot_product_flash_attention_for_cpu(
        x[:, None] * w, x[:, None], x[:, None]
    ),
    "multilabel_margin_loss_forward": lambda x, w, b: ATEN.multilabel_margin_loss_forward(
        x[0] * w, torch.tensor([[0, 2, -1, 0]] * 4), 1
    ),
    "nll_loss_forward": lambda x, w, b: ATEN.nll_loss_forward(
        x[0] * w, torch.tensor([0, 1, 2, 3]), None, 1, 1
    ),
    "_embedding_bag": lambda x, w, b: ATEN._embedding_bag(
        x[0] * w, torch.tensor([0, 1, 2]), torch.tensor([0, 1]), False, 1
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_beside_the_first_have_no_gradient(name):
    module, x = Scaled(CALLS[name]), torch.randn(3, 4, 4)
    net = ORTModule(copy.deepcopy(module))
    a, b = (x.clone().requires_grad_() for _ in range(2))
    wanted, found = module(a), net(b)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    wanted.backward()
    found.backward()
    torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4)
    assert_same_gradients(module, net)


def test_statistics_in_evaluation_have_no_elements():
    def shapes(x, w, b):
        y, mean, deviation = _normalize_batches(x, w, b, trains=False)
        assert mean.shape == deviation.shape == (0,)
        return y, mean, deviation

    class Plain(torch.nn.Module):
        def forward(self, x):
            return shapes(x, None, None)

    net = ORTModule(Plain())
    assert [tuple(r.shape) for r in net(torch.randn(3, 4, 4))] == [(3, 4, 4), (0,), (0,)]
