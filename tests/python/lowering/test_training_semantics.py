"""What a module says about gradients, and what ONNX has no operator for, survives the export."""

import copy
import io
import math
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from module_pairs import assert_same_gradients, seed  # noqa: E402, F401

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402

LABELS = torch.tensor([0, 1, 5, 2, 1])
IDS = torch.tensor([[0, 1, 2, 0], [3, 0, 4, 4]])


class Behind(torch.nn.Module):
    """A function behind a layer with weights."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.layer = layer or torch.nn.Linear(8, 6)
        self.function = function

    def forward(self, x, *others):
        return self.function(self.layer(x), *others)


def without_gradient(y):
    with torch.no_grad():
        scale = y.std(0)
        with torch.enable_grad():
            shift = y.mean(0)
    return y / scale - shift


@torch.no_grad()
def frozen(y):
    return y.tanh(), {"twice": 2 * y}


def uses_frozen(y):
    tanh, others = frozen(y)
    return y * tanh + others["twice"] * y


def reentrant(y):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda t: t.tanh() * t.detach(), y, use_reentrant=True)


def operators_without_gradient(y):
    with torch.no_grad():
        part, inverse, power, same, minus = y[:, :3], 1 / (y + 9), 2**y, y.contiguous(), -y
        changed = y.clone()
        changed[0] = 0
        changed += 1
        changed.clamp_(-1, 1)
    return part.sum(1, keepdim=True) * y + (inverse + power + same + minus + changed) * y


def changes_a_copy(y):
    t = y.detach().clone()
    t[0] = 0
    return t * y


STOPS = {
    "operators": operators_without_gradient,
    "a copy that changes": changes_a_copy,
    "detach": lambda y: y * y.detach(),
    "torch.detach": lambda y: y * torch.detach(input=y),
    "straight through": lambda y: y + (y.round() - y).detach(),
    "data": lambda y: y * y.data,
    "no_grad": without_gradient,
    "decorated": uses_frozen,
    "set_grad_enabled": lambda y: y * _switched(y),
    "checkpoint": reentrant,
    "of integers": lambda y: y[:, y.argmax(1).detach() % 6],
}


def _switched(y):
    torch.set_grad_enabled(False)
    z = y.exp()
    torch.set_grad_enabled(True)
    return z


def assert_same_as_torch(module, *args):
    net = ORTModule(copy.deepcopy(module))
    wanted, found = module(*args), net(*args)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn_like(wanted)
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    assert_same_gradients(module, net)


@pytest.mark.parametrize("name", STOPS)
def test_gradients_stop_where_the_module_stops_them(name):
    assert_same_as_torch(Behind(STOPS[name]), torch.randn(5, 8))


def test_hard_gumbel_softmax_has_the_soft_ones_gradient():
    net = ORTModule(Behind(lambda y: F.gumbel_softmax(y, hard=True)))
    y = net(torch.randn(5, 8))
    assert ((y.detach() == 0) | (y.detach() == 1)).all() and (y.sum(1) == 1).all()
    (y * torch.randn_like(y)).sum().backward()
    assert net.layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", [{}, {"weight": torch.arange(1.0, 7)}, {"ignore_index": 1}])
def test_cross_entropy_smooths_labels(options, reduction):
    def loss(y, t):
        return F.cross_entropy(y, t, reduction=reduction, label_smoothing=0.1, **options)

    assert_same_as_torch(Behind(loss), torch.randn(5, 8), LABELS)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_probabilities(smoothing, reduction):
    def loss(y, t):
        weight = torch.arange(1.0, 7)
        return F.cross_entropy(y, t, weight, reduction=reduction, label_smoothing=smoothing)

    target = torch.rand(5, 6).softmax(1)
    assert_same_as_torch(Behind(loss), torch.randn(5, 8), target)


def test_cross_entropy_over_places_and_of_one_row():
    def places(y, t):
        return F.cross_entropy(y.reshape(1, 6, 5), t[None], label_smoothing=0.1)

    def one(y, t):
        return F.cross_entropy(y[0], t[0], label_smoothing=0.1, size_average=False)

    for loss in (places, one):
        assert_same_as_torch(Behind(loss), torch.randn(5, 8), LABELS)


@pytest.mark.parametrize("padding", [0, 4, -2])
def test_an_embedding_learns_nothing_for_its_padding(padding):
    assert_same_as_torch(torch.nn.Embedding(6, 3, padding_idx=padding), IDS)


@pytest.mark.parametrize("axes", [2, 3])
def test_average_pools_divide_by_what_they_are_told(axes):
    pool, conv = (
        (torch.nn.AvgPool2d, torch.nn.Conv2d)
        if axes == 2
        else (torch.nn.AvgPool3d, torch.nn.Conv3d)
    )
    x = torch.randn(2, 1, *[8] * axes)
    for size in (2, (2,) * (axes - 1) + (3,)):
        net = Behind(pool(size, padding=1, divisor_override=3), conv(1, 2, 3))
        assert_same_as_torch(net, x)


def test_one_hot_of_a_class_that_is_none():
    module = Behind(lambda y, t: y * F.one_hot(t, 6))
    net = ORTModule(module, fallback=None)
    torch.testing.assert_close(net(ROWS, LABELS), module(ROWS, LABELS))
    for wrong in (6, -1):
        with pytest.raises(steep.DataError, match="out of range"):
            net(ROWS, torch.tensor([0, 1, wrong, 2, 1]))


def test_attention_of_fewer_axes():
    mask = torch.randn(2, 5, 5)

    def attend(y, *_):
        q = y.reshape(2, 5, 6)
        y = F.scaled_dot_product_attention(q, q.tanh(), q, mask)
        y = y + F.scaled_dot_product_attention(y, q, q, is_causal=True, scale=0.3)
        two = {"query": q[0], "key": y[1], "value": y[1], "attn_mask": mask[0] > -2}
        return y + F.scaled_dot_product_attention(**two)

    x = torch.randn(10, 8)
    assert_same_as_torch(Behind(attend), x)
    net = ORTModule(Behind(attend), fallback=None)
    net(x)
    assert net.report().whole


def test_attention_that_broadcasts_axes():
    def attend(y, *_):
        q = y.reshape(2, 5, 6)
        return F.scaled_dot_product_attention(q[0], q, q[:, :5].sin()) + q

    assert_same_as_torch(Behind(attend), torch.randn(10, 8))


def shut_out():
    """Return each shape in float32, and one in float64; the others are in the matrix."""
    for shape in ((5, 6), (2, 5, 6), (1, 2, 5, 6)):
        for shut in (None, -math.inf, torch.finfo(torch.float32).min):
            for dtype in (torch.float32, torch.float64):
                often = dtype == torch.float32 or len(shape) == 4
                yield pytest.param(shape, shut, dtype, marks=() if often else pytest.mark.matrix)


@pytest.mark.parametrize("shape,shut,dtype", [*shut_out()], ids=str)
def test_attention_to_nothing(shape, shut, dtype):
    """A row of which the mask leaves nothing is 0; a mean where the numbers are finite."""
    keep = torch.ones(5, 5).tril().bool()
    keep[[1, 3]] = False
    mask = keep if shut is None else torch.zeros(5, 5, dtype=dtype).masked_fill(~keep, shut)

    def attend(y, *_):
        q = y.reshape(shape)
        return F.scaled_dot_product_attention(q, q.tanh(), q.sin(), mask).reshape(y.shape)

    count = math.prod(shape) // 6
    # By its kernel for four axes PyTorch has gradients of a mean's row as many times as there are
    # keys: the row's sum is lost beside a number as large.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert_same_as_torch(Behind(attend).to(dtype), torch.randn(count, 8, dtype=dtype))


def test_attention_of_grouped_queries_without_batches():
    def attend(y, *_):
        q = y.reshape(4, 5, 6)
        return F.scaled_dot_product_attention(q, q[:2], q[2:].sin(), enable_gqa=True)

    assert_same_as_torch(Behind(attend), torch.randn(20, 8))


def test_attention_to_nothing_hides_no_nan():
    keep = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    module = Behind(lambda y: F.scaled_dot_product_attention(y[None, None], y, y, attn_mask=keep))
    x = torch.randn(3, 8)
    x[0] = math.nan
    torch.testing.assert_close(ORTModule(module)(x), module(x), equal_nan=True)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, dy):
        return dy


def hooked(y):
    z = 2 * y
    z.register_hook(lambda g: 3 * g)
    return z


class Teacher(torch.nn.Module):
    """Changes a parameter while it runs."""

    def __init__(self, change):
        super().__init__()
        self.layer, self.teacher = torch.nn.Linear(8, 6), torch.nn.Linear(8, 6)
        self.change = change

    def forward(self, x):
        with torch.no_grad():
            self.change(self.teacher.weight, self.layer.weight)
        return self.layer(x) * self.teacher(x)


def detaches(y):
    z = y * 2
    z.detach_()
    return z * y


def changes_detached(y):
    t = y.detach()
    t[0] = 0
    return t * y


def changes_a_part(y):
    with torch.no_grad():
        y[:2].mul_(2)
    return y


class WritesWithoutGradients(torch.nn.Module):
    """What is written where gradients are off has no history, whatever it is made of."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(3, 4))

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        with torch.no_grad():
            copied, part, out = x * 1, x * 1, torch.empty(3, 4)
            copied.copy_(y)
            part[0] = y[1]
            part += y
            part[:, 0] *= y[:, 1]
            row = part[2]  # a view: what is written there is in `part`
            row[1:3] = x[1, 1:3]
            row.t().mul_(3)
            torch.mul(x, self.layer.weight[0], out=out)
            out.lerp_(y, 0.5).addcmul_(y, y).index_add_(0, torch.tensor([0]), y[:1])
            self.average.mul_(0.5).add_(y, alpha=0.5)
        return y * copied + part * y + out * y + self.average * y


