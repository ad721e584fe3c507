#!/usr/bin/env python3
"""Compares random modules with eager PyTorch over several calls: no result may differ in silence.

usage: scripts/modules.py [--count 5000] [--seed 0]

A module is Python source made from a seed: statements on ``y`` of [rows, 4], and changes between
calls. Results, what they alias, arguments, parameters, buffers and every gradient are compared.
A typed error of Steep's is a refusal, counted by its first line. Of a module that differs, the
forward is printed, with the statements removed that it differs without.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import linecache
import random
import sys
import types
from collections import Counter
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from steep import ORTModule
from steep.dynamo import backend
from steep.errors import Error, InternalError

STATEMENTS = """\
y = self.a(y)
y = self.b(torch.tanh(y))
y = self.cells(y[:, None])[0][:, 0]
y = self.cells(y.view(-1, 1, 4).transpose(0, 1))[0][0]
y = F.scaled_dot_product_attention(y[None], x[None], y[None])[0]
y = F.layer_norm(y, (4,), self.norm.weight) + F.gelu(y)
y = F.pad(y, (1, 1))[:, 1:-1] * F.softplus(y)
y = y.cumsum(1).flip(1).roll(1, 0)
y = y.gather(1, x.argsort(1))
y = y.scatter_add(1, x.argmax(1, keepdim=True), y[:, :1])
y = y.masked_fill(x < 0, 0.5).clamp(-2, 2)
y = y.index_select(0, torch.arange(y.shape[0]).flip(0))
y = torch.einsum("ij,kj->ik", y, self.a.weight)
y = y.norm(dim=1, keepdim=True) + y - y.mean(0)
y = y.topk(4).values * 2 + y.sort(1).values
y = torch.outer(y[:, 0], y[0])[:, :4]
y = y + torch.tensor([self.number, 1.0, 2.0, 3.0])
y = y + torch.arange(y.shape[0], dtype=y.dtype)[:, None]
y = F.one_hot(x.argmax(1), 4) * y
y = y.unsqueeze(0).expand(2, -1, -1).reshape(-1, 4)[: x.shape[0]]
y = torch.cat([part * i for i, part in enumerate(y.split(1))])
y = torch.vmap(lambda row: row * row.sum())(y)
y = self.norm(y)
y = self.batch(y)
y = self.conv(y[:, None])[:, 0]
y = y + self.table(x.detach().argmax(1))
y = F.linear(y, self.a.weight.t())
y = torch.cat([y[:, 2:], y[:, :2]], 1)
y = y.view(-1).view(y.shape)
y = y / y.shape[0]
y = y * self.number + GLOBAL
y = y * self.options["scale"] + self.items[0]
y = y * self.inner.value
y = y.double().sin().float()
y = torch.where(x > 0, y, x * 2)
y = y + y.detach() * 0.5
y = y.sigmoid() * y
y = y.clone().mul_(1.5)
y = y.clone(); y.add_(x)
y = y.clone(); y[:, 1:3] *= 2
y = y.clone(); y[:, 0] = x[:, 1]
y = y.clone(); v = y.view(-1); v[1:3] += 1
y = y.clone(); v = y.t(); v.mul_(2); y = y + v.t()
y = y.clone(); v = y.detach(); v.mul_(2)
y = y * 1; y.relu_()
y = y if y.sum() > 0.1 else torch.tanh(self.a(y))
y = y * 2 if x.shape[0] > 3 else y - 1
y = self.a(y) if self.flag else self.b(y)
y = y * x.detach().sum().item()
y = y + float(x.detach().max())
y = y + y[x.detach().sum(1).argsort().tolist()]
y = torch.stack([torch.tanh(self.a(y[i])) for i in range(y.shape[0])])
y = sum(y * i for i in range(len(self.items)))
y = checkpoint(self.a, y, use_reentrant=False)
with torch.no_grad(): y = y + self.b(x)
with torch.no_grad(): self.state.mul_(0.5).add_(y.mean(0)); self.plain = self.state * 1
z = x * 1; torch.no_grad()(z.copy_)(y); y = y * z
y = self.deep(y)
y = self.parts[1](y) if len(self.parts) > 1 else y
for part in self.parts: y = y + part(y)
y = {"one": y, "two": y * 2}[self.key]
y = functools.reduce(lambda p, q: p * 0.5 + q, [y, x, y * x])
y, v = (y, x) if self.flag else (x * 1, y); y = y - v
y = y if isinstance(self.number, int) else y * 1.5
y = getattr(self, self.key_layer)(y)
y = self.kept_list[-1] + y if self.kept_list else y
self.kept_list.append(y.detach()[:1]); y = y + len(self.kept_list)
y = y * self.plain
y = y.chunk(2, 1)[0].repeat(1, 2)
z = y.new_zeros(y.shape); z[1:] = y[:-1]; y = z + y
z = torch.empty_like(y); z.copy_(y); z.mul_(y); y = z
z = y.clone(); z.sin_(); y = y + z
z = y.clone(); z[x > 0] = 0.0; y = z
z = y.clone(); z[[0, -1]] = x[[0, -1]]; y = z
z = y.clone(); a, b = z.unbind(1)[:2]; y = y * (a + b)[:, None]
z = y.clone(); z[1].mul_(3); z.t()[0].add_(1); y = z
while y.detach().abs().sum() > 50: y = y * 0.5
for i in range(x.shape[0]): y = y + x[i] * i
y = y + getattr(self, "missing", 1)
assert y.shape[1] == 4; y = y + (y.dim() - 1)
y = y + (0 if torch.isnan(y).any() else 1)
y = y * y.detach().std().item() if y.shape[0] > 2 else y
y = (y.to(torch.bfloat16).float() + y).to(x.dtype)
y = torch.utils.checkpoint.checkpoint(lambda t: t.tanh() * t, y, use_reentrant=True)
with torch.enable_grad(): y = y * torch.sigmoid(self.b(y))
y = y + torch.zeros(4).index_add(0, x.argmax(1), torch.ones(x.shape[0]))
y = Double.apply(y)
y.register_hook(lambda g: g * 2) if y.requires_grad else None
self.count += 1; y = y / self.count
self.state = self.state * 0.5 + y.detach().mean(0); y = y + self.state
self.kept = y.detach() if self.kept is None else self.kept[:1] + 1; y = y + self.kept[:1]
x.mul_(2)
x[:, 0] = y.detach()[:, 0]
v = x[:, 1:]; v.add_(1)
y = y * (2 if self.training else 3)
y = y * (2 if torch.is_grad_enabled() else 3)
s = self.state.clone(); y = y * s; self.state.data.copy_(y.detach().mean(0))
s = self.state + 0.0; y = y * s; self.state.data.add_(1)
s = self.state.clone().detach(); y = y * s; self.state.detach().numpy()[:] = 0.5
s = torch.empty_like(self.state).copy_(self.state); y = y * s; self.state.data.mul_(0.5)
y = y @ self.queue.clone(); self.queue.data[:, int(self.count) % 4] = y.detach()[0]
y = y * self.queue.clone()[0]; self.queue.data = self.queue.data * 0.9
s = self.a.weight.detach().clone(); y = y @ s; self.shadow.data.mul_(0.9).add_(s, alpha=0.1)
with torch.no_grad(): self.shadow.data.mul_(0.5).add_(self.a.weight.data)
y = y @ self.shadow.clone(); self.shadow.data.copy_(self.b.weight.detach())
self.steps += 1; y = y * min(1.0, self.steps / 100)
self.steps += 1; y = y * max(0.1, 1 - self.steps / 7)
self.steps += 1; y = y * math.exp(-self.steps / 50)
self.steps += 1; y = y * 0.5 ** (self.steps // 2)
self.tau = self.tau * 0.99; y = y / self.tau
self.mean = 0.9 * self.mean + 0.1 * y.detach().mean().item(); y = y - self.mean
self.history.append(y.detach()); y = y + self.history[-1].mean()
self.history.append(y.detach()); y = y + len(self.history)
y = y.index_select(0, torch.tensor([-1, 0, 0]))[:1] + y
y = y.gather(1, x.argsort(1) - 1)
y = y.scatter(1, x.argmax(1, keepdim=True) - 1, 0.5)
y = y.index_add(0, torch.tensor([0, -1]), y[:2])
y = y.index_copy(0, torch.tensor([0, x.shape[0] - 5]), x[:2])
y = y + self.table(x.detach().argmax(1) - 1)
y = y + y[torch.tensor([-1, 0])].sum(0)
y = y[:, [-1, 0, 1, -2]]
y = y.take_along_dim(x.argsort(1), 1) + y.narrow(1, -4, 4)
y = (y.to(torch.float16) * 300).mean().to(y.dtype) + y
y = torch.nn.functional.layer_norm(y.half() * 500, (4,)).to(y.dtype) + y
y = y + y.to(torch.bfloat16).var(0).to(y.dtype)""".splitlines()

# What backward reads is the copy then, whatever becomes of the argument.
COPIES = """\
x.clone()
x + 0.0
x * 1
torch.empty_like(x).copy_(x)
x.clone(memory_format=torch.contiguous_format)
torch.cat([x])
x.flip(0).flip(0)
x.t().contiguous().t()
x.clone().view(-1).view(x.shape)""".splitlines()

# Between forward and backward.
WRITES = """\
given.data.zero_()
given.detach().numpy()[:] = 7
given.data.add_(1)
given.data.copy_(given.data.flip(0))
m.state.data.add_(1)
m.shadow.data.zero_()
m.queue.data.zero_()""".splitlines()

RESULTS = """\
y
(y, x)
(y, x[:, 1:])
(y, y[0])
(y, y.view(-1))
{"y": y, "same": y, "none": None}
[y, y.detach()]
(y, self.a.weight)
(y, self.state)
(y.sum(), x.argmax(1), x.shape[0])
y.unbind(1)""".splitlines()

CHANGES = """\
m.number += 1.5
m.flag = not m.flag
m.items.append(2.0)
m.items[0] = 3.0
m.options["scale"] = 5.0
m.inner.value = -1.0
m.key = "two"
m.key_layer = "norm"
m.parts.append(nn.Linear(4, 4))
m.parts[0] = nn.Linear(4, 4)
m.plain = m.plain * 2
m.plain.add_(1)
m.kept_list = []
m.deep.inner = nn.Sequential(nn.Tanh(), nn.Linear(4, 4))
m.deep.factor += 1
m.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in m.state_dict().items()})
m.a.weight.data = m.a.weight.data * 2
m.cells.weight_hh_l0.requires_grad_(False)
m.forward = types.MethodType(lambda self, x: type(self).forward(self, x), m)
m.a = nn.Linear(4, 4)
m.a, m.b = m.b, m.a
m.b.weight = m.a.weight
m.a.weight.requires_grad_(not m.a.weight.requires_grad)
m.train(not m.training)
m.batch.eval()
m.a.register_forward_hook(lambda m, i, o: o * 2)
m.number = int(m.number)
globals().update(GLOBAL=GLOBAL + 1)
m.number *= 0.99
m.steps += 10
m.tau = 0.5
m.state = m.state + 1""".splitlines()

HEAD = """\
import functools, math, torch, types
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
GLOBAL = 1.0
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, dy): return dy * 3
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.factor = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), 2.0
    def forward(self, y): return self.inner(y) * self.factor + y
