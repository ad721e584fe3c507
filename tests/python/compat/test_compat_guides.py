"""The Python blocks of ONNX Runtime Training's guides run under steep.compat, as they stand.

Blocks are given by guide; a name that a block leaves open is a fixture, and what it writes as `...`
is filled in: both are said beside it. Lines that a guide takes out of a user's code are left out.
"""

import math
import textwrap
import types

import pytest

torch = pytest.importorskip("torch")

from steep import compat  # noqa: E402
from steep.compat import notices  # noqa: E402

# What the guides have besides, and why it does not run here.
LEFT_OUT = {
    "getting started, tuning: shell": "clones, docker, builds and exports of variables",
    "trainer on Linux: shell": "builds of OpenMPI and of a wheel for CUDA",
    "two APIs: forward, backward of TrainingAgent": "in test_compat_training_agent.py",
}

LOSS = """
def loss_with_flat_output(output, target):
    output = output.view(-1, ntokens)
    return criterion(output, target)
"""
MODEL_DESCRIPTION = """
def model_description():
    input_desc = IODescription('src', [bptt, batch_size], torch.float32)
    label_desc = IODescription('label', [bptt, batch_size, ntokens], torch.int64)
    loss_desc = IODescription('loss', [], torch.float32)
    output_desc = IODescription('output', [bptt, batch_size, ntokens], torch.float32)
    return ModelDescription([input_desc, label_desc], [loss_desc, output_desc])
"""
LEARNING_RATE = """
def learning_rate_description():
    return IODescription('Learning_Rate', [lr,], torch.float32)
"""
TRAINER = """
trainer = ORTTrainer(model,                       # model
                     loss_with_flat_output,       # loss function
                     model_description(),         # model description
                     "SGDOptimizer",              # optimizer name
                     None,                        # optimizer attributes
                     learning_rate_description(), # learning rate description
                     device,                      # device
                     _opset_version=12)           # opset version
"""
# `...` in __init__ and forward is a layer, that of the call and of the loop nothing; H_out is open.
LOOP = """
import torch
import onnxruntime.training.pytorch as ort

# Model definition
class Net(torch.nn.Module):
    def __init__(self, D_in, H, D_out):
        super().__init__(); self.layers = layers(D_in, H, D_out)
    def forward(self, x):
        return self.layers(x)

model = Net(D_in, H, H_out)
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
trainer = ort.trainer(model, criterion, optimizer)

# Training Loop
for t in range(1000):
    # forward + backward + weight update
    loss, y_pred = trainer.step(x, y)
"""
ONE_LINE = """
    from torch_ort import ORTModule
    model = ORTModule(model)
"""
MODULE = """
model = build_model()

from onnxruntime.training import ORTModule
model = ORTModule(model)
"""
DEBUG = """
model = build_model()

from onnxruntime.training import ORTModule, DebugOptions, LogLevel
model = ORTModule(model, DebugOptions(save_onnx=True, log_level=LogLevel.VERBOSE))
"""
AUTOGRAD = """
from onnxruntime.training.ortmodule._custom_autograd_function import enable_custom_autograd_support
enable_custom_autograd_support(False)
"""
FUSED = """
model = build_model()

from onnxruntime.training.optim import FusedAdam
adamw_opt = FusedAdam(model.parameters(), lr=1)
"""
INITIALIZE = """
model, optimizer, _, lr_scheduler = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        args=args,
        lr_scheduler=lr_scheduler,
        mpu=mpu,
        dist_init_required=False)

from onnxruntime.training.optim.fp16_optimizer import FP16_Optimizer
optimizer = FP16_Optimizer(optimizer)
"""
DEEPSPEED = "optimizer = AdamW(model.parameters(), lr=1)\n" + INITIALIZE
APEX = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer = amp.initialize(model, optimizer, opt_level="O2")

from onnxruntime.training.optim.fp16_optimizer import FP16_Optimizer as ORT_FP16_Optimizer
optimizer = ORT_FP16_Optimizer(optimizer)
"""
TOGETHER = (
    MODULE
    + """
