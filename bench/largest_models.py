"""The GPT-2 of bench/largest.py: as an ONNX file, and in PyTorch with what saves memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD, TOKENS, VOCABULARY = 64, 1024, 50257
THREADS, STEPS, RATE = 2, 3, 1e-4
ROWS = 128  # of the loss at a time
BLOCK, PIECE = 256, 1 << 20  # elements with one scale; elements that are updated at a time
DOES_NOT_FIT = 3


def write_onnx(heads: int, layers: int, folder: Path, bfloat16: bool) -> None:
    """Write model.onnx and model.data; opset 23."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    dtype = TensorProto.BFLOAT16 if bfloat16 else TensorProto.FLOAT
    width, random = HEAD * heads, np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []

    with (folder / "model.data").open("wb") as data:

        def weight(name: str, *shape: int, value: float | None = None) -> str:
            array = np.full(shape, value, np.float32) if value is not None else None
            if array is None:
                array = random.standard_normal(shape, np.float32) * np.float32(0.02)
            raw = (array.view(np.uint32) >> 16).astype(np.uint16) if bfloat16 else array
            tensor = onnx.TensorProto(name=name, data_type=dtype, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            length = str(raw.nbytes)
            place = {"location": "model.data", "offset": str(data.tell()), "length": length}
            for key, text in place.items():
                tensor.external_data.add(key=key, value=text)
            tensors.append(tensor)
            data.write(raw.data)
            return name

        def node(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
            return output

        def norm(x: str, name: str) -> str:
            scale = weight(f"{name}.weight", width, value=1)
            bias = weight(f"{name}.bias", width, value=0)
            return node("LayerNormalization", [x, scale, bias], name, axis=-1)

        def linear(x: str, name: str, rows: int, columns: int) -> str:
            product = node("MatMul", [x, weight(f"{name}.weight", rows, columns)], f"{name}.xw")
            return node("Add", [product, weight(f"{name}.bias", columns, value=0)], name)

        table, places = weight("wte", VOCABULARY, width), weight("wpe", TOKENS, width)
        x = node("Add", [node("Gather", [table, "ids"], "tokens"), places], "embedded")
        for i in range(layers):
            at = f"h.{i}"
            qkv = linear(norm(x, f"{at}.ln_1"), f"{at}.c_attn", width, 3 * width)
            parts = [f"{at}.{part}" for part in "qkv"]
            nodes.append(
                helper.make_node("Split", [qkv], parts, name=f"{at}.s", axis=-1, num_outputs=3)
            )
            many = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": 1}
            a = linear(node("Attention", parts, f"{at}.a", **many), f"{at}.c_proj", width, width)
            x = node("Add", [x, a], f"{at}.middle")
            h = linear(norm(x, f"{at}.ln_2"), f"{at}.c_fc", width, 4 * width)
            h = node("Gelu", [h], f"{at}.gelu", approximate="tanh")
            x = node("Add", [x, linear(h, f"{at}.mlp", 4 * width, width)], f"{at}.out")
        turned = node("Transpose", [table], "wte.turned", perm=[1, 0])
        node("MatMul", [norm(x, "ln_f"), turned], "logits")
    info = helper.make_tensor_value_info
    inputs = [info("ids", TensorProto.INT64, [1, TOKENS])]
    graph = helper.make_graph(
        nodes, "gpt2", inputs, [info("logits", dtype, [1, TOKENS, VOCABULARY])], tensors
    )
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=11), folder / "model.onnx")


