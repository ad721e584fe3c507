"""PyTorch's own transformer layers, trained and not: one kernel for a layer, and nested tensors."""

import contextlib
import copy
import math

import pytest
import torch
from torch import nn

from steep import ORTModule

ROWS, PLACES, WIDTH, HEADS = 3, 5, 16, 2
MODES = {
    "train": (True, contextlib.nullcontext),
    "eval": (False, contextlib.nullcontext),
    "no_grad": (False, torch.no_grad),
    "inference": (False, torch.inference_mode),
}
ENDS = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]).bool()
HOLES = torch.tensor([[0, 0, 0, 0, 0], [0, 1, 0, 1, 1], [1, 0, 1, 1, 1]]).bool()
NO_KEYS = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]).bool()
CAUSAL = torch.ones(PLACES, PLACES).triu(1).bool()
FLOATS = torch.zeros(PLACES, PLACES).masked_fill(CAUSAL, -math.inf)
FINITE = torch.linspace(-1, 1, PLACES**2).reshape(PLACES, PLACES)


def cases(names, modes, often):
    """Each name in each mode; those that are not run often are in the matrix."""
    return [
        pytest.param(name, mode, marks=[] if (name, mode) in often else pytest.mark.matrix)
        for name in names
        for mode in modes
    ]


def layer(dtype=torch.float32, **options):
    torch.manual_seed(0)
    made = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 32, 0.0, **{"batch_first": True, "dtype": dtype, **options}
    )
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p) / 10)
    return made


def encoder(dtype=torch.float32, norm=True, layers=1, **options):
    last = nn.LayerNorm(WIDTH, dtype=dtype) if norm else None
    if norm:
        nn.init.constant_(last.bias, 0.5)  # of the norm of zeros
    return nn.TransformerEncoder(layer(dtype), layers, last, **options)


def attention(dtype=torch.float32, **options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, "dtype": dtype, **options})


def rows(dtype=torch.float32, count=ROWS, places=PLACES):
    numbers = torch.Generator().manual_seed(count)
    return torch.randn(count, places, WIDTH, generator=numbers).to(dtype)


def of_self(net, x, **options):
    return net(x, x, x, **options)


def of_layer(net, x, **options):
    return net(x, **options)


def assert_as_in_pytorch(module, call, mode, x, ours=None, **options):
    """Compare results, their types, and gradients if there are any."""
    training, around = MODES[mode]
    module.train(training)
    ours = ours or ORTModule(copy.deepcopy(module), fallback=None)
    ours.train(training)
    found = []
    for net in (module, ours):
        net.zero_grad()
        given = x.clone()
        with around():
            results = call(net, given, **options)
        results = results if isinstance(results, tuple) else (results,)
        if mode in ("train", "eval"):
            results[0].float().square().nan_to_num().sum().backward()
            results += tuple(p.grad for p in net.parameters())
        found.append(results)
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5}.get(x.dtype, 3e-2)
    for right, made in zip(*found, strict=True):
        assert (right is None) == (made is None)
        if right is not None:
            scale = float(right.detach().double().abs().nan_to_num(0, 0, 0).max())
            torch.testing.assert_close(
                made, right, rtol=tolerance, atol=tolerance * max(scale, 1), equal_nan=True
            )
    assert ours.report().whole
    return ours


MASKS = {
    "no mask": {},
    "causal": {"src_mask": CAUSAL},
    "said to be causal": {"src_mask": CAUSAL, "is_causal": True},
    "numbers": {"src_mask": FLOATS},
    "finite numbers": {"src_mask": FINITE},
    "mask of heads": {"src_mask": torch.stack([CAUSAL, CAUSAL.T & ~torch.eye(5).bool()] * ROWS)},
    "padding": {"src_key_padding_mask": ENDS},
    "padding as numbers": {"src_key_padding_mask": torch.zeros(ENDS.shape).masked_fill(ENDS, -9.0)},
    "no key": {"src_key_padding_mask": NO_KEYS},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": ENDS},
}


NO_GRAD = {(name, "no_grad") for name in ("no mask", "no key", "both")}


@pytest.mark.parametrize("mask, mode", cases(MASKS, MODES, {("both", "train"), *NO_GRAD}))
def test_a_layer(mask, mode):
    ours = assert_as_in_pytorch(layer(), of_layer, mode, rows(), **MASKS[mask])
    if mask in ("no mask", "causal", "both") and mode != "inference":
        given = {k: v[:2] if "padding" in k else v for k, v in MASKS[mask].items()}
        assert_as_in_pytorch(layer(), of_layer, mode, rows(count=2), ours, **given)


