"""Prepare plain text for BERT's pre-training: WordPiece vocabulary, and shards of token numbers.

python examples/bert_pretraining/prepare.py [--text FILE|FOLDER] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SUFFIXES = (".txt", ".md", ".rst")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
LEAST = 8  # sentences of a document: shorter paragraphs are joined with the next
AT_ONCE = 512  # documents that are encoded together
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PARTS = ("tokens", "sentences", "documents")  # files of a shard


class TextError(Exception):
    """There is no text to learn from; the message says what to do."""


def documents(path: Path | None) -> Iterator[list[str]]:
    """Yield documents, each a list of sentences, from a file, a folder, or Python's own pages.

    A blank line ends a paragraph. One paragraph is in memory at a time. Raises TextError.
    """
    document: list[str] = []
    for paragraph in _paragraphs(path):
        document += [s for s in SENTENCE.split(paragraph) if s]
        if len(document) >= LEAST:
            yield document
            document = []
    if document:
        yield document


def _paragraphs(path: Path | None) -> Iterator[str]:
    for lines in _sources(path):
        paragraph: list[str] = []
        for line in lines:
            if text := line.strip():
                paragraph.append(text)
            elif paragraph:
                yield " ".join(paragraph)
                paragraph = []
        if paragraph:
            yield " ".join(paragraph)


def _sources(path: Path | None) -> Iterator[Iterable[str]]:
    if path is None:
        from pydoc_data.topics import topics

        yield from (topics[name].splitlines() for name in sorted(topics))
        return
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    files = [f for f in files if f == path or (f.suffix in SUFFIXES and f.is_file())]
    if not files:
        kinds = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise TextError(
            f"{path} has no text: give --text a file of UTF-8 text, or a folder with {kinds}"
        )
    yield from map(_lines, files)


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            yield from lines
    except UnicodeDecodeError as error:
        raise TextError(f"{file} is not UTF-8 text: {error}; convert it, or leave it out") from None
    except OSError as error:
        raise TextError(f"{file} cannot be read: {error.strerror}") from None


def train_words(path: Path | None, words: int) -> Any:
    """Train a WordPiece tokenizer of at most so many words (Wu et al. 2016)."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    sentences = (sentence for document in documents(path) for sentence in document)
    tokenizer.train_from_iterator(
        sentences, vocab_size=words, min_frequency=2, special_tokens=SPECIAL, show_progress=False
    )
    return tokenizer


def write_shards(path: Path | None, tokenizer: Any, folder: Path, shards: int) -> int:
    """Write the files of all shards; return the number of tokens.

    Shard 3 is tokens-003.bin (token numbers), sentences-003.bin (the end of each sentence among
    the tokens) and documents-003.bin (the end of each document among the sentences), the last two
    as int64. Documents go to the shards in turn.
    """
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    files = [[(folder / f"{p}-{i:03}.bin").open("wb") for p in PARTS] for i in range(shards)]
    ends = [[0, 0] for _ in range(shards)]
    number = 0
    try:
        for group in _groups(documents(path)):
            sizes = [len(document) for document in group]
            encoded = tokenizer.encode_batch(
                [s for document in group for s in document], add_special_tokens=False
            )
            start = 0
            for size in sizes:
                rows = [e.ids for e in encoded[start : start + size] if e.ids]
                start += size
                if not rows:
                    continue
                shard = number % shards
                number += 1
                lengths = np.array([len(row) for row in rows], np.int64)
                tokens, sentences, document = files[shard]
                tokens.write(np.array([t for row in rows for t in row], dtype).tobytes())
                sentences.write((ends[shard][0] + lengths.cumsum()).tobytes())
                ends[shard] = [ends[shard][0] + int(lengths.sum()), ends[shard][1] + len(rows)]
                document.write(np.int64(ends[shard][1]).tobytes())
    finally:
        for shard_files in files:
            for file in shard_files:
                file.close()
    if number < shards:
        raise TextError(f"the text has {number} documents, and there are {shards} shards")
    total = sum(end for end, _ in ends)
    words = tokenizer.get_vocab_size()
    index = {"shards": shards, "dtype": np.dtype(dtype).name, "words": words, "tokens": total}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")  # last: all is there
    return total


def _groups(every: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    group: list[list[str]] = []
    for document in every:
        group.append(document)
        if len(group) == AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def main(arguments: list[str] | None = None) -> int:
    """Prepare the text. Returns 0; 2: there is no text, or it cannot be written."""
    parser = argparse.ArgumentParser(
        prog="prepare.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, help="file of UTF-8 text, or folder; default: Python's documentation"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bert/data"), help="new folder")
    parser.add_argument("--words", type=int, default=4000, help="most words of the vocabulary")
    parser.add_argument("--shards", type=int, default=4)
    args = parser.parse_args(arguments)
    if args.words < 300 or args.shards < 1:
        parser.error("--words must be 300 or more, and --shards 1 or more")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "index.json").unlink(missing_ok=True)
        tokenizer = train_words(args.text, args.words)
        tokenizer.save_model(str(args.out))
        total = write_shards(args.text, tokenizer, args.out, args.shards)
    except (TextError, OSError) as error:
        print(f"prepare.py: error: {error}", file=sys.stderr)
        return 2
    words = tokenizer.get_vocab_size()
    print(f"{args.out}: {total:,} tokens of {words:,} words in {args.shards} shards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
