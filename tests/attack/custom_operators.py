"""Registered operators and optimizers that are hostile, or registered and used by several threads.

    python tests/attack/custom_operators.py [--cases 2000] [--seconds 20] [--seed 0]

A registration that is refused leaves nothing behind; one that is accepted can be taken back; a
session of it ends with a result or a typed error of Steep's. Prints findings and lines ATTACK.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper
from tqdm import tqdm

import steep

NAMES = (
    *("Twice", "", " ", "a b", "x" * 70_000, "\N{SNOWMAN}", "../../etc", "%s%n", "Relu", "lion"),
    *("a\0b", "steep.Fused", "{", '"', "\n", "\\", "-1"),
)
DOMAINS = ("my", "", "ai.onnx", "com.microsoft", "steep", "steep.optimizer", "\N{SNOWMAN}", "a\0b")
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def function(rng: random.Random, known: list[tuple[str, str]]) -> onnx.FunctionProto:
    """A function of one input that calls itself, others, or operators with odd attributes."""
    domain, name = rng.choice(DOMAINS), rng.choice(NAMES)
    inputs = rng.choice([["x"], ["x"], [], ["x", "x"], [""], [f"x{i}" for i in range(3)]])
    outputs = rng.choice([["y"], ["y"], [], ["y", "y"], ["x"], [""]])
    nodes, last = [], (inputs or ["x"])[0]
    callees = [("", "Relu"), ("", "Add"), ("", "Loop"), ("", "None"), (domain, name), *known]
    for i in range(rng.choice([0, 1, 2, 3])):
        callee_domain, callee = rng.choice(callees)
        count = 2 if callee == "Add" else 1
        made = (outputs or ["y"])[0] if rng.random() < 0.5 else f"t{i}"
        nodes.append(helper.make_node(callee, [last] * count, [made], domain=callee_domain))
        last = made
    opsets = [
        helper.make_opsetid("", rng.choice([18, 18, 18, 0, -1, 2**31])),
        *(helper.make_opsetid(d, 1) for d in {domain, *(d for d, _ in known)} - {""}),
    ]
    return helper.make_function(domain, name, inputs, outputs, nodes, opsets)


def use(proto: onnx.FunctionProto) -> None:
    """Run a model with a node of the function, and train it."""
    node = helper.make_node(proto.name, ["x"], ["q"], domain=proto.domain)
    weight = onnx.numpy_helper.from_array(np.ones((4, 1), np.float32), "w")
    graph = helper.make_graph(
        [node, helper.make_node("MatMul", ["q", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 1])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 18)]
    if proto.domain:
        opsets.append(helper.make_opsetid(proto.domain, 1))
    file = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    steep.InferenceSession(file).run(None, {"x": X})
    steep.TrainingSession(file, loss="mse", optimizer="sgd").step(X, X[:, :1])


def hostile(seed: int) -> str:
    """Register, use and take back functions of one seed; return what a finding is."""
    rng = random.Random(seed)
    held: list[Any] = []
    known: list[tuple[str, str]] = []
    try:
        for _ in range(rng.choice([1, 2, 3])):
            proto = function(rng, known)
            gradient = function(rng, known) if rng.random() < 0.3 else None
            register = steep.register_optimizer if rng.random() < 0.2 else steep.register_op
            try:
                more = {"gradient": gradient} if gradient is not None else {}
                file = proto.SerializeToString()
                if rng.random() < 0.1:  # no UTF-8
                    file = file.replace(b"my", b"m\xff").replace(b"Twice", b"Tw\xffce")
                held.append(register(file, **more))
                known.append((proto.domain, proto.name))
                use(proto)
            except steep.InternalError as error:
                return f"InternalError: {error}"
            except (steep.Error, MemoryError, TypeError):
                pass  # TypeError: an optimizer takes no gradient
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for registration in reversed(held):
            registration.unregister()
    return ""


def doubling() -> str:
    """Thirty operators, each of which calls the one before it twice: 2^30 nodes."""
    held = []
    try:
        for i in range(30):
            callee = f"my.D{i - 1} (x)" if i else "Relu (x)"
            held.append(
                steep.register_op(
                    f"""<domain: "my", opset_import: ["": 18, "my": 1]> D{i} (x) => (y) {{
                    a = {callee}  b = {callee}  y = Add (a, b) }}"""
                )
            )
        use(onnx.FunctionProto(name="D29", domain="my"))
    except steep.InternalError as error:
        return f"InternalError: {error}"
    except steep.Error:
        return ""
    finally:
        for registration in reversed(held):
            registration.unregister()
    return "2^30 nodes were accepted"


def threads(seconds: float) -> tuple[int, list[str]]:
    """Four threads register, use and take back the same names; return cases and findings."""
    found: list[str] = []
    counts = [0] * 4
    end = time.monotonic() + seconds

    def act(k: int) -> None:
        factor = float(k + 1)
        text = f"""<domain: "my", opset_import: ["": 18]> Scaled{k % 2} (x) => (y) {{
            f = Constant <value_float = {factor}> ()  y = Mul (x, f) }}"""
        model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 18, "my": 1]>
            g (float[n, 4] x) => (float[n, 4] y) {{ y = my.Scaled{k % 2} (x) }}""")
        while time.monotonic() < end:
            counts[k] += 1
            try:
                with steep.register_op(text):
                    (y,) = steep.InferenceSession(model).run(None, {"x": X})
                    if not np.array_equal(y, X * factor):
                        found.append(f"thread {k}: another thread's operator without an error")
            except steep.InternalError as error:
                found.append(f"InternalError: {error}")
            except steep.Error:
                pass  # the other thread has the name
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")

    running = [threading.Thread(target=act, args=(k,)) for k in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts), found


def main() -> int:
    """Attack as often as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20, help="of several threads")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin, total = time.monotonic(), 0
    for seed in (bar := tqdm(range(options.seed, options.seed + options.cases))):
        if said := hostile(seed):
            total += 1
            bar.write(f"seed {seed}: {' '.join(said.split())[:200]}", file=sys.stdout)
    if said := doubling():
        total += 1
        print(said)
    print(f"ATTACK own/hostile {options.cases + 1} {total} {time.monotonic() - begin:.1f}")
    cases, found = threads(options.seconds)
    for said in sorted(set(found)):
        print(" ".join(said.split())[:200])
    print(f"ATTACK own/threads {cases} {len(found)} {options.seconds:.1f}")
    return bool(total or found)


if __name__ == "__main__":
    sys.exit(main())
