"""Text → tokenizer → rows of token numbers, with what is to be learnt from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

TASKS = ("mask", "next", "infill", "spans")
IGNORED = -100  # the label of a token that the loss leaves out
SUFFIXES = (".txt", ".md", ".rst")
MASKED = 0.15  # part of the tokens that BERT's kind and T5 have to guess
INFILLED = 0.3  # BART
SPAN = 3  # tokens of a span that BART and T5 have to fill in


class TextError(Exception):
    """There is no text to train on; the message says what to do."""


def read(path: Path | None) -> tuple[str, list[str]]:
    """Return a name and the paragraphs of a file, of a folder, or of Python's own documentation.

    Raises TextError where there is no such file, nothing in it, or no UTF-8.
    """
    if path is None:
        from pydoc_data.topics import topics

        texts = [topics[name] for name in sorted(topics)]
        name = "Python's language reference (pydoc_data.topics)"
    else:
        texts, name = [_content(file) for file in _files(path)], str(path)
    paragraphs = [p.strip() for text in texts for p in re.split(r"\n\s*\n", text)]
    paragraphs = [p for p in paragraphs if p]
    if not paragraphs:
        raise TextError(f"{name} is empty: give --text a file or a folder with text to learn from")
    return name if path is None else path.resolve().name, paragraphs


def _files(path: Path) -> list[Path]:
    kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TextError(
            f"there is no {path}: give --text a file of UTF-8 text, or a folder with {kinds}; "
            "without --text it is Python's own documentation"
        )
    files = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES and f.is_file())
    if not files:
        raise TextError(f"{path} has no text: --text reads {kinds} in a folder, or one file")
    return files


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{file} is not UTF-8 text: {error}; convert it, or leave it out") from None
    except OSError as error:
        raise TextError(f"{file} cannot be read: {error.strerror}") from None


def train_tokenizer(kind: str, paragraphs: list[str], words: int) -> Any:
    """Train the tokenizer that a class of transformers stands for: at most so many words.

    Raises TextError where there is no such class, or none that can be trained.
    """
    import transformers

    try:
        blank = getattr(transformers, kind)()
        return blank.train_new_from_iterator(paragraphs, words, show_progress=False)
    except (AttributeError, TypeError) as error:
        raise TextError(f"{kind} of transformers cannot be trained: {error}") from None


def special_numbers(tokenizer: Any, task: str) -> dict[str, int]:
    """Return the numbers of special tokens, by their names in a model's configuration."""
    t = tokenizer
    begin, end = t.bos_token_id, t.eos_token_id
    numbers = {
        "bos_token_id": t.cls_token_id if begin is None else begin,
        "eos_token_id": t.sep_token_id if end is None else end,
        "pad_token_id": t.pad_token_id,
        # what the decoder reads first: BART's writes after an end, T5's after a padding
        "decoder_start_token_id": {"infill": end, "spans": t.pad_token_id}.get(task),
    }
    return {name: number for name, number in numbers.items() if number is not None}