class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.deep, self.parts = Deep(), nn.ModuleList([nn.Linear(4, 4)])
        self.cells, self.plain = nn.GRU(4, 4, batch_first=True), torch.full((4,), 0.5)
        self.key, self.key_layer, self.kept_list = "one", "a", []
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.batch = nn.LayerNorm(4), nn.BatchNorm1d(4)
        self.conv, self.table = nn.Conv1d(1, 1, 3, padding=1), nn.Embedding(4, 4)
        self.number, self.flag, self.kept = 2.0, True, None
        self.items, self.options = [0.5, 1.5], {"scale": 0.5}
        self.inner = types.SimpleNamespace(value=0.5)
        self.register_buffer("count", torch.ones(()))
        self.register_buffer("state", torch.zeros(4))
        self.register_buffer("queue", torch.linspace(-1, 1, 16).view(4, 4))
        self.register_buffer("shadow", torch.linspace(1, -1, 16).view(4, 4))
        self.steps, self.tau, self.mean, self.history = 0, 1.0, 0.0, []
    def forward(self, x):
"""


BACKENDS: dict[str | None, Any] = {
    "backend": backend.backend,
    "PyTorch's": "eager",
    "PyTorch's, traced": "aot_eager",
}
WRITTEN = "saved for backward, then written"
MIXED = "operands of two dtypes"
NARROW = (torch.float16, torch.bfloat16)


class Call(NamedTuple):
    """One call of the module, and what the caller does around it."""

    rows: int
    change: str  # before it
    grad: bool  # with gradients
    into: bool  # into the argument
    write: str  # between forward and backward
    wrong: bool  # a call with a wrong shape first, whose error the caller catches


class Case:
    """What a seed says: statements, a result, and for each call rows, a change and modes."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.route = rng.choice(["parts", "parts", "parts", None, None, "backend"])
        # torch.compile does not notice hooks that come later, unless it is configured to
        changes = [c for c in CHANGES if self.route != "backend" or "hook" not in c]
        self.statements = rng.choices(STATEMENTS, k=rng.randint(1, 4))
        self.result = rng.choice(RESULTS)
        self.copy = rng.choice(COPIES) if rng.random() < 0.3 else ""
        self.dtype = rng.choice([torch.float32] * 8 + [torch.float16, torch.bfloat16])
        # an argument that forward has not copied may be read where it lies
        writes = WRITES if self.copy else [w for w in WRITES if "given" not in w]
        self.calls = [
            Call(
                rows=rng.choice([3, 3, 3, 2, 5]),
                change=rng.choice(["pass", *changes]) if i else "pass",
                grad=rng.random() < 0.9,
                into=rng.random() < 0.5,
                write=rng.choice(writes) if rng.random() < (0.7 if self.copy else 0.2) else "pass",
                wrong=rng.random() < 0.1,
            )
            for i in range(rng.choice([3, 3, 3, 6]))
        ]

    def source(self) -> str:
        """The module, as Python says it."""
        first = [f"x = {self.copy}"] if self.copy else []
        body = "".join(f"        {s}\n" for s in (*first, "y = self.a(x)", *self.statements))
        return HEAD + body + f"        return {self.result}\n"

    def __str__(self) -> str:
        calls = "".join(f"# {call}\n" for call in self.calls)
        forward = self.source().removeprefix(HEAD)
        return f"# seed {self.seed}, {self.route}, {self.dtype}\n{calls}{forward}"