KINDS = {
    "norm first": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "gelu by tanh": {"activation": nn.GELU(approximate="tanh")},
    "another function": {"activation": torch.tanh},
    "places first": {"batch_first": False},
    "no bias": {"bias": False},
    "float64": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "float16, norm first": {"dtype": torch.float16, "norm_first": True, "activation": "gelu"},
}


OF_KINDS = {("float16, norm first", "no_grad"), ("float64", "no_grad")}


@pytest.mark.parametrize("kind, mode", cases(KINDS, ["train", "eval", "no_grad"], OF_KINDS))
def test_kinds_of_layers(kind, mode):
    x = rows(KINDS[kind].get("dtype", torch.float32))
    mask = {} if kind == "places first" else {"src_key_padding_mask": ENDS}
    assert_as_in_pytorch(layer(**KINDS[kind]), of_layer, mode, x, **mask)


def test_a_layer_whose_weights_are_frozen():
    """Nothing needs a gradient, though gradients are enabled."""
    module = layer().eval().requires_grad_(False)
    ours = ORTModule(module, fallback=None)
    given = {"src_mask": FINITE}
    torch.testing.assert_close(ours(rows(), **given), module(rows(), **given), equal_nan=True)
    assert module(rows(), **given).isnan().all()  # unlike the path with gradients


def test_a_single_row_and_a_sequence_without_rows():
    assert_as_in_pytorch(layer(), of_layer, "no_grad", rows()[0])
    assert_as_in_pytorch(attention(), of_self, "no_grad", rows()[0])
    assert_as_in_pytorch(layer(), of_layer, "no_grad", rows(count=1, places=1))


WEIGHTS = [
    {"need_weights": needed, "average_attn_weights": averaged}
    for needed, averaged in ((True, True), (True, False), (False, True))
]
OF_ATTENTION = {
    "no mask": {},
    "causal": {"attn_mask": CAUSAL},
    "said to be causal": {"attn_mask": CAUSAL, "is_causal": True},
    "finite numbers": {"attn_mask": FINITE},
    "padding": {"key_padding_mask": ENDS},
    "no key": {"key_padding_mask": NO_KEYS},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": HOLES},
}


@pytest.mark.parametrize(
    "mask, mode",
    cases(OF_ATTENTION, MODES, {(name, "no_grad") for name in ("no mask", "no key", "both")}),
)
def test_attention(mask, mode):
    for weights in WEIGHTS:
        if mask == "said to be causal" and mode == "train" and not weights["need_weights"]:
            continue  # without a mask of its own there
        assert_as_in_pytorch(attention(), of_self, mode, rows(), **OF_ATTENTION[mask], **weights)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["train", "no_grad"])
def test_attention_of_other_types(dtype, mode):
    assert_as_in_pytorch(attention(dtype), of_self, mode, rows(dtype), key_padding_mask=ENDS)


