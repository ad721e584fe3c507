"""The import hook that serves ``onnxruntime`` and ``torch_ort``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from steep.compat import stock
from steep.compat.import_hook import names
from steep.compat.refusals import NotOffered


class Finder(MetaPathFinder, Loader):
    """Serves the modules of ``names.MODULES``, and refuses others of the same packages.

    Attributes:
        active: whether imports get Steep's modules; False: those of the installed packages.
    """

    def __init__(self) -> None:
        self.active = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of one of Steep's modules; None for other packages.

        Raises:
            NotOffered: it is a module of these packages that Steep does not have.
        """
        if not self.active or not stock.is_served(fullname):
            return None
        if fullname in names.RUN:
            return ModuleSpec(fullname, self)
        if fullname not in names.MODULES:
            raise refusal(fullname, names.remedy_of(fullname))
        return ModuleSpec(fullname, self, origin="steep.compat", is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Give a module its names; each is imported on first use."""
        fullname = module.__name__
        offers = names.MODULES.get(fullname, {})

        def get(name: str) -> object:
            place = offers.get(name)
            if place is not None:
                value = names.at(place)
            elif f"{fullname}.{name}" in names.MODULES:
                value = importlib.import_module(f"{fullname}.{name}")
            elif name in names.REFUSED.get(fullname, {}):
                raise refusal(f"{fullname}.{name}", names.REFUSED[fullname][name])
            else:
                raise AttributeError(f"module {fullname!r} (of Steep) has no attribute {name!r}")
            setattr(module, name, value)
            return value

        module.__doc__ = f"``{fullname}``, served by ``steep.compat``."
        module.__dict__.update(
            __getattr__=get,
            __dir__=lambda: sorted({*module.__dict__, *offers}),
            __all__=[name for name in offers if not name.startswith("__")],
        )

    def get_code(self, fullname: str) -> CodeType:
        """Return the code that ``python -m`` runs, for modules that are programs."""
        place = names.RUN.get(fullname)
        if place is None:
            raise ImportError(f"{fullname} cannot be run as a program", name=fullname)
        module, _, function = place.partition(":")
        return compile(f"from {module} import {function}\n{function}()", fullname, "exec")


def refusal(name: str, remedy: str | None) -> NotOffered:
    """Return the exception for a name that Steep does not have."""
    return NotOffered(
        "The name is one of ONNX Runtime's that Steep does not have.",
        node=name,
        remedy=remedy or "",
    )


FINDER = Finder()


def _is_ours(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "origin", None) == "steep.compat"


def install() -> None:
    """Serve the names from now on. A second call does nothing.

    If ``onnxruntime`` was imported before, code that imported it keeps it; it is then
    ``steep.compat.stock``.
    """
    if FINDER in sys.meta_path:
        return
    modules = {name: module for name, module in [*sys.modules.items()] if stock.is_served(name)}
    waiting = {name for name, module in modules.items() if _is_ours(module)}
    stock.keep({name: sys.modules.pop(name) for name in modules.keys() - waiting})
    stock.stand_before(FINDER)
    for name in waiting:  # placeholders that the distribution steep-compat imported
        modules[name].__dict__["__spec__"].loader = FINDER
        FINDER.exec_module(modules[name])
    sys.meta_path.insert(0, FINDER)


def uninstall() -> None:
    """Stop serving the names; code that has imported them keeps them."""
    if FINDER not in sys.meta_path:
        return
    sys.meta_path.remove(FINDER)
    stock.stand_before(None)
    for name in [name for name in sys.modules if stock.is_served(name)]:
        del sys.modules[name]
    sys.modules.update(stock.loaded_modules())
