"""Blocks that build models, under the old names: what they compute, and what they refuse."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from on_device import NAMES, batches, mlp, weights, write
from onnx import helper

import steep
from steep import compat
from steep.compat.onnxblock import blocks, losses as block_losses, optimizers as block_optimizers
from steep.compat.onnxblock.base import base, custom_op_library, empty_base
from steep.compat.onnxblock.checkpoints import load_checkpoint_to_model, save_checkpoint
from steep.compat.onnxblock.models import ForwardBlock, TrainingBlock


class Of(ForwardBlock):
    """A model that is one block."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def build(self, *names):
        return self.block(*names)


def computed(block, *arrays):
    """Run the block on arrays, in the engine and in the stock runtime; return the engine's."""
    names = [f"x{i}" for i in range(len(arrays))]
    with empty_base(17) as accessor:
        for name, array in zip(names, arrays, strict=True):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            info = helper.make_tensor_value_info(name, kind, array.shape)
            accessor.model.graph.input.append(info)
        made = Of(block)
        made(*names)
    model = made.to_model_proto()
    onnx.checker.check_model(model, full_check=True)
    fed = dict(zip(names, arrays, strict=True))
    (result,) = steep.InferenceSession(model).run(None, fed)
    try:
        import onnxruntime as ort
    except ImportError:
        return result
    (other,) = ort.InferenceSession(model.SerializeToString()).run(None, fed)
    np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-6)
    return result


X = np.array([[0.5, -2.0, 3.0], [1.5, 0.25, -1.0]], np.float32)
Y = np.array([[1.0, 2.0, -4.0], [0.5, 8.0, 1.0]], np.float32)


@pytest.mark.parametrize(
    ("block", "arrays", "wanted"),
    [
        (blocks.Add(), (X, Y), X + Y),
        (blocks.Sub(), (X, Y), X - Y),
        (blocks.Mul(), (X, Y), X * Y),
        (blocks.Div(), (X, Y), X / Y),
        (blocks.Pow(3.0), (X,), X**3),
        (blocks.Pow(2), (X.astype(np.float64),), X.astype(np.float64) ** 2),
        (blocks.ReduceMean(), (X,), X.mean(keepdims=True)),
        (blocks.ReduceMean(keepdims=False), (X,), X.mean()),
        (blocks.ReduceSum(keepdims=True), (X,), X.sum(keepdims=True)),
        (blocks.ReduceSum(keepdims=False), (X,), X.sum()),
        (blocks.Sigmoid(), (X,), 1 / (1 + np.exp(-X))),
        (blocks.Log(), (abs(X),), np.log(abs(X))),
        (blocks.Neg(), (X,), -X),
        (blocks.Abs(), (X,), abs(X)),
        (blocks.Clip(-1.0, 1.0), (X,), X.clip(-1, 1)),
        (blocks.Clip(clip_max=0.5), (X,), np.minimum(X, 0.5)),
        (blocks.Cast(onnx.TensorProto.INT64), (X,), X.astype(np.int64)),
        (blocks.ReduceAllL2(), (X, Y[0]), np.sqrt((X**2).sum() + (Y[0] ** 2).sum())),
        (
            blocks.LabelEncoder(keys_int64s=[1, 5], values_int64s=[10, 50]),
            (np.array([5, 1, 2]),),
            [50, 10, -1],
        ),
        (
            blocks.LabelEncoder(0.5, keys_int64s=[1, 5, 0], values_floats=[2, 3, 4]),
            (np.array([[5, 1], [0, 7]]),),
            [[3, 2], [4, 0.5]],
        ),
    ],
)
def test_each_block_computes_what_it_says(block, arrays, wanted):
    result = computed(block, *arrays)
    assert result.shape == np.shape(wanted)
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_their_options_are_pytorchs(reduction):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((6, 4)) * 30).astype(np.float32)
    t, each = rng.random((6, 4)).astype(np.float32), rng.random(4).astype(np.float32)
    labels = np.array([0, 3, 1, 1, 2, 0])
    functions = torch.nn.functional
    cases = [
        (block_losses.MSELoss(reduction), t, functions.mse_loss, {}),
        (block_losses.L1Loss(reduction), t, functions.l1_loss, {}),
        (
            block_losses.BCEWithLogitsLoss(each, reduction, each * 3),
            t,
            functions.binary_cross_entropy_with_logits,
            {"weight": torch.tensor(each), "pos_weight": torch.tensor(each * 3)},
        ),
        (
            block_losses.CrossEntropyLoss(each, reduction, ignore_index=1),
            labels,
            functions.cross_entropy,
            {"weight": torch.tensor(each), "ignore_index": 1},
        ),
    ]
    for block, target, function, options in cases:
        wanted = function(torch.tensor(x), torch.tensor(target), reduction=reduction, **options)
        np.testing.assert_allclose(computed(block, x, target), wanted, rtol=2e-5, atol=1e-5)


