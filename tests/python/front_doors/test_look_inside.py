"""Dumps, pages, passes and logs: the same from every front door."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from checkout import ROOT
from steep_program import built

import steep
from steep import _steep

torch = pytest.importorskip("torch")

X, Y = np.ones((6, 4), np.float32), np.ones((6, 3), np.float32)


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from steep.export.module_to_onnx import export

    path = tmp_path_factory.mktemp("model") / "model.onnx"
    proto = export(network().eval(), [torch.from_numpy(X)])
    path.write_bytes(proto.SerializeToString())
    return str(path)


class OrtModule:
    def __init__(self, disabled_passes: Any = ()) -> None:
        self.module = steep.ORTModule(network(), disabled_passes=disabled_passes)
        self.step()
        self.dump, self.profile = self.module.dump, self.module.profile

    def step(self) -> None:
        self.module(torch.from_numpy(X)).sum().backward()


class Trainer:
    def __init__(self, disabled_passes: Any = ()) -> None:
        net = network()
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = torch.nn.MSELoss()
        self.trainer = steep.trainer(net, loss, sgd, disabled_passes=disabled_passes)
        assert isinstance(self.trainer, steep.Trainer)
        self.step()
        self.dump, self.profile = self.trainer.dump, self.trainer.profile

    def step(self) -> None:
        self.trainer.step(torch.from_numpy(X), torch.from_numpy(Y))


class Training:
    def __init__(self, model: str, disabled_passes: Any = ()) -> None:
        self.session = steep.TrainingSession(model, loss="mse", disabled_passes=disabled_passes)
        self.profile = self.session.profile

    def step(self) -> None:
        self.session.step(X, Y)

    def dump(self, **options: Any) -> str:
        return self.session.dump(X, Y, **options)


class Inference:
    def __init__(self, model: str, disabled_passes: Any = ()) -> None:
        options = steep.SessionOptions()
        options.disabled_passes = disabled_passes
        self.session = steep.InferenceSession(model, options)
        self.feed = {self.session.get_inputs()[0].name: X}
        self.profile = self.session.profile

    def step(self) -> None:
        self.session.run(None, self.feed)

    def dump(self, **options: Any) -> str:
        return self.session.dump(self.feed, **options)


class Gradients:
    def __init__(self, model: str, disabled_passes: Any = ()) -> None:
        (name,) = (v.name for v in onnx.load(model).graph.input)
        self.session = steep.GradientSession(model, [name], disabled_passes=disabled_passes)
        self.profile = self.session.profile

    def step(self) -> None:
        (y,), run = self.session.forward([X])
        self.session.backward(run, [y])

    def dump(self, **options: Any) -> str:
        return self.session.dump([X], **options)


DOORS = ("module", "trainer", "training", "inference", "gradients")


def opened(door: str, model: str, disabled_passes: Any = ()) -> Any:
    if door == "module":
        return OrtModule(disabled_passes)
    if door == "trainer":
        return Trainer(disabled_passes)
    sessions = {"training": Training, "inference": Inference, "gradients": Gradients}
    return sessions[door](model, disabled_passes)


@pytest.mark.parametrize("door", DOORS)
def test_a_pass_is_left_out(door: str, model: str) -> None:
    assert "steep.Fused" in opened(door, model).dump()
    without = opened(door, model, ["fuse_elementwise", "fuse_matmul"])
    assert "steep.Fused" not in without.dump()
    shown = without.dump(passes=True)
    assert "# fuse_elementwise: switched off" in shown
    assert shown.startswith(("# specialised\n", "# graph 1 of 1\n# specialised\n"))
    on = opened(door, model).dump(passes=True)
    assert all(f"# {name}" in on for name in ("remove_duplicates", "fuse_elementwise"))


def test_a_pass_is_left_out_of_second_derivatives(capfd: pytest.CaptureFixture[str]) -> None:
    module = steep.ORTModule(network(), disabled_passes=["fuse_elementwise"])
    steep.set_logs("passes")
    try:
        x = torch.from_numpy(X).requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        slope.sum().backward()
    finally:
        steep.set_logs("")
    said = capfd.readouterr().err
    assert said.count("[passes] remove_duplicates") > 1 and "fuse_elementwise" not in said


def test_a_pass_is_left_out_of_compiled_functions(capfd: pytest.CaptureFixture[str]) -> None:
    disabled = {"disabled_passes": ["fuse_elementwise"]}
    compiled = torch.compile(network(), backend="steep", options=disabled)
    steep.set_logs("passes")
    try:
        compiled(torch.from_numpy(X)).sum().backward()
    finally:
        steep.set_logs("")
    said = capfd.readouterr().err
    assert "[passes] remove_duplicates" in said and "fuse_elementwise" not in said


@pytest.mark.parametrize("door", DOORS)
def test_a_pass_that_there_is_not(door: str, model: str) -> None:
    with pytest.raises(steep.ModelError) as e:
        opened(door, model, ["fuse_everything"])
    assert all(name in str(e.value) for name in (*steep.pass_names(), "fuse_everything"))


class Tags(HTMLParser):
    """What a page opens and does not close, refers to, and names."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: set[str] = set()
        self.ids: list[str] = []
        self.boxes = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "a":
            self.links.add(str(given["href"]))
        self.ids += [str(given["id"])] if "id" in given else []
        self.boxes += tag == "rect"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("door", DOORS)
