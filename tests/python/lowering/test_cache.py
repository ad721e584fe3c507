"""The cache of exports: hit by what computes the same, missed by everything else, never trusted."""

import copy
import os
import shutil
import subprocess
import sys
import textwrap
import threading

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")

import onnx  # noqa: E402

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402
from steep.lowering import cache  # noqa: E402

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Net(torch.nn.Module):
    def __init__(self, factor=2.0, width=8):
        super().__init__()
        self.first = torch.nn.Linear(6, width)
        self.second = torch.nn.Linear(width, 3)
        self.factor = factor
        self.table = torch.tensor([1.0, 2.0, 3.0])  # neither parameter nor buffer

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.factor + self.table


def run(module, x=None, **options):
    """The wrapped module after one call, checked against PyTorch."""
    torch._dynamo.reset()  # as in another process
    x = torch.randn(4, 6) if x is None else x
    net = ORTModule(copy.deepcopy(module), **options)
    torch.testing.assert_close(net(x), module(x), rtol=1e-5, atol=1e-6)
    return net


def hit(module, x=None, **options):
    return run(module, x, **options).report().graphs[-1].cached


# --- hits and misses ------------------------------------------------------------------------------


def test_a_module_that_computes_the_same_is_a_hit(folder):
    assert not hit(Net())
    assert hit(Net())  # other weights
    assert len(list(folder.iterdir())) == 1
    net = run(Net())
    net(torch.randn(4, 6)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


CHANGES = {
    "number": lambda: Net(factor=3.0),
    "shape": lambda: Net(width=9),
    "code": lambda: with_attribute(Net(), "second", torch.nn.Identity(), width=3),
}


def with_attribute(net, name, value, width=None):
    if width is not None:
        net.first = torch.nn.Linear(6, width)
    setattr(net, name, value)
    return net


@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_computes_something_else_is_a_miss(change):
    run(Net())
    assert not hit(CHANGES[change]())
    assert hit(CHANGES[change]())


def test_versions_are_part_of_the_key(monkeypatch):
    run(Net())
    monkeypatch.setattr(cache, "versions", lambda: "torch 99")
    assert not hit(Net())


class Two(torch.nn.Module):
    """Uses the first or the second of two arguments."""

    def __init__(self, which):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.which = which

    def forward(self, a, b):
        return self.linear((a, b)[self.which])


def test_one_tensor_given_twice_is_two_arguments():
    x = torch.randn(2, 3)
    first, second = Two(0), Two(1)
    for module in (first, second, first, second):
        torch._dynamo.reset()
        net = ORTModule(module)
        torch.testing.assert_close(net(x, x), module(x, x))
        a, b = torch.randn(2, 3), torch.randn(2, 3)
        torch.testing.assert_close(net(a, b), module(a, b))


class Tied(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def test_tied_parameters_differ_from_two():
    x = torch.randn(2, 4)
    run(Tied(False), x)
    assert not hit(Tied(True), x)
    assert hit(Tied(True), x)


# --- extents --------------------------------------------------------------------------------------


class Rows(torch.nn.Module):
    """Reads its number of rows as a number (``fixed``), or not."""

    def __init__(self, fixed):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.fixed = fixed

    def forward(self, x):
        rows = 4 if self.fixed else x.shape[0]
        return self.linear(x).reshape(rows, -1)


@pytest.mark.parametrize("first", [False, True])
def test_equal_for_one_size_is_not_taken_for_equal(first):
    x, other = torch.randn(4, 6), torch.randn(8, 6)
    run(Rows(first), x)
    net = run(Rows(not first), x)
    torch.testing.assert_close(net(other), net.module(other), rtol=1e-5, atol=1e-6)


def test_weights_are_not_in_the_file(folder):
    net = Net(width=512)
    run(net)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    for parameter in net.parameters():
        assert parameter.detach().numpy().tobytes() not in content


# --- trainers -------------------------------------------------------------------------------------


def trained(sizes):
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = Net()
    trainer = steep.trainer(model, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters(), 0.01))
    losses = [float(trainer.step(torch.randn(n, 6), torch.randn(n, 3))[0]) for n in sizes]
    return losses, model.state_dict(), trainer


def test_a_trainer_from_the_cache_takes_the_same_steps():
    sizes = (4, 4, 7, 2, 4)
    losses, weights, _ = trained(sizes)
    again, same, trainer = trained(sizes)
    assert losses == again
    assert all(torch.equal(weights[n], same[n]) for n in weights)
    assert all(graph.cached for graph in trainer.report().graphs)


# --- files ----------------------------------------------------------------------------------------


def test_entries_come_back():
    assert cache.load(KEY) is None
    assert cache.store(KEY, b"one")
    assert cache.store(KEY, b"two")
    assert cache.load(KEY) == b"two"


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "magic"])
def test_a_damaged_file_is_ignored_and_written_anew(folder, damage, caplog):
    run(Net())
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 1
    content = {"cut": content[:-1], "empty": b"", "magic": b"s" + content}.get(damage, content)
    file.write_bytes(content)
    with caplog.at_level("WARNING", "steep"):
        assert not hit(Net())
    assert "damaged" in caplog.text
    assert hit(Net())


