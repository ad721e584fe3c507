"""The README of the Python front names every file."""

import re

from checkout import ROOT

PACKAGE = ROOT / "python" / "steep"

LISTED_BY_FOLDER = "compat"
"""The README names the folders of this one, not their files."""


def files_in_readme() -> dict[str, str]:
    """The rows of the README's tables: the path of a file, and what it says of it."""
    found: dict[str, str] = {}
    folder = ""
    for line in (PACKAGE / "README.md").read_text().splitlines():
        if heading := re.match(r"#+ (?:\d\. )?`([\w/]+)/`", line):
            folder = "" if heading[1] == "steep" else f"{heading[1]}/"
        elif row := re.match(r"\| `(\w+\.py)` \| (.*) \|$", line):
            path = folder + row[1]
            assert path not in found, f"{path} has two rows"
            found[path] = row[2]
    return found


def test_the_readme_names_every_file_once() -> None:
    files = {str(f.relative_to(PACKAGE)) for f in PACKAGE.rglob("*.py") if f.name != "__init__.py"}
    files = {f for f in files if not f.startswith(f"{LISTED_BY_FOLDER}/")}
    assert len(files) > 100
    assert files_in_readme().keys() == files


def test_each_file_has_a_sentence() -> None:
    wrong = {f: text for f, text in files_in_readme().items() if not re.fullmatch(r".+ .+\.", text)}
    assert wrong == {}