@pytest.mark.matrix
def test_attention_of_other_kinds():
    for options in ({"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}):
        assert_as_in_pytorch(attention(**options), of_self, "no_grad", rows())
    assert_as_in_pytorch(attention(batch_first=False), of_self, "no_grad", rows())
    across = lambda net, x: net(x, x[:, :2], x[:, 2:4])  # noqa: E731
    assert_as_in_pytorch(attention(), across, "no_grad", rows())


PADDINGS = {
    "ends": ENDS,
    "holes": HOLES,
    "whole rows": NO_KEYS,
    "numbers": torch.zeros(ENDS.shape).masked_fill(ENDS, -2.0),
    "none": torch.zeros(ENDS.shape).bool(),
}


@pytest.mark.parametrize(
    "padding, mode",
    cases(PADDINGS, MODES, {("ends", "inference"), ("ends", "eval"), ("numbers", "no_grad")}),
)
def test_an_encoder_that_is_given_padding(padding, mode):
    """Without gradients PyTorch returns 0, normalised, for padding at the ends of rows."""
    given = {"src_key_padding_mask": PADDINGS[padding]}
    assert_as_in_pytorch(encoder(), of_layer, mode, rows(), **given)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_an_encoder_of_another_type(dtype):
    given = {"src_key_padding_mask": ENDS}
    assert_as_in_pytorch(encoder(dtype), of_layer, "no_grad", rows(dtype), **given)


def test_one_graph_for_padding_at_ends_and_elsewhere():
    module = encoder(norm=False, layers=2)
    ours = None
    for padding in (ENDS, HOLES, ENDS.flip(0), NO_KEYS):
        given = {"src_key_padding_mask": padding}
        ours = assert_as_in_pytorch(module, of_layer, "no_grad", rows(), ours, **given)
    assert len(ours.report().graphs) == 1
    for count, places in ((2, 4), (4, 7)):
        padding = torch.arange(places) >= torch.arange(1, count + 1)[:, None]
        given = {"src_key_padding_mask": padding}
        assert_as_in_pytorch(
            module, of_layer, "no_grad", rows(count=count, places=places), ours, **given
        )
    assert len(ours.report().graphs) <= 3


def test_padding_that_is_not_a_number_is_dropped():
    x = rows().masked_fill(ENDS[..., None], math.nan)
    ours = assert_as_in_pytorch(encoder(), of_layer, "no_grad", x, src_key_padding_mask=ENDS)
    assert ours(rows(), src_key_padding_mask=ENDS).isfinite().all()


@pytest.mark.matrix
@pytest.mark.parametrize(
    "options", [{"enable_nested_tensor": False}, {"mask_check": False}], ids=str
)
@pytest.mark.parametrize("padding", ["ends", "holes"])
def test_options_of_an_encoder(options, padding):
    given = {"src_key_padding_mask": PADDINGS[padding]}
    for mode in ("eval", "no_grad"):
        assert_as_in_pytorch(encoder(**options), of_layer, mode, rows(), **given)


@pytest.mark.matrix
def test_an_encoder_with_a_mask():
    for given in ({"mask": CAUSAL}, {"mask": CAUSAL, "src_key_padding_mask": ENDS}):
        for mode in MODES:
            assert_as_in_pytorch(encoder(), of_layer, mode, rows(), **given)


@pytest.mark.matrix
def test_the_switch_of_the_fast_path():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for given in ({"src_key_padding_mask": ENDS}, {"mask": FINITE}):
            assert_as_in_pytorch(encoder(), of_layer, "no_grad", rows(), **given)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.matrix
def test_a_whole_transformer():
    torch.manual_seed(0)
    module = nn.Transformer(WIDTH, HEADS, 2, 2, 32, 0.0, batch_first=True)

    def call(net, x, **options):
        return net(x, x[:, :3], **options)

    given = {
        "src_key_padding_mask": ENDS,
        "memory_key_padding_mask": ENDS,
        "tgt_mask": torch.zeros(3, 3).masked_fill(CAUSAL[:3, :3], -math.inf),
    }
    for mode in MODES:
        assert_as_in_pytorch(module, call, mode, rows(), **given)


class InALoop(nn.Module):
    """Encoders in a loop that Dynamo leaves to Python."""

    def __init__(self):
        super().__init__()
        self.encoders = nn.ModuleList(encoder(norm=False) for _ in range(2))

    def forward(self, x, padding):
        for each in self.encoders:
            x = each(x, src_key_padding_mask=padding)
            if x.sum() > 1e9:
                x = x - 1
        return x


@pytest.mark.parametrize(
    "mode",
    ["no_grad", *(pytest.param(mode, marks=pytest.mark.matrix) for mode in ("eval", "train"))],
)
def test_encoders_in_a_loop_of_python(mode):
    training, around = MODES[mode]
    module = InALoop().train(training)
    ours = ORTModule(copy.deepcopy(module))
    for padding in (ENDS, HOLES, ENDS):
        with around():
            torch.testing.assert_close(
                ours(rows(), padding), module(rows(), padding), rtol=2e-5, atol=2e-5
            )


@pytest.mark.parametrize("padding", [pytest.param(None, marks=pytest.mark.matrix), ENDS])
def test_under_autocast(padding):
    module, given = layer().eval(), {"src_key_padding_mask": padding}
    ours = ORTModule(module, fallback=None)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made, right = ours(rows(), **given), module(rows(), **given)
    torch.testing.assert_close(made, right, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("make, call", [(layer, of_layer), (attention, of_self)])
def test_the_backend_of_torch_compile(make, call):
    module = make().eval()
    made = torch.compile(module, backend="steep")
    key = "src_key_padding_mask" if make is layer else "key_padding_mask"
    with torch.no_grad():
        for given in ({}, {key: ENDS}):
            torch.testing.assert_close(
                call(made, rows(), **given), call(module, rows(), **given), rtol=2e-5, atol=2e-5
            )
