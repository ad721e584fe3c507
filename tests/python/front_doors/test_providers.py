"""The sample plug-in by every front door: results of the CPU, errors that say what to do."""

from __future__ import annotations

import copy
import importlib.util
import shutil
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from checkout import ROOT
from steep_program import built

import steep
from steep import providers as module

spec = importlib.util.spec_from_file_location(
    "make_digits", ROOT / "examples" / "digits_mlp" / "make_model.py"
)
make_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_model)

MIRROR = ROOT / "build" / "release" / "mirror" / "libmirror.so"
PLUGINS = ROOT / "build" / "release" / "tests" / "providers" / "plugins"
SMALL = ("MirrorExecutionProvider", {"memory_mb": 256})


@pytest.fixture(scope="module", autouse=True)
def mirror():
    assert MIRROR.exists(), "examples/provider is not built: run `make build`"
    assert steep.register_provider(MIRROR) == "MirrorExecutionProvider"


def digits_session(providers, **options):
    return steep.TrainingSession(
        make_model.mlp([64, 32, 10]),
        loss="softmax_cross_entropy",
        lr=3e-3,
        providers=providers,
        **options,
    )


def test_names():
    assert steep.get_available_providers() == ["MirrorExecutionProvider", "CPUExecutionProvider"]
    session = steep.InferenceSession(make_model.mlp([4, 2]).SerializeToString(), providers=[SMALL])
    assert session.get_providers() == ["MirrorExecutionProvider", "CPUExecutionProvider"]


def test_digits_learn_as_on_the_cpu(tmp_path):
    train, test = make_model.digits()
    here, there = digits_session(["CPUExecutionProvider"]), digits_session([SMALL])
    for _ in range(2):
        for i in range(0, 1400, 128):  # the last one is shorter
            rows = train["x"][i : i + 128], train["label"][i : i + 128]
            assert abs(here.step(*rows).loss - there.step(*rows).loss) < 1e-4
    for name, w in here.weights().items():
        np.testing.assert_allclose(there.weights()[name], w, rtol=1e-3, atol=1e-4)
    dump = there.dump(train["x"][:8], train["label"][:8])
    assert "[mirror]" in dump
    assert "Mirror left loss/SoftmaxCrossEntropy" in dump
    there.export_onnx(tmp_path / "trained.onnx")
    session = steep.InferenceSession(str(tmp_path / "trained.onnx"), providers=[SMALL, "CPU"])
    np.testing.assert_allclose(
        session.run(None, {"x": test["x"]})[0], here.eval(test["x"]).outputs[0].numpy(), atol=1e-3
    )


def test_a_weight_that_the_user_writes_between_steps_counts():
    train, _ = make_model.digits()
    rows = train["x"][:16], train["label"][:16]
    here, there = digits_session(None, optimizer="sgd"), digits_session([SMALL], optimizer="sgd")
    for session in (here, there):
        session.step(*rows)
        session.set_weights({n: np.asarray(w) * 0.5 for n, w in session.weights().items()})
    assert abs(here.step(*rows).loss - there.step(*rows).loss) < 1e-5


