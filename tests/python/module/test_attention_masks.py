"""Masks that hide blocks of attention's scores: windows, and documents packed into one sequence."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import steep  # noqa: E402

WORDS, WIDTH, HEADS = 40, 16, 2
LENGTH = 150  # more than two blocks, and an odd end


def documents(*lengths):
    """The number of each token's document."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


PACKED = [
    torch.stack([documents(150), documents(70, 80)]),
    torch.stack([documents(64, 64, 22), documents(*[1] * 150)]),
    torch.stack([documents(3, 147), documents(149, 1)]),
]


def of_documents(ids):
    return ids[:, None, :, None] == ids[:, None, None, :]


def causal(ids):
    place = torch.arange(ids.shape[1])
    return (place[:, None] >= place[None]) & of_documents(ids)


def window(ids):
    place = torch.arange(ids.shape[1])
    return causal(ids) & (place[:, None] - place[None] < 20)


def window_alone(ids):
    place = torch.arange(ids.shape[1])
    return ((place[:, None] - place[None]).abs() < 20)[None, None]


def truth(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def infinity(q, k, v, seen):
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    )


def lowest(q, k, v, seen):
    added = (~seen).float() * torch.finfo(torch.float32).min
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + added).softmax(-1) @ v


def filled(q, k, v, seen):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~seen, torch.finfo(torch.float32).min).softmax(-1) @ v


class Packed(nn.Module):
    def __init__(self, seen, attend):
        super().__init__()
        self.seen, self.attend = seen, attend
        self.words = nn.Embedding(WORDS, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, ids, labels):
        rows, length = words.shape
        q, k, v = (
            t.view(rows, length, HEADS, -1).transpose(1, 2)
            for t in self.qkv(self.words(words)).chunk(3, -1)
        )
        made = self.attend(q, k, v, self.seen(ids))
        scores = self.head(made.transpose(1, 2).reshape(rows, length, WIDTH))
        return F.cross_entropy(scores.view(-1, WORDS), labels.view(-1))


def gradients(model, module, inputs):
    loss = model(*inputs)
    return loss, torch.autograd.grad(loss, module.parameters())


@pytest.mark.parametrize("attend", [truth, infinity, lowest, filled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("seen", [of_documents, causal, window, window_alone])
def test_hidden_blocks_change_no_gradient(seen, attend):
    torch.manual_seed(0)
    module = Packed(seen, attend)
    ours = steep.ORTModule(module)
    for ids in PACKED:  # one graph: blocks differ from step to step
        words = torch.randint(0, WORDS, ids.shape)
        inputs = words, ids, torch.randint(0, WORDS, ids.shape)
        torch.testing.assert_close(
            gradients(ours, module, inputs), gradients(module, module, inputs), rtol=1e-5, atol=1e-6
        )


def test_documents_do_not_see_each_other():
    """The loss of packed documents is that of each of them alone, weighted by its length."""
    torch.manual_seed(0)
    module = Packed(causal, truth)
    ours = steep.ORTModule(module)
    ids = documents(70, 64, 16)[None]
    words = torch.randint(0, WORDS, ids.shape)
    labels = torch.randint(0, WORDS, ids.shape)
    loss, grads = gradients(ours, module, (words, ids, labels))
    parts = [
        module(words[:, ids[0] == d], ids[:, ids[0] == d], labels[:, ids[0] == d])
        * (ids == d).sum()
        for d in range(3)
    ]
    alone = sum(parts) / ids.numel()
    torch.testing.assert_close(loss, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        grads, torch.autograd.grad(alone, module.parameters()), rtol=1e-5, atol=1e-6
    )
