"""ORTModule in ONNX Runtime's words: options, fallback, environment, files."""

import copy
import json
import logging
import pickle
import re

import numpy as np
import onnx
import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.compat import notices  # noqa: E402
from steep.compat.ortmodule import environment  # noqa: E402
from steep.compat.ortmodule.debug_options import DebugOptions, LogLevel  # noqa: E402
from steep.compat.ortmodule.fallback import DEFAULT, _FallbackPolicy, wrap_exception  # noqa: E402
from steep.compat.ortmodule.gradient_graph import export_gradient_graph  # noqa: E402
from steep.compat.ortmodule.json_config import load_from_json  # noqa: E402
from steep.compat.ortmodule.ort_module import HierarchicalORTModule, ORTModule  # noqa: E402
from steep.lowering import cache  # noqa: E402


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for variable in environment.VARIABLES:
        monkeypatch.delenv(environment.PREFIX + variable.name, raising=False)
    notices.forget()
    log = logging.getLogger("steep")
    level, handlers = log.level, [*log.handlers]
    yield
    log.setLevel(level)
    log.handlers[:] = handlers
    notices.forget()


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


class Decides(torch.nn.Module):
    """Python decides on a value, between two products."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        return self.second(y) if y.sum() > 0 else self.second(-y)


class Refused(torch.nn.Module):
    """Nothing of it can run in the engine."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return torch.view_as_complex(x) * 2j


def test_gradients_are_those_of_pytorch():
    plain = net()
    wrapped = ORTModule(copy.deepcopy(plain))
    x = torch.randn(3, 4)
    plain(x).square().sum().backward()
    wrapped(x).square().sum().backward()
    for p, q in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    assert wrapped.report().whole


def test_by_default_pytorch_runs_in_parts_and_then_whole(caplog):
    x = torch.randn(3, 4)
    module = Decides()
    assert torch.allclose(ORTModule(module)(x), module(x), atol=1e-6)
    refused = ORTModule(Refused())
    pair = torch.randn(3, 2)
    for _ in range(3):
        assert torch.equal(refused(pair), Refused()(pair))
    assert refused.fallback_calls == 3
    assert sum("running in PyTorch instead" in r.message for r in caplog.records) == 1


def test_disabled_fallback_raises(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(steep.ModelError):
        ORTModule(Decides())(torch.randn(3, 4))
    with pytest.raises(steep.ModelError):
        ORTModule(Refused())(torch.randn(3, 2))
    HierarchicalORTModule(Decides())(torch.randn(3, 4))  # in parts, whatever the policy


def test_a_policy_says_which_failures(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA")
    with pytest.raises(steep.ModelError):
        ORTModule(Refused())(torch.randn(3, 2))
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_FORCE_TORCH_FORWARD")
    forced = ORTModule(net())
    forced(torch.randn(3, 4))
    assert forced.fallback_calls == 1 and not forced.report().graphs
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_SOMETIMES")
    with pytest.raises(steep.DataError, match="FALLBACK_SOMETIMES"):
        ORTModule(net())
    assert DEFAULT == 8 | 16 | 32 | 64
    assert DEFAULT.is_set(_FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE)


def test_retry_asks_the_engine_again(monkeypatch):
    calls = []

    def fails(self, *args, **kwargs):
        calls.append(args)
        raise steep.ModelError("not today")

    monkeypatch.setattr(steep.ORTModule, "forward", fails)
    x = torch.randn(3, 4)
    once = ORTModule(net())
    once(x), once(x)
    assert len(calls) == 1
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "1")
    again = ORTModule(net())
    again(x), again(x)
    assert len(calls) == 3 and again.fallback_calls == 2
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "perhaps")
    with pytest.raises(steep.DataError, match="perhaps"):
        ORTModule(net())


def test_exceptions_are_what_is_raised():
    from steep.compat.ortmodule import fallback

    assert fallback.ORTModuleTorchModelException is steep.ModelError
    assert fallback.ORTModuleDeviceException is steep.ProviderError
    cause = ValueError("why")
    wrapped = wrap_exception(steep.ModelError, cause)
    assert isinstance(wrapped, steep.ModelError) and wrapped.__cause__ is cause


