"""What PyTorch's own wrappers do with a module they do with an ORTModule, weights and all."""

import copy
import functools
import pickle
import resource
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from compiled_graphs import compiled_graphs  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim import swa_utils  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from trained_by_frameworks import assert_same_state, net  # noqa: E402

import steep  # noqa: E402
from steep import ORTModule  # noqa: E402


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(4, n, generator=generator) for n in (6, 3)) for _ in range(count)
    ]  # fmt: skip


def train(model, steps=3, after=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, y in batches(steps):
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        after()
    return model


def saved_by_torch(model, folder):
    torch.save(model, folder / "whole.pt")
    return torch.load(folder / "whole.pt", weights_only=False)


COPIES = {
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "copy of a child": lambda model, folder: copy.deepcopy(nn.ModuleList([model]))[0],
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "torch.save": saved_by_torch,
}


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES)
def test_a_copy_trains_on_by_itself(tmp_path, made):
    model = train(ORTModule(net()))
    before = copy.deepcopy(model.state_dict())
    twin = train(made(model, tmp_path))
    assert isinstance(twin, ORTModule) and twin.report().graphs
    assert_same_state(twin, train(train(net())))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_a_copy_has_the_hooks_and_the_options():
    model = ORTModule(net(), precision="fp32", fallback=None)
    model.register_forward_hook(_doubled)
    twin = copy.deepcopy(model)
    x, _ = batches(1)[0]
    torch.testing.assert_close(twin(x), 2 * model.module(x))
    assert twin.precision == "fp32" and twin.fallback is None
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), 2 * model.module(x))


def test_a_copy_of_a_module_that_says_how_it_is_copied():
    model = ORTModule(torch.fx.symbolic_trace(net()))  # has a __deepcopy__
    twin = copy.deepcopy(model)
    assert isinstance(twin, ORTModule) and twin.module is not model.module
    assert_same_state(train(twin), train(net()))


def test_parametrizations_are_of_the_module():
    """PyTorch makes a class for them, whose properties are the parametrized tensors."""

    def normed(model):
        nn.utils.parametrizations.weight_norm(model)
        assert next(iter(model.state_dict())) == "bias"
        return train(model)

    def layer():
        torch.manual_seed(0)
        return nn.Linear(6, 3)

    model = ORTModule(layer())
    assert_same_state(normed(model), normed(layer()))
    assert type(model.module).__name__ == "ParametrizedLinear" and "weight" not in vars(nn.Linear)
    assert_same_state(train(copy.deepcopy(model)), train(normed(layer())))
    nn.utils.parametrize.remove_parametrizations(model, "weight")
    assert type(model.module) is nn.Linear and list(model.state_dict()) == ["bias", "weight"]
    assert model.report().whole


