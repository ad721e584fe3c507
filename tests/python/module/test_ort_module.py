"""ORTModule is the module that it wraps: same numbers, same names, same habits."""

import copy
import dataclasses
import pickle

import pytest

torch = pytest.importorskip("torch")

from compiled_graphs import compiled_graph  # noqa: E402
from module_pairs import (  # noqa: E402
    Net,
    assert_close,
    assert_same_gradients,
    pair,
    seed,  # noqa: F401
)

from steep import ORTModule  # noqa: E402


def test_forward_and_gradients():
    torch_net, net = pair(Net())
    x = torch.randn(4, 6)
    expected, result = torch_net(x), net(x)
    assert_close(result, expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    assert_same_gradients(torch_net, net)
    assert net.report().graphs[-1].exporter == "dynamo"


def test_other_sizes_are_one_more_graph():
    torch_net, net = pair(Net())
    for shape in [(4, 6), (7, 6), (1, 6), (4, 6)]:
        x = torch.randn(shape)
        assert_close(net(x), torch_net(x))
    assert len(net.report().graphs) <= 3  # of these extents, of any, of one row


def test_first_batch_of_one():
    torch_net, net = pair(Net())
    for n in (1, 5, 1, 3):
        x = torch.randn(n, 6)
        assert_close(net(x), torch_net(x))
    assert len(net.report().graphs) <= 2


def test_training_loop_with_a_torch_optimizer():
    torch_net, net = pair(Net())
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (torch_net, net)]
    for _ in range(20):
        x, y = torch.randn(5, 6), torch.randn(5, 3)
        losses = []
        for m, o in zip((torch_net, net), optimizers, strict=True):
            o.zero_grad()
            loss = torch.nn.functional.mse_loss(m(x), y)
            loss.backward()
            o.step()
            losses.append(loss.detach())
        assert_close(*losses, rtol=1e-4)


def test_accumulation_and_two_forwards_before_a_backward():
    torch_net, net = pair(Net())
    a, b = torch.randn(4, 6), torch.randn(2, 6)
    for m in (torch_net, net):
        first, second = m(a), m(b)
        first.sum().backward()
        (second * 3).sum().backward()
        m(a).mean().backward()
    assert_same_gradients(torch_net, net)


def test_one_backward_through_two_forwards():
    torch_net, net = pair(Net())
    a, b = torch.randn(4, 6), torch.randn(2, 6)
    for m in (torch_net, net):
        (m(a).sum() * m(b).sum()).backward()
    assert_same_gradients(torch_net, net)


def test_dropped_forwards_cost_nothing():
    _, net = pair(Net())
    x = torch.randn(4, 6)
    for _ in range(50):
        net(x)
    net(x).sum().backward()
    assert net.first.weight.grad is not None


