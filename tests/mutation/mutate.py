"""Do the op rows notice a wrong gradient rule? Breaks rules on purpose and counts who is caught.

A mutant is one change in one gradient rule of src/ops/defs: a sign flipped, a factor or a summand
dropped, a product made a quotient, a constant changed. It is built in a copy of the tree
(build/mutation), and the rows of its operators (tests/ops) run against it. A mutant that passes
them all has survived: either the rows are blind, or the change changes nothing (EQUIVALENT says
which ones, and why).

    python tests/mutation/mutate.py                  60 mutants drawn at random, about half an hour
    python tests/mutation/mutate.py --all            all of them: hours
    python tests/mutation/mutate.py --ops div pow    those of two files
    python tests/mutation/mutate.py --list

Exit code 1 when fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFS = Path("src/ops/defs")
WORK = ROOT / "build" / "mutation"
WANTED = 0.95
SECONDS = 900  # for the rows of one mutant; one that hangs is caught
MEMORY = 12 << 30

# What to look for in a line of a rule, what to write instead, and what that is called.
CHANGES: list[tuple[str, str, str]] = [
    (r" \+ (?=[\w(])", " - ", "+ to -"),
    (r" - (?=[\w(])", " + ", "- to +"),
    (r" \* (?=[\w(])", " / ", "* to /"),
    (r" / (?=[\w(])", " * ", "/ to *"),
    (r" [*] [a-z_]+(?=[;,)}])", "", "factor dropped"),
    (r" [+-] [a-z_]+(?=[;,)}])", "", "summand dropped"),
    (r"(?<=[{( ])dy\[(\d)\](?=[,} ])", r"(-dy[\1])", "sign of the gradient"),
    (r"(?<![\w.])(\d+\.\d+)(?![\w.])", r"(\1 + 1.0)", "constant changed"),
]
# File and text of a rule's line → why no row can tell the mutant from the rule.
EQUIVALENT: dict[tuple[str, str], str] = {}


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    before: str
    after: str
    change: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}: {self.after.strip()}"


def rule_lines(text: str) -> list[int]:
    """Numbers (from 0) of the lines in functions that return gradients, and in what they call."""
    lines, inside = [], False
    for number, line in enumerate(text.splitlines()):
        if re.match(r"(Grads|Value) \w+\(", line):
            inside = True
        if inside and line.startswith("  "):
            lines.append(number)
        if line.startswith("}"):
            inside = False
    return lines


def mutants(path: Path) -> list[Mutant]:
    text = path.read_text()
    if ".vjp" not in text:
        return []
    all_lines = text.splitlines()
    name = str(path.relative_to(ROOT / DEFS))
    found = []
    for number in rule_lines(text):
        line = all_lines[number]
        if re.match(r"\s*(//|if |for |while |throw|\.|const OpDef)", line):
            continue
        code = line.split("//")[0]
        for pattern, replacement, change in CHANGES:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                if (path.name, line.strip()) not in EQUIVALENT:
                    found.append(Mutant(name, number + 1, line, changed, change))
    return found


def operators(path: Path) -> list[str]:
    return re.findall(r'\.name = "([\w.]+)"', path.read_text())


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class Tree:
    """The copy in which mutants live, with a build of its own."""

    def __init__(self) -> None:
        self.source = WORK / "tree"
        # At the same place as in the real tree, so that ccache knows what it compiled there.
        self.binary = self.source / "build" / "release"
        shutil.rmtree(self.source, ignore_errors=True)
        tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split("\n")
        for name in filter(None, tracked):
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.source / name)
        self.run(
            [
                *("cmake", "-S", str(self.source), "-B", str(self.binary), "-G", "Ninja"),
                f"-DPython_EXECUTABLE={sys.executable}",
                "-DSTEEP_BUILD_TESTS=OFF",
            ]
        )
        if not self.build():
            sys.exit("mutate: the tree does not build without a mutant; see build/mutation/log")

    def run(self, command: list[str]) -> bool:
        with (WORK / "log").open("a") as log:
            done = subprocess.run(command, check=False, stdout=log, stderr=log, cwd=WORK)
        return done.returncode == 0

    def build(self) -> bool:
        return self.run(["ninja", "-C", str(self.binary), "-j2", "_steep"])

    def rows_pass(self, ops: list[str]) -> bool:
        words = " or ".join(op.replace("steep.", "") for op in ops)
        environment = {**os.environ, "PYTHONPATH": str(self.source / "python")}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        command += ["tests/ops/test_ops.py", "-k", words]
        try:
            done = subprocess.run(
                command,
                check=False,
                cwd=self.source,
                env=environment,
                capture_output=True,
                timeout=SECONDS,
                preexec_fn=limited,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def judge(tree: Tree, mutant: Mutant) -> str:
    """ "caught", "survived", or "invalid" when it does not compile."""
    path = tree.source / DEFS / mutant.file
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    assert lines[mutant.line - 1].rstrip("\n") == mutant.before
    lines[mutant.line - 1] = mutant.after + "\n"
    path.write_text("".join(lines))
    try:
        if not tree.build():
            return "invalid"
        return "survived" if tree.rows_pass(operators(path)) else "caught"
    finally:
        path.write_text(original)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", nargs="+", help="files of src/ops/defs, without .cc")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", action="store_true", help="only list them")
    args = parser.parse_args()
    chosen = [
        m
        for path in sorted((ROOT / DEFS).rglob("*.cc"))
        if args.ops is None or path.stem in args.ops
        for m in mutants(path)
    ]
    if not args.all and args.ops is None:
        chosen = random.Random(args.seed).sample(chosen, min(args.count, len(chosen)))
    if args.list:
        print(*chosen, sep="\n")
        return 0
    WORK.mkdir(parents=True, exist_ok=True)
    tree = Tree()
    files = {tree.source / DEFS / m.file for m in chosen}
    if not tree.rows_pass(sorted({op for path in files for op in operators(path)})):
        sys.exit("mutate: the rows fail without a mutant")
    verdicts: dict[str, list[str]] = {"caught": [], "survived": [], "invalid": []}
    start = time.monotonic()
    for number, mutant in enumerate(chosen, 1):
        verdict = judge(tree, mutant)
        verdicts[verdict].append(str(mutant))
        minutes = (time.monotonic() - start) / 60
        print(f"[{number}/{len(chosen)}, {minutes:.0f} min] {verdict:8} {mutant}", flush=True)
    caught, survived = len(verdicts["caught"]), len(verdicts["survived"])
    share = caught / max(caught + survived, 1)
    print(f"{caught} of {caught + survived} mutants caught: {share:.1%} (wanted: {WANTED:.0%})")
    (WORK / "mutants.json").write_text(json.dumps(verdicts, indent=1) + "\n")
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