def run(case: Case, route: str | None, eager: bool) -> list[Any]:
    """What every call left behind; an exception ends the list."""
    name = f"<module {case.seed} {'eager' if eager else 'steep'}>"
    source = case.source()
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    home = sys.modules["random_module"] = types.ModuleType("random_module")  # Dynamo imports it
    space = vars(home)
    exec(compile(source, name, "exec"), space)
    torch.manual_seed(case.seed)
    dtype = case.dtype if torch.get_default_dtype() == torch.float32 else torch.float64
    module = net = space["Module"]().to(dtype)
    if route in BACKENDS and not eager:
        net = torch.compile(module, backend=BACKENDS[route])
    elif not eager:
        net = ORTModule(module, fallback=route)
    records: list[Any] = []
    for i, call in enumerate(case.calls):
        torch.manual_seed(i)
        exec(call.change, space | {"m": module} if "globals" not in call.change else space)
        if call.wrong:
            with contextlib.suppress(Exception):
                net(torch.randn(call.rows, 5, dtype=dtype))
        leaf = torch.randn(call.rows, 4, dtype=dtype, requires_grad=call.into)
        argument = leaf * 1
        module.zero_grad()
        try:
            with torch.set_grad_enabled(call.grad):
                result = net(argument)
            exec(call.write, {"given": argument, "m": module})
            flat, _ = torch.utils._pytree.tree_flatten(result)
            tensors = [t for t in flat if isinstance(t, torch.Tensor)]
            losses = [
                (t * torch.arange(1.0, t.numel() + 1).view(t.shape)).sum()
                for t in tensors
                if t.requires_grad
            ]
            if losses:
                torch.stack(losses).sum().backward()
        except Error:
            raise
        except Exception as error:  # PyTorch's own: the same type is wanted
            records.append(raised_as(error))
            break
        records.append([t if isinstance(t, torch.Tensor) else repr(t) for t in flat])
        records.append([t.requires_grad for t in tensors])
        records.append([leaf.grad, *(p.grad for p in module.parameters())])
        records.append([argument, *module.state_dict().values()])
        records[-4:] = copy.deepcopy(
            [
                [t.detach() if isinstance(t, torch.Tensor) else t for t in part]
                for part in records[-4:]
            ]
        )
        with torch.no_grad():  # what is written to one is seen in what shares its memory
            for t in tensors:
                if t.is_floating_point() and all(t is not p for p in module.parameters()):
                    t.add_(1)
        records.append([t.detach().clone() for t in [*tensors, argument, module.state]])
    return records


