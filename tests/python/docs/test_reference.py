"""The reference has every public name, every header and every error; the site's menu every page."""

from __future__ import annotations

import re

import pytest
from checkout import ROOT

import steep
from steep import errors

DOCS = ROOT / "docs"


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: steep\.(\w+)$", (DOCS / "reference/python.md").read_text(), re.M)
    assert sorted(named) == sorted(steep.__all__)


@pytest.mark.parametrize("folder", ["include", "include/steep"])
def test_every_header_is_in_the_reference(folder: str) -> None:
    shown = re.findall(r'^--8<-- "(.*)"$', (DOCS / "reference/c.md").read_text(), re.M)
    headers = {str(h.relative_to(ROOT)) for h in (ROOT / folder).glob("*.h")}
    assert headers and headers == {s for s in shown if s.rpartition("/")[0] == folder}


def test_troubleshooting_has_every_error() -> None:
    sections = re.findall(r"^## `(\w+)`$", (DOCS / "troubleshooting.md").read_text(), re.M)
    assert sorted(sections) == sorted(set(errors.__all__) - {"Error"})


def test_the_menu_has_every_page() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}
    assert pages == set(re.findall(r": (\S+\.md)$", menu, re.M))


def test_the_index_leads_to_every_page() -> None:
    links = set(re.findall(r"\]\(([\w/]+\.md)\)", (DOCS / "index.md").read_text()))
    assert links == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")} - {"index.md"}


def test_pictures_of_the_gallery_are_small() -> None:
    pictures = re.findall(r"!\[.*\]\((\S+\.png)\)", (DOCS / "gallery.md").read_text())
    assert 0 < len(pictures) <= 8
    for picture in pictures:
        assert (DOCS / picture).stat().st_size <= 100_000, picture
