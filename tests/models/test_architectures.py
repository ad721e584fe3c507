"""Architectures of transformers train as PyTorch trains them, each as one graph in the engine.

Twenty small ones of all kinds, of one layer, two of them in every run of the tests, in which
test_models.py trains models of images and of masked words, and the others by `make test-all`;
scripts/architectures.py tries all that there are.
"""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "architectures.py"
spec = importlib.util.spec_from_file_location("architectures", SCRIPT)
architectures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(architectures)

CHOSEN = {
    "causal": ("gpt2", "llama", "opt", "mixtral", "phi"),
    "masked": ("bert", "distilbert", "fnet", "squeezebert"),
    "seq2seq": ("t5",),
    "sequence": ("electra", "distilbert"),
    "token": ("roberta", "distilbert"),
    "image": ("vit", "resnet", "poolformer", "deit", "clip", "beit"),
}


ALWAYS = {"gpt2", "llama"}


def chosen():
    for kind, names in CHOSEN.items():
        for name in names:
            yield pytest.param(kind, name, marks=() if name in ALWAYS else pytest.mark.matrix)


@pytest.mark.parametrize(("kind", "name"), chosen())
def test_trains_as_in_pytorch(kind, name, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", "off")
    for layers in architectures.LAYERS:
        monkeypatch.setitem(architectures.SMALL, layers, 1)
    threads = torch.get_num_threads()
    try:
        found = architectures.compare(kind, name)
    finally:
        torch.set_num_threads(threads)
        torch._dynamo.reset()  # the graphs of one model are of no use to another
    assert found["outcome"] == "agrees", found["why"]


def test_a_gradient_that_is_no_number_differs():
    net = torch.nn.Linear(2, 1)
    loss, true = torch.tensor(1.0), [torch.ones(1, 2), torch.ones(1)]
    nan = torch.full((1,), torch.nan)
    assert architectures.difference(net, (loss, true), (loss, true)) == ""
    assert "bias" in architectures.difference(net, (loss, [true[0], nan]), (loss, true))
    assert "bias" in architectures.difference(net, (loss, [true[0], None]), (loss, true))
    assert "loss" in architectures.difference(net, (nan[0], true), (loss, true))
