"""What a capture changes in PyTorch for a while is put back, on Ctrl-C too."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._C import _autograd, _functorch  # noqa: E402
from torch._dynamo import config  # noqa: E402
from torch._dynamo.convert_frame import compile_lock  # noqa: E402

from steep import ORTModule  # noqa: E402
from steep.patching import restore, substitution  # noqa: E402
from steep.patching.signals import DelayedSignals, deliver_signals  # noqa: E402

REPLACED: dict[tuple[object, str], object] = {}
"""What was ever replaced, and what stood there first."""

ENTRIES: dict[tuple[int, object], tuple[dict, object]] = {}
"""The same of entries of dicts, with the dict."""


@pytest.fixture
def noted(monkeypatch):
    """Note all that is replaced."""
    enter = contextlib._GeneratorContextManager.__enter__

    def note(self):
        if self.func is substitution.attribute_set.__wrapped__:
            owner, name = self.args[:2]
            if not isinstance(owner, torch._subclasses.FakeTensorMode):
                REPLACED.setdefault((owner, name), vars(owner).get(name))
        elif self.func is substitution._entry_set.__wrapped__:
            entries, key = self.args[:2]
            ENTRIES.setdefault((id(entries), key), (entries, entries.get(key)))
        return enter(self)

    monkeypatch.setattr(contextlib._GeneratorContextManager, "__enter__", note)


def state():
    """What of PyTorch, and of Python, is set for a while."""
    return {
        "config": config.get_config_copy(),
        "transforms": _functorch.get_dynamic_layer_stack_depth(),
        "hooks": _autograd._saved_tensors_hooks_get_disabled_error_message(),
        "modes": torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack(),
        "gradients": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "filters": list(warnings.filters),
        "levels": [logging.getLogger(n).level for n in ("torch", "torch._dynamo", "onnxscript")],
        "fakes": torch._subclasses.fake_tensor.fake_tensor_tls.allow_non_fake_inputs_override,
        "handlers": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGALRM)],
        "dtype": torch.get_default_dtype(),
        "within": torch._guards.TracingContext.try_get(),
    }


def assert_put_back(before):
    assert state() == before
    assert REPLACED
    for (owner, name), first in REPLACED.items():
        assert vars(owner).get(name) is first, name
    assert ENTRIES
    for (_, key), (entries, first) in ENTRIES.items():
        assert entries.get(key) is first, key
    assert compile_lock.acquire(blocking=False)
    compile_lock.release()


class Slopes(nn.Module):
    """A transform of functions and a part that PyTorch runs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = torch.func.grad(lambda v: self.layer(v).tanh().sum())(x)
        return y + torch.linalg.eigvals(self.layer.weight).abs().sum()


@pytest.fixture
def before():
    torch.manual_seed(0)
    return state()


@pytest.mark.parametrize("verify", [False, True])
def test_after_a_capture(noted, before, verify):
    module = Slopes()
    x = torch.randn(3, 4)
    found = ORTModule(module, verify=verify)(x)
    torch.testing.assert_close(found, module(x))
    assert_put_back(before)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        found.sum().backward()


def test_loggers_are_silenced_whether_or_not_they_have_levels():
    names = ("silenced", "silenced.own", "silenced.own.below", "silenced.below", "other")
    loggers = [logging.getLogger(name) for name in names]
    loggers[1].setLevel(logging.DEBUG)
    loggers[4].setLevel(logging.INFO)
    before = [logger.level for logger in loggers]
    with restore.silence_loggers("silenced"):
        silent = [logger.isEnabledFor(logging.ERROR) for logger in loggers]
        assert silent == [False] * 4 + [True]
        written = [logger.level for logger in loggers]
        assert [written[i] for i in (2, 3)] == [logging.NOTSET] * 2  # each costs time
    assert [logger.level for logger in loggers] == before
    assert loggers[2].isEnabledFor(logging.DEBUG)


