"""Language models against PyTorch: first loss, every gradient, a hundred AdamW steps."""

import copy
import sys

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from steep import ORTModule  # noqa: E402

sys.path.insert(0, str(ROOT / "examples" / "transformer_lm"))
from model import TransformerModel, causal_mask  # noqa: E402

SMALL = {"layers": 2, "width": 64, "heads": 4, "words": 211, "batch": 2, "length": 16}
FULL = {"layers": 4, "width": 512, "heads": 8, "words": None, "batch": 8, "length": 128}


def bert(size):
    config = transformers.BertConfig(
        num_hidden_layers=size["layers"],
        hidden_size=size["width"],
        num_attention_heads=size["heads"],
        intermediate_size=4 * size["width"],
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        **({"vocab_size": size["words"]} if size["words"] else {}),
    )
    return transformers.BertForMaskedLM(config), config.vocab_size


def gpt2(size):
    config = transformers.GPT2Config(
        n_layer=size["layers"],
        n_embd=size["width"],
        n_head=size["heads"],
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        **({"vocab_size": size["words"], "n_positions": 64} if size["words"] else {}),
    )
    return transformers.GPT2LMHeadModel(config), config.vocab_size


def t5(size):
    config = transformers.T5Config(
        num_layers=size["layers"],
        d_model=size["width"],
        d_kv=size["width"] // size["heads"],
        d_ff=4 * size["width"],
        num_heads=size["heads"],
        vocab_size=size["words"],
        dropout_rate=0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config), config.vocab_size


def batch(words, size, seed):
    g = torch.Generator().manual_seed(seed)
    shape = (size["batch"], size["length"])
    ids = torch.randint(0, words, shape, generator=g)
    labels = torch.randint(0, words, shape, generator=g)
    labels[:, ::3] = -100
    return ids, labels


def compare_gradients(torch_net, net, loss_of):
    """Every gradient within 1e-4 of its largest entry.

    Some have no true entries: a key's bias shifts all scores alike, which softmax ignores. What
    PyTorch gives for them is rounding, and ours must be as near to the gradient in float64.
    """
    unlike = {}
    for (name, p), q in zip(torch_net.named_parameters(), net.parameters(), strict=True):
        if p.grad is None:
            assert q.grad is None, name
            continue
        bound = 1e-4 * max(float(p.grad.abs().max()), 1e-7)
        if float((p.grad - q.grad).abs().max()) > bound:
            unlike[name] = (p.grad, q.grad)
    assert all(name.endswith("key.bias") for name in unlike), list(unlike)
    if unlike:
        exact = copy.deepcopy(torch_net).double()
        exact.zero_grad()
        loss_of(exact).backward()
        for name, p in exact.named_parameters():
            if name in unlike:
                theirs, ours = (float((g - p.grad).abs().max()) for g in unlike[name])
                assert ours <= theirs, name


def compare(torch_net, net, loss_of, batches, steps, lr=1e-3):
    """Loss within 1e-5, gradients within 1e-4 of their largest entry, later losses within 1e-3."""
    optimizers = [torch.optim.AdamW(m.parameters(), lr=lr) for m in (torch_net, net)]
    for step in range(steps):
        losses = []
        for m, optimizer in zip((torch_net, net), optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(m, batches[step % len(batches)])
            loss.backward()
            losses.append(float(loss.detach()))
        if step == 0:
            assert losses[1] == pytest.approx(losses[0], rel=1e-5)
            compare_gradients(torch_net, net, lambda m: loss_of(m, batches[0]))
        assert losses[1] == pytest.approx(losses[0], abs=1e-3, rel=1e-3), step
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("make", [bert, pytest.param(gpt2, marks=pytest.mark.matrix)])
@pytest.mark.parametrize(
    "size, steps", [(SMALL, 100), pytest.param(FULL, 100, marks=pytest.mark.slow)]
)
def test_transformers(make, size, steps):
    torch.manual_seed(0)
    torch_net, words = make(size)
    torch_net.train()
    net = ORTModule(copy.deepcopy(torch_net))
    batches = [batch(words, size, seed) for seed in range(4)]
    compare(
        torch_net, net, lambda m, b: m(input_ids=b[0], labels=b[1]).loss, batches, steps, lr=3e-4
    )
    # another batch and length, by one capture more; the same weights, since a hundred steps apart
    # rounding has moved them
    net.load_state_dict(torch_net.state_dict())
    ids, labels = (t[:1, :9] for t in batches[0])
    expected, result = (m(input_ids=ids, labels=labels) for m in (torch_net, net))
    torch.testing.assert_close(result.logits, expected.logits, rtol=1e-3, atol=1e-3)
    net(input_ids=batches[0][0][:3, :11])
    assert len(net.report().graphs) <= 3 and net.report().whole


@pytest.mark.parametrize("make", [bert, gpt2, pytest.param(t5, marks=pytest.mark.matrix)])
def test_padding_is_not_learned_from(make):
    torch.manual_seed(0)
    torch_net, words = make(SMALL)
    torch_net.train()
    net = ORTModule(copy.deepcopy(torch_net))
    ids, labels = batch(words, SMALL, 0)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    padded = (ids * mask, labels.masked_fill(mask == 0, -100))
    options = {"attention_mask": mask, **({} if make is bert else {"use_cache": False})}

    def loss_of(m, b):
        return m(input_ids=b[0], labels=b[1], **options).loss

    compare(torch_net, net, loss_of, [padded], steps=2)
    assert net.report().whole


def test_tutorial_model():
    torch.manual_seed(0)
    torch_net = TransformerModel(307, width=32, hidden=48, dropout=0.0)
    net = ORTModule(copy.deepcopy(torch_net))
    criterion = torch.nn.CrossEntropyLoss()

    def loss_of(m, b):
        source, target = b
        return criterion(m(source, causal_mask(len(source))).view(-1, 307), target)

    def words(length, n=5):
        return torch.randint(0, 307, (length, n)), torch.randint(0, 307, (length * n,))

    compare(torch_net, net, loss_of, [words(12) for _ in range(3)], steps=100)
    for length, n in ((12, 3), (7, 5), (12, 5)):
        b = words(length, n)
        torch.testing.assert_close(loss_of(net, b), loss_of(torch_net, b), rtol=1e-4, atol=1e-4)
    # a mask is an input: another one is obeyed
    source, _ = words(12)
    mask = torch.zeros(12, 12)
    torch.testing.assert_close(net(source, mask), torch_net(source, mask), rtol=1e-3, atol=1e-3)
    for m in (torch_net, net):
        m.eval()
    torch.testing.assert_close(
        net(source, causal_mask(12)), torch_net(source, causal_mask(12)), rtol=1e-3, atol=1e-3
    )


def test_key_value_cache_is_not_silently_wrong():
    torch_net, words = gpt2(SMALL)
    net = ORTModule(torch_net)
    ids, labels = batch(words, SMALL, 0)
    result = net(input_ids=ids, labels=labels, use_cache=False)
    assert result.logits.shape == (*ids.shape, words)