class Rows:
    """Cuts text into rows, as many as asked for, and says what is to be learnt from each.

    Each pass through the text is in another order, each row has other words to guess; the same seed
    gives the same rows. All rows have one length: none is padded.
    """

    def __init__(self, tokenizer: Any, paragraphs: list[str], length: int, seed: int) -> None:
        encoded = tokenizer(paragraphs, add_special_tokens=False, verbose=False)["input_ids"]
        self._tokenizer, self._length = tokenizer, length
        self._random = np.random.default_rng(seed)
        self._tokens: Tokens = np.array([t for p in encoded for t in p], np.int64)
        self.size = len(self._tokens)

    def make(self, task: str, count: int) -> dict[str, Tokens]:
        """Return `input_ids` and `labels`, [count, …], for one of the tasks.

        Raises TextError where the text does not fill one row.
        """
        make = dict(zip(TASKS, (self._mask, self._next, self._infill, self._spans), strict=True))
        return make[task](count)

    def _bodies(self, count: int, length: int) -> Tokens:
        """Pieces of the text, [count, length]: every one once, then every one again."""
        there = self.size // length
        if not there:
            raise TextError(
                f"the text has {self.size} tokens, and a row takes {length}: "
                "give --text more of it, or shorter rows by --length"
            )
        pieces = self._tokens[: there * length].reshape(there, length)
        passes = [self._random.permutation(there) for _ in range(-(-count // there))]
        return pieces[np.concatenate(passes)[:count]]

    def _between(self, bodies: Tokens) -> Tokens:
        """Put the tokens that begin and end a row around each."""
        t = self._tokenizer
        first = np.full((len(bodies), 1), t.cls_token_id, np.int64)
        return np.concatenate([first, bodies, np.full_like(first, t.sep_token_id)], 1)

    def _next(self, count: int) -> dict[str, Tokens]:
        """Each token from those before it: GPT-2."""
        ids = self._bodies(count, self._length)
        return {"input_ids": ids, "labels": ids.copy()}

    def _mask(self, count: int) -> dict[str, Tokens]:
        """Some tokens from all others: BERT; 80 % are masked, 10 % another word, 10 % as before."""
        bodies = self._bodies(count, self._length - 2)
        places = self._random.random(bodies.shape).argsort(1)
        places = places[:, : max(1, round(MASKED * bodies.shape[1]))]
        labels = np.full_like(bodies, IGNORED)
        np.put_along_axis(labels, places, np.take_along_axis(bodies, places, 1), 1)
        fate = self._random.random(places.shape)
        other = self._random.integers(0, len(self._tokenizer), places.shape)
        tokens = np.take_along_axis(bodies, places, 1)
        tokens = np.where(
            fate < 0.8, self._tokenizer.mask_token_id, np.where(fate < 0.9, other, tokens)
        )
        np.put_along_axis(bodies, places, tokens, 1)
        edge = np.full((count, 1), IGNORED, np.int64)
        return {
            "input_ids": self._between(bodies),
            "labels": np.concatenate([edge, labels, edge], 1),
        }

    def _infill(self, count: int) -> dict[str, Tokens]:
        """The text from one with a mask in the place of each of some spans: BART."""
        bodies = self._bodies(count, self._length - 2)
        mask = self._tokenizer.mask_token_id
        texts = [
            _replaced(body, starts, [mask] * len(starts))
            for body, starts in zip(bodies, self._starts(bodies, INFILLED), strict=True)
        ]
        return {"input_ids": self._between(np.array(texts)), "labels": self._between(bodies)}

    def _spans(self, count: int) -> dict[str, Tokens]:
        """Some spans, each after its sentinel, from the text with the sentinels in it: T5."""
        bodies = self._bodies(count, self._length - 1)
        end = self._tokenizer.eos_token_id
        inputs, labels = [], []
        for body, starts in zip(bodies, self._starts(bodies, MASKED), strict=True):
            sentinels = self._tokenizer.convert_tokens_to_ids(
                [f"<extra_id_{i}>" for i in range(len(starts))]
            )
            inputs.append([*_replaced(body, starts, sentinels), end])
            spans = [
                [s, *body[start : start + SPAN]] for s, start in zip(sentinels, starts, strict=True)
            ]
            labels.append([*(token for span in spans for token in span), end])
        return {"input_ids": np.array(inputs, np.int64), "labels": np.array(labels, np.int64)}

    def _starts(self, bodies: Tokens, part: float) -> list[Tokens]:
        """Of each row, where its spans begin: ascending, none over another, as many in each."""
        length = bodies.shape[1]
        spans = min(max(1, round(part * length / SPAN)), 100)  # T5 has a hundred sentinels
        room = length - spans * (SPAN - 1)
        return [
            np.sort(self._random.choice(room, spans, replace=False)) + np.arange(spans) * (SPAN - 1)
            for _ in bodies
        ]


def _replaced(body: Tokens, starts: Tokens, by: list[int]) -> list[int]:
    """Put one token in the place of each span."""
    tokens: list[int] = []
    after = 0
    for start, token in zip(starts, by, strict=True):
        tokens += [*body[after:start].tolist(), token]
        after = start + SPAN
    return tokens + body[after:].tolist()