IN_PLACE = {
    "fifo": os.mkfifo,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(__file__),
    "huge": lambda path: path.open("wb").truncate(2**40),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_is_no_file_counts_as_absent(folder, kind):
    assert cache.store(KEY, b"one")
    (path,) = folder.iterdir()
    path.unlink()
    IN_PLACE[kind](path)
    done = []
    reader = threading.Thread(target=lambda: done.append(cache.load(KEY)), daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert done == [None]
    assert cache.store(KEY, b"two") and cache.load(KEY) == b"two"


@pytest.mark.parametrize("which", ["folder", "entry"])
@pytest.mark.parametrize("why", ["mode", "owner"])
def test_what_others_may_have_written_is_not_used(folder, which, why, caplog, monkeypatch):
    cache.store(KEY, b"one")
    path = folder if which == "folder" else folder / f"{KEY}.entry"
    if why == "mode":
        path.chmod(path.stat().st_mode | 0o020)
    elif os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with caplog.at_level("WARNING", "steep"):
        assert cache.load(KEY) is None and cache.load(KEY) is None
    (said,) = caplog.messages
    assert str(folder) in said
    assert cache.store(KEY, b"two") == (which == "entry" and path.stat().st_uid == os.geteuid())
    assert cache.load(KEY) == (b"two" if which == "entry" else None)


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path / "file" / "cache"))
    assert not hit(Net()) and not hit(Net())
    assert not cache.store(KEY, b"one")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_still_serves(folder):
    run(Net())
    folder.chmod(0o500)
    try:
        assert hit(Net())
        assert not hit(Net(factor=5.0))
    finally:
        folder.chmod(0o700)


