"""Which extents a second graph takes: at most one more for all lengths, images by what changes."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import steep  # noqa: E402


@pytest.fixture(autouse=True)
def start_anew():
    torch._dynamo.reset()  # it remembers, by lines of code, what varied


class Attended(nn.Module):
    """Rows of words, with a mask of four dimensions."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, words, mask):
        x = self.table(words)
        scores = (x @ x.transpose(1, 2)).unsqueeze(1) + mask
        return self.out((scores.softmax(-1) @ x.unsqueeze(1)).squeeze(1))


def words(rows, length):
    torch.manual_seed(rows * 100 + length)
    return torch.randint(20, (rows, length)), torch.randn(rows, 1, length, length)


def images(rows, height, width):
    torch.manual_seed(rows * 100 + height)
    return (torch.randn(rows, 3, height, width),)


def windows():
    """Cuts images into windows of 4 x 4, as Swin does."""
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Unfold(4, stride=4), nn.Flatten(2), nn.Tanh())


@pytest.mark.parametrize(
    ("make", "calls", "graphs"),
    [
        (Attended, [words(3, 5), words(2, 5), words(4, 7), words(2, 3)], 2),
        (windows, [images(3, 8, 8), images(2, 8, 8), images(4, 8, 8)], 2),
        (windows, [images(3, 8, 8), images(3, 8, 12), images(2, 8, 16)], 2),
        (windows, [images(3, 8, 8), images(2, 8, 8), images(2, 12, 8), images(4, 16, 8)], 3),
    ],
    ids=["lengths with a mask", "rows of images", "widths", "rows, then heights"],
)
def test_graphs_that_extents_take(make, calls, graphs):
    torch.manual_seed(0)
    net = make()
    module = steep.ORTModule(net)
    for given in calls:
        net.zero_grad()
        expected = net(*given)
        expected.square().sum().backward()
        gradients = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        found = module(*given)
        found.square().sum().backward()
        torch.testing.assert_close(found, expected)
        for p, gradient in zip(net.parameters(), gradients, strict=True):
            torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-4)
    assert module.report().whole and len(module.report().graphs) == graphs


def test_a_trainer_of_images_takes_any_number_of_rows():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    trainer = steep.trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), 0.1))
    for rows in (4, 3, 2, 5):
        trainer.step(*images(rows, 6, 6), torch.arange(rows) % 4)
    assert len(trainer.report().graphs) == 2
    trainer.step(*images(3, 8, 6), torch.arange(3))
    trainer.step(*images(4, 10, 6), torch.arange(4))
    assert len(trainer.report().graphs) == 3


class Crossed(nn.Module):
    def forward(self, x):
        return torch.cross(x, x.flip(1)) + x.flip(1).cross(x * x)


def test_the_axis_of_a_product_that_extents_decide():
    net = steep.ORTModule(Crossed())
    for rows in (5, 2, 3, 4):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(net(x), Crossed()(x))


# of floats [N, 4], integers [N + 3], and N
WITH_AN_EXTENT = {
    "add": lambda x, i, n: [i + n, x + n, n - i, torch.add(x, x, alpha=n)],
    "mul": lambda x, i, n: [i * n, x * n, (i > 0) * n],
    "div": lambda x, i, n: [i / n, x / n, n / (x.abs() + 1), i // n, x // n],
    "remainder": lambda x, i, n: [i % n, x % n, torch.fmod(i, n), x[i % n]],
    "rounded down": lambda x, i, n: [
        i * (-n // 4),
        x * -(-n // 4),
        x[: -(-n // 2)] * ((3 - n) // 2),
        torch.full((3,), n // -3),
        torch.arange(-n // 2, n),
    ],
    "pow": lambda x, i, n: [x.abs() ** n, n**x],
    "order": lambda x, i, n: [i == n - 1, i < n, x >= n],
    "clamp": lambda x, i, n: [i.clamp(0, n - 1), x.clamp_min(n)],
    "filled": lambda x, i, n: [
        i.masked_fill(i > 2, n),
        torch.full((3,), n),
        torch.where(i > 2, i, n),
    ],
    "ranges": lambda x, i, n: [torch.arange(n), torch.linspace(0, n, 4), torch.eye(n)],
    "tensors": lambda x, i, n: [torch.tensor(n) * i, torch.tensor([n, n + 1]) * i[:2]],
    "roll": lambda x, i, n: [x.roll(n // 2, 0), x.roll((n - 2, 1), (0, 1)), i.roll(n), x.roll(-n)],
    "bits": lambda x, i, n: i & n,
    "triangles": lambda x, i, n: x.tril(n - 4),
    "topk": lambda x, i, n: x.topk(min(3, n), 0)[0],
}


class WithAnExtent(torch.nn.Module):
    def forward(self, x, i):
        return [f(x, i, x.shape[0]) for f in WITH_AN_EXTENT.values()]


def test_extents_are_operands():
    ours = steep.ORTModule(WithAnExtent(), fallback=None)
    for rows in (5, 7, 9, 6):
        given = torch.randn(rows, 4), torch.arange(rows + 3) * 2 - 3
        for name, right, made in zip(
            WITH_AN_EXTENT, WithAnExtent()(*given), ours(*given), strict=True
        ):
            torch.testing.assert_close(made, right, msg=lambda m, name=name: f"{name}: {m}")
    assert len(ours.report().graphs) <= 2
