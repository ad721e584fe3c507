"""One session, or one module, called by several Python threads at once."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from session_models import linear

import steep

THREADS = 4


def at_once(work, *, rounds=6):
    """Results of ``work(i)`` for i in range(rounds * THREADS), by THREADS threads; no hang."""
    gate = threading.Barrier(THREADS)

    def share(t):
        gate.wait(60)
        return [work(t + i * THREADS) for i in range(rounds)]

    pool = ThreadPoolExecutor(THREADS)
    shares = [pool.submit(share, t) for t in range(THREADS)]
    results = [share.result(timeout=120) for share in shares]
    pool.shutdown()
    return [results[i % THREADS][i // THREADS] for i in range(rounds * THREADS)]


def batch(rows, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 64)).astype(np.float32), np.ones((rows, 32), np.float32)


@pytest.fixture
def session():
    return steep.TrainingSession(linear(64, 32).SerializeToString(), loss="mse", lr=1e-3)


def test_each_thread_gets_its_result(session):
    def work(i):
        # More shapes than there are plans kept; the only handles: the engine lets them go.
        x, y = batch(1 + i * 7 % 40, seed=i)
        if i % 2:
            return session.eval(x, y).outputs[0].numpy()
        return session.gradients(x, y)[1]["w"].numpy()

    expected = [work(i) for i in range(200)]
    for found, wanted in zip(at_once(work, rounds=50), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_steps_saves_and_dumps_at_once(session, tmp_path):
    x, y = batch(2000)

    def work(i):
        kinds = (
            lambda: session.step(x, y).step,
            lambda: session.save_checkpoint(tmp_path / f"saved{i % THREADS}"),
            lambda: session.dump(x, y) + session.dump(),
            lambda: session.set_weights(session.weights()),
            session.export_onnx_bytes,
            lambda: (session.start_profile(), session.optimizer_state(), session.lr),
        )
        return kinds[i % 6]()

    steps = at_once(work)[::6]
    assert sorted(steps) == [1, 2, 3, 4] and session.step_count == 4
    for folder in tmp_path.glob("saved*"):
        session.load_checkpoint(folder)


def test_inference_in_threads():
    options = steep.SessionOptions()
    options.intra_op_num_threads = 2
    session = steep.InferenceSession(linear(64, 32).SerializeToString(), options)

    def work(i):
        return session.run(None, {"x": batch(4 + i % 5)[0]})[0]

    for found, expected in zip(at_once(work), [work(i) for i in range(24)], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_interrupt_reaches_who_waits(session):
    x, y = batch(4096)
    stop = threading.Event()

    def steps():
        while not stop.is_set():
            session.step(x, y)

    others = [threading.Thread(target=steps) for _ in range(2)]
    for other in others:
        other.start()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            while time.monotonic() - start < 30:
                session.step(x, y)
    finally:
        stop.set()
    for other in others:
        other.join(30)
        assert not other.is_alive()
    assert session.step(x, y).step == session.step_count


def test_a_module_in_threads():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3)
    )
    model = steep.ORTModule(module)
    weights = list(module.parameters())

    def inputs(i):
        shape = (4 + i % 3, 12) if i % 2 else (2, 3 + i % 3, 12)
        generator = torch.Generator().manual_seed(i)
        return torch.randn(shape, generator=generator, requires_grad=i % 4 == 0)

    def gradients(net, i):
        x = inputs(i)
        wanted = [*weights, x] if x.requires_grad else weights
        loss = net(x).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, wanted)]

    def work(i):
        if i % 5 == 4:  # runs that nobody collects
            model(inputs(i))
        return gradients(model, i)

    for i, found in enumerate(at_once(work)):  # the first calls export at once
        for a, b in zip(found, gradients(module, i), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    # by rank, by whether x wants a gradient, of any extents and of those that a thread met first
    assert len(model.report().graphs) <= 12


def test_backward_refuses_the_run_of_another_program():
    torch = pytest.importorskip("torch")
    models = [steep.ORTModule(torch.nn.Linear(4, 3)) for _ in range(2)]
    one, other = (model(torch.randn(2, 4)) for model in models)
    one.grad_fn.run = other.grad_fn.run
    with pytest.raises(steep.DataError, match="another program"):
        one.sum().backward()