def test_a_data_parallel_runs_in_pytorch_if_the_policy_allows(monkeypatch, caplog):
    wrapped = torch.nn.DataParallel(net())
    x = torch.randn(3, 4)
    module = ORTModule(wrapped)
    for run in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(run(x), wrapped(x))
        assert run.fallback_calls == 1 and not run.report().graphs
    assert "DataParallel(ORTModule(module))" in caplog.text
    module(x).sum().backward()
    assert all(p.grad is not None for p in wrapped.parameters())
    for policy in ("FALLBACK_DISABLE", "FALLBACK_UNSUPPORTED_DATA"):
        monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
        with pytest.raises(steep.ModelError, match="DataParallel"):
            ORTModule(wrapped)


def test_copies_and_pickles(tmp_path):
    options = DebugOptions(log_level=LogLevel.ERROR, onnx_prefix="p")
    for again in (
        copy.deepcopy(ORTModule(net(), options)),
        pickle.loads(pickle.dumps(ORTModule(net(), options))),
    ):
        assert isinstance(again, ORTModule) and again._steep_debug_options == options
        again(torch.randn(2, 4))
    assert isinstance(copy.deepcopy(HierarchicalORTModule(net())), HierarchicalORTModule)


# --- options -------------------------------------------------------------------------------------


def test_files_of_a_module_in_evaluation_mode(tmp_path):
    module = ORTModule(
        net().eval(), DebugOptions(save_onnx=True, onnx_prefix="n", save_path=str(tmp_path))
    )
    module(torch.randn(3, 4)).sum().backward()
    with torch.no_grad():
        module(torch.randn(3, 4))
    names = {p.name for p in tmp_path.glob("*.onnx")}
    assert {"n_torch_exported_inference.onnx", "n_2_torch_exported_inference.onnx"} <= names
    assert all(name.endswith("_inference.onnx") for name in names)


def test_files_of_a_graph_that_both_modes_run(tmp_path):
    module = ORTModule(
        net(), DebugOptions(save_onnx=True, onnx_prefix="n", save_path=str(tmp_path))
    )
    for training in (True, False, True, False):
        module.train(training)(torch.randn(3, 4))
    names = {p.name for p in tmp_path.glob("*torch_exported*")}
    assert names == {"n_torch_exported_training.onnx", "n_torch_exported_inference.onnx"}


def test_files_of_each_stage(tmp_path):
    module = ORTModule(
        net(), DebugOptions(save_onnx=True, onnx_prefix="n", save_path=str(tmp_path))
    )
    x = torch.randn(3, 4)
    y = module(x)
    with torch.no_grad():
        module(x)
    module(x)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "n_execution_model_training.onnx",
        "n_optimized_inference.onnx",
        "n_optimized_inference.txt",
        "n_optimized_training.onnx",
        "n_optimized_training.txt",
        "n_torch_exported_inference.onnx",
        "n_torch_exported_training.onnx",
    ]
    # what was written computes what the module does, in forward and backward
    model = onnx.load(tmp_path / "n_execution_model_training.onnx")
    onnx.checker.check_model(model, full_check=True)
    session = steep.InferenceSession(model)
    named = {i.name: i for i in session.get_inputs()}
    by_shape = {tuple(p.shape): p.detach().numpy() for p in module.parameters()}
    feed = {
        name: by_shape.get(tuple(i.shape), x.numpy())
        for name, i in named.items()
        if not name.startswith("grad_")
    }
    (seed,) = [n for n in named if n.startswith("grad_")]
    results = session.run(None, {**feed, seed: np.ones((3, 2), np.float32)})
    np.testing.assert_allclose(results[0], y.detach().numpy(), rtol=1e-5)
    y.sum().backward()
    gradients = {r.shape: r for r in results[1:]}
    for p in module.parameters():
        np.testing.assert_allclose(gradients[tuple(p.shape)], p.grad.numpy(), rtol=1e-5)
    # the compiled graph is as its text says, fused operators and all
    text = (tmp_path / "n_optimized_training.txt").read_text()
    compiled = onnx.load(tmp_path / "n_optimized_training.onnx").graph
    own = {n.op_type for n in compiled.node if n.domain == "steep"}
    assert own and all(f"steep.{op}" in text for op in own)
    made = {name for n in compiled.node for name in n.output} | {i.name for i in compiled.input}
    made |= {i.name for i in compiled.initializer}
    assert {name for n in compiled.node for name in n.input if name} <= made
    assert {o.name for o in compiled.output} <= made


