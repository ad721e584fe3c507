import logging
import os
import signal
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE / "support")]
os.environ["STEEP_CACHE"] = "off"  # results are not to depend on what other runs left
os.environ.setdefault("STEEP_PRODUCTS", "native")  # nor on how fast products are here


# Ignored in the background and under nohup, and then in whatever tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def level_of_the_log():
    """Sessions and DebugOptions set it for the process: not for the tests that follow."""
    log = logging.getLogger("steep")
    level = log.level
    yield
    log.setLevel(level)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the full-size models too")
    rewrite = "write what tests/golden is to hold (test_golden_plans.py)"
    parser.addoption("--rewrite-golden", action="store_true", help=rewrite)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: full-size models; run with --slow")
    config.addinivalue_line("markers", "same_bits: products of oneDNN by any number of threads")


def pytest_collection_modifyitems(config, items):
    skipped = {}
    if not config.getoption("--slow"):
        skipped["slow"] = "needs --slow"
    if "avx512f" not in Path("/proc/cpuinfo").read_text():  # docs/precision.md
        skipped["same_bits"] = "without AVX-512 products depend on the number of threads"
    for item in items:
        for mark in skipped.keys() & item.keywords:
            item.add_marker(pytest.mark.skip(reason=skipped[mark]))
