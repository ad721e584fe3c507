"""register_graph_optimizer: functions of the user's on the graphs of ORTModule."""

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.compat.ortmodule import graph_optimizers  # noqa: E402
from steep.compat.ortmodule.debug_options import DebugOptions  # noqa: E402
from steep.compat.ortmodule.graph_optimizers import register_graph_optimizer  # noqa: E402
from steep.compat.ortmodule.ort_module import ORTModule  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.tanh(self.linear(x))


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(graph_optimizers, "_registrations", [])


def tanh_to_identity(graph):
    for node in graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Identity"


def test_a_graph_is_rewritten_before_its_gradients(tmp_path):
    assert register_graph_optimizer()(tanh_to_identity) is tanh_to_identity
    net = Net()
    options = DebugOptions(save_onnx=True, onnx_prefix="n", save_path=str(tmp_path))
    module, x = ORTModule(net, options), torch.randn(2, 4)
    y = module(x)
    y.sum().backward()
    torch.testing.assert_close(y, net.linear(x))
    torch.testing.assert_close(net.linear.weight.grad, x.sum(0).expand(3, 4))
    assert (tmp_path / "n_optimized_pre_grad_training.onnx").exists()
    # steep's own is as ever
    torch.testing.assert_close(steep.ORTModule(net)(x), net(x))


def test_who_runs_and_in_which_order():
    ran = []
    for name, options in {
        "first": {"priority": 1},
        "of others": {"target_modules": "Other|Another"},
        "of this one": {"target_modules": "Other|Net"},
        "elsewhere": {"devices": "cuda"},
        "here": {"devices": "cuda|cpu", "priority": 2},
    }.items():
        register_graph_optimizer(**options)(lambda graph, name=name: ran.append(name))
    module = ORTModule(Net())
    for _ in range(2):
        module(torch.randn(2, 4))
    assert ran == ["here", "first", "of this one"]


def test_what_fails_is_never_run_elsewhere():
    @register_graph_optimizer("Net")
    def fail(graph):
        raise KeyError("no such node")

    module = ORTModule(Net())
    for _ in range(2):
        with pytest.raises(KeyError, match="no such node"):
            module(torch.randn(2, 4))
    assert module.fallback_calls == 0


def test_inputs_and_outputs_stay():
    @register_graph_optimizer()
    def rename(graph):
        graph.output[0].name = "other"

    with pytest.raises(steep.ModelError, match="changed the outputs") as e:
        ORTModule(Net())(torch.randn(2, 4))
    assert "other" in str(e.value)


def test_a_graph_that_is_no_longer_one_is_refused():
    @register_graph_optimizer()
    def unknown(graph):
        graph.node[0].op_type = "NoSuchOperator"

    with pytest.raises(steep.ModelError, match="NoSuchOperator"):
        ORTModule(Net())(torch.randn(2, 4))