def test_the_path_and_the_prefix_have_defaults(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    ORTModule(net(), DebugOptions(save_onnx=True))(torch.randn(3, 4))
    assert (tmp_path / "Sequential_torch_exported_training.onnx").exists()


def test_options_are_checked(tmp_path):
    with pytest.raises(TypeError, match="LogLevel"):
        DebugOptions(log_level=3)
    with pytest.raises(TypeError, match="onnx_prefix"):
        DebugOptions(save_onnx=True, onnx_prefix=3)
    with pytest.raises(OSError, match="missing"):
        DebugOptions(save_onnx=True, onnx_prefix="p", save_path=str(tmp_path / "missing"))
    assert [int(level) for level in LogLevel] == [0, 1, 2, 3, 4, 5]


def test_the_level_of_the_environment_goes_first(monkeypatch, caplog):
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    assert DebugOptions(log_level=LogLevel.ERROR).log_level == LogLevel.INFO
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "VERBOSE")  # which is 0
    assert DebugOptions(log_level=LogLevel.ERROR).log_level == LogLevel.VERBOSE
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    ORTModule(net())(torch.randn(3, 4))
    table = "\n".join(r.message for r in caplog.records)
    assert re.search(r"1 graph, [\d.]+ s to make them", table) and "step planned" in table
    stages = dict(re.findall(r"^(\w+) +[\d.]+ +(\d+)", table, re.MULTILINE))
    first, *_, last, _ = stages
    assert (first, last) == ("specialise", "plan")
    assert int(stages["fuse_elementwise"]) <= int(stages["fuse_matmul"]) < int(stages["specialise"])
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "LOUD")
    with pytest.raises(steep.DataError, match="LOUD"):
        DebugOptions()


# --- the environment -----------------------------------------------------------------------------


def test_memory_is_printed_when_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("ORTMODULE_PRINT_MEMORY_STATS", "1")
    module = ORTModule(net())
    module(torch.randn(3, 4))
    module(torch.randn(3, 4))
    assert re.findall(r"peak of each graph so far: [\d.]+ MiB\n", capsys.readouterr().err) != []


def test_the_folder_of_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("STEEP_CACHE")
    ORTModule(net())(torch.randn(3, 4))
    assert list(tmp_path.glob("*.entry"))
    monkeypatch.setenv("STEEP_CACHE", "off")  # what is Steep's own goes first
    ORTModule(net())
    assert cache.folder() is None


def test_what_has_no_meaning_is_said_once(monkeypatch, caplog):
    for variable in environment.VARIABLES:
        if variable.without_meaning:
            monkeypatch.setenv(environment.PREFIX + variable.name, "17")
    monkeypatch.setenv("ORTMODULE_FALBACK_POLICY", "x")
    ORTModule(net()), ORTModule(net())
    said = [r.message for r in caplog.records]
    silent = [v.name for v in environment.VARIABLES if v.without_meaning and v.default != "17"]
    for name in [*silent, "FALBACK_POLICY"]:
        assert sum(m.startswith(f"ORTMODULE_{name} ") for m in said) == 1, name


