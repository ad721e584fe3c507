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


@pytest.mark.parametrize(
    "door", ["steep.ORTModule(net)", "torch.compile(net, backend=backend, dynamic=False)"]
)
def test_a_forked_child_runs_backward(door):
    """With a build of PyTorch for CUDA, a capture before autograd's first use would prevent it."""
    done = outside(f"""
        import os
        from steep.module.torch_compile import backend
        net = torch.nn.Linear(4, 3)
        run, x = {door}, torch.ones(2, 4)
        run(x)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in net, run:
                    call(x).sum().backward()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    """)
    assert done.returncode == 0, done.stderr


def test_a_child_of_a_fork_amid_a_call_of_another_thread():
    """The child has no thread that would release the lock, and PyTorch may be amid a trace."""
    done = outside("""
        import os, threading
        from steep.dynamo import forks
        forks.WAIT = 0.05
        net, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
        run = steep.ORTModule(net)
        run(x)
        held, done = threading.Event(), threading.Event()

        def call():
            with forks.tracing:
                held.set()
                done.wait()

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(x)
            except steep.ModelError as e:
                assert "forked while another thread captured" in str(e)
                torch.testing.assert_close(steep.ORTModule(net, fallback="torch")(x), net(x))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        thread.join()
        steep.ORTModule(torch.nn.Linear(4, 2))(x)
    """)
    assert done.returncode == 0, done.stderr