def torch_model(heads: int, layers: int, save: bool, bfloat16: bool) -> Any:
    """Return a GPT-2 whose forward takes ids and labels, and returns the loss.

    save: with checkpoints, and the loss by rows.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    width = HEAD * heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.c_fc, self.mlp = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.c_attn(self.ln_1(x)).view(1, TOKENS, 3, heads, HEAD)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(a.transpose(1, 2).reshape(1, TOKENS, width))
            return x + self.mlp(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class LossByRows(torch.autograd.Function):
        """The cross entropy of x · tableᵀ, whose gradients are made with it."""

        @staticmethod
        def forward(ctx: Any, x: Any, table: Any, labels: Any) -> Any:
            gradient, of_table = torch.empty_like(x), torch.zeros_like(table)
            loss = torch.zeros(())
            for rows in torch.arange(TOKENS).split(ROWS):
                part = slice(rows[0], rows[-1] + 1)
                scores = torch.log_softmax((x[part] @ table.T).float(), 1)
                loss -= scores.gather(1, labels[part, None]).sum() / TOKENS
                scores.exp_().div_(TOKENS)
                scores[rows - rows[0], labels[part]] -= 1 / TOKENS
                scores = scores.to(x.dtype)
                torch.mm(scores, table, out=gradient[part])
                of_table.addmm_(scores.T, x[part])
            ctx.save_for_backward(gradient, of_table)
            return loss

        @staticmethod
        def backward(ctx: Any, one: Any) -> Any:  # of the loss itself, so it is 1
            return (*ctx.saved_tensors, None)

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)
            self.h = nn.ModuleList([Block() for _ in range(layers)])
            self.ln_f = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids: Any, labels: Any) -> Any:
            x = self.wte(ids) + self.wpe.weight
            for block in self.h:
                x = checkpoint(block, x, use_reentrant=False) if save else block(x)
            x = self.ln_f(x).view(TOKENS, width)
            if save:
                return LossByRows.apply(x, self.wte.weight, labels.view(-1))
            return F.cross_entropy(x @ self.wte.weight.T, labels.view(-1))

    torch.set_default_dtype(torch.bfloat16 if bfloat16 else torch.float32)
    model = GPT2().train()
    torch.set_default_dtype(torch.float32)
    return model


def update_in_backward(model: Any) -> None:
    """AdamW in 8 bits: each weight as soon as its gradient is there, which is freed then.

    A moment is a share of the greatest of its block, the second one as its root.
    """
    import torch

    def pieces(p: Any) -> list[tuple[Any, Any, Any]]:
        made = []
        for piece in p.data.view(-1).split(PIECE):
            blocks = -(-piece.numel() // BLOCK)
            codes = torch.zeros(2, blocks, BLOCK, dtype=torch.uint8)
            made.append((piece, codes, torch.zeros(2, blocks, 1)))
        return made

    def hook_of(p: Any) -> Callable[[Any], None]:
        states, steps = pieces(p), 0

        def hook(p: Any) -> None:
            nonlocal steps
            steps += 1
            gradients = p.grad.view(-1).split(PIECE)
            for (weight, codes, scales), gradient in zip(states, gradients, strict=True):
                g = torch.nn.functional.pad(gradient.float(), (0, codes[0].numel() - len(weight)))
                g = g.view(-1, BLOCK)
                m = codes[0].view(torch.int8).float().mul_(scales[0]).lerp_(g, 0.1)
                v = (
                    codes[1]
                    .float()
                    .mul_(scales[1])
                    .square_()
                    .mul_(0.999)
                    .addcmul_(g, g, value=1e-3)
                )
                root = v.sqrt_()
                change = (m / (root / (1 - 0.999**steps) ** 0.5).add_(1e-8)).view(-1)
                change = change[: len(weight)].mul_(RATE / (1 - 0.9**steps))
                for i, (moment, greatest) in enumerate(((m, 127), (root, 255))):
                    scales[i] = moment.abs().amax(1, keepdim=True).div_(greatest).clamp_(min=1e-30)
                    code = moment.div_(scales[i]).round_()
                    codes[i] = code.to(torch.int8).view(torch.uint8) if i == 0 else code
                new = weight.float().mul_(1 - RATE * 0.01).sub_(change)
                if weight.dtype == torch.bfloat16:
                    bits = new.view(torch.int32)
                    bits += torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)
                    bits &= -(1 << 16)
                weight.copy_(new)
            p.grad = None

        return hook

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook_of(p))


def torch_step(name: str, heads: int, layers: int) -> Callable[[], float]:
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    save = name.startswith("best")
    model = torch_model(heads, layers, save, name.endswith("bf16"))
    ids = torch.randint(0, VOCABULARY, (1, TOKENS))
    if save:
        update_in_backward(model)

        def saving() -> float:
            loss = model(ids, ids)
            loss.backward()
            return loss.item()

        return saving
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    if name == "trainer":
        import steep

        options: dict[str, Any] = {"memory_limit": "least", "state_precision": "int8"}
        options["predictions"] = False
        trainer = steep.trainer(model, None, optimizer, **options)
        return lambda: float(trainer.step(ids, ids))

    def step() -> float:
        optimizer.zero_grad()
        loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def session_step(name: str, folder: Path) -> Callable[[], float]:
    import numpy as np

    import steep

    options: dict[str, Any] = {"memory_limit": "least", "state_precision": "int8"}
    if name.endswith("bf16"):
        options |= {"master_weights": False, "stochastic_rounding": True}
    if name == "disk":
        options |= {"offload_folder": folder, "offload": "moments"}
    session = steep.TrainingSession(
        folder / "model.onnx",
        loss="softmax_cross_entropy",
        optimizer="adamw",
        lr=RATE,
        weight_decay=0.01,
        threads=THREADS,
        **options,
    )
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, TOKENS))
    return lambda: float(session.step(ids, ids).loss)


def train(name: str, heads: int, layers: int, folder: Path) -> None:
    """Train, and print the losses and the peak in MiB as JSON; exit with DOES_NOT_FIT."""
    from worker import peak_mib

    try:
        of_file = (folder / "model.onnx").exists()
        step = session_step(name, folder) if of_file else torch_step(name, heads, layers)
        losses = [step() for _ in range(STEPS)]
    except MemoryError:  # steep.OutOfMemoryError is one
        sys.exit(DOES_NOT_FIT)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        sys.exit(DOES_NOT_FIT)
    print(json.dumps({"losses": losses, "peak": peak_mib()}))
