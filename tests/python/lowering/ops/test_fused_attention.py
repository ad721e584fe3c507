"""Exported models: attention is one node, forward and backward, unless its weights are read."""

import sys

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from compiled_graphs import compiled_graph  # noqa: E402

import steep  # noqa: E402

sys.path.insert(0, str(ROOT / "examples" / "transformer_lm"))
from model import TransformerModel, causal_mask  # noqa: E402

WORDS, LENGTH, LAYERS = 50, 12, 2


def bert(**more):
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=WORDS,
            num_hidden_layers=LAYERS,
            hidden_size=32,
            num_attention_heads=2,
            intermediate_size=64,
            **more,
        )
    )


def gpt2(**more):
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS, n_layer=LAYERS, n_embd=32, n_head=2, n_positions=64, **more
        )
    )


def ids(*shape):
    return torch.randint(0, WORDS, shape, generator=torch.Generator().manual_seed(0))


class Logits(torch.nn.Module):
    """A language model's logits; with a mask of the words to look at, if there is one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words, mask=None):
        return self.model(input_ids=words, attention_mask=mask).logits


class Attentive(torch.nn.Module):
    """Two layers of attention, written out; returns the weights of the first one, too."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 96) for _ in range(LAYERS))

    def forward(self, x):
        kept = []
        for layer in self.layers:
            q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in layer(x).chunk(3, -1))
            weights = (q @ k.transpose(-1, -2) * 0.25).softmax(-1)
            x = x + (weights @ v).transpose(1, 2).flatten(2)
            kept.append(weights)
        return x, kept[0]


def count(text, op):
    return sum(f"= {op}(" in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("masked", "make"),
    [
        (False, gpt2),
        (True, bert),
        *(pytest.param(*more, marks=pytest.mark.matrix) for more in ((False, bert), (True, gpt2))),
    ],
)
def test_every_layer_is_one_node(make, masked):
    torch.manual_seed(0)
    net = steep.ORTModule(Logits(make()))
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, LENGTH // 2 :] = 0
    net(ids(2, LENGTH), *([mask] if masked else [])).sum().backward()
    text = compiled_graph(net).dump()
    assert count(text, "steep.Attention") == LAYERS
    assert count(text, "steep.AttentionGrad") == LAYERS
    assert count(text, "Softmax") == count(text, "steep.SoftmaxGrad") == 0


def test_weights_that_are_returned_are_made():
    torch.manual_seed(0)
    model = Attentive()
    net = steep.ORTModule(model, fallback=None)
    x = torch.randn(2, LENGTH, 32)
    found = net(x)
    (found[0].sum() + found[1].square().sum()).backward()
    text = compiled_graph(net).dump()
    # The other layer's weights are nobody's.
    assert count(text, "steep.Attention") == count(text, "steep.AttentionGrad") == LAYERS - 1
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


def test_a_masked_batch_trains_as_in_pytorch():
    torch.manual_seed(0)
    model = Logits(bert(hidden_dropout_prob=0, attention_probs_dropout_prob=0))
    net = steep.ORTModule(model)
    words, mask = ids(3, LENGTH), torch.ones(3, LENGTH, dtype=torch.int64)
    mask[1, 3:] = 0
    mask[2, 7:] = 0
    found = {}
    for runner in (model, net):
        model.zero_grad()
        out = runner(words, mask)
        (out.square() * mask[..., None]).sum().backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found[runner] = (out.detach(), grads)
    torch.testing.assert_close(found[net][0], found[model][0], rtol=1e-4, atol=1e-4)
    for name, wanted in found[model][1].items():
        scale = float(wanted.abs().max()) + 1e-3
        torch.testing.assert_close(found[net][1][name], wanted, rtol=0, atol=1e-4 * scale, msg=name)


def test_the_example_with_a_mask_as_an_argument():
    torch.manual_seed(0)
    model = TransformerModel(WORDS)
    net = steep.ORTModule(model)
    net(ids(LENGTH, 2), causal_mask(LENGTH)).sum().backward()
    text = compiled_graph(net).dump()
    assert count(text, "steep.Attention") == count(text, "steep.AttentionGrad") == 2


@pytest.mark.parametrize("make", [bert, pytest.param(gpt2, marks=pytest.mark.matrix)])
def test_the_trainer_s_step_too(make):
    torch.manual_seed(0)
    model = Logits(make())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    criterion = lambda logits, labels: torch.nn.functional.cross_entropy(  # noqa: E731
        logits.flatten(0, 1), labels.flatten()
    )
    trainer = steep.trainer(model, criterion, optimizer)
    words = ids(2, LENGTH)
    trainer.step(words, words)
    text = trainer.dump()
    assert count(text, "steep.Attention") == count(text, "steep.AttentionGrad") == LAYERS