def test_linear_draws_its_parameters_from_numpys_seed():
    made = []
    for _ in range(2):
        np.random.seed(3)
        with empty_base() as accessor:
            info = helper.make_tensor_value_info("x", 1, ["n", 3])
            accessor.model.graph.input.append(info)
            block = Of(blocks.Linear(3, 2, alpha=2.0))
            block("x")
        made.append(block.to_model_proto())
    assert made[0] == made[1]
    w, b = (onnx.numpy_helper.to_array(t) for t in made[0].graph.initializer)
    (y,) = steep.InferenceSession(made[0]).run(None, {"x": X})
    np.testing.assert_allclose(y, 2 * X @ w + b, rtol=1e-5, atol=1e-6)


def test_a_base_of_a_path_reads_its_data_from_beside_it(tmp_path):
    wanted = mlp()
    onnx.save(mlp(), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    bare = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with base(bare, str(tmp_path / "m.onnx")) as accessor:
        assert accessor.has_path and accessor.path == str(tmp_path / "m.onnx")
        held = {t.name: onnx.numpy_helper.to_array(t) for t in accessor.model.graph.initializer}
    for tensor in wanted.graph.initializer:
        np.testing.assert_array_equal(held[tensor.name], onnx.numpy_helper.to_array(tensor))
    with pytest.raises(steep.IoError, match="External data"), base(bare, "nowhere/m.onnx"):
        pass
    with base(wanted, model_path=None) as accessor:
        assert not accessor.has_path
        with pytest.raises(steep.DataError, match="path"):
            _ = accessor.path


def test_a_block_infers_the_types_of_its_base():
    with base(mlp()) as accessor:
        block = blocks.Neg()
        name = block(blocks.Constant(value_float=3.0)())
        before = accessor.model.SerializeToString()
        made = block.infer_shapes_on_base()
        (info,) = [v for v in made.graph.value_info if v.name == name]
        assert [d.dim_value for d in info.type.tensor_type.shape.dim] == [1]
        assert accessor.model.SerializeToString() == before
        assert made.graph.initializer == accessor.model.graph.initializer
        assert made.graph.input == accessor.model.graph.input


def test_a_library_of_operators_is_a_file_of_functions(tmp_path):
    function = onnx.parser.parse_function(
        '<domain: "my", opset_import: ["": 18]> Twice (x) => (y) { y = Add (x, x) }'
    )
    graph = helper.make_graph([], "g", [], [])
    onnx.save(helper.make_model(graph, functions=[function]), tmp_path / "ops.onnx")
    info = helper.make_tensor_value_info("x", 1, [2])
    out = helper.make_tensor_value_info("y", 1, [2])
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="my")], "g", [info], [out]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = np.ones(2, np.float32)
    with custom_op_library(tmp_path / "ops.onnx"):
        assert steep.InferenceSession(model).run(None, {"x": x})[0].tolist() == [2, 2]
    with pytest.raises(steep.ModelError):
        steep.InferenceSession(model)
    with pytest.raises(compat.NotOffered, match="register_op"), custom_op_library("libops.so"):
        pass


class Training(TrainingBlock):
    def build(self, scores):
        return block_losses.CrossEntropyLoss()(scores)


def test_a_training_block_makes_the_pair_of_models_and_checkpoints(tmp_path):
    block = Training()
    with pytest.raises(steep.DataError, match="within onnxblock"):
        block.to_model_proto()
    for name in NAMES:
        block.requires_grad(name)
    block.requires_grad("fc1.bias", False)
    model = mlp()
    with base(model) as accessor:
        name = block("scores")
        assert accessor.model.graph.output[0].name == name
    assert model == mlp()  # a copy was built on
    trained, frozen = block.parameters()
    assert [p.name for p in trained] == [n for n in NAMES if n != "fc1.bias"]
    assert [p.name for p in frozen] == ["fc1.bias"]
    training, evaluation = block.to_model_proto()
    assert len(training.graph.input) == len(evaluation.graph.input) == 6

    save_checkpoint(block.parameters(), tmp_path / "checkpoint")
    other = mlp(values=weights(seed=9))
    load_checkpoint_to_model(tmp_path / "checkpoint", other)
    assert [onnx.numpy_helper.to_array(t).tolist() for t in other.graph.initializer] == [
        v.tolist() for v in weights().values()
    ]
    del other.graph.initializer[0].dims[:]
    before = other.SerializeToString()
    with pytest.raises(steep.CheckpointError, match="fc1"):
        load_checkpoint_to_model(tmp_path / "checkpoint", other)
    assert other.SerializeToString() == before
    with pytest.raises(steep.DataError, match="none of the checkpoint"):
        load_checkpoint_to_model(tmp_path / "checkpoint", training)
    save_checkpoint(block.parameters(), tmp_path / "nominal", nominal_checkpoint=True)
    with pytest.raises(steep.CheckpointError, match="nominal"):
        load_checkpoint_to_model(tmp_path / "nominal", mlp())


