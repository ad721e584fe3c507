"""Shards of text → rows with two segments and masked tokens (Devlin et al. 2019)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PAD, CLS, SEP, MASK = 0, 2, 3, 4  # as prepare.py orders them
FIRST_WORD = 5
IGNORED = -100  # the label of a token that the loss leaves out
MASKED = 0.15  # part of the tokens that the model has to guess

Tokens = NDArray[np.int64]
Batch = tuple[Tokens, Tokens, Tokens, Tokens, Tokens]


class DataError(Exception):
    """The folder is not one that prepare.py wrote; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """Documents of a part of the text. Only what is read is in memory."""

    tokens: NDArray[np.integer]
    sentences: Tokens  # the end of each among the tokens
    documents: Tokens  # the end of each among the sentences

    def sentence(self, number: int) -> Tokens:
        """Return the tokens of a sentence."""
        start = int(self.sentences[number - 1]) if number else 0
        return self.tokens[start : int(self.sentences[number])].astype(np.int64)

    def sentences_of(self, document: int) -> range:
        """Return the numbers of a document's sentences."""
        start = int(self.documents[document - 1]) if document else 0
        return range(start, int(self.documents[document]))


class Text:
    """The shards that prepare.py wrote to a folder. Raises DataError."""

    def __init__(self, folder: Path) -> None:
        try:
            index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            self.words, self.tokens = int(index["words"]), int(index["tokens"])
            kinds = {
                "tokens": np.dtype(index["dtype"]),
                "sentences": np.dtype(np.int64),
                "documents": np.dtype(np.int64),
            }
            self.shards = [
                Shard(
                    **{
                        part: np.memmap(folder / f"{part}-{i:03}.bin", kind, "r")
                        for part, kind in kinds.items()
                    }
                )
                for i in range(int(index["shards"]))
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder} has no prepared text ({error}): run prepare.py --out {folder}"
            ) from None


@dataclasses.dataclass
class Position:
    """How far a stream has read; it goes on from there."""

    epoch: int = 0
    shard: int = 0  # how many shards of this epoch were read
    row: int = 0  # how many rows of the present shard were read


class Rows:
    """An endless stream of rows of one length. The same seed and position give the same rows.

    Each epoch reads the shards, and the documents of each, in another order, and masks other
    tokens.
    """

    def __init__(self, text: Text, length: int, seed: int, position: Position) -> None:
        self._text, self._length, self._seed = text, length, seed
        self.position = position
        self._stream = self._rows()

    def batch(self, count: int) -> Batch:
        """Return the next rows: token numbers, segments, mask [count, length]; what is masked, with
        IGNORED elsewhere, [count, length]; whether the second segment is another text's [count].
        """
        shape = (count, self._length)
        ids, segments, mask = (np.zeros(shape, np.int64) for _ in range(3))
        labels, other = np.full(shape, IGNORED, np.int64), np.zeros(count, np.int64)
        for i in range(count):
            first, second, other[i], random = next(self._stream)
            row = np.concatenate([[CLS], first, [SEP], second, [SEP]])
            size = len(row)
            ids[i, :size], mask[i, :size] = row, 1
            segments[i, len(first) + 2 : size] = 1
            _mask(ids[i, :size], labels[i, :size], self._text.words, random)
        return ids, segments, mask, labels, other

    def _rows(self) -> Iterator[tuple[Tokens, Tokens, int, np.random.Generator]]:
        here = self.position
        while True:
            order = np.random.default_rng([self._seed, here.epoch]).permutation(
                len(self._text.shards)
            )
            while here.shard < len(order):
                number = int(order[here.shard])
                random = np.random.default_rng([self._seed, here.epoch, number, self._length])
                shard = self._text.shards[number]
                for i, pair in enumerate(_pairs(shard, self._length - 3, random)):
                    # a generator of its own, so that a row depends on its place alone
                    seeds = [self._seed, here.epoch, number, self._length, i]
                    if i >= here.row:
                        here.row = i + 1
                        yield (*pair, np.random.default_rng(seeds))
                here.shard, here.row = here.shard + 1, 0
            here.epoch, here.shard = here.epoch + 1, 0


def _pairs(
    shard: Shard, room: int, random: np.random.Generator
) -> Iterator[tuple[Tokens, Tokens, int]]:
    """Pack the sentences of each document into pairs of segments with at most `room` tokens.

    In half of the pairs, the second segment is of another document (1), and the sentences whose
    place it takes begin the next pair.
    """
    count = len(shard.documents)
    for document in random.permutation(count):
        numbers = list(shard.sentences_of(int(document)))
        at = 0
        while at < len(numbers):
            end, size = at, 0
            while end < len(numbers) and size < room:
                size += len(shard.sentence(numbers[end]))
                end += 1
            cut = int(random.integers(at + 1, end)) if end > at + 1 else at + 1
            first = [shard.sentence(n) for n in numbers[at:cut]]
            alone = cut == end
            if count > 1 and (alone or random.random() < 0.5):
                taken = sum(map(len, first))
                second, other = _elsewhere(shard, int(document), max(room - taken, 1), random), 1
                at = cut
            elif alone:
                return  # one document of one sentence has no second segment
            else:
                second, other = [shard.sentence(n) for n in numbers[cut:end]], 0
                at = end
            yield (*_cut(np.concatenate(first), np.concatenate(second), room, random), other)


def _elsewhere(shard: Shard, document: int, room: int, random: np.random.Generator) -> list[Tokens]:
    other = int(random.integers(len(shard.documents) - 1))
    numbers = shard.sentences_of(other + (other >= document))
    segment, size = [], 0
    for number in numbers[int(random.integers(len(numbers))) :]:
        segment.append(shard.sentence(number))
        size += len(segment[-1])
        if size >= room:
            break
    return segment


def _cut(
    first: Tokens, second: Tokens, room: int, random: np.random.Generator
) -> tuple[Tokens, Tokens]:
    """Shorten the longer segment, at either end, until both fit."""
    half = room // 2
    sizes = [len(first), len(second)]
    if sum(sizes) > room:
        if min(sizes) > half:
            sizes = [half, room - half]
        else:
            long = int(sizes[1] > sizes[0])
            sizes[long] = room - sizes[1 - long]
    cuts = []
    for segment, size in ((first, sizes[0]), (second, sizes[1])):
        start = int(random.integers(len(segment) - size + 1)) if random.random() < 0.5 else 0
        cuts.append(segment[start : start + size])
    return cuts[0], cuts[1]


def _mask(row: Tokens, labels: Tokens, words: int, random: np.random.Generator) -> None:
    """Choose the tokens to guess: 80 % become a mask, 10 % another word, 10 % stay."""
    places = np.flatnonzero(row >= FIRST_WORD)
    places = random.permutation(places)[: max(1, round(MASKED * len(row)))]
    labels[places] = row[places]
    fate, other = random.random(len(places)), random.integers(FIRST_WORD, words, len(places))
    row[places] = np.where(fate < 0.8, MASK, np.where(fate < 0.9, other, row[places]))
