"""PyTorch's function transforms (`torch.func`), and the legacy `vmap`."""

from __future__ import annotations

from torch import (
    _add_batch_dim as legacy_add_batch_dim,
    _remove_batch_dim as legacy_remove_batch_dim,
)
from torch._C import (
    _are_functorch_transforms_active as are_transforms_active,
    _vmapmode_decrement_nesting as decrement_legacy_vmap,
    _vmapmode_increment_nesting as increment_legacy_vmap,
)
from torch._C._functorch import (
    _add_batch_dim as add_batch_dim,
    _grad_decrement_nesting as grad_decrement_nesting,
    _grad_increment_nesting as grad_increment_nesting,
    _wrap_for_grad as wrap_for_grad,
    get_dynamic_layer_stack_depth,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    maybe_get_bdim,
    maybe_get_level,
    pop_dynamic_layer_stack_and_undo_to_depth,
    set_inplace_requires_grad_allowed,
)
from torch._functorch.autograd_function import autograd_function_apply
from torch._functorch.eager_transforms import (
    _autograd_grad as autograd_grad,
    _set_tensor_requires_grad as set_tensor_requires_grad,
)
from torch._functorch.predispatch import (
    _add_batch_dim as predispatch_add_batch_dim,
    _remove_batch_dim as predispatch_remove_batch_dim,
    _unwrap_for_grad as unwrap_for_grad,
    _vmap_decrement_nesting as vmap_decrement_nesting,
    _vmap_increment_nesting as vmap_increment_nesting,
    lazy_load_decompositions,
)

__all__ = [
    "add_batch_dim",
    "are_transforms_active",
    "autograd_function_apply",
    "autograd_grad",
    "decrement_legacy_vmap",
    "get_dynamic_layer_stack_depth",
    "get_unwrapped",
    "grad_decrement_nesting",
    "grad_increment_nesting",
    "increment_legacy_vmap",
    "is_batchedtensor",
    "is_functorch_wrapped_tensor",
    "is_legacy_batchedtensor",
    "lazy_load_decompositions",
    "legacy_add_batch_dim",
    "legacy_remove_batch_dim",
    "maybe_get_bdim",
    "maybe_get_level",
    "pop_dynamic_layer_stack_and_undo_to_depth",
    "predispatch_add_batch_dim",
    "predispatch_remove_batch_dim",
    "set_inplace_requires_grad_allowed",
    "set_tensor_requires_grad",
    "unwrap_for_grad",
    "vmap_decrement_nesting",
    "vmap_increment_nesting",
    "wrap_for_grad",
]