from onnxruntime.training.optim import FusedAdam
optimizer = FusedAdam(model.parameters(), lr=1)
"""
    + INITIALIZE
)


@pytest.fixture(autouse=True)
def served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compat.install()
    torch.manual_seed(0)
    yield
    compat.uninstall()
    notices.forget()


def build_model():
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def run(block, **names):
    names.update(torch=torch, build_model=build_model)
    exec(compile(textwrap.dedent(block), "guide", "exec"), names)
    return names


def loss_of(model):
    torch.manual_seed(1)
    return (model(torch.randn(3, 4)) - 1).square().mean()


def test_getting_started():
    # the dialect's names come from the module that the sample imports
    from onnxruntime.capi.training import ort_trainer

    names = {
        n: getattr(ort_trainer, n) for n in ("ORTTrainer", "IODescription", "ModelDescription")
    }
    names.update(bptt=5, batch_size=2, ntokens=7, lr=0.5, device="cpu")
    names["criterion"] = torch.nn.CrossEntropyLoss()
    names["model"] = torch.nn.Sequential(torch.nn.Embedding(7, 8), torch.nn.Linear(8, 7))
    ran = run(LOSS + MODEL_DESCRIPTION + LEARNING_RATE + TRAINER, **names)
    data, targets = torch.randint(7, (5, 2)), torch.randint(7, (10,))
    steps = [ran["trainer"].train_step(data, targets, torch.tensor([0.5])) for _ in range(5)]
    losses = [float(loss) for loss, _ in steps]
    assert losses == sorted(losses, reverse=True)
    assert steps[0][1].shape == (5, 2, 7)


def test_trainer_loop():
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    ran = run(
        LOOP,
        layers=lambda i, h, o: torch.nn.Sequential(torch.nn.Linear(i, h), torch.nn.Linear(h, o)),
        **{"D_in": 4, "H": 6, "H_out": 2, "x": x, "y": y},
    )
    expected = torch.nn.functional.mse_loss(ran["model"](x), y)
    assert float(ran["loss"]) == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.parametrize("block", [ONE_LINE, MODULE, DEBUG], ids=["one line", "module", "debug"])
def test_modules(block, tmp_path):
    ran = run(block, model=build_model())
    model = ran["model"]
    loss_of(model).backward()
    assert model.report().whole and model.module[0].weight.grad is not None
    written = sorted(p.name for p in tmp_path.glob("*.onnx"))
    assert len(written) == (3 if block is DEBUG else 0)


def test_custom_autograd_is_said_to_be_on(caplog):
    run(AUTOGRAD)
    assert "changes nothing here" in caplog.text


def test_fused_adam():
    ran = run(FUSED)
    before = [p.detach().clone() for p in ran["model"].parameters()]
    loss_of(ran["model"]).backward()
    ran["adamw_opt"].step()
    for p, q in zip(ran["model"].parameters(), before, strict=True):
        assert (p - q).abs().max().item() == pytest.approx(1, rel=1e-2)  # a first step is lr


def initialize(model, optimizer, args, lr_scheduler, mpu, dist_init_required):
    """deepspeed.initialize of a run without ZeRO: what it gives takes PyTorch's steps."""
    return model, optimizer, None, lr_scheduler


@pytest.mark.parametrize("block", [DEEPSPEED, TOGETHER], ids=["fp16 optimizer", "all together"])
def test_with_deepspeed(block):
    deepspeed = types.SimpleNamespace(initialize=initialize)
    open_names = {"args": None, "mpu": None, "lr_scheduler": None, "AdamW": torch.optim.AdamW}
    ran = run(block, model=build_model(), deepspeed=deepspeed, **open_names)
    model, optimizer = ran["model"], ran["optimizer"]
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    optimizer.backward(loss_of(model))
    optimizer.step()
    assert not optimizer.overflow
    for p, q in zip(model.parameters(), before, strict=True):
        assert (p - q).abs().max().item() == pytest.approx(1, rel=2e-2)
    optimizer.backward(loss_of(model) * math.inf)
    optimizer.step()
    assert optimizer.overflow


def test_with_apex():
    def initialize(model, optimizer, opt_level):
        optimizer._amp_stash = types.SimpleNamespace()  # how amp marks what it took over
        return model, optimizer

    ran = run(APEX, model=build_model(), amp=types.SimpleNamespace(initialize=initialize))
    assert type(ran["optimizer"]) is torch.optim.SGD
