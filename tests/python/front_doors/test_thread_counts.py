"""A step gives the same bits with one thread and with two, and runs on older processors."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT

pytest.importorskip("torch")


# Sizes at which every kernel has work for two threads; odd ones, so that no split is even.
STEPS = """
import json, sys
sys.path[:0] = [{examples!r}]
import numpy as np, torch, steep
from torch import nn
from model import TransformerModel, causal_mask

front, threads, count, arrays = sys.argv[1:]
torch.set_num_threads(int(threads))
torch.manual_seed(0)
words, length, batch = 1501, 31, 9
model = TransformerModel(words, width=136, heads=4, hidden=272, dropout=0.2)
text, mask = torch.randint(0, words, (length, batch)), causal_mask(length)
target = torch.randint(0, words, (length * batch,))

def loss_of(scores, target):
    return nn.functional.cross_entropy(scores.view(-1, words), target)

losses = []
if front == "session":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = steep.trainer(model, loss_of, optimizer, clip_norm=0.5)
    for _ in range(int(count)):
        losses.append(float(trainer.step(text, mask, target)[0]))
    session = trainer.session
    found = {{**session.weights(), **session.optimizer_state()}}
    found = {{name: t.numpy() for name, t in found.items()}}
else:
    module = steep.ORTModule(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(count)):
        optimizer.zero_grad()
        loss = loss_of(module(text, mask), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    found = {{name: p.grad.numpy() for name, p in model.named_parameters()}}
np.savez(arrays, **{{name.replace("/", "."): a for name, a in found.items()}})
print(json.dumps(losses))
"""


@functools.cache
def steps(front, threads, *environment, count=3):
    """Losses of `count` steps, and the weights and moments (session) or gradients (module) then."""
    code = STEPS.format(examples=str(ROOT / "examples" / "transformer_lm"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        done = subprocess.run(
            [sys.executable, "-c", code, front, str(threads), str(count), str(path)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **dict(environment)},
        )
        assert done.returncode == 0, done.stderr
        with np.load(path) as arrays:
            return json.loads(done.stdout), {name: arrays[name] for name in arrays.files}


@pytest.mark.same_bits
@pytest.mark.parametrize("front", ["session", "module"])
def test_one_and_two_threads_give_the_same_bits(front):
    losses, arrays = steps(front, 1)
    again, same = steps(front, 2)
    assert losses == again
    assert len(arrays) > 20
    different = [name for name in arrays if arrays[name].tobytes() != same[name].tobytes()]
    assert different == []


@pytest.mark.parametrize("isa", [pytest.param("avx2", marks=pytest.mark.matrix), "sse4"])
def test_older_processors(isa):
    onednn = {"avx2": "AVX2", "sse4": "SSE41"}[isa]
    # One step: Adam's divides gradients by their size, and so the next one starts from weights that
    # differ wherever rounding decided a sign.
    losses, arrays = steps("session", 2, count=1)
    older = (("STEEP_MAX_ISA", isa), ("ONEDNN_MAX_CPU_ISA", onednn))
    old_losses, old = steps("session", 2, *older, count=1)
    np.testing.assert_allclose(old_losses, losses, rtol=1e-5)
    moments = [name for name in arrays if name.startswith("exp_avg.")]
    assert len(moments) > 10
    for name in moments:  # the gradients
        scale = np.abs(arrays[name]).max()
        np.testing.assert_allclose(old[name], arrays[name], rtol=0, atol=2e-4 * scale, err_msg=name)