def raised_as(error: Exception) -> str:
    """Return what PyTorch's error is about, as far as it matters here, or else its type."""
    text = str(error)
    if "modified by an inplace operation" in text:
        return WRITTEN
    return MIXED if "dtype" in text or "scalar type" in text else type(error).__name__


def same(a: Any, b: Any, within: float = 1e-4, least: float = 1.0) -> bool:
    """Whether both left the same, within rounding: of each tensor's largest, of ``least`` too.

    Of a list, as of gradients, a tenth of the largest counts: some are zero but for rounding.
    """
    if isinstance(a, list) and isinstance(b, list):
        least = max([1.0, *(0.1 * size_of(t) for t in b)])
        pairs = zip(a, b, strict=False)
        return len(a) == len(b) and all(same(x, y, within, least) for x, y in pairs)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if b.dtype in NARROW:
            within = max(within, 0.05)
        slack = within * max(size_of(b), least)
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.allclose(a, b, rtol=within, atol=slack, equal_nan=True)
        )
    return type(a) is type(b) and bool(a == b)


def size_of(value: Any) -> float:
    """Return the largest entry of a tensor; 0 for what is none, or has none that is finite."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0.0
    return float(value.double().abs().nan_to_num(0, 0, 0).max())


def agrees_in_double(case: Case) -> bool:
    """Whether float32's rounding is all that differs, as behind norms of rows that are all alike.

    Only of modules that can be float64 from end to end.
    """
    torch._dynamo.reset()
    torch.set_default_dtype(torch.float64)
    try:
        expected, actual = (run(case, case.route, eager) for eager in (True, False))
    except Error:
        return False
    finally:
        torch.set_default_dtype(torch.float32)
    return len(expected) == 5 * len(case.calls) and same(actual, expected, within=1e-9)


def agrees_in_single(case: Case, actual: Any) -> bool:
    """Whether ours is what float32 gives, so that 16 bits round more in PyTorch than here.

    Only of float32 modules that convert to 16 bits inside, whose inputs are the same bits in both.
    """
    single = copy.deepcopy(case)
    for narrow, wide in (("bfloat16", "float32"), ("float16", "float32"), ("half()", "float()")):
        single.statements = [s.replace(narrow, wide) for s in single.statements]
    if case.dtype != torch.float32 or single.statements == case.statements:
        return False
    return same(actual, run(single, case.route, eager=True), within=0.05)


def verdict(case: Case) -> str:  # noqa: PLR0911 (one for each answer)
    """Return "agrees", "differs: …", "refused: …", or who of both raises."""
    torch._dynamo.reset()
    expected = run(case, case.route, eager=True)
    try:
        actual = run(case, case.route, eager=False)
    except InternalError as error:
        return f"differs: {error}"
    except Error as error:
        return "refused: " + str(error).splitlines()[0]
    narrow = case.dtype in NARROW or any("float16" in s or "half" in s for s in case.statements)
    within = 0.05 if narrow else 1e-4
    if same(actual, expected, within):
        return "agrees"
    for raised, runs, answer in (
        # Ours keeps the value as it was, as torch.compile does: no gradient to compare with.
        (expected, actual, "runs where PyTorch raises"),
        # Backward may read any argument again.
        (actual, expected, "raises where PyTorch runs: written before backward"),
    ):
        # its kernels ask for equal dtypes, and what is traced is not asked
        kinds = (WRITTEN, MIXED) if raised is expected else (WRITTEN,)
        if raised[-1] in kinds and same(raised[:-1], runs[: len(raised) - 1]):
            return answer
    # of the same dtypes, shapes and needs, and not by more than their size
    if same(actual, expected, within=1.0) and agrees_in_double(case):
        return "agrees in float64; rounding is large"
    if same(actual, expected, within=1.0) and agrees_in_single(case, actual):
        return "agrees with float32; 16 bits round more in PyTorch"
    if isinstance(actual[-1], str) and case.route == "backend":  # the class of an exception
        torch._dynamo.reset()
        if str(run(case, "PyTorch's", eager=False)) == str(actual):
            return "torch.compile raises, whatever the backend"
    # what torch.compile makes of .numpy(), whose arrays it traces as tensors
    if case.route == "backend" and "numpy()" in case.source().removeprefix(HEAD):
        torch._dynamo.reset()
        if same(actual, run(case, "PyTorch's, traced", eager=False), within=within):
            return "torch.compile differs from eager mode, with aot_eager too"
    if len(actual) != len(expected):
        return f"differs: ended with {str(actual[-1])[:60]}, not {str(expected[-1])[:60]}"
    names = ["results", "needs of gradients", "gradients", "state", "aliases"]
    i = next(i for i, (a, b) in enumerate(zip(actual, expected, strict=True)) if not same(a, b))
    return f"differs: {names[i % 5]} of call {i // 5}"


def shrunk(case: Case) -> Case:
    """The case without the statements that it differs without."""
    for i in reversed(range(len(case.statements))):
        less = copy.deepcopy(case)
        del less.statements[i]
        if verdict(less).startswith("differs"):
            case = less
    return case


def main() -> int:
    """Try the modules that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in (bar := tqdm(range(options.seed, options.seed + options.count), unit="module")):
        answer = verdict(case := Case(seed))
        counts[answer] += 1
        if answer.startswith("differs"):
            bar.write(f"{answer}\n{shrunk(case)}", file=sys.stdout)
    for answer, n in counts.most_common():
        print(f"{n:6} {answer[:110]}")
    return any(answer.startswith("differs") for answer in counts)


if __name__ == "__main__":
    sys.exit(main())
