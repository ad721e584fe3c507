"""Matrix products and convolutions, under each of their names in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from steep.torch_internals.operators import aten

_OF_MATRICES = (
    *("addbmm", "addmm", "baddbmm", "bmm", "linear", "matmul", "mm"),
    "scaled_dot_product_attention",
)
_CONVOLUTIONS = (
    *("conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
_BY_FUNCTION = (*_OF_MATRICES, "__matmul__", "__rmatmul__", "einsum", *_CONVOLUTIONS)

NARROWED_FUNCTIONS = tuple(
    function
    for home in (torch, torch.Tensor, F)
    for function in (getattr(home, name, None) for name in _BY_FUNCTION)
    if function is not None
)
"""Functions of a captured graph whose operands autocast narrows."""

NARROWED = {
    getattr(aten, name)
    for name in (*_OF_MATRICES, "addmv", "mv", *_CONVOLUTIONS, "conv_tbc", "convolution")
}
"""ATen operators whose operands autocast narrows."""

OF_ONE_DTYPE = {
    getattr(aten, name) for name in (*_OF_MATRICES, "addmv", "bilinear", "dot", "mv", "vdot")
}
"""ATen operators whose kernels need one dtype for operands, bias and float mask."""
