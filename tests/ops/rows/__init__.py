"""One or more rows for every operator that Steep knows, by family."""

from . import (
    attention,
    binary,
    convolutions,
    data_shaped,
    fills,
    images,
    indexing,
    joins,
    losses,
    matrices,
    mixed,
    norms,
    optimizers,
    own,
    pools,
    recurrent,
    reductions,
    unary,
    views,
)
from .row import Row

FAMILIES = (
    attention,
    binary,
    convolutions,
    data_shaped,
    fills,
    images,
    indexing,
    joins,
    losses,
    matrices,
    mixed,
    norms,
    optimizers,
    own,
    pools,
    recurrent,
    reductions,
    unary,
    views,
)
ROWS: list[Row] = [r for family in FAMILIES for r in family.ROWS]
