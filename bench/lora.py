"""Peak memory of `steep train --lora 8` on a model of SmolLM2-135M's shape with an int4 base.

    python bench/lora.py                           30 layers, 1 × 256 tokens, 4 steps
    python bench/lora.py --memory-limit least --offload frozen
    python bench/lora.py --layers 2 --keep model   the files stay in this folder

Weights are random. Those of the layers are int4, and the table of tokens, which is the head as
well, is int8, both with one scale for 32 numbers. The peak is the program's resident size
(`VmHWM`), all libraries included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, KEYS, INNER, VOCABULARY = 30, 576, 9, 3, 1536, 49152
HEAD = WIDTH // HEADS
BLOCK = 32
PROGRAM = Path(__file__).parents[1] / "build" / "release" / "steep"


class Writer:
    """Nodes and initializers of a model of this shape."""

    def __init__(self, tokens: int, parts: int) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.tokens, self.parts = tokens, parts

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def array(self, name: str, value: np.ndarray) -> str:
        """Add an initializer."""
        self.tensors.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str, rows: int, columns: int) -> str:
        """Add an int4 matrix, and what unpacks it."""
        packed = self.random.integers(0, 256, rows * columns // 2, np.uint8).tobytes()
        self.tensors.append(
            helper.make_tensor(name, TensorProto.INT4, [rows, columns], packed, raw=True)
        )
        steps = self.random.uniform(0.5, 1.5, (rows // BLOCK, columns)) / (4.6 * rows**0.5)
        scale = self.array(f"{name}.scale", steps.astype(np.float32))
        return self.node(
            "DequantizeLinear", [name, scale], f"{name}.floats", axis=0, block_size=BLOCK
        )

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """Add x · W."""
        return self.node("MatMul", [x, self.weight(f"{name}.weight", rows, columns)], name)

    def norm(self, x: str, name: str) -> str:
        """Add a root mean square normalisation."""
        weight = self.array(f"{name}.weight", np.ones(WIDTH, np.float32))
        return self.node("RMSNormalization", [x, weight], name, axis=-1, epsilon=1e-5)

    def turned(self, x: str, heads: int, name: str) -> str:
        """Add a rotary embedding."""
        inputs = [x, "cos", "sin", "positions"]
        return self.node("RotaryEmbedding", inputs, name, num_heads=heads)

    def layer(self, x: str, i: int) -> str:
        """Add one layer."""
        at = f"layers.{i}"
        h = self.norm(x, f"{at}.input_layernorm")
        q = self.linear(h, f"{at}.self_attn.q_proj", WIDTH, WIDTH)
        k = self.linear(h, f"{at}.self_attn.k_proj", WIDTH, KEYS * HEAD)
        v = self.linear(h, f"{at}.self_attn.v_proj", WIDTH, KEYS * HEAD)
        q, k = self.turned(q, HEADS, f"{at}.q"), self.turned(k, KEYS, f"{at}.k")
        heads = {"q_num_heads": HEADS, "kv_num_heads": KEYS, "is_causal": 1}
        a = self.node("Attention", [q, k, v], f"{at}.attention", **heads)
        x = self.node(
            "Add", [x, self.linear(a, f"{at}.self_attn.o_proj", WIDTH, WIDTH)], f"{at}.middle"
        )
        h = self.norm(x, f"{at}.post_attention_layernorm")
        gate = self.linear(h, f"{at}.mlp.gate_proj", WIDTH, INNER)
        gate = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{at}.s")], f"{at}.g")
        up = self.linear(h, f"{at}.mlp.up_proj", WIDTH, INNER)
        h = self.node("Mul", [gate, up], f"{at}.h")
        return self.node(
            "Add", [x, self.linear(h, f"{at}.mlp.down_proj", INNER, WIDTH)], f"{at}.out"
        )

    def table(self) -> list[tuple[str, str]]:
        """Add the table of tokens in int8, as parts with their scales."""
        rows = VOCABULARY // self.parts
        made = []
        for i in range(self.parts):
            numbers = self.random.integers(-127, 128, (rows, WIDTH), np.int8)
            steps = self.random.uniform(0.5, 1.5, (rows, WIDTH // BLOCK)) / (73 * WIDTH**0.5)
            names = f"embed.{i}.weight", f"embed.{i}.scale"
            made.append(
                (
                    self.array(names[0], numbers),
                    self.array(names[1], steps.astype(np.float32)),
                )
            )
        return made

    def embed(self, parts: list[tuple[str, str]]) -> str:
        """Add the lookup of tokens: a sum over the parts, of which one is not zero."""
        rows = VOCABULARY // self.parts
        total = ""
        last = self.array("last", np.int64(rows - 1))
        none = self.array("none", np.int64(0))
        for i, (numbers, scale) in enumerate(parts):
            first = self.array(f"first.{i}", np.int64(i * rows))
            at = self.node("Sub", ["ids", first], f"embed.{i}.at")
            inside = self.node("Clip", [at, none, last], f"embed.{i}.inside")
            here = self.node("Equal", [at, inside], f"embed.{i}.here")
            picked = self.node("Gather", [numbers, inside], f"embed.{i}.numbers", axis=0)
            steps = self.node("Gather", [scale, inside], f"embed.{i}.steps", axis=0)
            floats = self.node(
                "DequantizeLinear", [picked, steps], f"embed.{i}.floats", axis=2, block_size=BLOCK
            )
            mask = self.node("Cast", [here], f"embed.{i}.mask", to=TensorProto.FLOAT)
            axis = self.array(f"axis.{i}", np.array([2], np.int64))
            mask = self.node("Unsqueeze", [mask, axis], f"embed.{i}.column")
            part = self.node("Mul", [floats, mask], f"embed.{i}.part")
            total = self.node("Add", [total, part], f"embed.{i}.sum") if total else part
        return total

    def head(self, x: str, parts: list[tuple[str, str]]) -> None:
        """Add the products with the table, and the scores."""
        scores = []
        for i, (numbers, scale) in enumerate(parts):
            floats = self.node(
                "DequantizeLinear", [numbers, scale], f"head.{i}.floats", axis=1, block_size=BLOCK
            )
            turned = self.node("Transpose", [floats], f"head.{i}.turned", perm=[1, 0])
            output = "logits" if self.parts == 1 else f"head.{i}.scores"
            scores.append(self.node("MatMul", [x, turned], output))
        if self.parts > 1:
            self.node("Concat", scores, "logits", axis=-1)

    def model(self, layers: int) -> onnx.ModelProto:
        """Return the model."""
        angles = np.arange(self.tokens)[:, None] / 1e5 ** (np.arange(0, HEAD, 2) / HEAD)
        self.array("cos", np.cos(angles).astype(np.float32))
        self.array("sin", np.sin(angles).astype(np.float32))
        self.array("positions", np.arange(self.tokens, dtype=np.int64)[None])
        parts = self.table()
        x = self.embed(parts)
        for i in range(layers):
            x = self.layer(x, i)
        self.head(self.norm(x, "norm"), parts)
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "smollm2",
            [info("ids", TensorProto.INT64, [1, self.tokens])],
            [info("logits", TensorProto.FLOAT, [1, self.tokens, VOCABULARY])],
            self.tensors,
        )
        opsets = [helper.make_opsetid("", 23)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def write_files(model: Path, data: Path, options: argparse.Namespace) -> None:
    """Write the model and the data."""
    proto = Writer(options.tokens, options.parts).model(options.layers)
    onnx.save(proto, model, save_as_external_data=True, location="model.data")
    random = np.random.default_rng(1)
    ids = random.integers(0, VOCABULARY, (options.steps, options.tokens + 1))
    np.savez(data, ids=ids[:, :-1], label=ids[:, 1:])


def peak_of(command: list[str]) -> tuple[float, float]:
    """Return the peak of the resident size in MiB, and the seconds of a process.

    The system counts what this process had at most as the child's, too: keep it small.
    """
    start = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        raise SystemExit(f"the program failed: {status}")
    return usage.ru_maxrss / 1024, time.perf_counter() - start


def main() -> None:
    """Write the model and data, train, and print the peak."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--parts", type=int, default=8, help="pieces of the table of tokens")
    parser.add_argument("--memory-limit", default="")
    parser.add_argument("--offload", default="")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        model, data = folder / "model.onnx", folder / "data.npz"
        writer = multiprocessing.get_context("fork").Process(
            target=write_files, args=(model, data, options)
        )
        writer.start()
        writer.join()
        if writer.exitcode != 0:
            raise SystemExit("the model was not written")
        size = sum(p.stat().st_size for p in (model, folder / "model.data")) / 2**20
        command = [str(PROGRAM), "train", str(model), "--data", str(data)]
        command += ["--loss", "softmax_cross_entropy", "--batch", "1", "--lr", "1e-3"]
        command += ["--lora", str(options.rank), "--out", str(folder / "adapted.onnx")]
        if options.memory_limit:
            command += ["--memory-limit", options.memory_limit]
        if options.offload:
            command += ["--offload", options.offload]
        peak, seconds = peak_of(command)
        print(f"files {size:.0f} MiB, peak {peak:.0f} MiB resident, {seconds:.1f} s")


if __name__ == "__main__":
    main()
