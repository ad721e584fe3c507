"""Subscribers are told of activations and gradients, of an ORTModule too."""

import pytest

torch = pytest.importorskip("torch")

import steep  # noqa: E402
from steep.compat import notices  # noqa: E402
from steep.compat.hooks import merge_activation_summary, subscribers as hooks  # noqa: E402
from steep.compat.ortmodule.ort_module import ORTModule  # noqa: E402


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def numbers(path):
    return dict(line.split(": ") for line in path.read_text().splitlines())


@pytest.mark.parametrize("wrap", [lambda m: m, ORTModule], ids=["PyTorch", "ORTModule"])
def test_statistics_of_each_step(wrap, tmp_path):
    model = wrap(net())
    manager = hooks.SubscriberManager()
    subscriber = hooks.StatisticsSubscriber(str(tmp_path / "s"), start_step=1, end_step=3)
    manager.subscribe(model, [subscriber])
    for i in range(4):
        torch.manual_seed(i)
        model(torch.randn(3, 4)).square().sum().backward()
    assert sorted(p.name for p in (tmp_path / "s").iterdir()) == ["step_1", "step_2"]
    order = (tmp_path / "s/step_2/order.txt").read_text().split()
    parts = ["Linear", "Tanh", "Linear"]
    told = [n.split("_")[0] for n in order if n.endswith("forward")]
    assert [n for n in told if n in parts] == parts
    told = [n.split("_")[0] for n in order if n.endswith("backward")]
    assert [n for n in told if n in parts] == parts[::-1]
    plain = net()
    torch.manual_seed(2)
    hidden = torch.tanh(plain[0](torch.randn(3, 4)))
    (file,) = (tmp_path / "s/step_2").glob("Tanh_*_0th_output_forward")
    said = numbers(file)
    assert said["shape"] == "[3, 6]" and float(said["max"]) == pytest.approx(
        hidden.max().item(), rel=1e-5
    )
    hidden.retain_grad()
    plain[2](hidden).square().sum().backward()
    (file,) = (tmp_path / "s/step_2").glob("Tanh_*_0th_output_backward")
    assert float(numbers(file)["mean"]) == pytest.approx(hidden.grad.mean().item(), rel=1e-4)
    assert manager.get_subscriber(hooks.StatisticsSubscriber) is subscriber
    assert manager.get_run_context().global_states.execution_step == 4


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(FileExistsError):
        hooks.StatisticsSubscriber(str(tmp_path))
    kept = hooks.StatisticsSubscriber(str(tmp_path), override_output_dir=True)
    manager = hooks.SubscriberManager()
    with pytest.raises(steep.DataError, match="not a subscriber"):
        manager.subscribe(net(), [3])
    manager.subscribe(net(), [kept])
    with pytest.raises(steep.DataError, match="not a subscriber"):
        manager.subscribe(net(), [3])
    assert manager.get_subscriber(hooks.StatisticsSubscriber) is kept
    with pytest.raises(steep.DataError, match="no such"):
        hooks.SubscriberManager().get_subscriber(hooks.StatisticsSubscriber)


@pytest.mark.parametrize("wrap", [lambda m: m, ORTModule], ids=["PyTorch", "ORTModule"])
def test_a_second_model_and_its_subscribers_replace_the_first(wrap):
    class Subscriber(hooks.SubscriberBase):
        def __init__(self):
            super().__init__()
            self.told = []

        def activation(self, name, step, tensor):
            self.told.append((name, step))

    manager, models = hooks.SubscriberManager(), [wrap(net()), wrap(net())]
    first, second = Subscriber(), Subscriber()
    manager.subscribe(models[0], [first])
    models[0](torch.ones(3, 4))
    before = list(first.told)
    assert before
    manager.subscribe(models[1], [second])
    models[0](torch.ones(3, 4))
    models[1](torch.ones(3, 4))
    assert first.told == before and second.told == before
    manager.subscribe(models[1], [first, second])
    models[1](torch.ones(3, 4))
    assert first.told == second.told == 2 * before


def test_a_tensor_within_forward(monkeypatch):
    told = []

    class Subscriber(hooks.SubscriberBase):
        def activation(self, name, step, tensor):
            told.append((name, tuple(tensor.shape)))

        def gradient(self, name, step, tensor):
            told.append((f"{name}, gradient", tuple(tensor.shape)))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)

        def forward(self, x):
            return self.second(hooks.inspect_activation("hidden", self.first(x)))

    monkeypatch.setattr(hooks, "GlobalSubscriberManager", hooks.SubscriberManager())
    hooks.GlobalSubscriberManager._subscribers = [Subscriber()]
    ORTModule(Net())(torch.randn(3, 4)).sum().backward()
    assert told == [("hidden", (3, 6)), ("hidden, gradient", (3, 6))]


def test_two_runs_side_by_side(tmp_path, monkeypatch, capsys):
    for folder, wrap in (("pt", lambda m: m), ("ort", ORTModule)):
        manager = hooks.SubscriberManager()
        model = wrap(net())
        manager.subscribe(model, [hooks.StatisticsSubscriber(str(tmp_path / folder))])
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
        with (tmp_path / folder / "step_0/order.txt").open("a") as order:
            order.write(f"{folder}_alone\n")
    arguments = ["--pt_dir", "pt", "--ort_dir", "ort", "--output_dir", "both"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["merge", *arguments])
    merge_activation_summary.main()
    assert sorted(p.name for p in (tmp_path / "both").iterdir()) == ["step_0", "step_1"]
    merged = (tmp_path / "both/step_0/merge_tensor.txt").read_text()
    assert merged.count("PyTorch\nshape: [3, 6]") == merged.count("ORTModule\nshape: [3, 6]") > 0
    assert "_backward" in merged and "alone" not in merged
    assert (tmp_path / "both/step_0/ort_only_tensors.txt").read_text() == "ort_alone\n"
    monkeypatch.setattr("sys.argv", ["merge", "--pt_dir", "none", *arguments[2:]])
    with pytest.raises(FileNotFoundError, match="none"):
        merge_activation_summary.main()
    monkeypatch.setattr("sys.argv", ["merge"])
    with pytest.raises(SystemExit):
        merge_activation_summary.main()
    assert "--pt_dir" in capsys.readouterr().err


def test_nothing_is_configured_for_zero(caplog):
    notices.forget()
    hooks.configure_ort_compatible_zero_stage3(debug=False, stats_output_dir="./")
    assert "changes nothing" in caplog.text
    notices.forget()