def test_two_threads_with_a_session_each():
    train, _ = make_model.digits()
    found: dict[int, list[float]] = {}

    def work(seed):
        session = digits_session([SMALL], seed=seed)
        found[seed] = [
            float(session.step(train["x"][i : i + 32], train["label"][i : i + 32]).loss)
            for i in range(0, 640, 32)
        ]

    threads = [threading.Thread(target=work, args=(s,)) for s in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    work(2)
    assert found[0] == found[1] == found[2]


def test_one_session_in_two_threads():
    train, _ = make_model.digits()
    session = digits_session([SMALL])
    wanted = session.eval(train["x"][:20]).outputs[0].numpy()
    wrong = []

    def work():
        for _ in range(20):
            if not np.array_equal(session.eval(train["x"][:20]).outputs[0].numpy(), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_modules_and_the_trainer_of_pytorch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        *(torch.nn.Embedding(11, 16), torch.nn.LayerNorm(16)),
        *(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 5), torch.nn.Softmax(-1)),
    )
    ours = steep.ORTModule(copy.deepcopy(net), providers=[SMALL], fallback=None)
    from steep.dynamo.backend import backend  # "steep", where the package is installed

    compiled = torch.compile(
        copy.deepcopy(net), backend=backend, options={"providers": ["MirrorExecutionProvider"]}
    )
    for rows in (3, 7):
        ids = torch.randint(0, 11, (rows, 4))
        for m in (net, ours, compiled):
            m.zero_grad()
            m(ids).square().sum().backward()
        for m in (ours, compiled):
            for a, b in zip(net.parameters(), m.parameters(), strict=True):
                torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)
    assert copy.deepcopy(ours)._steep_providers == [SMALL]

    def losses(**options):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        trainer = steep.trainer(
            model,
            torch.nn.CrossEntropyLoss(),
            torch.optim.AdamW(model.parameters(), lr=0.01),
            **options,
        )
        x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
        found = [float(trainer.step(x, y)[0]) for _ in range(5)]
        return found, trainer.dump(), float(trainer.evaluate(x, y)[0])

    here, there = losses(), losses(providers=[SMALL])
    np.testing.assert_allclose(there[0], here[0], rtol=1e-4)
    np.testing.assert_allclose(there[2], here[2], rtol=1e-4)
    assert "[mirror]" in there[1]


def test_the_program(tmp_path):
    subprocess.run(
        [sys.executable, ROOT / "examples" / "digits_mlp" / "make_model.py", tmp_path], check=True
    )
    words = [built("steep"), "train", tmp_path / "digits.onnx", "--data"]
    words += [tmp_path / "digits_train.npz", "--loss", "softmax_cross_entropy", "--optimizer"]
    words += ["adam", "--lr", "3e-3", "--epochs", "2"]
    texts = []
    for more in ([], ["--provider", f"{MIRROR},memory_mb=256"]):
        out = tmp_path / f"trained{len(more)}.onnx"
        done = subprocess.run(
            [*map(str, words), "--out", out, *more], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
        session = steep.InferenceSession(str(out))
    x = make_model.digits()[1]["x"]
    other = steep.InferenceSession(str(tmp_path / "trained0.onnx"))
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], other.run(None, {"x": x})[0], atol=1e-3
    )
    wrong = subprocess.run(
        [*map(str, words), "--provider", PLUGINS / "libthrows.so"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode != 0
    assert "the driver is too old" in wrong.stderr


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("libno_symbol.so", "is not a provider"),
        ("libanother_version.so", r"another version(.|\n)*newer Steep"),
        ("libthrows.so", r"threw an exception(.|\n)*the driver is too old"),
        ("libnot_here.so", "cannot work on this machine"),
        ("libnameless.so", "has no name"),
        ("libbad_operator.so", r"cannot be parsed(.|\n)*bad.Half"),
        ("missing.so", "cannot be loaded"),
    ],
)
def test_plugins_that_are_refused(plugin, message):
    with pytest.raises(steep.ProviderError, match=message):
        steep.register_provider(PLUGINS / plugin)
    assert steep.get_available_providers()[-1] == "CPUExecutionProvider"


def test_two_plugins_of_one_name_are_refused(tmp_path):
    copied, link = tmp_path / "another.so", tmp_path / "the_same.so"
    shutil.copy(MIRROR, copied)
    link.symlink_to(MIRROR)
    kernels = PLUGINS / "libsteep_cpu.so"
    for path, name in ((copied, "Mirror"), (kernels, "CPU")):
        with pytest.raises(steep.ProviderError, match="of this name already") as caught:
            steep.register_provider(path)
        assert caught.value.node == str(path.resolve())
        assert caught.value.received == f"{name}ExecutionProvider"
    assert steep.register_provider(link) == "MirrorExecutionProvider"
    assert steep.get_available_providers() == ["MirrorExecutionProvider", "CPUExecutionProvider"]
    x = np.ones((3, 64), np.float32)
    there = steep.InferenceSession(make_model.mlp([64, 3]).SerializeToString(), providers=[SMALL])
    assert np.isfinite(there.run(None, {"x": x})[0]).all()