class Versioned(nn.Linear):
    """Loads what it saved under an older name."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if f"{prefix}w" in state_dict:
            state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}w")
        super()._load_from_state_dict(state_dict, prefix, *args)


def test_states_are_those_of_the_module():
    inner = ORTModule(Versioned(6, 3))
    seen = []
    inner.register_state_dict_post_hook(lambda m, *_: seen.append(m))
    inner.register_load_state_dict_post_hook(lambda m, _: seen.append(m))
    outer = nn.Sequential(inner)
    outer.load_state_dict({"0.w": torch.ones(3, 6), "0.bias": torch.zeros(3)})
    assert (inner.weight == 1).all()
    inner.state_dict()
    outer.state_dict()
    assert len(seen) == 3 and all(m.weight is inner.weight for m in seen)


def _doubled(module, arguments, result):
    return 2 * result


@pytest.mark.parametrize("average", [None, swa_utils.get_ema_multi_avg_fn(0.9)])
def test_averaged_model(average):
    def averaged(model):
        mean = swa_utils.AveragedModel(model, multi_avg_fn=average)
        train(model, after=lambda: mean.update_parameters(model))
        return mean

    found, expected = averaged(ORTModule(net())), averaged(net())
    assert_same_state(found.module, expected.module)
    x, _ = batches(1)[0]
    torch.testing.assert_close(found(x), expected(x))


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def test_batch_norms_of_an_averaged_model():
    """Means over all batches, by a count of them that grows."""

    def averaged(model):
        mean = swa_utils.AveragedModel(model)
        train(model, after=lambda: mean.update_parameters(model))
        swa_utils.update_bn([x for x, _ in batches(3)], mean)
        return mean.module

    model = averaged(ORTModule(Normalised()))
    assert_same_state(model, averaged(Normalised()))
    assert model.report().whole and model.report().graphs


def test_batch_norms_of_a_sequence():
    def updated(model):
        swa_utils.update_bn([x for x, _ in batches(3)], model)
        return train(model)

    def images(momentum):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4, momentum=momentum),
            nn.ReLU(), nn.BatchNorm1d(4, affine=False), nn.Flatten(), nn.Linear(16, 3),
        )  # fmt: skip

    for momentum in (0.1, None):  # during update_bn, or in training as well
        model = ORTModule(images(momentum), fallback=None)
        assert_same_state(updated(model), updated(images(momentum)))
        assert len(model.report().graphs) < 5, momentum  # not one for each count


def test_functional_call():
    model, plain = ORTModule(net()), net()
    x, y = batches(1)[0]

    def gradients(module):
        weights = {n: (p.detach() * 1.5).requires_grad_() for n, p in plain.named_parameters()}
        loss = F.mse_loss(torch.func.functional_call(module, weights, (x,)), y)
        return loss, torch.autograd.grad(loss, list(weights.values()))

    for _ in range(2):  # with its own weights in between
        torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model(x), plain(x))
    assert not any(p.grad is not None for p in model.parameters())


def test_transforms_of_functions_have_a_word():
    model, plain = ORTModule(net()), net()
    x, y = batches(1)[0]
    weights = dict(plain.named_parameters())

    def loss(module, weights, x, y):
        return F.mse_loss(torch.func.functional_call(module, weights, (x,)), y)

    def per_sample(module):
        one = torch.func.grad(functools.partial(loss, module))
        return torch.func.vmap(one, (None, 0, 0))(weights, x, y)

    calls = {
        "grad": lambda m: torch.func.grad(functools.partial(loss, m))(weights, x, y),
        "vmap": lambda m: torch.func.vmap(m)(x),
        "grad of each row": per_sample,
        "jvp": lambda m: torch.func.jvp(m, (x,), (x,)),
        "jacrev": lambda m: torch.func.jacrev(m)(x[0]),
    }
    for name, call in calls.items():
        with pytest.raises(steep.ModelError, match=r"torch\.func"):
            call(model)
        left = ORTModule(model.module, fallback="torch")
        torch.testing.assert_close(call(left), call(plain), msg=name)
        assert left.fallback_calls
    torch.testing.assert_close(model(x), plain(x))


def test_a_mode_that_sees_operators_has_a_word():
    model = ORTModule(net())
    x, _ = batches(1)[0]
    for _ in range(2):
        with FlopCounterMode(display=False), pytest.raises(steep.ModelError, match="DispatchMode"):
            model(x)
        model(x)
    with FlopCounterMode(display=False) as counter:
        ORTModule(model.module, fallback="torch")(x)
    assert counter.get_total_flops()


class Rows(torch.utils.data.Dataset):
    """Work of PyTorch's for a row."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        x = torch.arange(6.0).add(i).sin()
        return x, torch.linalg.norm(x.outer(x)).expand(3) / 3


@pytest.mark.parametrize("lasting", [False, True])
def test_workers_that_load_data(lasting):
    """Processes forked after the engine has computed."""

    def trained(model, workers):
        options = {"num_workers": workers, "persistent_workers": lasting and workers > 0}
        if workers:
            options["multiprocessing_context"] = "fork"
        loader = torch.utils.data.DataLoader(Rows(), batch_size=4, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            for x, y in loader:
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return model

    assert_same_state(trained(ORTModule(net()), workers=2), trained(net(), workers=0))


def test_gradient_scaler():
    """Scaled gradients, clipped, and a step that is left out."""

    def trained(model):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
        scales = []
        for step, (x, y) in enumerate(batches(6)):
            loss = F.mse_loss(model(x * float("inf") if step == 3 else x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return model, scales

    (found, scales), (expected, theirs) = trained(ORTModule(net())), trained(net())
    assert scales == theirs and min(scales) < max(scales)
    assert_same_state(found, expected)


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 6, sparse=True, **options)
        self.bag = nn.EmbeddingBag(20, 6, sparse=True, mode="sum")
        self.head = net()

    def forward(self, words):
        return self.head(self.table(words).mean(1) + self.bag(words))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}], ids=str)
def test_sparse_gradients(options):
    def trained(model):
        sparse = [model.table.weight, model.bag.weight]
        optimizers = [
            torch.optim.SparseAdam(sparse, 0.05),
            torch.optim.SGD(model.head.parameters(), 0.1),
        ]
        generator = torch.Generator().manual_seed(1)
        for _, y in batches(3):
            words = torch.randint(0, 20, (4, 5), generator=generator)
            F.mse_loss(model(words), y).backward()
            assert all(p.grad.is_sparse for p in sparse)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return model

    model = ORTModule(Words(**options))
    assert_same_state(trained(model), trained(Words(**options)))
    (graph,) = model.report().graphs
    assert graph.operators and any("sparse" in why for why in graph.in_torch)
    with pytest.raises(steep.ModelError, match="sparse"):
        ORTModule(Words(), fallback=None)(torch.zeros(1, 2, dtype=torch.int64))


