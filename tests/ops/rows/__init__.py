"""One or more rows for every operator that Steep knows, by family: each file here is one."""

from importlib import import_module
from pkgutil import iter_modules

from .row import Row

NO_FAMILIES = {"row", "bfloat16"}  # what a row is; rows of kernels that read 16 bits
FAMILIES = tuple(
    import_module(f"{__name__}.{module.name}")
    for module in sorted(iter_modules(__path__), key=lambda module: module.name)
    if module.name not in NO_FAMILIES
)
ROWS: list[Row] = [r for family in FAMILIES for r in family.ROWS]
