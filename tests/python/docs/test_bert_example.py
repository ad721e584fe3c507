"""The example that pre-trains BERT: its rows, its steps, and a run that goes on."""

import copy
import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from checkout import ROOT

for package in ("torch", "transformers", "tokenizers", "tqdm"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

import torch  # noqa: E402

FOLDER = ROOT / "examples" / "bert_pretraining"
SHORT = ["--steps", "3", "2", "--lengths", "32", "48", "--rows", "4", "4", "--save-every", "2"]


@pytest.fixture(scope="module")
def example():
    """The example's files as modules, under names that other tests use too."""
    names = ("prepare", "rows", "picture", "train")
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(FOLDER))
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(FOLDER))
    for name, module in before.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


@pytest.fixture(scope="module")
def prepare(example):
    return example["prepare"]


@pytest.fixture(scope="module")
def rows(example):
    return example["rows"]


@pytest.fixture(scope="module")
def train(example):
    return example["train"]


@pytest.fixture(scope="module")
def data(prepare, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    topics = ("rivers", "mountains", "engines", "letters", "numbers")
    text = "\n\n".join(
        " ".join(f"The {topic} of place {i} are {i * j} of many." for j in range(9))
        for i, topic in enumerate(topics * 8)
    )
    (folder / "text.txt").write_text(text)
    given = ["--text", folder / "text.txt", "--out", folder / "data", "--words", 300]
    assert prepare.main([str(word) for word in (*given, "--shards", 2)]) == 0
    return folder / "data"


def test_shards_hold_every_sentence_once(data, prepare, rows):
    text = rows.Text(data)
    sentences = [s for d in prepare.documents(data.parent / "text.txt") for s in d]
    assert sum(len(shard.sentences) for shard in text.shards) == len(sentences)
    assert sum(len(shard.tokens) for shard in text.shards) == text.tokens
    words = (data / "vocab.txt").read_text().splitlines()
    assert words[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    first = [words[t] for t in text.shards[0].sentence(0)]
    assert first[:2] == ["the", "rivers"]


def test_rows_are_as_in_the_paper(data, rows):
    text = rows.Text(data)
    ids, segments, mask, labels, other = rows.Rows(text, 32, 0, rows.Position()).batch(200)
    assert 0.4 < other.mean() < 0.7
    guessed = labels != rows.IGNORED
    assert (guessed.sum(1) >= 1).all()
    assert guessed.sum() / mask.sum() == pytest.approx(rows.MASKED, abs=0.02)
    assert (ids[guessed] == rows.MASK).mean() == pytest.approx(0.8, abs=0.05)
    assert (ids[~guessed & (mask == 1)] != rows.MASK).all()
    assert ((ids == rows.SEP).sum(1) == 2).all() and (ids[:, 0] == rows.CLS).all()
    assert (segments[mask == 0] == 0).all() and (ids[mask == 0] == rows.PAD).all()
    assert (segments.sum(1) > 1).all()
    assert len(np.unique(ids, axis=0)) > 150


def test_a_stream_goes_on_from_its_position(data, rows):
    text = rows.Text(data)
    whole = rows.Rows(text, 32, 3, rows.Position())
    count = 0
    while whole.position.epoch < 1:  # over the ends of shards and of an epoch
        whole.batch(7)
        count += 7
    again = rows.Rows(text, 32, 3, rows.Position())
    for _ in range(count // 7):
        again.batch(7)
    assert again.position == whole.position
    resumed = rows.Rows(text, 32, 3, copy.copy(whole.position))
    for ours, theirs in zip(resumed.batch(9), whole.batch(9), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def weights(train, data, out, *options):
    """Return the weights after a run, read from its model."""
    kept = {}
    real = train.leave

    def leave(run):
        kept.update({n: t.clone() for n, t in run.model.state_dict().items()})
        real(run)

    train.leave = leave
    try:
        status = train.main([*SHORT, "--data", str(data), "--out", str(out), *options])
    finally:
        train.leave = real
    return status, kept


def test_a_run_that_was_interrupted_goes_on(data, train, tmp_path, monkeypatch, capsys):
    status, wanted = weights(train, data, tmp_path / "whole")
    assert status == 0
    asked = iter([False, True] + [False] * 10)  # after the second step, in the first phase
    monkeypatch.setattr(train.Interrupt, "anywhere", lambda self, parallel: next(asked))
    status, _ = weights(train, data, tmp_path / "parts")
    assert status == 130
    assert "--resume" in capsys.readouterr().out
    status, found = weights(train, data, tmp_path / "parts", "--resume")
    assert status == 0
    for name, value in wanted.items():  # in one process, later graphs are for any extents
        torch.testing.assert_close(value, found[name], rtol=1e-4, atol=1e-5)
    lines = (tmp_path / "parts" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [phase, step] for phase, count in (("1", 3), ("2", 2)) for step in "123"[:count]
    ]
    assert (tmp_path / "parts" / "loss.png").exists()


def lamb(parameters, moments, step, rate):
    """You et al. 2020, algorithm 2, after clipping to the norm 1."""
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for p in parameters:
        m, v = moments.setdefault(p, (torch.zeros_like(p), torch.zeros_like(p)))
        m.lerp_(p.grad, 0.1)
        v.lerp_(p.grad**2, 0.001)
        size = (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-6)
        size += (0.01 if p.dim() > 1 else 0.0) * p
        ratio = p.norm() / size.norm() if p.norm() > 0 and size.norm() > 0 else 1.0
        p.sub_(rate * ratio * size)


def test_losses_are_those_of_pytorch(data, train, rows, tmp_path):
    args = train.arguments([
        *SHORT, "--steps", "8", "1", "--dropout", "0", "--data", str(data), "--out", str(tmp_path),
    ])  # fmt: skip
    run = train.Run(args, rows.Text(data), train.phases_of(args))
    model = copy.deepcopy(run.model)
    phase = run.phases[0]
    stream = rows.Rows(run.text, phase.length, args.seed, rows.Position())
    moments, wanted = {}, []
    for step in range(phase.steps):
        batch = [torch.from_numpy(array) for array in stream.batch(phase.rows)]
        model.zero_grad()
        loss = 0.0
        for part in zip(*(array.chunk(phase.parts) for array in batch), strict=True):
            value = model(*part)[0] / phase.parts
            value.backward()
            loss += value.item()
        with torch.no_grad():
            parameters = [p for p in model.parameters() if p.grad is not None]
            lamb(parameters, moments, step + 1, train.rate_at(step, phase))
        wanted.append(loss)
    with train.Interrupt() as interrupt:
        run._phase(run.trainer(phase), 0, interrupt)
    found = [record["loss"] for record in run.records]
    assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--data", "nowhere"], "run prepare.py"),
        (["--resume"], "nothing to resume"),
        (["--rows", "3", "4"], "cannot be divided"),
    ],
)
def test_what_is_wrong_is_said(data, train, tmp_path, capsys, options, expected):
    given = [*SHORT, "--data", str(data), "--out", str(tmp_path), *options]
    assert train.main(given) == 2
    assert expected in capsys.readouterr().err


def test_text_that_is_not_there(prepare, tmp_path, capsys):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait. " * 20)
    for path, expected in ((tmp_path / "none", "has no text"), (tmp_path, "not UTF-8")):
        assert prepare.main(["--text", str(path), "--out", str(tmp_path / "data")]) == 2
        assert expected in capsys.readouterr().err


@pytest.mark.matrix
def test_two_processes_give_what_one_gives(data, tmp_path):
    losses = []
    for count in (1, 2):
        out = tmp_path / str(count)
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
        command += [str(FOLDER / "train.py"), *SHORT, "--dropout", "0", "--parts", "1", "1"]
        done = subprocess.run(
            [*command, "--data", str(data), "--out", str(out)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (out / "metrics.csv").read_text().splitlines()[1:]
        losses.append([float(line.split(",")[2]) for line in lines])
    # each process divides its masked words' losses by their number, as DistributedDataParallel
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
