"""Where the checkout lies, and what the tests share in it."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[2]