def test_every_variable_is_documented():
    text = (ROOT / "docs/environment.md").read_text()
    documented = set(re.findall(r"`ORTMODULE_(\w+)`", text))
    assert documented == {v.name for v in environment.VARIABLES}
    sources = [*ROOT.glob("python/steep/**/*.py"), *ROOT.glob("src/**/*.cc")]
    sources += [*ROOT.glob("providers/**/*.cc")]
    read = {
        name
        for source in sources
        for name in re.findall(
            r'(?:getenv\(|environ\.get\(|environ\[)"(STEEP_\w+)"', source.read_text()
        )
    }
    assert read and read <= set(re.findall(r"`(STEEP_\w+)`", text))


# --- the rest ------------------------------------------------------------------------------------


def test_settings_from_a_file(tmp_path, monkeypatch, caplog):
    module = ORTModule(net())
    path = tmp_path / "settings.json"

    def load(**settings):
        path.write_text(json.dumps(settings))
        load_from_json(module, path)

    load(
        FallbackPolicy=["FALLBACK_DISABLE"],
        DebugOptions={"LogLevel": "ERROR", "SaveONNX": True, "SaveONNXPath": str(tmp_path)},
    )
    assert module.fallback is None
    module(torch.randn(3, 4))
    assert (tmp_path / "Sequential_torch_exported_training.onnx").exists()
    logging.getLogger("steep").setLevel(logging.WARNING)
    load(PropagateCastOps={"Strategy": "FLOOD_FILL"}, UseStaticShape=True)
    assert sum(r.name == "steep" for r in caplog.records) == 2
    with pytest.raises(KeyError, match="Fallback"):
        load(Fallback=[])
    with pytest.raises(KeyError, match="Level"):
        load(DebugOptions={"Level": "INFO"})
    with pytest.raises(steep.DataError, match="LOUD"):
        load(DebugOptions={"LogLevel": "LOUD"})
    path.write_text("{")
    with pytest.raises(steep.DataError, match="not JSON"):
        load_from_json(module, path)
    with pytest.raises(steep.DataError, match="No file"):
        load_from_json(module)
    path.write_text('{"FallbackPolicy": "FALLBACK_UNSUPPORTED_DATA"}')
    monkeypatch.setenv("ORTMODULE_JSON_CONFIG_PATH", str(path))
    assert ORTModule(net())._steep_policy == _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA


def test_the_gradient_graph_of_a_module(tmp_path):
    module = net()
    module[2].bias.requires_grad_(False)
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    export_gradient_graph(module, torch.nn.MSELoss(), x, y, tmp_path / "g.onnx")
    session = steep.InferenceSession(tmp_path / "g.onnx")
    parameters = dict(module.named_parameters())
    assert [i.name for i in session.get_inputs()] == ["input", "labels", *parameters]
    fed = {"input": x.numpy(), "labels": y.numpy()}
    fed |= {name: p.detach().numpy() for name, p in parameters.items()}
    output, loss, *gradients = session.run(None, fed)
    expected = torch.nn.functional.mse_loss(module(x), y)
    expected.backward()
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-6)
    trained = [name for name, p in parameters.items() if p.requires_grad]
    names = [o.name for o in session.get_outputs()]
    assert names == ["output", "loss", *(f"{name}_grad" for name in trained)]
    for name, gradient in zip(trained, gradients, strict=True):
        np.testing.assert_allclose(gradient, parameters[name].grad, rtol=1e-5, atol=1e-7)
    fed["0.weight"] = 2 * fed["0.weight"]
    assert session.run(["loss"], fed)[0] != loss


def test_process_wide_settings(caplog):
    from steep.compat.ortmodule import settings

    settings.set_seed(3)
    first = torch.rand(2)
    settings.set_seed(3)
    assert torch.equal(torch.rand(2), first)
    settings.set_default_logger_severity(3)
    assert logging.getLogger("steep").level == logging.ERROR
    with pytest.raises(ValueError, match="severity"):
        settings.set_default_logger_severity(9)
    settings.set_default_logger_severity(2)
    settings.enable_custom_autograd_support(True)
    assert not caplog.records
    settings.enable_custom_autograd_support(False)
    settings.enable_custom_autograd_support(False)
    settings.set_propagate_cast_ops_optimization(None, level=1)
    assert len(caplog.records) == 2