def test_choices_that_are_refused(caplog):
    with pytest.raises(steep.ProviderError, match="None of the requested providers"):
        digits_session(["CUDAExecutionProvider"])
    with pytest.raises(steep.ProviderError, match="an empty list"):
        digits_session([])
    with pytest.raises(TypeError, match="takes a list"):
        digits_session("MirrorExecutionProvider")
    with pytest.raises(TypeError, match="a name and its options"):
        digits_session([("MirrorExecutionProvider", 3)])
    with pytest.raises(steep.ProviderError, match="device_id"):
        digits_session([("MirrorExecutionProvider", {"device_id": 4})])
    with pytest.raises(steep.ProviderError, match="does not take this option"):
        digits_session([("MirrorExecutionProvider", {"colour": "red"})])
    with caplog.at_level("WARNING", "steep"):
        digits_session(["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert "the provider CUDAExecutionProvider is not available here" in caplog.text


def test_an_index_out_of_range_is_the_callers_error():
    from onnx import parser

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> '
        "g (float[4, 2] x, int64[n] i) => (float[n, 2] y) { y = Gather(x, i) }"
    )
    session = steep.InferenceSession(model.SerializeToString(), providers=[SMALL])
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    with pytest.raises(steep.DataError, match="out of range"):
        session.run(None, {"x": x, "i": np.array([0, 4])})
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": np.array([3, -4])})[0], x[[3, 0]])


def test_what_the_plugin_computes_as_one_node_learns_as_its_parts(tmp_path):
    from onnx import numpy_helper, parser

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[rows, 64] x) => (float[rows, 10] logits)'
        " { h = MatMul(x, w0)  sum = Add(h, x)"
        " n = LayerNormalization(sum, scale, shift)  m = Mul(n, sum)  logits = MatMul(m, w1) }"
    )
    random = np.random.default_rng(0)
    sizes = {"w0": (64, 64), "w1": (64, 10), "scale": (64,), "shift": (64,)}
    for name, dims in sizes.items():
        w = random.normal(scale=dims[0] ** -0.5, size=dims).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(w, name))
    train, _ = make_model.digits()
    here, there = (
        steep.TrainingSession(model, loss="softmax_cross_entropy", lr=1e-3, providers=providers)
        for providers in (["CPUExecutionProvider"], [SMALL])
    )
    for i in range(0, 640, 64):
        rows = train["x"][i : i + 64], train["label"][i : i + 64]
        assert abs(here.step(*rows).loss - there.step(*rows).loss) < 1e-4
    for name, w in here.weights().items():
        np.testing.assert_allclose(there.weights()[name], w, rtol=1e-3, atol=1e-4)
    assert "steep.Claimed[mirror]" in there.dump(train["x"][:8], train["label"][:8])
    assert "Claimed" not in here.dump(train["x"][:8], train["label"][:8])
    there.export_onnx(tmp_path / "trained.onnx")
    graph = steep.model_for_inference(tmp_path / "trained.onnx").graph
    assert {node.domain for node in graph.node} == {""}


def swish_model():
    """Two layers with mirror.Swish between them."""
    from onnx import numpy_helper, parser

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "mirror" : 1]> '
        "g (float[rows, 64] x) => (float[rows, 10] logits) "
        "{ h = MatMul(x, w0)  a = mirror.Swish <beta: float = 1.5> (h)  logits = MatMul(a, w1) }"
    )
    random = np.random.default_rng(0)
    for name, dims in (("w0", (64, 32)), ("w1", (32, 10))):
        w = random.normal(scale=dims[0] ** -0.5, size=dims).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(w, name))
    return model.SerializeToString()


