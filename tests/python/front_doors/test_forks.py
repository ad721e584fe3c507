"""Processes that fork, and processes that may have no more threads."""

import os
import resource
import subprocess
import sys
import textwrap

import pytest
from checkout import SUPPORT

HEAD = """
import os, resource, sys, threading, time, traceback
sys.path.insert(0, {folder!r})
import numpy as np, onnx, steep
from session_models import linear

def net():
    # Large enough for work for two threads.
    return linear(features=256, outputs=256).SerializeToString()

x = np.random.default_rng(0).normal(size=(512, 256)).astype(np.float32)
y = np.zeros((512, 256), np.float32)

def in_child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    for _ in range(1200):  # a minute: a capture takes long beside other processes
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.05)
    os.kill(pid, 9)
    raise SystemExit("the child hangs")
"""


def torch_versions():
    from steep.patching import torch_versions as module

    return module


def process(code, threads=2, timeout=120, **options):
    head = HEAD.format(folder=str(SUPPORT))
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
            "OPENBLAS_NUM_THREADS": "1",
        },
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_child_trains_on_after_a_fork():
    done = process(
        """
        session = steep.TrainingSession(net(), loss="mse", lr=1e-3)
        for _ in range(3):
            session.step(x, y)
        ran = steep.InferenceSession(net())
        (expected,) = ran.run(None, {"x": x})
        options = steep.SessionOptions()
        options.intra_op_num_threads = 2
        bounded = steep.InferenceSession(net(), options)
        bounded.run(None, {"x": x})
        weight, loss = session.weights()["w"].numpy(), session.eval(x, y).loss

        def work():
            np.testing.assert_array_equal(ran.run(None, {"x": x})[0], expected)
            np.testing.assert_array_equal(bounded.run(None, {"x": x})[0], expected)
            assert session.step(x, y).loss == loss
            fresh = steep.InferenceSession(net())  # a program of the child's own
            np.testing.assert_array_equal(fresh.run(None, {"x": x})[0], expected)
            other = threading.Thread(target=lambda: session.step(x, y))  # has two threads
            other.start()
            other.join()
            assert session.step(x, y).step == 6

        for _ in range(6):
            in_child(work)
        np.testing.assert_array_equal(session.weights()["w"].numpy(), weight)
        assert session.step(x, y).loss == loss
        """
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("steep:")]
    assert len(lines) == 6 and all("spawn" in line for line in lines)


def test_a_child_forked_during_another_threads_call_says_so():
    process(
        """
        session = steep.TrainingSession(net(), loss="mse", lr=1e-3)
        session.step(x, y)
        stop = False

        def steps():
            while not stop:
                session.step(x, y)

        def work():
            try:
                session.step(x, y)
            except steep.ProviderError as e:
                assert "spawn" in str(e)
                os.write(pipe[1], b"r")
            else:
                os.write(pipe[1], b"s")

        pipe = os.pipe()
        thread = threading.Thread(target=steps)
        thread.start()
        for _ in range(6):
            in_child(work)
        stop = True
        thread.join()
        assert set(os.read(pipe[0], 6)) <= set(b"rs")
        """
    )


def test_a_module_after_a_fork():
    pytest.importorskip("torch")
    if not torch_versions().is_tested():
        pytest.skip("PyTorch's own convolutions hang in a forked child before 2.13")
    process(
        """
        import torch
        torch.set_num_threads(2)
        torch.manual_seed(0)
        model = steep.ORTModule(torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(16 * 14 * 14, 64)))
        data, out = torch.randn(32, 3, 16, 16), torch.zeros(32, 64)

        def step():
            model.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), out)
            loss.backward()
            return loss.item()

        waiting = torch.nn.functional.mse_loss(model(data), out)
        expected = step()

        def work():
            assert abs(step() - expected) < 1e-6
            model.module(data)  # in PyTorch
            torch.set_num_threads(2)
            model(data)
            try:
                waiting.backward()
            except steep.ProviderError as e:
                assert "spawn" in str(e)
            else:
                raise AssertionError("two threads were needed")

        for _ in range(3):
            in_child(work)
        waiting.backward()

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                with torch.no_grad():
                    return model(data[i : i + 1])[0]

        loader = torch.utils.data.DataLoader(
            Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=60)
        rows = torch.cat(list(loader))
        with torch.no_grad():
            torch.testing.assert_close(rows, model(data[:8]), rtol=1e-5, atol=1e-6)
        """
    )


