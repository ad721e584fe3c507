"""Views of memory, and writes through them, are what they are in PyTorch."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from steep import ModelError, ORTModule  # noqa: E402


class Scaled(torch.nn.Module):
    """A function of a tensor that is made within."""

    def __init__(self, function):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 48).reshape(6, 8))
        self.function = function

    def forward(self, x):
        return self.function(x * self.weight[:, : x.shape[1]], x)


def computed(module, x):
    x = x.clone().requires_grad_()
    y = module(x)
    (y * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).sum().backward()
    return y.detach(), x.grad, module.weight.grad


def check(function, x):
    module = Scaled(function)
    ours = computed(ORTModule(copy.deepcopy(module)), x)
    for mine, theirs in zip(ours, computed(module, x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def x_of(columns=8):
    return torch.randn(6, columns, generator=torch.Generator().manual_seed(0))


def written(view, write):
    """Write through a view, then read the whole."""

    def function(y, x):
        write(view(y), x)
        return y * x

    return function


def fill(view, x):
    view[1:3] = 0.0


def overlapping(y, x):
    return y.reshape(3, 2, 8).as_strided((5, 2, 8), (8, 8, 1))


def read_late(view):
    def function(y, x):
        seen = view(y)
        y[:, :4] = 0.0
        return seen * 2

    return function


STRIDED = {
    "in order": lambda y, x: y.as_strided((3, 4), (8, 1)),
    "offset": lambda y, x: y.as_strided((3, 4), (8, 1), 1),
    "overlapping": overlapping,
    "of a transposed tensor": lambda y, x: y.t().as_strided((3, 4), (8, 1)),
    "of a permuted tensor, overlapping": lambda y, x: (
        y.reshape(6, 2, 4).transpose(0, 1).as_strided((2, 5, 2, 4), (4, 8, 8, 1))
    ),
    "of rows": lambda y, x: y[1:].as_strided((3, 4), (8, 1), 9),
}


@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_means_memory(name):
    check(STRIDED[name], x_of())


def test_as_strided_over_gaps_is_refused():
    with pytest.raises(ModelError, match="as_strided of a tensor with gaps"):
        check(lambda y, x: y[:, 2:].as_strided((3, 4), (8, 1)), x_of())


def test_strides_of_other_extents():
    module = Scaled(lambda y, x: y.as_strided((3, 4), y.stride()))
    wrapped = ORTModule(copy.deepcopy(module))
    for columns in (8, 5):
        torch.testing.assert_close(wrapped(x_of(columns)), module(x_of(columns)))


THROUGH_A_SLICE = {
    "the tensor": written(lambda y: y, fill),
    "a slice": written(lambda y: y[1:4, 2:], lambda v, x: v.mul_(x[1:4, 2:])),
    "a slice, added": written(lambda y: y[1:4], lambda v, x: v.__iadd__(x[:3])),
    "a row": written(lambda y: y[2], lambda v, x: v.copy_(x[0])),
    "a mask in a slice": written(lambda y: y[:3], lambda v, x: v.masked_fill_(x[:3] > 0, -1.0)),
    "indices in a slice": written(
        lambda y: y[1:], lambda v, x: v.index_add_(0, torch.tensor([0, 2]), x[:2])
    ),
}
THROUGH_A_VIEW = {
    "view": written(lambda y: y.view(2, 24).view(6, 8), fill),
    "transpose": written(lambda y: y.t(), fill),
    "flatten": written(lambda y: y.flatten(), fill),
    "narrow": written(lambda y: y.narrow(0, 1, 4), fill),
    "expand": written(lambda y: y.expand(6, 8), fill),
    "sum_to_size": written(lambda y: y.sum_to_size(6, 8), fill),
    "einsum": written(lambda y: torch.einsum("ij->ji", y), fill),
    "einsum, implicit": written(lambda y: torch.einsum("...ba", [y]), fill),
    "einsum of lists": written(lambda y: torch.einsum(y, [0, ...], [..., 0]), fill),
    "einsum, a diagonal": written(lambda y: torch.einsum("ii->i", y[:4, :4]), fill),
    "einsum, a sum": written(lambda y: torch.einsum("ij->i", y), fill),
    "meshgrid": written(lambda y: torch.meshgrid(y[0], indexing="xy")[0], fill),
    "broadcast_tensors": written(lambda y: torch.broadcast_tensors(y, y[0])[0], fill),
    "atleast_1d": written(lambda y: torch.atleast_1d(y[2, 1]), lambda v, x: v.zero_()),
    "atleast_2d": written(lambda y: torch.atleast_2d(y[2]), lambda v, x: v.copy_(x[:1])),
    "atleast_3d": written(lambda y: torch.atleast_3d([y[0], y])[1], fill),
    "type_as": written(lambda y: y.type_as(y[0]), fill),
    "channel_shuffle": written(lambda y: F.channel_shuffle(y.view(6, 8, 1), 1), fill),
    "split": written(lambda y: y.tensor_split(2)[0], lambda v, x: v.mul_(x[:3])),
    "slice by mask": written(lambda y: y[:3], lambda v, x: v.__setitem__(x[:3] > 0, -1.0)),
    "slice by index": written(
        lambda y: y[1:], lambda v, x: v.index_put_((torch.tensor([0, 2]),), x[:2])
    ),
    "late slice": read_late(lambda y: y[1:3]),
    "late meshgrid": lambda y, x: (
        (
            torch.meshgrid(y[0], x[0], x[1, :2], indexing="xy"),
            y[0].mul_(2),
        )[0][0]
        * 3
    ),
    "late sibling": lambda y, x: (y[1:3], y[1:3].zero_())[0] * x[:2],
}


def double(view, x):
    view.mul_(2)


# Elements share places in memory, or some have none: functional forms of these views do not invert.
THROUGH_WINDOWS = {
    "a row of an expanded row": written(lambda y: y[:1].expand(6, 8)[2], double),
    "a number of an expanded row": written(lambda y: y[1].broadcast_to(3, 8)[2, 1], double),
    "windows with gaps": written(lambda y: y.unfold(1, 2, 3), double),
    "windows that leave a rest": written(lambda y: y.unfold(dimension=1, size=3, step=3), double),
    "windows of windows": written(lambda y: y.unfold(0, 2, 4).unfold(1, 2, 2), double),
    "one of windows that overlap": written(lambda y: y.unfold(1, 3, 2)[:, 1], double),
    "a row of strides that overlap": written(lambda y: y.as_strided((3, 8), (4, 1))[1], double),
    "a row of a slice of expanded rows": written(lambda y: y[:1].expand(6, 8)[2:4][0], double),
}


@pytest.mark.parametrize("name", THROUGH_WINDOWS)
def test_a_write_through_windows_reaches_what_they_show(name):
    check(THROUGH_WINDOWS[name], x_of())


class Beside(torch.nn.Module):
    """A function of the argument, beside a layer."""

    def __init__(self, function):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.function = function

    def forward(self, x):
        return self.layer(x), self.function(x)


def test_a_write_to_a_row_of_an_expanded_argument_reaches_all_rows():
    eager = Beside(lambda x: x[0].mul_(2))
    wrapped = ORTModule(copy.deepcopy(eager))
    for make in (x_of, lambda: x_of()[:1].expand(6, 8), x_of):
        given = make(), make()
        for net, x in zip((eager, wrapped), given, strict=True):
            net(x)
        torch.testing.assert_close(*given)


@pytest.mark.parametrize(
    "dropout",
    [
        lambda x: F.dropout(x, 0.1, False),
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, training=False, inplace=True),
        lambda x: F.dropout1d(x[None], training=False)[0],
        lambda x: F.dropout2d(x[None], training=False)[0],
        F.alpha_dropout,
        lambda x: F.feature_alpha_dropout(x, 0.5, False),
        torch.nn.Dropout(0.5).eval(),
        torch.nn.Dropout3d(0.5).eval(),
    ],
)
def test_the_result_of_a_dropout_that_drops_nothing_is_its_argument(dropout):
    for make in (lambda m: m, ORTModule):
        x = x_of() if not isinstance(dropout, torch.nn.Dropout3d) else x_of().view(2, 3, 1, 1, 8)
        kept = make(Beside(dropout))(x)[1]
        kept.zero_()
        assert not x.any()


@pytest.mark.parametrize("name", THROUGH_A_SLICE)
def test_a_write_reaches_what_it_is_a_slice_of(name):
    check(THROUGH_A_SLICE[name], x_of())


@pytest.mark.parametrize("name", THROUGH_A_VIEW)
def test_a_write_through_a_view_reaches_all_that_share_its_memory(name):
    check(THROUGH_A_VIEW[name], x_of())


def test_a_view_that_is_written_may_be_read():
    def function(y, x):
        view = y.transpose(0, 1)
        view[1:3] = x[:2, :6] ** 2
        return view * 2

    check(function, x_of())


def test_what_drops_nothing_is_its_argument():
    check(written(lambda y: F.dropout(y, 0.1, False), fill), x_of())


class Written(torch.nn.Module):
    """Writes into its argument."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        x[:, 0] = y.detach()[:, 0]
        return y, x