def test_a_page(door: str, model: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    text = opened(door, model).dump(html=path)
    page = path.read_text()
    tags = Tags()
    tags.feed(page)
    assert not tags.open and tags.boxes > 0
    assert len(tags.ids) == len({*tags.ids})
    assert tags.links <= {f"#{name}" for name in tags.ids}
    assert not re.search(r"https?://|<script|<link|@import", page)
    steps = re.findall(r"^ +\d+ .* = ([\w.]+)\[(\w*)\]", text, re.M)
    rows = re.findall(r"<tr id=.*?</td><td>([\w.]+)</td><td>(\w*)</td>", page)
    assert steps and rows == steps


def test_a_graph_that_is_planned_as_it_runs(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> runs (float[n] x) => (float[m] y) {
        places = NonZero(x)
        there = Flatten <axis = 0> (places)
        shape = Constant <value_ints = [-1]> ()
        flat = Reshape(there, shape)
        picked = Gather(x, flat)
        more = Exp(picked)
        y = Sin(more)
    }"""
    session = steep.InferenceSession(onnx.parser.parse_model(text))
    feed = {"x": np.float32([0, 1, 2])}
    path = tmp_path / "plan.html"
    assert "in segments" in session.dump(feed, passes=True, html=path)
    assert "in segments" in path.read_text() and "<tr id=" not in path.read_text()
    session.run(None, feed)
    session.dump(feed, html=path)
    tags = Tags()
    tags.feed(path.read_text())
    assert not tags.open and len(tags.ids) == len({*tags.ids}) > 0


def test_a_page_of_two_graphs(tmp_path: Path) -> None:
    door = OrtModule()
    door.module.eval()
    with torch.no_grad():
        door.module(torch.from_numpy(X))
    text = door.dump(html=tmp_path / "plan.html")
    tags = Tags()
    tags.feed((tmp_path / "plan.html").read_text())
    assert "# graph 2 of 2" in text and len(door.module.plan()) == 2
    assert len(tags.ids) == len({*tags.ids}) and tags.links <= {f"#{name}" for name in tags.ids}


@pytest.mark.parametrize("door", DOORS)
def test_a_profile(door: str, model: str, tmp_path: Path) -> None:
    it = opened(door, model)
    it.step()
    with it.profile(tmp_path / "trace.json"):
        it.step()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any("MatMul" in event["args"].get("op", "") for event in events)


def test_nothing_is_compiled_yet(model: str, tmp_path: Path) -> None:
    module = steep.ORTModule(network())
    assert module.plan() == ()
    with pytest.raises(steep.ModelError, match="Nothing is compiled yet"):
        module.dump()
    with pytest.raises(steep.ModelError, match="Nothing is compiled yet"), module.profile("x"):
        pass
    with pytest.raises(steep.DataError, match="needs the shapes"):
        steep.TrainingSession(model, loss="mse").dump(html=tmp_path / "plan.html")
    assert not any(tmp_path.iterdir())


class WithPlan(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)
        self.profile = "its own"

    def plan(self) -> str:
        return "its own"

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def test_a_modules_own_names_come_first() -> None:
    module = steep.ORTModule(WithPlan())
    module(torch.from_numpy(X))
    assert module.plan() == module.profile == "its own"
    assert "MatMul" in module.dump() and len(steep.ORTModule.plan(module)) == 1


@pytest.fixture
def logs() -> Any:
    yield steep.set_logs
    steep.set_logs("")


def test_each_log_tells(logs: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def forward(self: Any, x: Any) -> Any:
        y = self.inner(x)
        return y * 2 if y.sum() > 0 else y

    class Breaks(WithPlan):
        pass

    Breaks.forward = forward
    logs(",".join(name for name, _ in _steep.log_kinds()))
    module = steep.ORTModule(Breaks())
    module(torch.from_numpy(X)).sum().backward()
    module(torch.ones(5, 4)).sum().backward()
    lines = capfd.readouterr().err.splitlines()
    for name, _ in _steep.log_kinds():
        assert any(line.startswith(f"[{name}] ") for line in lines), name
    logs("")
    module(torch.ones(3, 4))
    assert "[" not in capfd.readouterr().err


def test_a_log_that_there_is_not(logs: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(steep.DataError) as e:
        logs("plan,everything")
    assert all(name in str(e.value) for name, _ in _steep.log_kinds())
    logs("help")
    said = capfd.readouterr().err
    assert all(told in said for _, told in _steep.log_kinds())


@pytest.mark.parametrize(
    "command", [[sys.executable, "-c", "import steep"], [built("steep"), "--version"]]
)
def test_the_environment(command: list[str]) -> None:
    def run(names: str) -> Any:
        environment = {"PYTHONPATH": str(ROOT / "python"), "STEEP_LOGS": names, "PATH": ""}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert run("plan").returncode == 0
    helped, wrong = run("help"), run("everything")
    assert helped.returncode == 0 and wrong.returncode != 0
    for name, told in _steep.log_kinds():
        assert f"{name:<11} {told}" in helped.stdout + helped.stderr
        assert name in wrong.stderr


def test_the_documents_list_them() -> None:
    text = (ROOT / "docs" / "look_inside.md").read_text()
    listed = re.findall(r"^\| (`.*`) \| (.*) \|$", text, re.M)
    names = [name for cell, _ in listed for name in re.findall(r"`(\w+)`", cell)]
    assert names == [*steep.pass_names(), *(name for name, _ in _steep.log_kinds())]
    assert {cell.strip("`"): told for cell, told in listed}.items() >= dict(
        _steep.log_kinds()
    ).items()
