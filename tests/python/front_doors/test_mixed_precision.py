"""bfloat16 mixed precision: what is narrow, what stays float32, and who may ask for it."""

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx import helper

import steep

torch = pytest.importorskip("torch")

from steep import ORTModule  # noqa: E402

WORDS, WIDTH, LENGTH, BATCH = 211, 64, 16, 6


class Transformer(torch.nn.Module):
    """Embedding, two layers of attention and feed-forward, logits that share its weight."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        torch.nn.init.normal_(self.embedding.weight, std=0.1)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout, activation="gelu", batch_first=True, norm_first=i == 0
            )
            for i in range(2)
        )
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, words):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embedding.weight.T


@pytest.fixture
def words():
    torch.manual_seed(0)
    return torch.randint(0, WORDS, (BATCH, LENGTH))


def loss_of(logits, words):
    target = (words * 7 + 3) % WORDS
    return torch.nn.functional.cross_entropy(logits.view(-1, WORDS), target.view(-1))


def gradients(net, words, autocast=False):
    net.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = net(words)
        loss = loss_of(logits, words)
    loss.backward()
    return logits, loss, {n: p.grad.clone() for n, p in net.named_parameters()}


def test_gradients_are_close_to_those_of_fp32(words):
    net = ORTModule(Transformer())
    _, loss, wanted = gradients(net, words)
    _, narrow_loss, found = gradients(net, words, autocast=True)
    torch.testing.assert_close(narrow_loss, loss, rtol=0.002, atol=0)
    biggest = max(float(g.norm()) for g in wanted.values())
    for name, gradient in wanted.items():
        assert found[name].dtype == torch.float32
        # Each product rounds its operands and its result by at most 2**-9 of their size; a path
        # through both layers has about a dozen, whose errors are independent.
        error = float((found[name] - gradient).norm())
        assert error < 0.015 * float(gradient.norm()) + 1e-4 * biggest, name


def test_autocast_is_precision_bf16(words):
    module = Transformer()
    by_region, by_option = ORTModule(copy.deepcopy(module)), ORTModule(module, precision="bf16")
    logits, _, a = gradients(by_region, words, autocast=True)
    same, _, b = gradients(by_option, words)
    assert logits.dtype == torch.bfloat16  # as autocast returns them
    assert torch.equal(logits, same.bfloat16())
    for name, gradient in a.items():
        assert float((gradient - b[name]).norm()) < 0.02 * float(b[name].norm()) + 1e-6, name
    wide, _, _ = gradients(by_region, words)
    assert wide.dtype == torch.float32
    assert not torch.equal(wide, same)
    assert torch.equal(gradients(by_region, words, autocast=True)[0], logits)


class WithLoss(Transformer):
    def forward(self, words):
        logits = super().forward(words)
        return loss_of(logits, words), logits


def test_logits_beside_a_loss_are_those_of_autocast(words):
    module = WithLoss()
    net = ORTModule(module)
    with torch.autocast("cpu", torch.bfloat16):
        loss, logits = net(words)
        _, expected = module(words)
    assert loss.dtype == torch.float32
    assert logits.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.05)
    assert [o.dtype for o in net(words)] == [torch.float32] * 2
    assert [o.dtype for o in ORTModule(module, precision="bf16")(words)] == [torch.float32] * 2


def test_a_gradient_may_come_from_narrow_logits(words):
    module = WithLoss()
    twin = copy.deepcopy(module)
    for net in (module, ORTModule(twin)):
        with torch.autocast("cpu", torch.bfloat16):
            loss, logits = net(words)
        (loss + 0.01 * logits.float().square().mean()).backward()
    for (name, p), q in zip(module.named_parameters(), twin.named_parameters(), strict=True):
        error = float((p.grad - q[1].grad).norm())
        assert error < 0.03 * float(p.grad.norm()), name


def test_an_option_of_fp32_wins_over_autocast(words):
    module = Transformer()
    net = ORTModule(module, precision="fp32")
    # of autocast the dtypes alone are left
    assert torch.equal(gradients(net, words, True)[0], gradients(net, words)[0].bfloat16())


def test_inputs_that_autocast_made_narrow_are_taken():
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
    net = ORTModule(second)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = first(x)
        assert hidden.dtype == torch.bfloat16
        result = net(hidden)
        expected = second(hidden)
    result.sum().backward()
    torch.testing.assert_close(result, expected, rtol=2**-7, atol=2**-7)
    assert first.weight.grad is not None


class Asks(torch.nn.Module):
    """Attention that asks for the dtype of what a product gave, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.q, self.o = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16, bias=False)
        self.bias = torch.nn.Parameter(torch.randn(5, 5))
        self.kernel = torch.nn.Parameter(torch.randn(5, 5, 3))
        self.mix = torch.nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        functional, q = torch.nn.functional, self.q(x)
        heads, mask = q.unsqueeze(1), self.bias.to(q.dtype)
        y = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).squeeze(1)
        scores = torch.softmax(q @ q.transpose(1, 2), -1, dtype=torch.float32).to(q.dtype)
        y = y + scores @ q + torch.bmm(scores, q) + scores.matmul(q)
        y = y + functional.conv1d(mask @ q, self.kernel, padding=1)
        y = y + torch.baddbmm(x.to(q.dtype), scores, q) + torch.einsum("ij,bjk->bik", self.bias, y)
        y = y.reshape(-1, 16)
        y = torch.addmm(y, y, self.mix.to(q.dtype)) + torch.mm(y, self.mix)
        return self.o(functional.layer_norm(y.float(), (16,)).to(q.dtype))


