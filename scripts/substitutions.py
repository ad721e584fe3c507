#!/usr/bin/env python3
"""Write docs/substitutions.md: what Steep replaces in PyTorch while it captures a module.

scripts/substitutions.py           write it
scripts/substitutions.py --check   exit code 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import steep
from steep.patching.dynamo_settings import AUTOGRAD_GRAD, CAPTURE, REFUSED_ARRAYS, ZERO
from steep.patching.substitution import DECLARED, Substitution

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "substitutions.md"
HEAD = """\
# What Steep replaces in PyTorch

For people who maintain Steep, or who look for the cause of an effect on PyTorch. While Steep
captures a module, it replaces the functions and attributes below, for all threads. Afterwards it
restores the originals, also after an exception or Ctrl-C. Only one thread at a time
replaces them. While a captured module runs, nothing is replaced.

`scripts/substitutions.py` writes this page. It reads the declarations, which are made
with `python/steep/patching/substitution.py`. A key in brackets names an entry of a dict. If a
target is in several rows, the one with the greatest order is called first.

| target in PyTorch | order | file | releases | why it is replaced |
| --- | --- | --- | --- | --- |
"""
SETTINGS = """\

## Settings of Dynamo

While Steep captures a module, these settings of `torch._dynamo.config` have other values, in the
thread that captures. `trace_autograd_ops` is set during a call of `torch.autograd.grad` alone, and
`trace_numpy` during a call with a tensor that cannot become a NumPy array.
`ignore_logging_functions` gets the logging functions whose call is one line in forward.

While a graph is traced to ATen operators, its constants need not be fake tensors:
`allow_non_fake_inputs` of the trace's own `FakeTensorMode` is true, and
`fake_tensor_tls.allow_non_fake_inputs_override` in the thread that traces a transform.

| setting | value | why |
| --- | --- | --- |
"""
LASTING = """\

## What lasts

Two additions stay in place, since they concern only functions of Steep. Dynamo does not trace into
`steep.graph` and `steep.verify`, which run graphs. And it keeps the call of a trainer's loss
(`the_loss` in `trainers/loss_module.py`) as one call, by `torch.compiler.allow_in_graph`.
"""
ROOMS = ("steep.lowering", "steep.lowering.ops", "steep.dynamo.patches")


def declared() -> list[tuple[str, str, str, str, str]]:
    """Return target, file, order, releases of PyTorch and reason of each substitution."""
    file_of = {}
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.iter_modules(package.__path__, f"{room}."):
            if not module.ispkg:
                imported = importlib.import_module(module.name)
                own = [v for v in vars(imported).values() if type(v).__name__ == "Substitution"]
                own += [
                    s
                    for v in vars(imported).values()
                    if isinstance(v, dict)
                    for s in v.values()
                    if type(s).__name__ == "Substitution"
                ]
                file_of.update({s: module.name for s in own if s not in file_of})
    assert file_of.keys() == set(DECLARED), "a substitution is declared where nobody finds it"
    rows = [(s.target, name, str(s.order or ""), releases(s), s.why) for s, name in file_of.items()]
    return sorted(rows, key=lambda row: (row[1], row[0]))


def releases(s: Substitution) -> str:
    """Return in which releases of PyTorch a target is replaced."""
    since = "" if s.since is None else "since {}.{}".format(*s.since)
    until = "" if s.until is None else "before {}.{}".format(*s.until)
    return f"{since} {until}".strip() or "all"


def text() -> str:
    """Return the page."""
    package = Path(steep.__file__).parent
    lines = []
    for target, name, order, releases_of_pytorch, why in declared():
        file = Path(*name.split(".")[1:]).with_suffix(".py")
        assert (package / file).exists()
        lines.append(f"| `{target}` | {order} | `{file}` | {releases_of_pytorch} | {why} |\n")
    settings = [
        f"| `{s.name}` | `{'sys.maxsize' if s.value == sys.maxsize else s.value}` | {s.why} |\n"
        for s in (*CAPTURE, *AUTOGRAD_GRAD, *REFUSED_ARRAYS, *ZERO)
    ]
    return HEAD + "".join(lines) + SETTINGS + "".join(settings) + LASTING


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        return int(not DOCUMENT.exists() or DOCUMENT.read_text() != text())
    DOCUMENT.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
