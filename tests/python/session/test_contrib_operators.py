"""Files with operators of ONNX Runtime's domain com.microsoft: run, trained, differentiated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from checkout import ROOT
from steep_program import steep as program

import steep

F32 = np.float32

# A block of a transformer as exporters spell it out: GELU by Erf, a skip and a normalisation.
BLOCK = """<ir_version: 8, opset_import: ["": 17]>
block (float[N, 3, 8] x) => (float[N, 3, 8] y) <float two = {1.4142135}, float one = {1},
    float half = {0.5}> {
  h = MatMul (x, w1)  hb = Add (h, b1)
  d = Div (hb, two)  e = Erf (d)  f = Add (e, one)  m = Mul (hb, f)  a = Mul (m, half)
  o = MatMul (a, w2)  ob = Add (o, b2)  s = Add (ob, x)
  n = LayerNormalization <axis = -1> (s, gain, shift)
  t = Transpose <perm = [0, 2, 1]> (n)  p = MatMul (n, t)  q = MatMul (p, n)
  y = Tanh (q)
}"""


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def block() -> onnx.ModelProto:
    model = parse(BLOCK)
    random = np.random.default_rng(0)
    shapes = {"w1": (8, 16), "b1": (16,), "w2": (16, 8), "b2": (8,), "gain": (8,), "shift": (8,)}
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(F32) * F32(0.3)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def optimised(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """By ONNX Runtime, as far as it fuses operators whatever the processor."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return onnx.load(path)