def test_operands_of_a_product_that_were_made_narrow_by_name():
    torch.manual_seed(0)
    module = Asks()
    net = ORTModule(copy.deepcopy(module), fallback=None)
    x = torch.randn(3, 5, 16)
    module(x).square().mean().backward()
    with torch.autocast("cpu", torch.bfloat16):
        result = net(x)
        assert result.dtype == module(x).dtype == torch.bfloat16
    result.float().square().mean().backward()
    for (name, p), q in zip(module.named_parameters(), net.parameters(), strict=True):
        assert float((p.grad - q.grad).norm()) < 0.03 * float(p.grad.norm()), name
    assert net.report().whole


def test_precision_survives_a_copy():
    net = copy.deepcopy(ORTModule(torch.nn.Linear(3, 2), precision="bf16"))
    assert net.precision == "bf16"


def test_unknown_precisions_are_refused(words):
    with pytest.raises(ValueError, match="bf16"):
        ORTModule(Transformer(), precision="fp8")
    model = Transformer()
    trainer = steep.trainer(
        model, loss_of, torch.optim.SGD(model.parameters(), 0.1), precision="half"
    )
    with pytest.raises(steep.ModelError, match="fp32"):
        trainer.step(words, words)


def trained(words, precision, lr, steps=1):
    torch.manual_seed(1)
    model = Transformer()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0)
    trainer = steep.trainer(model, loss_of, optimizer, predictions=False, precision=precision)
    losses = [float(trainer.step(words, words)) for _ in range(steps)]
    return before, model, losses, trainer


def test_steps_below_what_bfloat16_resolves_add_up(words):
    lr = 1e-7  # Adam moves each weight by about this; bfloat16 resolves 4e-3 of a weight
    before, model, _, _ = trained(words, "bf16", lr)
    weight = model.layers[0].linear1.weight
    moved = (weight.detach() - before["layers.0.linear1.weight"]).abs()
    assert weight.dtype == torch.float32
    large = before["layers.0.linear1.weight"].abs() > 1e-3
    assert float(moved[large].max()) < 2**-9 * 1e-3
    assert float((moved > 0).float().mean()) > 0.5


