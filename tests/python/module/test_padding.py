"""Tokens that masks hide are left out, and nothing changes by it."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import steep  # noqa: E402

WORDS, WIDTH, HEADS, IGNORED = 40, 16, 2, -100
ROWS, LENGTH = 6, 24  # more than are computed anyway


def lengths(*given):
    """A mask of sequences of these lengths."""
    return (torch.arange(LENGTH) < torch.tensor(given)[:, None]).long()


def holes():
    mask = lengths(24, 20, 9, 3, 16, 1)
    mask[:, 2:7:2] = 0
    mask[1, :4] = 0
    return mask


MASKS = {
    "none padded": lengths(*[LENGTH] * ROWS),
    "ragged": lengths(24, 5, 9, 3, 12, 1),
    "padded in front": lengths(24, 5, 9, 3, 12, 1).flip(1),
    "holes": holes(),
    "a sequence without tokens": lengths(24, 0, 9, 3, 0, 1),
    "one token": lengths(0, 0, 0, 1, 0, 0),
    "all padded": lengths(*[0] * ROWS),
}


class Layer(nn.Module):
    """Attention as models spell it out; ``hide`` makes the mask of scores from that of tokens."""

    def __init__(self, hide, dropout=0.0):
        super().__init__()
        self.hide, self.dropout = hide, dropout
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x, mask):
        rows, length, _ = x.shape
        q, k, v = (
            t.view(rows, length, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        made = self.hide(q, k, v, mask, self.dropout if self.training else 0.0)
        x = self.first(x + self.out(made.transpose(1, 2).reshape(rows, length, WIDTH)))
        hidden = F.dropout(F.gelu(self.up(x)), self.dropout, self.training)
        return self.second(x + self.down(hidden))


def by_truth(q, k, v, mask, dropout):
    shown = mask.bool()[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown, dropout_p=dropout)


def by_infinity(q, k, v, mask, dropout):
    added = torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout)


def by_hand(q, k, v, mask, dropout):
    added = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + added
    return F.dropout(scores.softmax(-1), dropout) @ v


def filled(q, k, v, mask, dropout):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(torch.float32).min)
    return F.dropout(scores.softmax(-1), dropout) @ v


def causal(q, k, v, mask, dropout):
    before = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    shown = mask.bool()[:, None, None, :] & before
    return F.scaled_dot_product_attention(q, k, v, attn_mask=shown, dropout_p=dropout)


def causal_by_hand(q, k, v, mask, dropout):
    before = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    shown = mask.bool()[:, None, None, :] & before
    added = torch.zeros(shown.shape).masked_fill(~shown, torch.finfo(torch.float32).min)
    return F.dropout((q @ k.transpose(-1, -2) + added).softmax(-1), dropout) @ v


def softly(q, k, v, mask, dropout):
    """Hides by so little that what is hidden counts."""
    added = (1.0 - mask[:, None, None, :].float()) * -2.0
    return F.dropout((q @ k.transpose(-1, -2) + added).softmax(-1), dropout) @ v


def shown_again(q, k, v, mask, dropout):
    """Hides padding, and shows some of it again."""
    added = torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)[:, None, None, :]
    again = (torch.arange(LENGTH) % 5 == 0) & (mask == 0)
    scores = (q @ k.transpose(-1, -2) + added).masked_fill(again[:, None, None, :], 0.5)
    return scores.softmax(-1) @ v


HIDERS = [by_truth, by_infinity, by_hand, filled, causal, causal_by_hand, softly, shown_again]


class Layers(nn.Module):
    def __init__(self, read, hide, dropout=0.0, layers=2):
        super().__init__()
        self.read = read
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer(hide, dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, mask, labels):
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x, mask)
        return self.read(self, x, mask, labels)


def labelled(module, x, mask, labels):
    return F.cross_entropy(module.head(x).view(-1, WORDS), labels.view(-1))


def shifted(module, x, mask, labels):
    scores = module.head(x)[:, :-1].reshape(-1, WORDS)
    return F.cross_entropy(scores, labels[:, 1:].reshape(-1))


def first_token(module, x, mask, labels):
    return F.cross_entropy(module.head(x[:, 0]), labels[:, 0].clamp(min=0))


def first_token_bare(module, x, mask, labels):
    return x[:, 0].pow(2).mean()


def all_tokens(module, x, mask, labels):
    return module.head(x).pow(2).mean()


def real_tokens(module, x, mask, labels):
    weight = mask.float()[..., None]
    return (module.head(x) * weight).pow(2).sum() / weight.sum().clamp(min=1)


def labels_and_all(module, x, mask, labels):
    scores = module.head(x)
    return F.cross_entropy(scores.view(-1, WORDS), labels.view(-1)) + scores[:, 3:].mean()


READERS = [
    labelled,
    shifted,
    first_token,
    first_token_bare,
    all_tokens,
    real_tokens,
    labels_and_all,
]


def batch(mask, counted, anywhere=False):
    ids = torch.randint(0, WORDS, mask.shape)
    counts = torch.rand(mask.shape) < counted
    if not anywhere:
        counts &= mask.bool()
    return ids, mask, torch.where(counts, ids, torch.full_like(ids, IGNORED))


def gradients(run, module, inputs, seed=0):
    torch.manual_seed(seed)
    module.zero_grad()
    loss = run(*inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def assert_close(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6, equal_nan=True)


def left_out(capfd):
    """Whether tokens are left out of the graphs made since, as the log says."""
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[rows]")]
    assert told
    return any("left out" in line for line in told)


@pytest.fixture(autouse=True)
def rows_log():
    steep.set_logs("rows")
    yield
    steep.set_logs("")


@pytest.mark.parametrize("hide", HIDERS, ids=lambda hide: hide.__name__)
def test_hidden_tokens_change_nothing(hide):
    torch.manual_seed(0)
    module = Layers(labelled, hide)
    ours = steep.ORTModule(module)
    for mask in MASKS.values():
        for anywhere in (False, True):
            inputs = batch(mask, 0.4, anywhere)
            assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_whatever_reads_what_is_made(read, capfd):
    torch.manual_seed(0)
    module = Layers(read, by_truth)
    ours = steep.ORTModule(module)
    for mask in MASKS.values():
        inputs = batch(mask, 0.6)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))
    assert left_out(capfd) == (read in {labelled, shifted, first_token, first_token_bare})


class Encoder(nn.Module):
    """PyTorch's own layers, which work on transposed batches."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, mask, labels):
        x = self.encoder(self.words(ids), src_key_padding_mask=mask == 0)
        return F.cross_entropy(self.head(x).view(-1, WORDS), labels.view(-1))


