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


@pytest.mark.parametrize("token", [0, -1, slice(0, 1)], ids=str)
def test_heads_that_read_one_token(token):
    torch.manual_seed(0)
    module = Words(lambda scores, labels: scores[:, token].flatten(1)[:, :5].pow(2).mean())
    ours = steep.ORTModule(module)
    for length in (7, 12):
        inputs = batch(1.0, length=length)
        assert_close(gradients(ours, module, inputs), gradients(module, module, inputs))


def test_a_label_that_is_no_class_is_refused():
    module = Words(mean)
    ids, labels = batch(0.1)
    labels[2, 3] = WORDS
    with pytest.raises(IndexError, match=f"received: {WORDS}\n"):
        steep.ORTModule(module)(ids, labels)
