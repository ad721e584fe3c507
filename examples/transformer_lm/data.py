"""Text → batches of word numbers."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

UNKNOWN, END = "<unk>", "<eos>"
_WORD = re.compile(r"<unk>|\w+|[^\w\s]")


@dataclass
class Corpus:
    """Word numbers, one stream for training and one for validation."""

    name: str
    words: list[str]
    train: Tensor
    valid: Tensor


def load(folder: Path | None) -> Corpus:
    """Read WikiText-2's files from a folder, or the text that every Python installation carries."""
    if folder is None:
        train, valid = _embedded()
        return _corpus("Python's language reference (pydoc_data.topics)", train, valid, rare=2)
    files = {stem: folder / f"{stem}.txt" for stem in ("train", "valid", "test")}
    training = next((f for stem, f in files.items() if stem != "test" and f.exists()), None)
    testing = next((files[s] for s in ("test", "valid") if files[s].exists()), None)
    if training is None or testing is None or training == testing:
        raise SystemExit(f"{folder} needs train.txt (or valid.txt) for training and test.txt")
    lines = [f.read_text(encoding="utf-8").splitlines() for f in (training, testing)]
    train, valid = ([line.split() for line in text if line.strip()] for text in lines)
    return _corpus(f"{training} | {testing.name}", train, valid, rare=1)


def _embedded() -> tuple[list[list[str]], list[list[str]]]:
    from pydoc_data.topics import topics

    paragraphs = [p for name in sorted(topics) for p in topics[name].split("\n\n")]
    sentences = [_WORD.findall(p.lower()) for p in paragraphs]
    sentences = [s for s in sentences if s]
    # every tenth paragraph, so that both parts speak of the same things
    return (
        [s for i, s in enumerate(sentences) if i % 10 != 9],
        [s for i, s in enumerate(sentences) if i % 10 == 9],
    )


def _corpus(name: str, train: list[list[str]], valid: list[list[str]], rare: int) -> Corpus:
    counts = Counter(word for line in train for word in line)
    words = [UNKNOWN, END, *(w for w, n in counts.most_common() if n >= rare and w != UNKNOWN)]
    number = {word: i for i, word in enumerate(words)}

    def encode(lines: list[list[str]]) -> Tensor:
        return torch.tensor([number.get(word, 0) for line in lines for word in (*line, END)])

    return Corpus(name, words, encode(train), encode(valid))


def columns(stream: Tensor, batch: int) -> Tensor:
    """Cut a stream into `batch` parallel columns: [words // batch, batch]."""
    rows = len(stream) // batch
    return stream[: rows * batch].view(batch, rows).t().contiguous()


def batches(data: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (source [length, batch], target [length · batch]): the target is the next word."""
    for start in range(0, len(data) - 1, length):
        size = min(length, len(data) - 1 - start)
        target = data[start + 1 : start + 1 + size].reshape(-1)
        yield data[start : start + size], target
