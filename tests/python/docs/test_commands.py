"""docs/commands.md is what the program's --help prints."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from checkout import ROOT
from steep_program import built


def commands() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commands", ROOT / "scripts" / "commands.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_commands_is_up_to_date() -> None:
    script = commands()
    wanted = script.text(Path(built("steep"))).splitlines()
    found = script.FILE.read_text().splitlines()
    stale = [w for w in wanted if w not in found] + [f for f in found if f not in wanted]
    assert wanted == found, "run `make commands`: " + "\n".join(stale[:10])


def test_the_page_has_every_command() -> None:
    script = commands()
    listed = script.help_of(Path(built("steep"))).partition("Subcommands:")[2]
    assert tuple(re.findall(r"^      ([\w-]+) ", listed, re.M)) == script.COMMANDS
