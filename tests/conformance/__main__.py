"""``python -m tests.conformance [--update]``: count, or write the list anew."""

import argparse
import sys

from . import suite


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write expected.txt")
    parser.add_argument("-k", metavar="TEXT", default="", help="only tests with TEXT in their name")
    chosen = parser.parse_args()
    expected = suite.read_list() if suite.LIST.exists() else {}
    tests = {n: t for n, t in suite.node_tests().items() if chosen.k in n}
    outcomes = {name: suite.outcome(test) for name, test in tests.items()}
    for name, now in outcomes.items():
        before = expected.get(name, suite.Outcome("passes"))
        if now.kind != before.kind:
            print(f"{name}: {before.kind} -> {now.kind} {now.reason}")
    if chosen.update:
        others = {n: o for n, o in expected.items() if chosen.k not in n}
        suite.write_list({**others, **outcomes})
    print(suite.summary([o.kind for o in outcomes.values()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