def test_a_backward_after_a_capture_by_torch_compile_and_a_fork():
    """With a build of PyTorch for CUDA, a capture before autograd's first use would prevent it."""
    pytest.importorskip("torch")
    process(
        """
        import torch
        from steep.module.torch_compile import backend  # "steep" stands for it
        net, data = torch.nn.Linear(4, 3), torch.randn(2, 4)
        run = torch.compile(net, backend=backend)
        run(data)

        def work():
            for call in net, run:
                call(data).sum().backward()

        in_child(work)
        """
    )


# Out of the gate: of 27 runs three at a time on two cores, the child hung in two.
@pytest.mark.matrix
def test_a_fork_waits_for_another_threads_capture():
    pytest.importorskip("torch")
    process(
        """
        import torch
        from steep.dynamo.backend import backend
        data = torch.randn(2, 4)

        def captured():
            for wrap in (steep.ORTModule, lambda net: torch.compile(net, backend=backend)):
                net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
                torch.testing.assert_close(wrap(net)(data), net(data))

        def work():
            try:
                captured()
            except steep.ProviderError as e:  # the other thread had captured, and ran it
                assert "another thread was in a call of the engine" in str(e)

        captured()
        begun = threading.Event()

        def captures():
            while not stop:
                begun.set()
                captured()

        stop = False
        thread = threading.Thread(target=captures, daemon=True)
        thread.start()
        for delay in range(3):
            begun.clear()
            begun.wait()
            time.sleep(0.01 + 0.02 * delay)
            in_child(work)
        stop = True
        thread.join()
        captured()
        """
    )


def test_a_child_of_a_fork_amid_a_capture_says_so():
    pytest.importorskip("torch")
    process(
        """
        import torch
        from steep.dynamo import forks
        from torch._dynamo import convert_frame
        forks.WAIT = 0.05
        model = steep.ORTModule(torch.nn.Linear(4, 3))
        data = torch.randn(2, 4)
        model(data)
        held, done = threading.Event(), threading.Event()

        def capture():
            with convert_frame.compile_lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=capture, daemon=True)
        thread.start()
        held.wait()

        def work():
            other = torch.nn.Linear(4, 2)
            try:
                steep.ORTModule(other)(data)
            except steep.ModelError as e:
                assert "forked while another thread captured" in str(e) and "spawn" in str(e)
            else:
                raise AssertionError("it captured")
            torch.compile(other, backend="eager")(data)
            torch.testing.assert_close(
                steep.ORTModule(other, fallback="torch")(data), other(data))

        in_child(work)
        done.set()
        thread.join()
        steep.ORTModule(torch.nn.Linear(4, 2))(data)
        """
    )


# A thread cannot start where its stack finds no room in the address space.
STACK = 2**30


def large_stacks():
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.RLIM_INFINITY))


@pytest.mark.parametrize("room", [0, 1])
def test_fewer_threads_where_the_system_starts_no_more(room):
    done = process(
        f"""
        def vm():
            return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

        expected = x @ onnx.numpy_helper.to_array(onnx.load_from_string(net()).graph.initializer[0])
        limit = vm() + {room} * {STACK} + {STACK} // 2
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        session = steep.TrainingSession(net(), loss="mse", lr=1e-3)
        found = session.eval(x).outputs[0].numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
        for _ in range(3):
            session.step(x, y)
        """,
        threads=4,
        preexec_fn=large_stacks,
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("steep:")]
    assert f"{1 + room} of 4 threads" in line
