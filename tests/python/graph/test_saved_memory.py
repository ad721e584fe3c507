"""What is written between forward and backward: backward reads what forward read, as in PyTorch.

Each way of handing a tensor on is captured once, and each way of writing to that tensor, or to what
came out, follows a call before its backward. Gradients are those of PyTorch, or both raise.
"""

import copy
import itertools

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from capture_patterns import WIDTH, Fn  # noqa: E402
from patterns import assert_same  # noqa: E402

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402

ROWS = 4


def zeros_by_dlpack(x):
    torch.from_dlpack(x.detach()).zero_()


def set_data(x):
    x.data = torch.zeros_like(x.data)


WRITES = {
    "nothing": lambda x: None,
    "in place": lambda x: x.zero_(),
    "a row": lambda x: x[0].mul_(3),
    ".data": lambda x: x.data.mul_(2),
    "NumPy": lambda x: x.detach().numpy().fill(3),
    "set_": lambda x: x.data.set_(torch.zeros_like(x.data)),
    "data": set_data,
    "DLPack": zeros_by_dlpack,
    "copy_": lambda x: x.copy_(torch.ones_like(x)),
    "optimizer": lambda x: x.sub_(x.detach() * 0.5),
}

# PyTorch's backward does not read what these are given.
COPIES = {
    "clone": lambda x: x.clone(),
    "clone of a view": lambda x: x.t().clone().t(),
    "clone of a slice": lambda x: torch.cat([x[:1].clone(), x[1:].clone()]),
    "detach, clone": lambda x: x.detach().clone(),
    "clone, detach": lambda x: x.clone().detach(),
    ".data, clone": lambda x: x.data.clone(),
    "deepcopy": lambda x: torch.empty_like(x).copy_(x),
    "contiguous, turned": lambda x: x.t().contiguous().t(),
    "plus 0": lambda x: x + 0.0,
    "times 1": lambda x: x * 1,
    "minus 0": lambda x: x - 0,
    "by 1": lambda x: x / 1,
    "to the same, a copy": lambda x: x.to(torch.float32, copy=True),
    "there and back": lambda x: x.double().float(),
    "view of a clone": lambda x: x.clone().view(-1).view(ROWS, WIDTH),
    "reshape, turned": lambda x: x.t().reshape(-1).view(WIDTH, ROWS).t(),
    "cat of one": lambda x: torch.cat([x]),
    "stack of one": lambda x: torch.stack([x])[0],
    "where": lambda x: torch.where(torch.ones(1, dtype=torch.bool), x, 0.0),
    "repeat": lambda x: x.repeat(1, 1),
    "padded by 0": lambda x: F.pad(x, (0, 0)),
    "selected": lambda x: x.index_select(0, torch.arange(ROWS)),
    "rows": lambda x: x[torch.arange(ROWS)],
    "flipped twice": lambda x: x.flip(0).flip(0),
    "rolled": lambda x: x.roll(1, 0),
    "minus twice": lambda x: x.neg().neg(),
    "sum of one": lambda x: x.unsqueeze(0).sum(0),
    "mean of one": lambda x: x.unsqueeze(0).mean(0),
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "silu of a sum": lambda x: F.silu(x + 1),
    "softmax": lambda x: torch.softmax(x, -1),
    "cumsum": lambda x: x.cumsum(0),
    "sorted": lambda x: x.sort(0)[0],
    "tril": lambda x: x.tril(),
    "written clone": lambda x: x.clone().mul_(2),
}

# It reads it here, be it beside a copy.
KEPT = {
    "itself": lambda x: x,
    "contiguous": lambda x: x.contiguous(),
    "to the same": lambda x: x.to(torch.float32),
    "view": lambda x: x.view(-1).view(ROWS, WIDTH),
    "Identity": torch.nn.Identity(),
    "square": lambda x: x.square(),
    "gelu": F.gelu,
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "largest": lambda x: x.amax(0) + x * 0.5,
    "itself and a clone": lambda x: x * 2 + x.clone().square(),
    "a product with a clone": lambda x: x * x.clone(),
}


def outcome(m, xs, write, chosen, to_result):
    """Return the gradients of a call before whose backward something is written, or an error."""
    leaves = [x.clone().requires_grad_() for x in xs]
    given = [leaf.clone() for leaf in leaves]
    m.zero_grad()
    results = m(*given)
    with torch.no_grad():
        for t in results[1::2] if to_result else given:
            write(t)
    try:
        sum(r.sum() for r in results[chosen]).backward()
    except RuntimeError as e:
        return e
    return [*(leaf.grad for leaf in leaves), *(p.grad for p in m.parameters())]


def forward(m, *xs):
    results = []
    for x, copied in zip(xs, m.copies, strict=True):
        y = copied(x)
        results += [torch.tanh(m.layer(y)), (y + m.layer.bias).sin()]
    return tuple(results)