def test_an_argument_that_is_written_without_gradients_keeps_its_history():
    torch.manual_seed(0)
    eager = Written()
    leaf = torch.randn(3, 4)
    found = []
    for net in (eager, ORTModule(copy.deepcopy(eager), fallback=None)):
        start = leaf.clone().requires_grad_()
        given = start * 2
        with torch.no_grad():
            y, x = net(given)
        x.square().sum().backward()
        found.append([y, given.detach(), start.grad])
    for right, value in zip(*found, strict=True):
        torch.testing.assert_close(value, right)


class Clipped(torch.nn.Module):
    """Keeps a weight within bounds, where autograd does not look."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x).tanh()
        self.second.weight.data.clamp_(-0.3, 0.3)
        return self.second(y)


def test_what_data_is_written_to_is_unseen_by_autograd():
    torch.manual_seed(0)
    eager = Clipped()
    ours = ORTModule(copy.deepcopy(eager))
    for rows in (3, 5, 4):
        x = torch.randn(rows, 4)
        for net in (eager, ours):
            net.zero_grad()
            net(x).square().sum().backward()
        for p, q in zip(eager.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(q, p)
            torch.testing.assert_close(q.grad, p.grad)


def test_longformer_learns_as_in_pytorch():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LongformerConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        attention_window=[8],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=1,
    )
    module = transformers.LongformerModel(config, add_pooling_layer=False)
    wrapped = ORTModule(copy.deepcopy(module))
    ids = torch.randint(2, 50, (2, 24))
    results = [m(input_ids=ids).last_hidden_state for m in (wrapped, module)]
    for result in results:
        (result * torch.linspace(-1, 2, result.numel()).reshape(result.shape)).sum().backward()
    torch.testing.assert_close(*results, rtol=1e-5, atol=2e-6)
    theirs = dict(module.named_parameters())
    for name, parameter in wrapped.named_parameters():
        if theirs[name].grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-4)


IN_PLACE = {
    "celu": lambda v: F.celu(v, 0.5, inplace=True),
    "dropout of all": lambda v: F.dropout(v, 1.0, True, True),
    "elu": lambda v: F.elu(v, 0.5, True),
    "hardsigmoid": lambda v: F.hardsigmoid(input=v, inplace=True),
    "hardswish": lambda v: F.hardswish(v, True),
    "hardtanh": lambda v: F.hardtanh(v, -0.5, 0.5, True),
    "leaky_relu": lambda v: F.leaky_relu(v, 0.5, True),
    "mish": torch.nn.Mish(inplace=True),
    "relu": torch.nn.ReLU(inplace=True),
    "rrelu": lambda v: F.rrelu(v, inplace=True),
    "selu": torch.nn.SELU(inplace=True),
    "silu": torch.nn.SiLU(inplace=True),
    "threshold": lambda v: F.threshold(v, 0.1, -3.0, True),
    "__iadd__": lambda v: v.__iadd__(1),
    "operator": lambda v: torch.ops.aten.mul_.Tensor(v, v.detach().clone()),
    "operator, packet": torch.ops.aten.tanh_,
}


def both(write, layer, x):
    y = layer(x)
    return write(y), y[:2], y


def of_an_argument(write, layer, x):
    return layer(x), write(x), x[1]


def of_a_slice_of_it(write, layer, x):
    return layer(x), write(x[:3])


def of_what_is_detached(write, layer, x):
    y = layer(x)
    return write(y.detach()), y


def beside_what_is_detached(write, layer, x):
    y = layer(x)
    return write(y * 1), torch.ops.aten.detach.default(y) * y + torch.ops.aten.detach(y) * y


def without_gradients(write, layer, x):
    y = layer(x)
    with torch.no_grad():
        write(y)
    return y * x, y


class Writes(torch.nn.Module):
    """A layer and what writes, as a function has it."""

    def __init__(self, function, write):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.function, self.write = function, write

    def forward(self, x):
        return self.function(self.write, self.layer, x)


WRITERS = (
    *(both, of_an_argument, of_a_slice_of_it, of_what_is_detached),
    *(beside_what_is_detached, without_gradients),
)
BY_EACH = {"relu", "operator"}  # a module, and an operator


def writes():
    """Return each write by one function, and two of them by each; the others are in the matrix."""
    for name in IN_PLACE:
        for function in WRITERS:
            often = function is both or name in BY_EACH
            yield pytest.param(function, name, marks=() if often else pytest.mark.matrix)


@pytest.mark.parametrize("function,name", [*writes()])
def test_what_is_asked_to_work_in_place_writes_once(function, name):
    torch.manual_seed(0)
    eager = Writes(function, IN_PLACE[name])
    found = []
    for net in (eager, ORTModule(copy.deepcopy(eager))):
        start = x_of().requires_grad_(function is not of_an_argument)
        x = start * 1
        results = net(x)
        parts = [r.square().sum() for r in results if r.requires_grad]
        try:
            sum(parts).backward()
        except RuntimeError as e:  # the engine can do more: it keeps what was there before
            assert net is eager and "modified by an inplace operation" in str(e)
            return
        values = [r.detach() for r in results]
        found.append([*values, x.detach(), start.grad, *(p.grad for p in net.parameters())])
    for right, value in zip(*found, strict=True):
        torch.testing.assert_close(value, right)


def shifted(y, x):
    y[1:] += y[:-1]
    return y


def moved(y, x):
    y[1:] = y[:-1]
    return y


def copied(y, x):
    y[:3].copy_(y[1:4])
    return y


def picked(y, x):
    y[[0, 1]] = y[1:3]
    return y


@pytest.mark.parametrize("function", [shifted, moved, copied, picked])
def test_a_write_to_a_part_of_what_it_reads_raises_as_in_pytorch(function):
    for module in (Scaled(function), ORTModule(Scaled(function))):
        with pytest.raises(RuntimeError, match="single memory location"):
            module(x_of())


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y[1:].add_(y[1:]),
        lambda y, x: y[:2].add_(y[2:4]),
        lambda y, x: torch.cat([y[1:].mul_(2), y[:-1].clone()]),
    ],
)
def test_a_write_beside_what_it_reads_is_pytorchs(function):
    check(function, x_of())


def test_each_call_looks_whether_arguments_share_memory():
    """Memory of the same addresses is shared in some calls only: its extents and strides differ."""

    class Writes(torch.nn.Module):
        def forward(self, x, y):
            x.mul_(2)
            return x.sum() + (y * y).sum()

    memory = torch.arange(24.0)
    apart = memory[:6].view(2, 3), memory[6:12].view(2, 3)
    columns = memory.view(6, 4)[:, :1], memory.view(6, 4)[:, 1:2]
    crossing = memory[:12].view(6, 2)[:, :1], memory[1:7].view(6, 1)
    calls = [apart, apart, crossing, columns, apart, (memory[:6].view(2, 3),) * 2, apart]
    module = ORTModule(Writes(), fallback="parts")
    for call in calls:
        before = memory.clone()
        expected = Writes()(*call)
        written = memory.clone()
        memory.copy_(before)
        torch.testing.assert_close(module(*call), expected)
        torch.testing.assert_close(memory, written)