def test_what_is_written_without_gradients_hands_none_on():
    torch.manual_seed(0)
    module = WritesWithoutGradients()
    net = ORTModule(copy.deepcopy(module), fallback=None)
    for _ in range(2):
        x = torch.randn(3, 4)
        for m in (module, net):
            m.zero_grad()
            m(x).square().sum().backward()
        for ours, theirs in zip(net.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net.average, module.average)


ROWS = torch.randn(5, 8)
IMAGE = torch.randn(1, 2, 8, 8)
IN_PARTS = {
    "detach_": detaches,
    "detached": changes_detached,
    "Python's number": lambda y: random.random() * y,
    "NumPy's number": lambda y: float(np.random.rand()) * y,
    "straight through": StraightThrough.apply,
    "hook": hooked,
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_what_onnx_cannot_say_is_pytorchs(name):
    module = Behind(IN_PARTS[name])
    net = ORTModule(copy.deepcopy(module))
    for turn in range(2):
        for m in (module, net):
            random.seed(turn)
            np.random.seed(turn)
            m.zero_grad()
            y = m(ROWS)
            (y * torch.linspace(1, 2, y.numel()).view(y.shape)).sum().backward()
        assert_same_gradients(module, net)


IN_REGIONS = {
    "a part": lambda: Behind(changes_a_part),
    "data": lambda: Teacher(lambda p, q: p.data.mul_(0.9)),
    "a mean": lambda: Teacher(lambda p, q: p.mul_(0.9).add_(q, alpha=0.1)),
    "a copy": lambda: Teacher(lambda p, q: p.copy_(q)),
}


@pytest.mark.parametrize("name", IN_REGIONS)
def test_a_region_without_gradients_that_writes_is_pytorchs(name):
    module = IN_REGIONS[name]()
    net = ORTModule(copy.deepcopy(module))
    for _ in range(2):
        results = []
        for m in (module, net):
            m.zero_grad()
            y = m(ROWS)
            (y * torch.linspace(1, 2, y.numel()).view(y.shape)).sum().backward()
            results.append(y.detach())
        torch.testing.assert_close(*results)
        assert_same_gradients(module, net)
        for a, b in zip(module.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(a, b)


class WritesToAView(torch.nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write, self.layer = write, torch.nn.Linear(8, 8)
        self.register_buffer("state", torch.ones(8))

    def forward(self, x):
        s = self.state.detach()
        y = self.layer(x) * s.clone()
        self.write(s)
        return y, self.state


VIEWS = {
    "view": lambda s: s.view(-1).mul_(0.5),
    "part": lambda s: s[:2].fill_(3),
    "setitem": lambda s: s.view(2, 4).__setitem__(0, 2.0),
    "numpy": lambda s: s.numpy().__setitem__(slice(2), 0.5),
    "all of numpy": lambda s: s.view(2, 4).numpy().fill(0.5),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_a_view_of_what_is_detached_reaches_its_memory(name):
    module = WritesToAView(VIEWS[name])
    net = ORTModule(copy.deepcopy(module))
    for _ in range(2):
        results = []
        for m in (module, net):
            m.zero_grad()
            y, state = m(ROWS)
            y.square().sum().backward()
            results.append([y.detach(), state.clone()])
        torch.testing.assert_close(*results)
        assert_same_gradients(module, net)


LOST = [
    (torch.nn.Embedding(6, 8, scale_grad_by_freq=True), IDS, "scale_grad_by_freq"),
    (torch.nn.Embedding(6, 8, max_norm=1.0), IDS, "max_norm"),
    (
        torch.nn.EmbeddingBag(6, 8, mode="sum", scale_grad_by_freq=True),
        IDS,
        "scale_grad_by_freq",
    ),
    (torch.nn.EmbeddingBag(6, 8, max_norm=1.0), IDS, "max_norm"),
    (torch.nn.AvgPool2d(2, ceil_mode=True, divisor_override=3), IMAGE, "ceil_mode"),
    (torch.nn.Upsample(scale_factor=1.5, mode="nearest-exact"), IMAGE, "nearest-exact"),
]


@pytest.mark.parametrize("module, x, what", LOST)
def test_what_onnx_cannot_say_is_refused(module, x, what):
    with pytest.raises(steep.ModelError, match=what):
        ORTModule(module)(x)
    assert torch.autograd.Function.apply.__name__ == "apply"
    ORTModule(Behind(torch.tanh))(ROWS).sum().backward()


def test_the_cache_tells_a_detached_module_from_another(monkeypatch, tmp_path):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))
    x = torch.randn(5, 8)
    functions = [  # and whether another has left the same notes
        (lambda y: y * y, False),
        (STOPS["detach"], False),
        (STOPS["data"], True),
        (STOPS["no_grad"], False),
    ]
    for function, known in functions:
        for cached in (known, True):
            module = Behind(function)
            net = ORTModule(copy.deepcopy(module))
            net(x).sum().backward()
            module(x).sum().backward()
            assert_same_gradients(module, net)
            assert net.report().graphs[-1].cached == cached


def test_trainers_smooth_labels():
    torch.manual_seed(3)
    net = torch.nn.Linear(8, 6)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD(twin.parameters(), 0.5)
    trainer = steep.trainer(net, criterion, torch.optim.SGD(net.parameters(), 0.5))
    x = torch.randn(5, 8)
    for _ in range(3):
        loss, _ = trainer.step(x, LABELS)
        wanted = criterion(twin(x), LABELS)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        torch.testing.assert_close(loss, wanted.detach())


def test_a_file_keeps_where_gradients_stop():
    """The mark is metadata of an Identity, and outlives steep.grad."""
    text = """
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[3] x) => (float l) {
            y = Identity (x)
            z = Mul (x, y)
            l = ReduceSum <keepdims = 0> (z)
        }
    """
    model = onnx.parser.parse_model(text)
    x = np.array([1, 2, 3], np.float32)

    def slope(m):
        grad = steep.grad(m, wrt=["x"], outputs=["l"]).SerializeToString()
        session = steep.InferenceSession(grad)
        return grad, session.run(None, {"x": x})[-1]

    np.testing.assert_allclose(slope(model.SerializeToString())[1], 2 * x)
    model.graph.node[0].metadata_props.add(key="steep.stop_gradient")
    first, dx = slope(model.SerializeToString())
    np.testing.assert_allclose(dx, x)
    onnx.checker.check_model(onnx.load(io.BytesIO(first)), full_check=True)
    session = steep.InferenceSession(model.SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], (x * x).sum())


def test_other_threads_are_not_watched():
    """What is replaced while a module runs asks in which thread it is called."""
    from torch.utils.checkpoint import CheckpointFunction

    from steep.lowering.training_semantics import keep_semantics

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    def gradient():
        x = torch.ones(3, requires_grad=True)
        y = CheckpointFunction.apply(Twice.apply, True, x)
        y.sum().backward()
        return type(y.grad_fn).__name__, x.grad.tolist()

    with ThreadPoolExecutor(1) as pool:
        with keep_semantics():
            elsewhere = pool.submit(gradient).result(60)
            with pytest.raises(RuntimeError, match="the backward of Twice"):
                Twice.apply(torch.ones(3, requires_grad=True))
        assert elsewhere == ("CheckpointFunctionBackward", [2.0, 2.0, 2.0])
    assert gradient() == elsewhere