def pair(copies):
    torch.manual_seed(0)
    torch_net = Fn(forward, copies=copies)
    return ORTModule(copy.deepcopy(torch_net)), torch_net


# gradients come from all results, then from others: forward has to run again
CHOSEN = [slice(None), slice(0, None, 2), slice(1, None, 2)]


# The others by `make patterns`.
ALWAYS = ["clone", "detach, clone", "deepcopy", "plus 0", "times 1", "contiguous, turned", "tanh"]
OTHERS = [form for form in COPIES if form not in ALWAYS]


@pytest.mark.parametrize("forms", [ALWAYS, pytest.param(OTHERS, marks=pytest.mark.patterns)])
def test_backward_reads_what_forward_read(forms):
    nets = pair([COPIES[form] for form in forms])
    for (name, write), to_result in itertools.product(WRITES.items(), (False, True)):
        xs = [torch.randn(ROWS, WIDTH) for _ in forms]
        for chosen in CHOSEN:
            found, expected = (outcome(m, xs, write, chosen, to_result) for m in nets)
            assert not isinstance(expected, Exception)
            for form, a, b in zip([*forms, "weight", "bias"], found, expected, strict=True):
                try:
                    assert_same([a], [b])
                except AssertionError as e:
                    raise AssertionError(f"{name} after {form}, {chosen}: {e}") from e


class Queue(torch.nn.Module):
    """As of MoCo: what is new is written to the queue in forward, by another graph or by Python."""

    def __init__(self, write):
        super().__init__()
        self.layer, self.write = torch.nn.Linear(WIDTH, WIDTH), write
        self.register_buffer("queue", torch.randn(WIDTH, 8))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        q = torch.tanh(self.layer(x))
        y = q @ self.queue.clone()
        p = int(self.at)
        self.write(self, q, p)
        return y, q


def write_data(m, q, p):
    m.queue.data[:, p : p + ROWS] = q.detach().t()
    m.at.data.add_(ROWS)


@torch.no_grad()
def write_slice(m, q, p):
    m.queue[:, p : p + ROWS] = q.t()


@pytest.mark.parametrize("write", [write_data, write_slice])
def test_a_queue_that_forward_writes(write):
    torch_net = Queue(write)
    net = ORTModule(copy.deepcopy(torch_net))
    for _ in range(2):
        x = torch.randn(ROWS, WIDTH)
        for m in (torch_net, net):
            m.zero_grad()
            m(x)[0].square().sum().backward()
        assert_same([p.grad for p in net.parameters()], [p.grad for p in torch_net.parameters()])
        assert_same([net.queue], [torch_net.queue])


def second_gradient(m, x, write):
    """Return gradients of gradients, where something is written before the first ones."""
    given = (leaf := x.clone().requires_grad_()).clone()
    y = m(given)[0].square().sum()
    with torch.no_grad():
        write(given)
    (first,) = torch.autograd.grad(y, leaf, create_graph=True)
    return torch.autograd.grad(first.square().sum(), leaf)


@pytest.mark.parametrize("of", ["argument", "parameter", "part"])
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_memory_that_was_freed_is_not_read(of, when):
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    ours, memory = ORTModule(net), torch.randn(4, 4)
    x = memory[1:] if of == "part" else memory
    y = ours(x).sum()
    freed = net[2].weight if of == "parameter" else memory
    size, values = freed.untyped_storage().nbytes(), freed.detach().clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(steep.DataError, match="no memory"):
        ours(x) if when == "forward" else y.backward()
    freed.untyped_storage().resize_(size)
    freed.data.copy_(values)
    torch.testing.assert_close(ours(x), net(x))


def test_second_derivatives_know_what_was_written_at_first():
    net, _ = pair([COPIES["clone"]])
    with pytest.raises(steep.DataError, match="changed since"):
        second_gradient(net, torch.randn(ROWS, WIDTH), WRITES[".data"])


def test_second_derivatives_know_what_was_written():
    net, torch_net = pair([COPIES["plus 0"]])
    x, quiet = torch.randn(ROWS, WIDTH), WRITES["nothing"]
    for write in ("in place", ".data", "NumPy", "DLPack", "optimizer"):  # at first, and later
        assert_same(second_gradient(net, x, quiet), second_gradient(torch_net, x, quiet))
        with pytest.raises(steep.DataError, match="changed since"):
            second_gradient(net, x, WRITES[write])


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_in_place_is_checked(name):
    nets = pair([KEPT[name]])
    xs = [torch.randn(ROWS, WIDTH)]
    for write in WRITES.values():
        for chosen in CHOSEN[:2]:
            found, expected = (outcome(m, xs, write, chosen, False) for m in nets)
            if isinstance(expected, Exception):
                assert "modified by an inplace operation" in str(found)
                continue
            unwritten = outcome(nets[1], xs, WRITES["nothing"], chosen, False)
            if all(torch.equal(a, b) for a, b in zip(expected, unwritten, strict=True)):
                assert_same(found, expected)  # else PyTorch reads what nobody can see was written