def test_retain_graph_and_refusal_without():
    torch_net, net = pair(Net())
    x = torch.randn(4, 6)
    for m in (torch_net, net):
        loss = m(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert_same_gradients(torch_net, net)


def test_input_changed_before_backward_is_noticed():
    _, net = pair(Net())
    x = torch.randn(4, 6)
    loss = net(x).sum()
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_of_inputs():
    torch_net, net = pair(Net())
    x = torch.randn(4, 6)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch_net(a).sum().backward()
    net(b).sum().backward()
    assert_close(b.grad, a.grad)
    assert_same_gradients(torch_net, net)
    net(x).sum().backward()  # and without: another graph
    assert len(net.report().graphs) == 2


def test_gradient_reaches_what_comes_before():
    before = torch.nn.Linear(6, 6)
    before_copy = copy.deepcopy(before)
    torch_net, net = pair(Net())
    x = torch.randn(4, 6)
    torch_net(before(x)).sum().backward()
    net(before_copy(x)).sum().backward()
    assert_close(before_copy.weight.grad, before.weight.grad)


def test_frozen_parameters():
    torch_net, net = pair(Net())
    x = torch.randn(4, 6)
    net(x).sum().backward()
    for m in (torch_net, net):
        m.zero_grad()
        m.first.requires_grad_(False)
        m(x).sum().backward()
    assert net.first.weight.grad is None
    assert_same_gradients(torch_net, net)
    assert len(net.report().graphs) == 2
    for m in (torch_net, net):
        m.requires_grad_(False)
    assert not net(x).requires_grad


def test_eval_and_no_grad():
    torch_net, net = pair(Net(dropout=0.5))
    x = torch.randn(50, 6)
    for m in (torch_net, net):
        m.eval()
    assert_close(net(x), torch_net(x))
    with torch.no_grad():
        assert_close(net(x), torch_net(x))
        assert not net(x).requires_grad
    with torch.inference_mode():
        assert_close(net(x).clone(), torch_net(x).clone())
    net(x).sum().backward()  # gradients in eval mode
    torch_net(x).sum().backward()
    assert_same_gradients(torch_net, net)
    net.train()
    assert not torch.equal(net(x), net(x))


def test_dropout_is_dropout():
    net = ORTModule(torch.nn.Dropout(0.25))
    x = torch.ones(1000, 100, requires_grad=True)
    y = net(x)
    kept = y != 0
    assert abs(kept.float().mean() - 0.75) < 0.01
    assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    y.sum().backward()
    assert_close(x.grad, y.detach())  # the same mask in backward
    torch.manual_seed(7)
    first = net(x)
    second = net(x)
    torch.manual_seed(7)
    assert torch.equal(net(x), first)
    assert not torch.equal(first, second)


def test_two_forwards_keep_their_own_masks():
    net = ORTModule(torch.nn.Dropout(0.5))
    x = torch.ones(100, requires_grad=True)
    first, second = net(x), net(x)
    (g1,) = torch.autograd.grad(first.sum(), x)
    (g2,) = torch.autograd.grad(second.sum(), x)
    assert_close(g1, first.detach())
    assert_close(g2, second.detach())


def test_state_dict_under_original_names():
    torch_net, net = pair(Net())
    assert list(net.state_dict()) == list(torch_net.state_dict())
    assert [n for n, _ in net.named_modules()] == [n for n, _ in torch_net.named_modules()]
    x = torch.randn(2, 6)
    net(x)
    other = Net()
    net.load_state_dict(other.state_dict())
    assert_close(net(x), other(x))
    net.load_state_dict(Net().state_dict(), assign=True)
    assert_close(net(x), net.module(x))
    assert "Net" in repr(net)


def test_parameters_that_move():
    _, net = pair(Net())
    x = torch.randn(2, 6)
    net(x)
    net.second.weight.data = torch.randn(3, 8)
    assert_close(net(x), net.module(x))
    net.second.bias = torch.nn.Parameter(torch.randn(3))
    assert_close(net(x), net.module(x))
    net.scale.fill_(5)
    assert_close(net(x), net.module(x))
    net.scale = torch.tensor(7.0)
    assert_close(net(x), net.module(x))


def test_no_copies():
    _, net = pair(Net())
    x = torch.randn(4, 6)
    weight = net.first.weight
    before = weight.data_ptr()
    net(x).sum().backward()
    assert weight.data_ptr() == before
    with torch.no_grad():
        weight.zero_()  # in place: the engine reads the same bytes
        net.first.bias.zero_()
    assert_close(net(x), net.module(x))


def test_pickle_and_deepcopy():
    _, net = pair(Net())
    x = torch.randn(2, 6)
    expected = net(x)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert_close(twin(x), expected)
        assert twin.first.weight.data_ptr() != net.first.weight.data_ptr()


def test_attributes_reach_the_module():
    class Switch(torch.nn.Module):
        factor = 1.0

        def forward(self, x):
            return x * self.factor

        def twice(self):
            return 2 * self.factor

    net = ORTModule(Switch())
    x = torch.ones(3)
    assert net.twice() == 2
    assert net(x).sum() == 3
    net.factor = 4.0
    assert net.module.factor == 4
    assert net(x).sum() == 12
    with pytest.raises(AttributeError):
        net.nothing  # noqa: B018


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    extra: dict
    none: None = None


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x, mask=None, *, power=2, pair=None, flag=False):
        y = self.linear(x)
        if mask is not None:
            y = y * mask
        if pair is not None:
            y = y + pair["a"] - pair["b"][0]
        if flag:
            y = -y
        return Result(loss=(y**power).mean(), extra={"y": y, "n": 3, "both": (y + 1, [y * 2])})


