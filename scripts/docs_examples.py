"""An extension of Griffe: what its defaults leave out of the reference, or show wrong.

A docstring's `>>>` lines become a block of code. A method that a stub declares by overloads alone
is shown by its first one.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.*\S.*)*", re.M)


class Reference(griffe.Extension):
    """Fences examples, which Markdown would read as quotations, and adds overloaded methods."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Make the first overload of a method without an implementation a member."""
        for name, overloads in cls.overloads.items():
            if name not in cls.members:
                cls.set_member(name, overloads[0])

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(
                lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value
            )