def test_ctrl_c_during_a_capture():
    """It runs in a process of its own.

    An exception that comes within ``logging`` leaves that module's lock held, and one within
    PyTorch's tracer leaves ``nn.Module.__call__`` replaced: other tests of this process would wait
    for ever for what is not Steep's.
    """
    test = f"{__file__}::{test_captures_are_interrupted.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", test],
        check=False,
        env={**os.environ, "STEEP_TEST_INTERRUPTS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "1 passed" in done.stdout, done.stdout[-4000:]


@pytest.mark.skipif(
    "STEEP_TEST_INTERRUPTS" not in os.environ, reason="test_ctrl_c_during_a_capture runs it"
)
def test_captures_are_interrupted(noted, before):
    """Ctrl-C comes at instants that differ; a later call is as if there had been none."""
    module = Slopes()
    x = torch.randn(3, 4)
    ORTModule(Slopes())(x)  # what is loaded once
    interrupted = 0
    for turn in range(5):
        ours = ORTModule(module)
        torch.compiler.reset()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.06 * turn)
            ours(x)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert_put_back(before)
    assert interrupted
    torch.testing.assert_close(ours(x), module(x))


def test_an_error_within_a_transform_that_pytorch_runs(before):
    class Jvp(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x, i):
            return torch.func.jvp(lambda v: v[i].sin(), (self.layer(x),), (x,))[1]

    ours = ORTModule(Jvp())
    x = torch.ones(3)
    ours(x, torch.tensor([0]))
    with pytest.raises(IndexError):
        ours(x, torch.tensor([9]))
    assert state() == before
    torch.testing.assert_close(ours(x, torch.tensor([1])), ours.module(x, torch.tensor([1])))


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_ctrl_c_during_a_call(before, when):
    module = nn.Linear(4, 4)
    ours = ORTModule(module)
    x = torch.randn(3, 4, requires_grad=True)
    if when == "forward":
        handle = ours.register_forward_pre_hook(interrupt)
    else:
        handle = x.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        ours(x).sum().backward()
    handle.remove()
    assert state() == before
    ours.zero_grad()
    ours(x).sum().backward()
    found = module.weight.grad.clone()
    ours.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(found, module.weight.grad)


def test_signals_wait_while_something_changes():
    said = []

    @contextlib.contextmanager
    def changed(name):
        interrupt()
        said.append(f"enter {name}")
        yield
        interrupt()
        said.append(f"leave {name}")

    own = signal.getsignal(signal.SIGINT)
    with (
        pytest.raises(KeyboardInterrupt),
        DelayedSignals() as held,
        changed("a"),
        changed("b"),
        held.tracing(),
    ):
        said.append("within")  # not reached: it came while these were entered
    assert said[:2] == ["enter a", "enter b"]
    assert "within" not in said
    assert signal.getsignal(signal.SIGINT) is own

    with DelayedSignals() as held, held.tracing():  # the second of them waits no longer
        said.append("later")
    assert said[-1] == "later"

    said.clear()
    with pytest.raises(KeyboardInterrupt), DelayedSignals():
        interrupt()
        said.append("after")
    assert said == ["after"]
    assert signal.getsignal(signal.SIGINT) is own


def test_signals_wait_for_the_next_delivery_while_something_traces():
    said = []
    with (
        pytest.raises(KeyboardInterrupt),
        DelayedSignals() as outer,
        outer.tracing(),
        DelayedSignals() as inner,
    ):
        interrupt()
        interrupt()
        deliver_signals()  # while something changes
        said.append("changed")
        with inner.tracing():  # is a delivery
            said.append("within")
    assert said == ["changed"]

    said.clear()
    with pytest.raises(KeyboardInterrupt), DelayedSignals() as held, held.tracing():
        interrupt()
        said.append("once")
        deliver_signals()
        said.append("delivered")
    assert said == ["once"]

    said.clear()
    with pytest.raises(KeyboardInterrupt), DelayedSignals() as held, held.tracing():
        interrupt()
        said.append("once")
        interrupt()  # the user insists
        said.append("twice")
    assert said == ["once"]

    def give_up(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    said.clear()
    with pytest.raises(TimeoutError), DelayedSignals() as held, held.tracing():
        for turn in range(3):
            if turn == 0:
                signal.raise_signal(signal.SIGALRM)
            with contextlib.suppress(Exception):  # for an error of what traces
                deliver_signals()
                said.append(turn)
    assert said == []
    assert signal.signal(signal.SIGALRM, before) is give_up
