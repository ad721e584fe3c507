"""Run clang-tidy over our C++ sources, newest first, within a time limit.

A file that passed is not checked again until it, a header of ours that it includes, its compile
command, the tool or the list of checks changes; the proofs are small files in the user's cache
folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "steep-clang-tidy"


def our_commands(build: Path) -> list[tuple[Path, list[str]]]:
    """The compile commands of our own sources, the newest file first."""
    commands = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        elsewhere = (build, ROOT / ".venv")
        if source.is_relative_to(ROOT) and not any(source.is_relative_to(e) for e in elsewhere):
            words = shlex.split(entry["command"])
            # What stands before the compiler is the launcher (ccache with its settings).
            compiler = next(i for i, w in enumerate(words) if w.endswith(("++", "clang", "gcc")))
            commands.append((source, words[compiler:]))
    return sorted(commands, key=lambda c: c[0].stat().st_mtime, reverse=True)


def for_clang(command: list[str]) -> list[str]:
    """The flags of a compile command of GCC, for Clang."""
    unknown = ("-mtls-dialect", "-Wno-maybe-uninitialized")
    flags = [w for w in command[1:] if not w.startswith(unknown)]
    # GCC's omp.h has an attribute with arguments, its std::stable_sort a deprecated call.
    return [*flags, "-D__malloc__(...)=", "-Wno-deprecated-declarations"]


def fingerprint(source: Path, command: list[str], build: Path, tool: str) -> str:
    """A hash of everything of ours that clang-tidy's verdict on a file depends on."""
    # -MM lists the file and the headers it includes, system headers left out.
    listing = [w for w in command if w not in ("-c", "-o") and not w.endswith(".o")]
    process = subprocess.run(
        [*listing, "-MM", "-MT", "x"], cwd=build, capture_output=True, text=True, check=True
    )
    digest = hashlib.sha256(tool.encode())
    digest.update(shlex.join(command).replace(str(ROOT), "").encode())
    digest.update((ROOT / ".clang-tidy").read_bytes())
    for name in sorted(set(process.stdout.replace("\\\n", " ").split()[1:])):
        digest.update((build / name).read_bytes())
    return digest.hexdigest()


def main() -> int:
    """Check the files; print what clang-tidy found; exit code 1 if it found anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="has compile_commands.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=600, help="start no file after this")
    args = parser.parse_args()
    build = args.build.resolve()
    tidy = Path(sys.executable).with_name("clang-tidy")
    tool = subprocess.run([tidy, "--version"], capture_output=True, text=True, check=True).stdout
    # Headers of GCC that Clang lacks (omp.h), searched last.
    gcc = subprocess.check_output(["g++", "-print-file-name=include"], text=True).strip()
    CACHE.mkdir(parents=True, exist_ok=True)
    commands = our_commands(build)
    deadline = time.monotonic() + args.seconds

    def check(job: tuple[Path, list[str]]) -> str:
        source, command = job
        proof = CACHE / fingerprint(source, command, build, tool)
        if proof.exists():
            return "passed before"
        if time.monotonic() > deadline:
            return "not reached"
        run = subprocess.run(
            [tidy, "--quiet", source, "--", *for_clang(command), f"-idirafter{gcc}"],
            cwd=build,
            check=False,
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            print(run.stdout or run.stderr, flush=True)
            return "failed"
        proof.touch()
        print(f"{source.relative_to(ROOT)}: ok", flush=True)
        return "passed"

    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(check, commands))
    counts = {o: outcomes.count(o) for o in sorted(set(outcomes))}
    print(f"clang-tidy: {len(commands)} files;", ", ".join(f"{n} {o}" for o, n in counts.items()))
    return 1 if "failed" in counts else 0


if __name__ == "__main__":
    sys.exit(main())
