"""A hook of MkDocs: links from docs/ to files of the checkout, which the site does not hold.

The page names the file instead. A link to a file that does not exist stays: MkDocs reports it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace `[text](../FILE)` by `text` or `text (FILE)` where FILE lies outside docs/."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def named(link: re.Match[str]) -> str:
        text, target = link[1], posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/") or not (ROOT / target).exists():
            return link[0]
        return f"`{target}`" if target.endswith(text.strip("`")) else f"{text} (`{target}`)"

    return LINK.sub(named, markdown)