def test_an_optimizer_block_makes_a_model(tmp_path):
    write(tmp_path)
    block = Training()
    block.requires_grad("fc2.bias")
    with base(mlp()):
        block("scores")
    with empty_base(17):
        update = block_optimizers.SGD(clip_grad=block_optimizers.ClipGradNorm(0.5))
        update(block.parameters())
    model = update.to_model_proto()
    g = np.array([3, 0, 4, 0], np.float32)
    fed = {
        "learning_rate": np.float32(1).reshape(()),
        "step": np.array(1),
        "fc2.bias": np.zeros(4, np.float32),
        "fc2.bias_grad": g,
    }
    (new,) = steep.InferenceSession(model).run(None, fed)
    np.testing.assert_allclose(new, -g / 10, rtol=1e-6)
    fed["fc2.bias_grad"] = g * np.nan
    assert np.isnan(steep.InferenceSession(model).run(None, fed)[0]).all()


def test_mistakes_are_named():
    with pytest.raises(steep.DataError, match="within onnxblock"):
        blocks.Add()("x", "y")
    with pytest.raises(steep.DataError, match="empty_base"), base(None):
        pass
    with base(mlp()):
        with pytest.raises(steep.ModelError, match="scores"):
            blocks.Abs()("score")
        with pytest.raises(steep.DataError, match="one base"), base(mlp()):
            pass
        with pytest.raises(steep.ModelError, match="an existing value"):
            blocks.InputLike("scores")("x")
        with pytest.raises(steep.DataError, match="names of values"):
            Of(lambda: None)()
        with pytest.raises(steep.DataError, match="requires_grad"):
            Training()("scores")
    blocks_of = block_losses.MSELoss, block_losses.CrossEntropyLoss
    for made in blocks_of:
        with pytest.raises(steep.DataError, match='"mean", "sum"'):
            made(reduction="average")
    with pytest.raises(compat.NotOffered, match="text"):
        blocks.LabelEncoder(keys_strings=["a"], values_int64s=[1])
    with pytest.raises(steep.DataError, match="2 values"):
        blocks.LabelEncoder(keys_int64s=[1, 2], values_int64s=[1])
    with pytest.raises(steep.DataError, match="betas"):
        block_optimizers.AdamW(betas=(1.0, 0.9))
    with pytest.raises(steep.DataError, match="max_norm"):
        block_optimizers.ClipGradNorm(0)


def test_a_base_is_of_one_thread():
    def elsewhere():
        with pytest.raises(steep.DataError, match="no model to build on"):
            blocks.Abs()("x")
        with base(mlp()) as other:
            return other.model

    with base(mlp()) as accessor, ThreadPoolExecutor() as pool:
        assert pool.submit(elsewhere).result() is not accessor.model
        blocks.Abs()(accessor.model.graph.output[0].name)


def test_the_guides_script_runs_under_the_old_names(tmp_path):
    compat.install()
    try:
        import onnxruntime.training.onnxblock as onnxblock
        from onnxruntime.training import artifacts
        from onnxruntime.training.api import CheckpointState, Module, Optimizer

        class Weighted(onnxblock.Block):
            def build(self, scores):
                loss = onnxblock.loss.CrossEntropyLoss()(scores)
                return onnxblock.blocks.Mul()(loss, onnxblock.blocks.Constant(2.0)())

        artifacts.generate_artifacts(
            mlp(),
            requires_grad=NAMES,
            loss=Weighted(),
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=tmp_path,
        )
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(0.01)
        losses = []
        for x, y in batches(1) * 5:
            losses.append(module.train()(x, y))
            optimizer.step()
            module.lazy_reset_grad()
        assert losses == sorted(losses, reverse=True)
        assert losses[0].shape == (1,)
        for name in ("AdamWOptimizer", "SGDOptimizer"):
            with pytest.raises(compat.NotOffered, match="AdamW and SGD"):
                getattr(onnxblock.optim, name)
        library = onnxblock.custom_op_library("libops.so")
        with pytest.raises(compat.NotOffered, match="register_op"), library:
            pass
    finally:
        compat.uninstall()
