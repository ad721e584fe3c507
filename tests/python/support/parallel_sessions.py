"""A small model with its data, options of sessions, and sessions with and without `parallel`."""

import numpy as np
import onnx.parser
import torch
import torch.distributed as dist

import steep

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (16, 4)).astype(np.float32)
Y = RNG.normal(0, 1, (16, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 16)
IGNORED = np.where(np.arange(16) % 5 < 2, -1, CLASSES)


def model(activation="Tanh", seed=1):
    random = np.random.default_rng(seed)
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[n,4] x) => (float[n,3] y) {{
            h = MatMul (x, w1) t = {activation} (h) y = MatMul (t, w2) }}"""
    )
    for name, shape in (("w1", (4, 5)), ("w2", (5, 3))):
        value = random.normal(0, 0.5, shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return made


def together(made=None, **options):
    return steep.TrainingSession(made or model(), parallel="torch", **options)


def alone(made=None, **options):
    return steep.TrainingSession(made or model(), **options)


def rows_of(rank, *rows):
    """The rows of a rank, where the ranks have so many."""
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])


def assert_same(session, expected, tolerance=1e-6):
    for name, value in expected.weights().items():
        found = np.asarray(session.weights()[name])
        np.testing.assert_allclose(found, value, rtol=0, atol=tolerance, err_msg=name)
        every = [torch.empty(found.shape) for _ in range(dist.get_world_size())]
        dist.all_gather(every, torch.from_numpy(found.copy()))
        assert all(torch.equal(every[0], other) for other in every), name


CASES = {
    "sgd": {"loss": "mse", "optimizer": "sgd", "lr": 0.1},
    "momentum, clipped": {
        **{"loss": "mse", "optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
        **{"clip_norm": 0.1, "grad_norm": True},
    },
    "adamw": {"loss": "mse", "lr": 0.01, "weight_decay": 0.1, "check_finite": True},
    "averages": {
        "loss": "l1",
        "lr": 0.01,
        "ema_decay": 0.9,
        "schedule": "linear",
        "total_steps": 9,
    },
    "group": {"loss": "mse", "optimizer": "sgd", "groups": [(["w2"], {"lr_multiplier": 0.1})]},
    "classes": {"loss": "softmax_cross_entropy", "optimizer": "sgd", "lr": 0.5},
    "ignored labels": {
        **{"loss": "softmax_cross_entropy", "ignore_index": -1},
        **{"optimizer": "sgd", "lr": 0.5},
    },
    "class weights": {
        **{"loss": "softmax_cross_entropy", "class_weights": [1, 2, 0.5]},
        **{"optimizer": "sgd", "lr": 0.5},
    },
}


def labels_of(options):
    if options["loss"] != "softmax_cross_entropy":
        return Y
    return IGNORED if "ignore_index" in options else CLASSES
