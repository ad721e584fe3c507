"""The example language model: it runs, stops on Ctrl-C, and resumes bit for bit.

`python tests/python/docs/test_demo.py` prints what belongs in tests/golden/transformer_lm.json.
"""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/transformer_lm.json"
MIRROR = ROOT / "build" / "release" / "mirror" / "libmirror.so"


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples/transformer_lm/train.py"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )


def finish(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def first_losses(**options):
    """Losses of the demo's model and optimizer, dropout on, for ten steps on made-up words."""
    sys.path.insert(0, str(ROOT / "examples/transformer_lm"))
    from model import TransformerModel, causal_mask

    import steep

    words, bptt, batch = 1000, 35, 20
    torch.manual_seed(1234)
    model = TransformerModel(words, dropout=0.2)
    trainer = steep.trainer(
        model,
        lambda scores, target: torch.nn.functional.cross_entropy(scores.view(-1, words), target),
        torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
        clip_norm=0.5,
        predictions=False,
        seed=1234,
        **options,
    )
    rng = random.Random(7)
    losses = []
    for _ in range(10):
        text = torch.tensor([int(words * rng.random() ** 3) for _ in range((bptt + 1) * batch)])
        text = text.view(bptt + 1, batch)
        losses.append(float(trainer.step(text[:-1], causal_mask(bptt), text[1:].reshape(-1))))
    return losses, trainer.dump()


def test_golden_losses_of_the_first_ten_steps():
    losses, _ = first_losses()
    assert losses == pytest.approx(json.loads(GOLDEN.read_text()), rel=1e-4)


@pytest.mark.matrix
def test_golden_losses_on_another_device():
    assert MIRROR.exists(), "examples/provider is not built: run `make build`"
    import steep

    losses, plan = first_losses(providers=[steep.register_provider(MIRROR)])
    assert losses == pytest.approx(json.loads(GOLDEN.read_text()), rel=1e-4)
    assert "[mirror]" in plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small text that has something to learn."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("text")
    for name, lines in (("train.txt", 250), ("test.txt", 40)):
        text = [
            " ".join(f"w{(rng.randrange(5) + 7 * i) % 60}" for i in range(rng.randrange(5, 20)))
            for _ in range(lines)
        ]
        (folder / name).write_text("\n".join(text))
    return folder


def metrics(out):
    with (out / "metrics.csv").open(newline="") as file:
        return [
            (r["step"], r["split"], r["loss"], r["learning_rate"]) for r in csv.DictReader(file)
        ]


SMALL = ["--epochs", 3, "--batch", 4, "--bptt", 16, "--minutes", 30]


@pytest.mark.matrix
def test_run_leaves_everything_and_resumes_bit_for_bit(folder, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    output = finish(start("--data", folder, "--out", whole, *SMALL))
    for name in ("checkpoint", "model.onnx", "metrics.csv", "tensorboard", "loss.png", "run.json"):
        assert (whole / name).exists(), output
    assert (whole / "loss.png").stat().st_size > 10_000
    assert any((whole / "tensorboard").iterdir())
    difference = float(output.rsplit("exported model: ", 1)[1].split()[0])
    assert difference < 1e-3
    rows = metrics(whole)
    valid = [float(loss) for _, split, loss, _ in rows if split == "valid"]
    assert len(valid) == 3 and valid[-1] < valid[0]

    process = start("--data", folder, "--out", parts, *SMALL)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if (parts / "metrics.csv").exists() and len(metrics(parts)) > 3:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert "resume with" in output
    stopped = metrics(parts)
    assert len(stopped) < len(rows) and stopped == rows[: len(stopped)]
    output = finish(start("--resume", "--out", parts))
    assert "resuming at step" in output
    assert metrics(parts) == rows


def test_bad_arguments(tmp_path):
    for arguments, text in (
        (["--data", tmp_path], "train.txt"),
        (["--resume", "--out", tmp_path], "nothing to resume"),
    ):
        process = start(*arguments)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 1
        assert text in output


if __name__ == "__main__":
    print(json.dumps(first_losses()[0]))