def arrays(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    shape = (4, 3, 8)
    return random.normal(size=shape).astype(F32), random.normal(size=shape).astype(F32)


def losses(model: onnx.ModelProto | str) -> tuple[list[float], steep.TrainingSession]:
    session = steep.TrainingSession(model, loss="mse", optimizer="adamw", lr=0.01)
    return [float(session.step(*arrays(i))) for i in range(6)], session


def test_an_optimised_file_runs_and_trains_as_the_original(tmp_path: Path) -> None:
    model = optimised(block(), tmp_path / "optimised.onnx")
    fused = {n.op_type for n in model.graph.node if n.domain == "com.microsoft"}
    assert {"BiasGelu", "SkipLayerNormalization", "FusedMatMul"} <= fused
    x, _ = arrays()
    (ours,) = steep.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert steep.check(model, loss="mse") == []
    of_file, session = losses(model)
    of_original, _ = losses(block())
    np.testing.assert_allclose(of_file, of_original, rtol=1e-4)
    assert of_file[-1] < of_file[0]
    # What is exported is the file with other weights: ONNX Runtime runs it.
    session.export_onnx(tmp_path / "trained.onnx")
    trained = onnx.load(tmp_path / "trained.onnx")
    assert [n.op_type for n in trained.graph.node] == [n.op_type for n in model.graph.node]
    (ours,) = steep.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x})
    (theirs,) = onnxruntime.InferenceSession(str(tmp_path / "trained.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_model_of_gradients_has_standard_operators_only(tmp_path: Path) -> None:
    model = optimised(block(), tmp_path / "optimised.onnx")
    gradients = steep.grad(model, ["x"])
    assert {n.domain for n in gradients.graph.node} <= {"", "ai.onnx"}
    x, dy = arrays()
    fed = {"x": x, "grad_y": dy}
    found = steep.InferenceSession(gradients.SerializeToString()).run(None, fed)
    wanted = steep.InferenceSession(steep.grad(block(), ["x"]).SerializeToString()).run(None, fed)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_is_computed_without_the_matrix_of_scores(unidirectional: int) -> None:
    model = parse(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N, 16, 32] x, int32[N, 16] mask) => (float[N, 16, 32] y) {{
          y = com.microsoft.Attention <num_heads = 4, unidirectional = {unidirectional}>
              (x, w, , mask) }}"""
    )
    random = np.random.default_rng(0)
    weights = random.normal(size=(32, 96)).astype(F32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    session = steep.TrainingSession(model, loss="mse", optimizer="sgd", lr=0.1)
    x, mask = random.normal(size=(2, 16, 32)).astype(F32), np.ones((2, 16), np.int32)
    text = session.dump(x, mask, x)
    assert "= steep.Attention(" in text and "= steep.AttentionGrad(" in text
    assert ("causal=1" in text) == bool(unidirectional)


def test_second_derivatives_are_those_of_the_original(tmp_path: Path) -> None:
    x, dy = arrays()
    found = []
    for model in (optimised(block(), tmp_path / "optimised.onnx"), block()):
        twice = steep.grad(steep.grad(model, ["x"]), ["x"], ["grad_x"])
        fed = {"x": x, "grad_y": dy, "grad_grad_x": dy}
        fed = {i.name: fed[i.name] for i in twice.graph.input}
        found.append(steep.InferenceSession(twice.SerializeToString()).run(None, fed))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_the_program_trains_such_files(tmp_path: Path) -> None:
    optimised(block(), tmp_path / "optimised.onnx")
    x, t = arrays()
    np.savez(tmp_path / "data.npz", x=x, y=t)
    assert "can be trained" in program("check", tmp_path / "optimised.onnx", "--loss", "mse")
    program(
        *("train", tmp_path / "optimised.onnx", "--data", tmp_path / "data.npz", "--loss", "mse"),
        *("--optimizer", "sgd", "--lr", 0.01, "--batch", 2, "--out", tmp_path / "trained.onnx"),
    )
    assert (tmp_path / "trained.onnx").exists()


@pytest.mark.parametrize("domain", ["", "ai.onnx", "com.microsoft"])
@pytest.mark.parametrize("opset", [11, 17])
def test_simplified_layer_normalization_may_be_in_onnx_domain(domain: str, opset: int) -> None:
    model = parse(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[N, 4] x) => (float[N, 4] y) <float[4] scale = {{1, 2, 3, 4}}> {{
          y = SimplifiedLayerNormalization <epsilon = 0.001> (x, scale) }}"""
    )
    model.graph.node[0].domain = domain
    if domain == "com.microsoft":
        model.opset_import.add(domain=domain, version=1)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(F32)
    (y,) = steep.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    wanted = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-3) * F32([1, 2, 3, 4])
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_layer_normalization_is_known_before_its_opset() -> None:
    model = parse(
        """<ir_version: 7, opset_import: ["": 12]>
        g (float[N, 4] x) => (float[N, 4] y) <float[4] scale = {1, 2, 3, 4}> {
          y = LayerNormalization <axis = -1> (x, scale, scale) }"""
    )
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(F32)
    fed = {"x": x}
    (ours,) = steep.InferenceSession(model.SerializeToString()).run(None, fed)
    (theirs,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def one(node: str, inputs: str, outputs: str = "float[N, 3, 4] y") -> bytes:
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g ({inputs}) => ({outputs}) {{ {node} }}"""
    return parse(text).SerializeToString()


SELF = "float[N, 3, 4] x, float[4, 12] w"
REFUSED = {
    "share": (
        "y = com.microsoft.Attention <num_heads = 2, past_present_share_buffer = 1> (x, w)",
        SELF,
        "past_present_share_buffer = 1",
    ),
    "past length": (
        "y = com.microsoft.Attention <num_heads = 2> (x, w, , , , , n)",
        SELF + ", int32[1] n",
        "past_sequence_length",
    ),
    "past of other size": (
        "y = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [4, 4, 2]>"
        " (x, v, , , past)",
        "float[N, 3, 4] x, float[4, 10] v, float[2, N, 2, 5, 2] past",
        "2 and 4",
    ),
    "rotary": (
        "y = com.microsoft.Attention <num_heads = 2, do_rotary = 1> (x, w)",
        SELF,
        "do_rotary = 1",
    ),
    "flag": (
        "y = com.microsoft.Attention <num_heads = 2, unidirectional = 2> (x, w)",
        SELF,
        "unidirectional = 2",
    ),
    "turned": (
        "y = com.microsoft.RotaryEmbedding <interleaved = 4> (x, p, c, c)",
        "float[N, 3, 4] x, int64[1] p, float[5, 2] c",
        "interleaved = 4",
    ),
    "gates of heads": (
        "y = com.microsoft.LinearAttentionGate (x, d, d)",
        "float[N, 3, 4] x, float[4, 1] d",
        "float32[4, 1]",
    ),
    "heads": ("y = com.microsoft.Attention <num_heads = 5> (x, w)", SELF, "num_heads = 5"),
    "mask": (
        "y = com.microsoft.Attention <num_heads = 2> (x, w, , m)",
        "float[2, 3, 4] x, float[4, 12] w, int32[5] m",
        "int32[5]",
    ),
    "past_key": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, , , , p)",
        "float[N, 3, 4] x, float[N, 2, 5, 2] p",
        "no past_value",
    ),
    "indirection": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, , , , p, p, , c)",
        "float[N, 3, 4] x, float[N, 2, 5, 2] p, int32[N, 2, 9] c",
        "cache_indirection",
    ),
    "past of heads": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, p, p, , , , p, p)",
        "float[N, 3, 4] x, float[N, 2, 5, 2] p",
        "key float32[N, 2, 5, 2]",
    ),
    **{
        f"grouped {what}": (
            f"y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1{attrs}>"
            f" (x, k, k, , , n, t{more})",
            "float[N, 3, 8] x, float[N, 3, 4] k, int32[N] n, int32 t, float[1] s",
            said,
        )
        for what, attrs, more, said in (
            ("window cache", ", sliding_window_cache = 1", "", "sliding_window_cache = 1"),
            ("scores", ", qk_output = 1", "", "qk_output = 1"),
            ("bits", ", kv_cache_bit_width = 4", "", "kv_cache_bit_width = 4"),
            ("quantised", ', k_quant_type = "PER_TENSOR"', "", "PER_TENSOR"),
            ("scales", "", ", , , , , , s", "k_scale"),
            ("chunks", "", ", , , , , , , , , , n", "query_seqlens"),
            ("rotary", ", do_rotary = 1", "", "cos_cache"),
            ("one cache", "", ", k", "cos_cache and sin_cache"),
            ("window", ", local_window_size = 2, causal = 0", "", "causal = 0"),
            ("smooth", ", smooth_softmax = 3", "", "smooth_softmax = 3"),
        )
    },
    "keys": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, , x)",
        "float[N, 3, 4] x",
        "key none",
    ),
    "scale": (
        "y = com.microsoft.RotaryEmbedding <scale = 2.0> (x, p, c, c)",
        "float[N, 3, 4] x, int64[1] p, float[5, 2] c",
        "scale = 2",
    ),
    "attribute": (
        'y = com.microsoft.Gelu <approximate = "tanh"> (x)',
        "float[N, 3, 4] x",
        "approximate",
    ),
    "lacking": ("y = com.microsoft.BiasGelu (x)", "float[N, 3, 4] x", "input 1, B"),
    "too many": ("y = com.microsoft.QuickGelu (x, x)", "float[N, 3, 4] x", "2"),
    "activation": (
        'y = com.microsoft.FusedGemm <activation = "Gelu"> (w, w)',
        "float[4, 4] w",
        "Gelu",
    ),
    **{
        what: (f"y = com.microsoft.{call}", "float[N, 3, 4, 4] x, float[4] b, int64[8] p", said)
        for what, call, said in (
            ("mode", 'GridSample <mode = "trilinear"> (x, x)', "trilinear"),
            ("padding", 'GridSample <padding_mode = "wrap"> (x, x)', "wrap"),
            ("pad mode", 'Pad <mode = "wrap"> (x, p)', "wrap"),
            ("metric", 'CDist <metric = "cosine"> (b, b)', "cosine"),
            ("nearest", 'CropAndResize <mode = "nearest"> (x, x, x, x)', "nearest"),
            ("auto_pad", 'ConvTransposeWithDynamicPads <auto_pad = "VALID"> (x, x)', "VALID"),
            ("normalized", "Rfft <normalized = 1> (x)", "normalized = 1"),
            ("signal", "Irfft <signal_ndim = 4> (x)", "4"),
            ("size", "UnfoldTensor <size = 0> (x)", "size = 0"),
            ("groups", "GroupNorm <activation = 2, groups = 2> (x, b, b)", "activation = 2"),
            ("skip", "SkipGroupNorm <activation = 0, groups = 2> (x, b, b, b)", "float32[4]"),
            ("inner", "BiasSoftmax <axis = 3> (x, b)", "none"),
            (
                "activation axis",
                'FusedMatMulActivation <activation = "Softmax", activation_axis = 1> (x, x)',
                "activation_axis = 1",
            ),
            ("projected", "GatedAdd (x, x, x, x)", "gate_weight"),
            ("gate", 'GatedRMSNorm <activation = "gelu"> (x, b, x)', "gelu"),
            ("softmax", 'FusedMatMulActivation <activation = "Softmax"> (x, x)', "Softmax"),
        )
    },
    **{
        f"rotary {what}": (
            f"y = com.microsoft.RotaryEmbedding <{attrs}> (x, p, c, c)",
            f"float[N, 3, 12] x, int64[1] p, float[5, {width}] c",
            said,
        )
        for what, attrs, width, said in (
            ("cache too narrow", "num_heads = 2", 1, "cos_cache float32[5, 1]"),
            ("cache too wide", "num_heads = 3", 3, "num_heads = 3"),
            ("part too wide", "num_heads = 3, rotary_embedding_dim = 6", 3, "embedding_dim = 6"),
        )
    },
    "grouped caches": (
        "y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, do_rotary = 1>"
        " (x, k, k, , , n, t, c, c)",
        "float[N, 3, 8] x, float[N, 3, 4] k, int32[N] n, int32 t, float[9, 3] c",
        "at most 2",
    ),
    "column": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, , m)",
        "float[N, 3, 4] x, int32[N, 1] m",
        "int32[N, 1]",
    ),
    "parameters": (
        'y = com.microsoft.FusedConv <activation = "Relu", activation_params = [1.0]> (x, x)',
        "float[N, 3, 4, 4] x",
        "0 for Relu",
    ),
    "batches": (
        "y = com.microsoft.FusedMatMul <transBatchA = 1> (x, x)",
        "float[4, 4] x",
        "transBatchA = 1",
    ),
    "bits": (
        "y, m = com.microsoft.BitmaskDropout (x)  z = Not (m)",
        "float[N, 3, 4] x",
        "output 1",
    ),
    "buckets": (
        "y = com.microsoft.RelativePositionBias <max_distance = 2> (t, n, n)",
        "float[8, 2] t, int64 n",
        "max_distance = 2",
    ),
    "segments": (
        "y = com.microsoft.EmbedLayerNormalization (i, i, w, w, , g, g)",
        "int32[N, 3] i, float[5, 4] w, float[4] g",
        "segment_embedding",
    ),
    "activations": (
        'y = com.microsoft.GRUTraining <hidden_size = 2, activations = ["Relu", "Tanh"]> (x, w, r)',
        "float[N, 3, 4] x, float[1, 6, 4] w, float[1, 6, 2] r",
        "sigmoid | Relu",
    ),
    "directions": (
        'y = com.microsoft.LSTMTraining <hidden_size = 2, direction = "up"> (x, w, r)',
        "float[N, 3, 4] x, float[1, 8, 4] w, float[1, 8, 2] r",
        "direction = up",
    ),
    "gates of lengths": (
        "y, h, z = com.microsoft.GRUTraining <hidden_size = 2> (x, w, r, , n)  s = Neg (z)",
        "float[N, 3, 4] x, float[1, 6, 4] w, float[1, 6, 2] r, int32[3] n",
        "sequence lengths",
    ),
    "gates of a clipped layer": (
        "y, h, c, a, z = com.microsoft.LSTMTraining <hidden_size = 2, clip = 3.0> (x, w, r)"
        "  s = Neg (z)",
        "float[N, 3, 4] x, float[1, 8, 4] w, float[1, 8, 2] r",
        "clip = 3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_supported_is_refused_by_name(case: str) -> None:
    node, inputs, said = REFUSED[case]
    op = node.partition("= ")[2].partition(" ")[0].split(".")[-1]
    with pytest.raises(steep.ModelError) as caught:
        steep.InferenceSession(one(node, inputs))
    error = caught.value
    assert error.op == f"com.microsoft.{op}"
    assert error.node == "y"
    assert said in f"{error.expected} | {error.received}"
    assert error.remedy


def test_a_mask_of_lengths_is_told_by_the_run() -> None:
    """Optimised files of BERT have masks that are made of other values than the rows."""
    session = steep.InferenceSession(
        one(
            "y = com.microsoft.Attention <num_heads = 2> (x, w, , m)",
            "float[N, 3, 4] x, float[4, 12] w, int32[K] m",
        )
    )
    random = np.random.default_rng(0)
    fed = {"x": random.normal(size=(2, 3, 4)).astype(F32), "w": random.normal(size=(4, 12))}
    fed["w"] = fed["w"].astype(F32)
    stock = onnxruntime.InferenceSession(
        one(
            "y = com.microsoft.Attention <num_heads = 2> (x, w, , m)",
            "float[N, 3, 4] x, float[4, 12] w, int32[K] m",
        )
    )
    for mask in ([3, 1], [3, 2, 1, 0], [3, 1, 0, 3, 6, 0, 3, 6]):
        fed["m"] = np.array(mask, np.int32)
        (ours,), (theirs,) = session.run(None, fed), stock.run(None, fed)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for length in (0, 1, 3, 5, 6, 9):
        with pytest.raises(steep.Error):
            session.run(None, {**fed, "m": np.ones(length, np.int32)})


def test_a_single_position_is_not_repeated() -> None:
    model = one(
        "y = com.microsoft.EmbedLayerNormalization (i, , w, p, , g, g)",
        "int32[N, S] i, float[5, 4] w, float[1, 4] p, float[4] g",
    )
    session = steep.InferenceSession(model)
    w, p, g = (np.random.default_rng(0).normal(size=s).astype(F32) for s in ((5, 4), (1, 4), (4,)))
    fed = {"w": w, "p": p, "g": g}
    (y,) = session.run(None, {"i": np.array([[3]], np.int32), **fed})
    assert y.shape == (1, 1, 4)
    with pytest.raises(steep.Error):
        session.run(None, {"i": np.array([[3, 1]], np.int32), **fed})


def test_biased_dropouts_drop_in_training() -> None:
    model = one(
        "y, kept = com.microsoft.BiasDropout (x, b, r, half, on)",
        "float[N, 64] x, float[N, 64] r",
        "float[N, 64] y, bool[N, 64] kept",
    )
    held = onnx.load_from_string(model)
    x, r = (np.random.default_rng(i).normal(size=(32, 64)).astype(F32) for i in range(2))
    constants = {"half": np.array(0.5, F32), "on": np.array(True), "b": r[0]}
    for name, value in constants.items():
        held.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    y, kept = steep.InferenceSession(held.SerializeToString()).run(None, {"x": x, "r": r})
    assert kept.all()  # a session for inference drops nothing
    np.testing.assert_allclose(y, x + r[0] + r, rtol=1e-5, atol=1e-6)
    del held.graph.output[1]
    trained = steep.TrainingSession(held, trainable=["b"], loss="mse", optimizer="sgd", lr=0.0)
    found = {float(trained.step(x, r, np.zeros_like(x))) for _ in range(3)}
    assert len(found) == 3
    whole = ((x + r[0] + r) ** 2).mean()
    assert all(loss > whole for loss in found)  # what is kept counts twice


def test_unknown_operators_of_the_domain_are_named() -> None:
    with pytest.raises(steep.ModelError, match="QAttention") as caught:
        steep.InferenceSession(one("y = com.microsoft.QAttention (x)", "float[N, 3, 4] x"))
    assert caught.value.op == "com.microsoft.QAttention"


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("QAttention", "quantised"),
        ("QLinearAdd", "quantised"),
        ("MatMulBnb4", "quantised"),
        ("MatMulNBitsMlp", "quantised"),
        ("DynamicQuantizeMatMul", "quantised"),
        ("SoftmaxGrad", "training graph"),
        ("SoftmaxGrad_13", "training graph"),
        ("YieldOp", "training graph"),
        ("InPlaceAccumulatorV2", "training graph"),
        ("BeamSearch", "of generation"),
        ("DecoderMaskedMultiHeadAttention", "of generation"),
        ("PackedAttention", "without padding"),
        ("SparseToDenseMatMul", "sparse"),
        ("Tokenizer", "of text"),
    ],
)
def test_what_is_not_for_training_says_what_to_train(op: str, said: str) -> None:
    with pytest.raises(steep.ModelError) as caught:
        steep.InferenceSession(one(f"y = com.microsoft.{op} (x)", "float[N, 3, 4] x"))
    assert caught.value.op == f"com.microsoft.{op}"
    assert said in caught.value.received


def test_what_the_file_or_the_user_defines_comes_first() -> None:
    text = """<domain: "com.microsoft", opset_import: ["": 17]> Gelu (x) => (y) { y = Neg (x) }"""
    model = one("y = com.microsoft.Gelu (x)", "float[N, 3, 4] x")
    x = np.ones((1, 3, 4), F32)
    with steep.register_op(text):
        (y,) = steep.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, -x)
    held = onnx.load_from_string(model)
    held.functions.append(onnx.parser.parse_function(text))
    (y,) = steep.InferenceSession(held.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(y, -x)


def test_the_page_lists_them_all() -> None:
    page = (ROOT / "docs" / "onnxruntime_operators.md").read_text()
    rows = [line.split(" | ")[0].strip("| ") for line in page.splitlines() if line.startswith("| ")]
    assert [f"com.microsoft.{name}" for name in rows[2:]] == steep._steep.contrib_operators()


def test_functions_and_bodies_call_them() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["": 17, "my": 1, "com.microsoft": 1]>
        g (float[N, 4] x, bool c) => (float[N, 4] y) {
          h = my.Wide <slope = 0.5> (x)
          y = If (c) <then_branch = t () => (float[N, 4] u) { u = com.microsoft.FastGelu (h) },
                      else_branch = e () => (float[N, 4] v) { v = Neg (h) }> }
        <domain: "my", opset_import: ["": 17, "com.microsoft": 1]>
        Wide <slope> (x) => (y) { y = com.microsoft.QuickGelu <alpha: float = @slope> (x) }"""
    )
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(F32)
    session = steep.InferenceSession(model.SerializeToString())
    h = x / (1 + np.exp(-0.5 * x))
    (y,) = session.run(None, {"x": x, "c": np.array(False)})
    np.testing.assert_allclose(y, -h, rtol=1e-5)
    (y,) = session.run(None, {"x": x, "c": np.array(True)})
    cubed = np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)
    np.testing.assert_allclose(y, 0.5 * h * (1 + np.tanh(cubed)), rtol=1e-4, atol=1e-6)
