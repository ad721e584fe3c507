"""Small models in ONNX's text form, checked against PyTorch and as models of gradients."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import parser

import steep
from steep import _steep

EPS = 1e-5


def model(graph: str, opset: int = 21) -> bytes:
    """`graph` in ONNX's text form."""
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> {graph}'
    ).SerializeToString()


def rng_floats(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def check(text, in_torch, *inputs, smooth=True, exports=2):
    """Outputs and gradients of float64 inputs against PyTorch, and against central differences.
    `exports`: how often it is differentiated into a model."""
    names = [v.name for v in onnx.load_from_string(text).graph.input]
    tensors = [torch.tensor(x) for x in inputs]
    floats = [i for i, x in enumerate(inputs) if x.dtype == np.float64]
    for i in floats:
        tensors[i].requires_grad_()
    results = in_torch(*tensors)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    outputs = _steep.run_model(text, list(inputs), times=2)
    for ours, theirs in zip(outputs, results, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9, atol=1e-12)
    seeds = [
        rng_floats(*y.shape, seed=9 + i) if y.requires_grad else None for i, y in enumerate(results)
    ]
    scalar = sum(
        (y * torch.tensor(d)).sum() for y, d in zip(results, seeds, strict=True) if d is not None
    )
    scalar.backward()
    gradients = _steep.model_gradients(text, list(inputs), seeds, [names[i] for i in floats])
    for i, ours in zip(floats, gradients, strict=True):
        theirs = tensors[i].grad
        if theirs is None:
            assert ours is None or not ours.any(), names[i]
            continue
        assert ours is not None, names[i]
        np.testing.assert_allclose(
            ours, theirs.numpy(), rtol=1e-9, atol=1e-11, err_msg=f"gradient of {names[i]}"
        )
        if smooth:
            differ(text, inputs, seeds, i, ours)
    if exports:
        check_exported(text, in_torch, inputs, exports)


def run_both(model, feed):
    """Results of Steep, by name, within 1e-9 of those of ONNX Runtime."""
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in theirs.get_outputs()]
    feed = {i.name: feed[i.name] for i in theirs.get_inputs()}
    results = steep.InferenceSession(model).run(None, feed)
    for name, a, b in zip(names, results, theirs.run(None, feed), strict=True):
        assert a.shape == b.shape, name
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11, err_msg=name)
    return dict(zip(names, results, strict=True))


def check_exported(text, in_torch, inputs, times):
    """steep.grad, and steep.grad of what it returns, in both runtimes and against PyTorch."""
    model = onnx.load_from_string(text)
    feed = {v.name: x for v, x in zip(model.graph.input, inputs, strict=True)}
    leaves = {n: torch.tensor(x) for n, x in feed.items()}
    wrt = [n for n, x in feed.items() if x.dtype == np.float64]
    for n in wrt:
        leaves[n].requires_grad_()
    values = in_torch(*leaves.values())
    values = list(values) if isinstance(values, (tuple, list)) else [values]
    names = [v.name for v in model.graph.output]
    for order in range(times):
        model = steep.grad(model, wrt, outputs=names)
        total = torch.zeros((), dtype=torch.float64)
        for i, (name, y) in enumerate(zip(names, values, strict=True)):
            seed = rng_floats(*y.shape, seed=20 + 10 * order + i) if y.ndim else np.ones(())
            feed[f"grad_{name}"] = seed
            total = total + (y * torch.tensor(seed)).sum()
        sources = [leaves[n] for n in wrt]
        grads = [torch.zeros_like(t) for t in sources]
        if total.requires_grad:
            grads = torch.autograd.grad(total, sources, create_graph=True, materialize_grads=True)
        results = run_both(model, feed)
        names = [o.name for o in model.graph.output][-len(wrt) :]
        for name, theirs in zip(names, grads, strict=True):
            np.testing.assert_allclose(
                results[name], theirs.detach().numpy(), rtol=1e-9, atol=1e-10, err_msg=name
            )
        values = grads


def differ(text, inputs, seeds, i, ours):
    """One slope, along a random direction."""
    direction = rng_floats(*inputs[i].shape, seed=5)

    def value(step):
        arguments = list(inputs)
        arguments[i] = inputs[i] + step * direction
        outputs = _steep.run_model(text, arguments)
        return sum((y * d).sum() for y, d in zip(outputs, seeds, strict=True) if d is not None)

    slope = (value(EPS) - value(-EPS)) / (2 * EPS)
    np.testing.assert_allclose((ours * direction).sum(), slope, rtol=1e-5, atol=1e-7)