def test_keywords_none_primitives_and_nested_results():
    torch_net, net = pair(Nested())
    x, mask = torch.randn(4, 3), torch.rand(4, 3)
    ab = {"a": torch.randn(4, 3), "b": [torch.randn(3)]}
    calls = [
        ((x,), {}),
        ((x, mask), {}),
        ((x,), {"mask": mask}),
        ((x,), {"mask": None, "power": 3}),
        ((x,), {"pair": ab, "flag": True}),
    ]
    for args, kwargs in calls:
        expected, result = torch_net(*args, **kwargs), net(*args, **kwargs)
        assert type(result) is Result
        assert result.none is None and result.extra["n"] == 3
        assert_close(result.loss, expected.loss)
        assert_close(result.extra["both"][1][0], expected.extra["both"][1][0])
        (expected.loss + expected.extra["y"].sum()).backward()
        (result.loss + result.extra["y"].sum()).backward()
    assert_same_gradients(torch_net, net)
    exports = len(net.report().graphs)
    for args, kwargs in calls:
        net(*args, **kwargs)
    assert len(net.report().graphs) == exports


def test_absent_output_gradients_get_their_own_program():
    torch_net, net = pair(Nested())
    x = torch.randn(4, 3)
    for use in (
        lambda r: r.loss,
        lambda r: r.extra["y"].sum(),
        lambda r: r.loss * r.extra["y"].sum(),
    ):
        for m in (torch_net, net):
            use(m(x)).backward()
    assert_same_gradients(torch_net, net)
    assert compiled_graph(net).engine_graph.program.program_count == 3


def test_non_contiguous_inputs_and_gradients():
    torch_net, net = pair(Net())
    for m in (torch_net, net):
        m(torch.arange(24.0).reshape(6, 4).t()).t()[0].sum().backward()
        m(torch.ones(1, 6).expand(5, 6)).sum().backward()
        m(torch.arange(48.0).reshape(4, 12)[:, ::2]).mean().backward()
    assert_same_gradients(torch_net, net)


def test_what_is_copied_for_the_engine_may_be_written_to_before_backward():
    class Whole(Net):
        def forward(self, x):
            return super().forward(x.contiguous())  # of which PyTorch keeps the copy, too

    torch_net, net = pair(Whole())
    for m in (torch_net, net):
        base = torch.arange(48.0).reshape(4, 12)
        y = m(base[:, ::2])
        base.zero_()
        y.sum().backward()
    assert_same_gradients(torch_net, net)


def test_integer_results_are_not_differentiable():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 5)

        def forward(self, x):
            y = self.linear(x)
            return y, y.argmax(-1), x * 2

    net = ORTModule(Two())
    y, index, doubled = net(torch.randn(4, 3))
    assert index.dtype == torch.int64 and not index.requires_grad
    assert not doubled.requires_grad
    y.sum().backward()


def test_unused_parameter_has_no_gradient():
    class Unused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    torch_net, net = pair(Unused())
    x = torch.randn(2, 3)
    for m in (torch_net, net):
        m(x).sum().backward()
    assert_same_gradients(torch_net, net)


def test_tied_weights():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(11, 4)
            self.decoder = torch.nn.Linear(4, 11, bias=False)
            self.decoder.weight = self.embedding.weight

        def forward(self, ids):
            return self.decoder(self.embedding(ids))

    torch_net, net = pair(Tied())
    ids = torch.randint(0, 11, (3, 5))
    for m in (torch_net, net):
        m(ids).square().sum().backward()
    assert_same_gradients(torch_net, net)