def test_an_operator_of_the_plugins_own(tmp_path):
    train, test = make_model.digits()
    dumps = []
    trained = []
    for providers in (["CPUExecutionProvider"], [SMALL]):
        session = steep.TrainingSession(
            swish_model(), loss="softmax_cross_entropy", lr=1e-2, providers=providers
        )
        losses = [
            session.step(train["x"][i : i + 128], train["label"][i : i + 128]).loss
            for i in range(0, 1280, 128)
        ]
        assert losses[-1] < losses[0] - 0.3
        dumps.append(session.dump(train["x"][:8], train["label"][:8]))
        session.export_onnx(tmp_path / "trained.onnx")
        again = steep.InferenceSession(str(tmp_path / "trained.onnx"), providers=providers)
        trained.append((losses, again.run(None, {"x": test["x"]})[0]))
    np.testing.assert_allclose(trained[1][0], trained[0][0], rtol=1e-4)
    np.testing.assert_allclose(trained[1][1], trained[0][1], atol=1e-3)
    assert "(mirror.Swish) to its parts: the CPU provider has no kernel for it" in dumps[0]
    assert "mirror.Swish[mirror]" in dumps[1]


def test_an_operator_of_the_plugins_own_in_the_program(tmp_path):
    (tmp_path / "model.onnx").write_bytes(swish_model())
    dump = [built("steep"), "dump", tmp_path / "model.onnx", "--shape", "x=4,64"]
    there = subprocess.run(
        [*map(str, dump), "--provider", MIRROR], capture_output=True, text=True, check=False
    )
    assert there.returncode == 0, there.stderr
    assert "mirror.Swish[mirror]" in there.stdout
    alone = subprocess.run([*map(str, dump)], capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "mirror.Swish" in alone.stderr


def test_the_gradient_of_an_operator_of_the_plugins_own():
    gradients = steep.grad(swish_model(), wrt=["x"])
    assert all(node.domain in ("", "steep") for node in gradients.graph.node)
    x = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)
    seed = np.ones((2, 10), np.float32)
    results = [
        steep.InferenceSession(gradients.SerializeToString(), providers=p).run(
            None, {"x": x, "grad_logits": seed}
        )
        for p in (["CPU"], [SMALL])
    ]
    forward = steep.InferenceSession(swish_model(), providers=[SMALL])

    def total(at):
        return float(forward.run(None, {"x": at})[0].astype(np.float64).sum())

    for column in (0, 17):
        nudge = np.zeros_like(x)
        nudge[1, column] = 1e-2
        central = (total(x + nudge) - total(x - nudge)) / 2e-2
        for _, dx in results:
            assert abs(dx[1, column] - central) < 1e-2


def test_installed_plugins_are_found(monkeypatch, caplog):
    points = [
        EntryPoint("mirror", f"{__name__}:MIRROR_AS_TEXT", "steep.providers"),
        EntryPoint("throws", f"{__name__}:throws", "steep.providers"),
        EntryPoint("gone", "no_such_package_here:path", "steep.providers"),
    ]
    monkeypatch.setattr(module, "entry_points", lambda group: points)
    module._load_installed.cache_clear()
    with caplog.at_level("WARNING", "steep"):
        assert "MirrorExecutionProvider" in steep.get_available_providers()
    module._load_installed.cache_clear()
    assert "the provider throws" in caplog.text
    assert "the provider gone" in caplog.text
    assert "the provider mirror" not in caplog.text


def test_installed_code_that_fails_is_one_warning_each(monkeypatch, caplog):
    errors = [ValueError("no such card"), RuntimeError("no driver"), KeyError("HOME")]
    raising = [Mock(side_effect=e) for e in errors]
    loads = [*raising, *(lambda f=f: f for f in raising), lambda: 3]  # as it is found, or called
    points = [
        SimpleNamespace(name=f"n{i}", value=f"package{i}:path", load=load)
        for i, load in enumerate(loads)
    ]
    monkeypatch.setattr(module, "entry_points", lambda group: points)
    module._load_installed.cache_clear()
    with caplog.at_level("WARNING", "steep"):
        for _ in range(2):
            digits_session(["CPUExecutionProvider"])
    module._load_installed.cache_clear()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == len(points)
    for i, (text, e) in enumerate(zip(texts, [*errors, *errors, TypeError()], strict=True)):
        assert f"the provider n{i} (package{i}:path) cannot be loaded" in text
        assert f"{type(e).__name__}: {e}" in text


MIRROR_AS_TEXT = str(MIRROR)


def throws() -> Path:
    return PLUGINS / "libthrows.so"
