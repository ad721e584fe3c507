"""Beside a PyTorch outside of the window: public interfaces only, and each first step compared.

The release is a number that is put in place of PyTorch's own; names of ``torch_internals`` cannot
be imported then.
"""

import re
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

OUTSIDE = """
import sys, logging, torch
torch.__version__ = "2.99.0"

class NoInternals:
    def find_spec(self, name, path=None, target=None):
        assert not name.startswith("steep.torch_internals"), f"{name} is private to PyTorch"
sys.meta_path.insert(0, NoInternals())

class Warnings(logging.Handler):
    said = []
    def emit(self, record):
        self.said.append(record.getMessage())
logging.getLogger("steep").addHandler(Warnings(logging.WARNING))

import steep
from torch.nn import functional as F

def losses(run, module, batches):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.manual_seed(1)
    found = []
    for x, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)

def batches(*shape, count=5):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=generator), torch.arange(shape[0]) % 3)
            for _ in range(count)]
"""


def outside(code: str) -> subprocess.CompletedProcess:
    program = OUTSIDE + textwrap.dedent(code)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=540)


def test_modules_train_as_in_pytorch():
    done = outside("""
        import copy
        from torch import nn
        torch.manual_seed(0)
        modules = [
            nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)),
            nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 3)),
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
            nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(),
                          nn.MaxPool2d((1, 2)), nn.Flatten(), nn.Linear(4, 3)),
        ]
        data = batches(7, 6)
        for module in modules:
            other = copy.deepcopy(module)
            model = steep.ORTModule(module)
            torch.testing.assert_close(losses(model, model, data), losses(other, other, data))
            for mine, theirs in zip(module.state_dict().items(), other.state_dict().items()):
                assert mine[0] == theirs[0]
                torch.testing.assert_close(mine[1], theirs[1])
            report = model.report()
            assert len(report.graphs) == 2 and all(g.operators for g in report.graphs), report
        (said,) = Warnings.said
        assert "2.99.0" in said and "2.13 to 2.15" in said and "first 3 steps" in said
    """)
    assert done.returncode == 0, done.stderr


def test_gradients_hooks_and_the_backend_of_torch_compile():
    done = outside("""
        class Stops(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            def forward(self, x):
                with torch.no_grad():
                    kept = self.b(x)
                return self.a(x).detach() * 2 + self.a(x).exp() + kept

        from steep.module.torch_compile import backend  # "steep" stands for it

        module = Stops()
        x = torch.randn(3, 4)
        module(x).sum().backward()
        expected = {n: p.grad for n, p in module.named_parameters()}
        doors = (
            lambda: steep.ORTModule(module, verify=False),
            lambda: torch.compile(module, backend=backend, dynamic=False),
        )
        for door in doors:
            module.zero_grad()
            door()(x).sum().backward()
            for name, p in module.named_parameters():
                assert (p.grad is None) == (expected[name] is None), name
                if p.grad is not None:
                    torch.testing.assert_close(p.grad, expected[name])

        assert steep.backends.VALUE == "steep.module.torch_compile:backend"

        # hooks that are added later
        model = steep.ORTModule(module)
        before = model(x)
        handle = module.a.register_forward_hook(lambda m, a, result: result + 1)
        torch.testing.assert_close(model(x), module(x))
        assert not torch.equal(model(x), before)
        handle.remove()
        torch.testing.assert_close(model(x), before)
    """)
    assert done.returncode == 0, done.stderr


# what is called, and what its error says
REFUSED = {
    "make(fallback=None)(x)": 'ModelError: .*has not been tested.*fallback="parts"',
    'make(precision="bf16")(x)': "ModelError: .*torch.autocast",
    "planned()": "ModelError: .*are not available with this release",
    "twice()": "RuntimeError: .*double backward",
    "wrong()": "VerificationError: The engine computes a value that differs from PyTorch's",
    "steep.trainer": "ModelError: Steep has not been tested with this release of PyTorch",
    "__import__('steep.compat.ortmodule.ort_module')": "ModelError: .*has not been tested",
}


def test_what_is_refused():
    done = outside(f"""
        x = torch.ones(1, 2, requires_grad=True)

        def make(**options):
            return steep.ORTModule(
                torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sigmoid()), **options)

        def planned():
            model = make()
            model(x)
            model.plan()

        def twice():
            (g,) = torch.autograd.grad(make()(x).sum(), x, create_graph=True)
            g.sum().backward()

        def wrong():
            from steep.public_capture import onnx_part
            right = onnx_part.OnnxPart.__call__
            onnx_part.OnnxPart.__call__ = lambda self, *a: tuple(t * 1.01 for t in right(self, *a))
            make()(x)

        for code in {[*REFUSED]!r}:
            try:
                eval(code)
            except Exception as e:
                print(type(e).__name__, str(e).replace(chr(10), " "), sep=": ")
            else:
                print("no error:", code)
    """)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    for text, (code, pattern) in zip(said, REFUSED.items(), strict=True):
        assert re.match(pattern, text), (code, text)