ODD = {
    "no user": {"STEEP_CACHE": "~nouser/x"},
    "no bound": {"STEEP_CACHE_MIB": "inf"},
    "nan": {"STEEP_CACHE_MIB": "nan"},
    "negative": {"STEEP_CACHE_MIB": "-1"},
    "huge": {"STEEP_CACHE_MIB": "1e999"},
    "words": {"STEEP_CACHE_MIB": "some"},
    "nothing": {"STEEP_CACHE_MIB": ""},
    "long": {"STEEP_CACHE": "x" * 5000},
    "device": {"STEEP_CACHE": "/dev/null"},
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_settings_end_nothing(kind, monkeypatch):
    for name, value in ODD[kind].items():
        monkeypatch.setenv(name, value)
    kept = "STEEP_CACHE" not in ODD[kind]
    assert cache.store(KEY, b"one") == kept
    assert cache.load(KEY) == (b"one" if kept else None)


def test_odd_settings_are_said_once(monkeypatch, caplog):
    cache._say_once.cache_clear()
    monkeypatch.setenv("STEEP_CACHE_MIB", "-3")
    for _ in range(3):
        cache.store(KEY, b"one")
    monkeypatch.setenv("STEEP_CACHE", "~nouser/x")
    assert not hit(Net()) and not hit(Net())
    assert [m for m in caplog.messages if "-3" in m] == [
        "STEEP_CACHE_MIB is not a number of MiB: '-3'; 256 are taken. "
        "Correct the variable, or unset it"
    ]
    assert len([m for m in caplog.messages if m.startswith("there is no cache")]) == 1


@pytest.mark.parametrize("when", ["mkstemp", "replace", "unlink"])
def test_a_folder_deleted_meanwhile_ends_nothing(folder, when, monkeypatch):
    owner = cache.tempfile if when == "mkstemp" else os
    if when == "unlink":  # while the oldest are looked for
        owner, when = cache.os, "replace"
    call = getattr(owner, when)

    def gone(*args, **kwargs):
        first = call(*args, **kwargs) if owner is cache.tempfile else None
        shutil.rmtree(folder)
        return first if first is not None else call(*args, **kwargs)

    monkeypatch.setattr(owner, when, gone)
    cache.store(KEY, b"one")
    assert cache.load(KEY) is None
    shutil.rmtree(folder, ignore_errors=True)
    monkeypatch.undo()
    monkeypatch.setenv("STEEP_CACHE", str(folder))
    assert cache.store(KEY, b"one")


def test_a_folder_deleted_before_the_oldest_are_looked_for(folder, monkeypatch):
    replace = os.replace

    def then_gone(*paths):
        replace(*paths)
        shutil.rmtree(folder)

    monkeypatch.setattr(os, "replace", then_gone)
    assert not cache.store(KEY, b"one")


MUTATIONS = {
    "operator": lambda m: setattr(m.graph.node[0], "op_type", "Nonsense"),
    "wire": lambda m: m.graph.node[-1].input.__setitem__(0, "nowhere"),
    "input": lambda m: setattr(m.graph.input[0], "name", "arg_99"),
    "type": lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7),
    "shape": lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 77),
    "output": lambda m: m.graph.output.pop(),
    "opset": lambda m: setattr(m.opset_import[0], "version", 9999),
}


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_mutated_graph_under_the_right_checksum_is_made_anew(folder, kind):
    run(Net())
    (file,) = folder.iterdir()
    model = onnx.load_from_string(cache.load(file.stem))
    MUTATIONS[kind](model)
    cache.store(file.stem, model.SerializeToString())
    assert not hit(Net())
    assert hit(Net())  # it was written anew


def test_off(folder, monkeypatch):
    for value in ("off", "0", ""):
        monkeypatch.setenv("STEEP_CACHE", value)
        assert cache.folder() is None
        assert not cache.store(KEY, b"one") and cache.load(KEY) is None
    assert not hit(Net())
    assert not folder.exists()


def test_the_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("STEEP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "steep"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "steep"


def test_the_least_recently_used_goes_first(folder, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE_MIB", "1")
    entry = bytes(400_000)
    for i, key in enumerate(("a1", "b2")):
        cache.store(key, entry)
        os.utime(folder / f"{key}.entry", (i, i))
    assert cache.load("a1") is not None  # used now
    (folder / "left.writing").write_bytes(b"")
    os.utime(folder / "left.writing", (0, 0))
    cache.store("c3", entry)
    assert sorted(p.name for p in folder.iterdir()) == ["a1.entry", "c3.entry"]


PROCESS = """
    import sys, torch
    from steep import ORTModule
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)
    net = ORTModule(torch.nn.Sequential(*layers))
    net(torch.randn(4, 6)).sum().backward()
    print(net.report().graphs[-1].cached, float(net.module[0].weight.grad.sum()))
"""


def process(seed):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONHASHSEED": seed}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROCESS)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.matrix
def test_processes_share_a_folder(folder):
    at_once = [process("1"), process("2")]
    results = [p.communicate()[0].split() for p in at_once]
    assert all(p.returncode == 0 for p in at_once)
    later = process("3")
    cached, gradient = later.communicate()[0].split()
    assert cached == "True"
    assert {gradient} == {r[1] for r in results}
    assert len(list(folder.iterdir())) == 1