def test_channels_last():
    def trained(model):
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            x = torch.randn(2, 3, 8, 8, generator=generator)
            x = x.to(memory_format=torch.channels_last).requires_grad_()
            model(x).square().mean().backward()
            assert x.grad.shape == x.shape
            optimizer.step()
            optimizer.zero_grad()
        return model, x.grad

    def images():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2)
        )

    (found, gradient), (expected, theirs) = trained(ORTModule(images())), trained(images())
    assert found.report().whole
    assert_same_state(found, expected)
    torch.testing.assert_close(gradient, theirs, rtol=1e-5, atol=1e-6)
    weight = found.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)


def resident():
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.matrix
def test_fifty_wraps_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("STEEP_CACHE", str(tmp_path))  # the same graph each time
    kept = []

    def wrap():
        model = ORTModule(nn.Sequential(nn.Linear(2048, 2048), nn.Tanh()))  # 16 MiB
        model(torch.ones(1, 2048)).sum().backward()
        kept.extend(map(weakref.ref, (model, model.module, *compiled_graphs(model))))
        kept.append(weakref.ref(model.report().graphs[-1].arithmetic))

    for count in range(50):
        wrap()
        assert all(ref() is None for ref in kept)  # at once: nothing waits for gc
        if count == 9:
            before = resident()
    assert len(kept) == 200
    # Forty models are 640 MiB, and their gradients as much. What is left is what was logged,
    # and the conditions that PyTorch's tracer keeps.
    assert resident() - before < 100 << 20


def test_the_right_way_round():
    model = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(model)
    with pytest.raises(steep.ModelError, match=r"DistributedDataParallel\(ORTModule\(module\)\)"):
        ORTModule(model)
    with pytest.raises(steep.ModelError, match=r"DataParallel\(ORTModule\(module\)\)"):
        ORTModule(nn.DataParallel(net()))


def test_weights_of_another_kind_have_a_word():
    from torch import distributed as dist
    from torch.distributed.tensor import parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        columns = {"0": parallel.ColwiseParallel()}
        model = ORTModule(parallel.parallelize_module(net(), mesh, columns))
        with pytest.raises(steep.ModelError, match="weights are DTensors"):
            model(batches(1)[0][0])
        model.fallback = "torch"
        assert model(batches(1)[0][0]).shape == (4, 3)
    finally:
        dist.destroy_process_group()


def test_wrapped_twice():
    model = ORTModule(ORTModule(net()))
    assert_same_state(train(model), train(net()))
    assert model.report().whole and not model.module.report().graphs


def test_wrapped_within():
    inner = ORTModule(net())
    model = nn.Sequential(inner, nn.Tanh())
    plain = nn.Sequential(net(), nn.Tanh())
    assert_same_state(train(model), train(plain))
    assert inner.report().whole and inner.report().graphs


def test_a_container_changes_between_steps():
    model, expected = ORTModule(net()), net()
    for changed in (model, expected):
        train(changed)
        torch.manual_seed(1)
        changed[2] = nn.Tanh()
        changed[-1] = nn.Linear(8, 3)
        train(changed)
        del changed[1]
        changed.insert(1, nn.LayerNorm(8, bias=False))
        changed.append(nn.Sigmoid())
        train(changed)
    assert_same_state(model, expected)
    assert [type(m) for m in model] == [type(m) for m in expected] and len(model) == 5
    named = ORTModule(nn.ModuleDict({"a": nn.Linear(2, 2)}))
    named["b"] = nn.Tanh()
    del named["a"]
    assert list(named) == ["b"] and "a" not in named
    with pytest.raises(TypeError, match="Linear has no __setitem__"):
        ORTModule(nn.Linear(2, 2))[0] = nn.Tanh()


def test_what_a_framework_notes_on_an_object_is_taken_off_again():
    hooks = pytest.importorskip("accelerate.hooks")

    class Doubles(hooks.ModelHook):
        def post_forward(self, module, output):
            return 2 * output

    model = ORTModule(net())
    ((x, _),) = batches(1)
    hooks.add_hook_to_module(model, Doubles())
    doubled = model(x)
    hooks.remove_hook_from_module(model)
    torch.testing.assert_close(doubled, 2 * model(x))
    assert not hasattr(model, "_hf_hook")
    with pytest.raises(AttributeError, match="never_there"):
        del model.never_there


def test_hooks_of_parameters_run_in_order():
    seen = []

    def note(gradient, model, name):
        later = {n for n, p in model.named_parameters() if p.grad is not None}
        seen.append((name, sorted(later)))

    for model in (ORTModule(net()), net()):
        model[3].weight.register_post_accumulate_grad_hook(
            lambda p, m=model: note(p.grad, m, "3.weight")
        )
        for name in ("0.weight", "1.bias"):
            weight = model.get_parameter(name)
            weight.register_hook(functools.partial(note, model=model, name=name))
        model(batches(1)[0][0]).sum().backward()
    assert [name for name, _ in seen[:3]] == ["3.weight", "1.bias", "0.weight"]
    assert [name for name, _ in seen[3:]] == ["3.weight", "1.bias", "0.weight"]
    every = ["0.bias", "1.bias", "1.weight", "3.bias", "3.weight"]
    assert seen[2][1] == seen[5][1] == every