class Translation(nn.Module):
    """An encoder that only a decoder reads; its attention is masked twice."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.Transformer(WIDTH, HEADS, 1, 1, 32, dropout=0.0, batch_first=True)

    def forward(self, ids, mask, labels):
        hidden = mask == 0
        x = self.layers(
            self.words(ids),
            self.words(ids[:, :7]),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return self.head(x).logsumexp(-1).mean()


@pytest.mark.parametrize("kind", [Encoder, Translation])
def test_layers_of_pytorch(kind, capfd):
    torch.manual_seed(0)
    module = kind()
    ours = steep.ORTModule(module)
    for name in ("ragged", "holes", "none padded"):
        inputs = batch(MASKS[name], 0.6)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))
    assert left_out(capfd)


def test_dropout_drops_the_same_elements():
    def dense(module, x, mask, labels):
        return labelled(module, x, mask, labels) + 0 * x.sum()

    torch.manual_seed(0)
    some, every = Layers(labelled, by_truth, 0.3), Layers(dense, by_truth, 0.3)
    every.load_state_dict(some.state_dict())
    ours, other = steep.ORTModule(some), steep.ORTModule(every)
    for name in ("ragged", "holes"):
        inputs = batch(MASKS[name], 0.6)
        assert_close(gradients(ours, some, inputs, 3), gradients(other, every, inputs, 3))


def test_few_plans_for_many_masks(capfd):
    steep.set_logs("recompiles")
    torch.manual_seed(0)
    module = Layers(first_token, by_truth)
    ours = steep.ORTModule(module)
    for count in range(1, LENGTH, 2):
        inputs = batch(lengths(*[count] * ROWS), 1.0)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))
    assert 4 <= 1 + capfd.readouterr().err.count("planned again") <= 8