def test_training_follows_fp32(words):
    _, _, wide, _ = trained(words, "fp32", 3e-3, steps=30)
    _, _, narrow, _ = trained(words, "bf16", 3e-3, steps=30)
    assert wide[-1] < 0.7 * wide[0]
    np.testing.assert_allclose(narrow, wide, rtol=0.03)


def test_the_logits_never_exist_in_float32(words):
    _, _, _, trainer = trained(words, "bf16", 1e-3)
    text = trainer.dump()
    rows = BATCH * LENGTH
    for line in text.splitlines():
        result = line.partition(" = ")[0]
        assert f"float32[{rows}, {WORDS}]" not in result.replace("bfloat16", "b16"), line
        assert f"float32[{BATCH}, {LENGTH}, {WORDS}]" not in result.replace("bfloat16", "b16"), line
    assert "bfloat16" in text


def linear_model():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((24, 16)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 24])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 16])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), weight


def rounded(x):
    return torch.tensor(x).bfloat16().float().numpy()


def test_a_session_multiplies_rounded_operands():
    model, weight = linear_model()
    x = np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)
    target = np.zeros((40, 16), np.float32)
    session = steep.TrainingSession(
        model, loss="mse", optimizer="sgd", lr=0.0, precision="bf16", step_outputs=["y"]
    )
    result = session.step(x, target)
    y = np.asarray(result.outputs[0])
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, rounded(x) @ rounded(weight), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(session.weights()["w"]), weight)
    np.testing.assert_allclose(
        np.asarray(session.gradients(x, target)[1]["w"]),
        rounded(x).T @ rounded(2 / y.size * rounded(y)),  # nothing but the loss reads y here
        rtol=1e-4,
        atol=1e-6,
    )


def test_a_session_refuses_an_unknown_precision():
    model, _ = linear_model()
    with pytest.raises(steep.ModelError, match=r"fp32.*bf16"):
        steep.TrainingSession(model, loss="mse", precision="bf17")


def digest(threads):
    program = """
import hashlib, sys, torch
torch.set_num_threads(int(sys.argv[2]))
sys.path.insert(0, sys.argv[1])
import test_mixed_precision as t
torch.manual_seed(0)
words = torch.randint(0, t.WORDS, (t.BATCH, t.LENGTH))
_, model, losses, _ = t.trained(words, "bf16", 1e-3, steps=2)
h = hashlib.sha256(repr(losses).encode())
for p in model.parameters():
    h.update(p.detach().numpy().tobytes())
print(h.hexdigest())
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(threads)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.same_bits
def test_any_number_of_threads_gives_the_same_bits():
    assert digest(1) == digest(2)


class Regions(torch.nn.Module):
    """Products in a region of autocast, and in one where that is off."""

    def __init__(self, narrow, enabled):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.narrow, self.enabled = narrow, enabled

    def forward(self, x):
        with torch.autocast("cpu", self.narrow, enabled=self.enabled):
            y = torch.relu(self.first(x))
            z = self.first(y) if self.enabled else y
        with torch.autocast("cpu", enabled=False):
            return z, z.float() * 2, self.second(x.float()), self.second(x).mT @ x


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("enabled", [True, False])
def test_regions_of_autocast_within(around, narrow, enabled):
    torch.manual_seed(0)
    module = Regions(narrow, enabled)
    net = ORTModule(copy.deepcopy(module), fallback=None)
    x = torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        results, expected = net(x), module(x)
    near = {"rtol": 2**-7, "atol": 2**-7} if enabled else {}
    for found, wanted, options in zip(results, expected, (near, near, {}, {}), strict=True):
        torch.testing.assert_close(found, wanted, **options)
    for found in (results, expected):
        sum(y.float().square().sum() for y in found).backward()
    twice = {"rtol": 2**-5, "atol": 2**-7} if enabled else {}  # each is off by half of it
    for name, options in (("first", twice), ("second", {})):
        found, wanted = (getattr(m, name).weight.grad for m in (net.module, module))
        torch.testing.assert_close(found, wanted, **options)
