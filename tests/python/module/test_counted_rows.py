"""Losses that ignore labels, and heads that read one token: only rows that count are computed."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import steep  # noqa: E402

WORDS, WIDTH, IGNORED = 40, 16, -100


class Words(nn.Module):
    """A layer of attention and a head over words; ``loss`` is made of its scores."""

    def __init__(self, loss, dropout=0.0):
        super().__init__()
        self.loss = loss
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, labels):
        hidden = self.dropout(self.norm(self.layer(self.words(ids))))
        return self.loss(self.head(hidden), labels)


def mean(scores, labels):
    return F.cross_entropy(scores.view(-1, WORDS), labels.view(-1))


def by_hand(scores, labels):
    """The same, as nothing recognises it."""
    losses = F.cross_entropy(scores.view(-1, WORDS), labels.view(-1), reduction="none")
    return losses.sum() / (labels != IGNORED).sum()


def shifted(scores, labels):
    return F.cross_entropy(scores[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))


def padded(scores, labels):
    labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
    return F.cross_entropy(scores.float().view(-1, WORDS), labels.view(-1))


def classes_second(scores, labels):
    return F.cross_entropy(scores.transpose(1, 2), labels)


def likelihood(scores, labels):
    return F.nll_loss(F.log_softmax(scores, -1).view(-1, WORDS), labels.view(-1))


def weighted(scores, labels):
    weight = torch.linspace(0.5, 2, WORDS)
    return F.cross_entropy(scores.view(-1, WORDS), labels.view(-1), weight=weight)


def added(scores, labels):
    """A sum, of other ignored labels, and scores that another loss reads."""
    scores = scores.view(-1, WORDS)
    one = F.cross_entropy(scores, labels.view(-1), reduction="sum")
    labels = labels.view(-1).clamp(min=0)
    return one + F.cross_entropy(scores, labels, ignore_index=0) + scores.pow(2).mean()


def batch(counted, rows=4, length=30):
    ids = torch.randint(0, WORDS, (rows, length))
    labels = torch.where(torch.rand(rows, length) < counted, ids, torch.full_like(ids, IGNORED))
    return ids, labels


def gradients(run, module, inputs, seed=0):
    torch.manual_seed(seed)
    module.zero_grad()
    loss = run(*inputs)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def assert_close(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize(
    "loss",
    [mean, by_hand, shifted, padded, classes_second, likelihood, weighted, added],
    ids=lambda loss: loss.__name__,
)
def test_ignored_labels_change_nothing(loss):
    torch.manual_seed(0)
    module = Words(loss)
    ours = steep.ORTModule(module)
    for counted in (1.0, 0.15, 0.6, 0.0):
        inputs = batch(counted)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))


def test_dropout_drops_the_same_elements():
    torch.manual_seed(0)
    module, other = Words(mean, 0.3), Words(by_hand, 0.3)
    other.load_state_dict(module.state_dict())
    some, all_rows = steep.ORTModule(module), steep.ORTModule(other)
    for counted in (0.15, 0.5, 1.0):
        inputs = batch(counted)
        assert_close(gradients(some, module, inputs, 3), gradients(all_rows, other, inputs, 3))


def test_a_model_returns_all_scores_beside_its_loss():
    torch.manual_seed(0)
    module = Words(lambda scores, labels: (mean(scores, labels), scores))
    ours = steep.ORTModule(module)
    for counted in (0.15, 1.0):
        inputs = batch(counted)
        (got, got_scores), (want, want_scores) = ours(*inputs), module(*inputs)
        torch.testing.assert_close(got_scores, want_scores)
        torch.testing.assert_close(got, want)
        both = [
            torch.autograd.grad(loss + scores.sin().mean(), module.parameters())
            for loss, scores in ((got, got_scores), (want, want_scores))
        ]
        assert_close(*both)


@pytest.mark.parametrize(
    "token", [0, pytest.param(-1, marks=pytest.mark.matrix), slice(0, 1)], ids=str
)
def test_heads_that_read_one_token(token):
    torch.manual_seed(0)
    module = Words(lambda scores, labels: scores[:, token].flatten(1)[:, :5].pow(2).mean())
    ours = steep.ORTModule(module)
    for length in (7, 12):
        inputs = batch(1.0, length=length)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))


def attend(q, k, v, mask, dropout):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def attend_by_hand(q, k, v, mask, dropout):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    return F.dropout(scores.softmax(-1), dropout) @ v


def no_mask(ids):
    return None


def causal(ids):
    return torch.ones(ids.shape[1], ids.shape[1]).tril().bool()


def padding(ids):
    return (ids != 0)[:, None, None, :]


def causal_padding(ids):
    return causal(ids) & padding(ids)


class Classifier(nn.Module):
    """One token of attention over words. ``packed``: one product makes queries, keys, values."""

    def __init__(self, token, attend, mask, packed=False, batch_first=True, dropout=0.0):
        super().__init__()
        self.token, self.attend, self.mask, self.packed = token, attend, mask, packed
        self.batch_first, self.dropout = batch_first, dropout
        self.words = nn.Embedding(WORDS, WIDTH)
        widths = [3 * WIDTH] if packed else 3 * [WIDTH]
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, width) for width in widths)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def heads(self, x):
        if self.batch_first:
            return x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2)
        return x.view(x.shape[0], x.shape[1], 2, -1).permute(1, 2, 0, 3)

    def forward(self, ids, labels):
        x = self.words(ids if self.batch_first else ids.T)
        normal = self.first(x)
        made = [product(normal) for product in self.qkv]
        made = made[0].chunk(3, -1) if self.packed else made
        q, k, v = (self.heads(t) for t in made)
        y = self.attend(q, k, v, self.mask(ids), self.dropout if self.training else 0.0)
        y = y.transpose(1, 2) if self.batch_first else y.permute(2, 0, 1, 3)
        x = x + self.out(y.reshape(x.shape))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        hidden = x[:, self.token] if self.batch_first else x[self.token]
        return F.cross_entropy(self.head(hidden).view(-1, 3), labels[:, 0] % 3)


@pytest.mark.parametrize(
    "kind,token,mask,how",
    [
        ("separate", 0, no_mask, attend),
        ("separate", -1, causal_padding, attend),
        ("separate", -1, causal, attend_by_hand),
        ("packed", slice(2, 3), causal_padding, attend_by_hand),
        ("time first", 0, padding, attend),
        *(
            pytest.param(*more, marks=pytest.mark.matrix)
            for more in (
                ("separate", 0, causal, attend),
                ("separate", 0, padding, attend),
                ("separate", slice(2, 3), padding, attend_by_hand),
                ("packed", 0, padding, attend),
                ("time first", slice(2, 3), causal_padding, attend_by_hand),
            )
        ),
    ],
)
def test_queries_of_one_token(kind, token, mask, how):
    torch.manual_seed(0)
    module = Classifier(token, how, mask, kind == "packed", kind != "time first")
    ours = steep.ORTModule(module)
    for rows, length in ((4, 7), (4, 12), (3, 70)):
        ids = torch.randint(1, WORDS, (rows, length))
        ids[0, length // 2 :] = 0
        inputs = ids, torch.randint(0, 9, ids.shape)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))


def test_a_label_that_is_no_class_is_refused():
    module = Words(mean)
    ids, labels = batch(0.1)
    labels[2, 3] = WORDS
    with pytest.raises(IndexError, match=f"received: {WORDS}\n"):
        steep.ORTModule(module)(ids, labels)
