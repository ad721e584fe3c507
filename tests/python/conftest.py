import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "python"))
os.environ["STEEP_CACHE"] = "off"  # results are not to depend on what other runs left


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the full-size models too")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: full-size models; run with --slow")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs --slow"))