# what is called, and what its error says
REFUSED = {
    "make(fallback=None)(x)": 'ModelError: .*has not been tested.*fallback="parts"',
    'make(precision="bf16")(x)': "ModelError: .*torch.autocast",
    "planned()": "ModelError: .*are not available with this release",
    # PyTorch's own error, or ours where PyTorch would drop the second derivative
    "twice()": "(RuntimeError|ModelError): .*double backward",
    "penalty()": "(RuntimeError|ModelError): .*double backward",
    "wrong(first=0)": "VerificationError: .* a value that differs from PyTorch's.*result 0",
    "wrong(first=1)": "VerificationError: .* a value that differs from PyTorch's.*gradient of arg",
    "far_away()": "ModelError: .*a tensor on meta, and the engine computes on the CPU",
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

        def penalty():
            y = make()(x).sum()
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            (y + g.square().sum()).backward()

        def wrong(first):
            from steep.public_capture.onnx_part import OnnxPart
            right = OnnxPart.__call__
            parts = []
            def call(self, *arguments):
                results = right(self, *arguments)
                parts.extend([self] * (self not in parts))
                return results if parts.index(self) < first else tuple(t * 1.01 for t in results)
            OnnxPart.__call__ = call
            try:
                make()(x).sum().backward()
            finally:
                OnnxPart.__call__ = right

        def far_away():
            make().to("meta")(x.to("meta"))

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


@pytest.mark.matrix
def test_attention_has_pytorchs_gradients():
    done = outside("""
        import warnings
        from torch.nn.attention import SDPBackend, sdpa_kernel
        warnings.simplefilter("error", FutureWarning)  # PyTorch's, of PyTorch's own code

        class Attends(torch.nn.Module):
            def __init__(self, causal, masked, fused):
                super().__init__()
                self.causal, self.masked, self.fused = causal, masked, fused
                self.a = torch.nn.Linear(8, 24)
            def forward(self, x):
                q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.a(x).chunk(3, -1))
                mask = torch.ones(5, 5).tril(1).bool() if self.masked else None
                if not self.fused:
                    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)

        rows = ((False, False, True, False), (True, False, False, True), (False, True, True, True))
        for causal, masked, fused, verify in rows:
            torch.manual_seed(0)
            module = Attends(causal, masked, fused)
            x = torch.randn(3, 5, 8)
            def gradient(run):
                module.zero_grad()
                run(x).square().sum().backward()
                return module.a.weight.grad.clone()
            model = steep.ORTModule(module, verify=verify)
            torch.testing.assert_close(gradient(model), gradient(module))
    """)
    assert done.returncode == 0, done.stderr


def test_what_is_compared_is_as_in_pytorch():
    """Writes to arguments, memory that two arguments share, retained graphs, parts of backward."""
    done = outside("""
        class Writes(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Linear(4, 4)
                self.register_buffer("calls", torch.zeros(4))
            def forward(self, x, y, z):
                self.calls.add_(x.detach().mean(0))
                y.mul_(2)  # y and z share memory, and x is not a leaf
                x.add_(1)
                return self.a(x).tanh() + z, self.a(y.detach()), x

        def results(run, module):
            torch.manual_seed(0)
            module.zero_grad()
            module.calls.zero_()
            leaf = torch.randn(3, 4, requires_grad=True)
            x, shared = leaf * 1, torch.randn(3, 4)
            first, second, third = run(x, shared, shared.view(3, 4))
            loss = first.square().sum() + third.sum()
            loss.backward(retain_graph=True)
            second.sum().backward(retain_graph=True)
            loss.backward()
            gradients = [leaf.grad, *(p.grad for p in module.parameters())]
            return [first, second, third, x, shared, module.calls.clone(), *gradients]

        module = Writes()
        model = steep.ORTModule(module)
        for _ in range(5):
            for mine, theirs in zip(results(model, module), results(module, module), strict=True):
                torch.testing.assert_close(mine, theirs)
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_rounding_errors_of_eager_mode_are_no_difference():
    done = outside("""
        from steep.public_capture.onnx_part import OnnxPart
        right = OnnxPart.__call__

        class Rounds(torch.nn.Module):
            def forward(self, x):
                return (x.exp() + 1e4) - 1e4

        def gap(factor):
            OnnxPart.__call__ = lambda self, *a: tuple(t * factor for t in right(self, *a))
            x = torch.linspace(0, 1, 50).requires_grad_()
            try:
                steep.ORTModule(Rounds())(x)
            except steep.VerificationError as e:
                return str(e)
            finally:
                OnnxPart.__call__ = right
            return ""

        assert gap(1.0005) == ""  # eager mode is 0.0002 from float64
        assert "differs from PyTorch's by 0.01" in gap(1.01)
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_threads_take_turns_to_capture():
    done = outside("""
        import copy, threading
        from torch import nn
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        model = steep.ORTModule(copy.deepcopy(module))
        errors = []

        def work(i):
            try:
                for _ in range(4):
                    x = torch.randn(5, 6)
                    result = model(x)
                    result.sum().backward()
                    torch.testing.assert_close(result, module(x))
            except Exception as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors, errors
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_an_error_of_a_batch_is_pytorchs_and_the_next_batch_is_compared():
    done = outside("""
        from steep.public_capture.onnx_part import OnnxPart
        embedding = torch.nn.Embedding(4, 3)
        model = steep.ORTModule(embedding)
        good, bad = torch.tensor([1, 2]), torch.tensor([0, 9])
        for _ in range(4):
            try:
                model(bad)
            except IndexError as e:
                assert "index out of range" in str(e)
            else:
                raise AssertionError
        right = OnnxPart.__call__
        OnnxPart.__call__ = lambda self, *a: right(self, *a)[:, :2].repeat(1, 2)[:, :3]
        try:
            model(good)
        except steep.VerificationError:
            pass
        else:
            raise AssertionError
        OnnxPart.__call__ = right
        torch.testing.assert_close(model(good), embedding(good))
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_transposed_arguments_and_results_are_not_copied():
    done = outside("""
        from torch.fx.experimental.proxy_tensor import make_fx
        from steep.public_capture.onnx_part import OnnxPart

        def backward(weight, gradient, x):  # of a linear layer: the weight comes transposed
            return torch.mm(gradient, weight.t()), torch.mm(gradient.t(), x).t()

        weight, gradient, x = torch.randn(5, 3).t(), torch.randn(4, 5), torch.randn(4, 3)
        arguments = [weight, gradient, x]
        graph = make_fx(backward, tracing_mode="fake")(*arguments)
        part = OnnxPart(graph, arguments)
        assert part.input_orders == [(1, 0), (), ()] and part.output_orders == [(), (1, 0)]
        assert part._dense(arguments)[0].data_ptr() == weight.data_ptr()
        for found, expected in zip(part(*arguments), backward(*arguments), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
        # Arguments of another layout than that of the first call.
        arguments[0] = weight.contiguous()
        for found, expected in zip(part(*arguments), backward(*arguments), strict=True):
            torch.testing.assert_close(found, expected)
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.matrix
def test_layer_normalization_within_autocast_runs_in_the_engine():
    done = outside("""
        import copy
        from torch import nn
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        other = copy.deepcopy(module)
        model = steep.ORTModule(module)
        x = torch.randn(5, 6)
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = model(x), other(x)
        assert found.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(found, expected)
        found.float().square().sum().backward()
        expected.float().square().sum().backward()
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            largest = float(q.grad.abs().max())
            torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0.02 * largest)
        report = model.report()
        assert report.graphs and all(g.operators and not g.in_torch for g in report.graphs), report
    """)
    assert done.returncode == 0, done.stderr
