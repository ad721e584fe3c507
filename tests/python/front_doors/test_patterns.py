"""Patterns of PyTorch code by every front door: all is as in PyTorch.

Each pattern is called several times, with other extents, values or attributes, and must have run in
the engine at least in part. Results, gradients, parameters, buffers, arguments and who shares
memory with whom are compared.
"""

import copy

import pytest

torch = pytest.importorskip("torch")

import call_patterns  # noqa: E402
import everyday_patterns  # noqa: E402
import image_patterns  # noqa: E402
import module_patterns  # noqa: E402
import operator_patterns  # noqa: E402
from capture_patterns import WIDTH, Fn  # noqa: E402
from patterns import Pattern, assert_same, compare_calls, compare_steps  # noqa: E402

import steep  # noqa: E402
from steep.dynamo import backend  # noqa: E402

MODULES = (everyday_patterns, operator_patterns, image_patterns, call_patterns, module_patterns)
TABLES = [module.PATTERNS for module in MODULES]
PATTERNS = {name: Pattern(*entry) for table in TABLES for name, entry in table.items()}

# by the other doors in every run of the tests; the rest of them by `make patterns`
ALWAYS = {
    *("rows", "lstm", "batch norm", "argument written", "views of results", "checkpoint"),
    *("cache written", "frozen and thawed", "tied modules", "CrossEntropyLoss", "other precision"),
}


# of the tables of operators, modules and images, one of each kind
ONE_OF_EACH = {
    *("mask written", "index_add", "put_", "cumsum", "ties", "norms", "triangles", "promotion"),
    *("where of nan", "einsum with an ellipsis", "activations", "complex", "division of integers"),
    *("CrossEntropyLoss", "BCEWithLogitsLoss", "CTCLoss", "LayerNorm", "convolutions"),
    *("attention with masks", "EmbeddingBag", "LSTM, two ways", "packed", "pools"),
}

# of the tables of everyday code and of calls, what differs little from another pattern here or from
# a test elsewhere
BESIDE_OTHERS = {
    *("rnn", "gru", "batch norm not affine", "batch norm without statistics", "masked attention"),
    *("scatter", "gather", "masked fill", "flip", "diagonal", "where", "topk", "sort", "std"),
    *("norm", "einsum", "interpolate", "convolution", "cross entropy", "loss of probabilities"),
    *("sdpa", "encoder layer", "embedding", "eye and ones", "argument filled", "relu in place"),
    *("dropouts of nothing", "transposed in place", "checkpoint without gradient"),
    *("several written where gradients are off", "argument written, views returned"),
}

# no parameter is on the way to a loss
WITHOUT_LOSS = {"the gradient that comes in", "unpooled", "nothing to compute"}

# what is no tensor is given, or the module is not one graph, or the loss is not finite
NOT_TRAINED = {
    *("optional argument", "number argument", "float argument", "flag", "string", "keyword"),
    *("number, then tensor", "numbers without bounds", "lists of other lengths", "options"),
    *("given a dict", "early", "while", "float of a tensor", "item"),
    *("detached, then changed", "data changed", "hook on a tensor"),
    *("unsqueezed in place", "transposed in place", "comparisons"),
    *("parameter replaced", "foreach", "index_reduce", "put_", "put_ that adds"),
    *("logsumexp", "median and mode", "sort is stable", "var", "nansum"),
    *("no columns", "division of integers", "division of floats", "rounding"),
    *("nan and infinity", "special", "cdist", "activations"),
    *("CrossEntropyLoss, all ignored", "MultiMarginLoss"),
    *("MultiLabelMarginLoss", "AdaptiveLogSoftmaxWithLoss"),
    *("LSTM, projected", "packed"),
    *("Embedding, max_norm", "Embedding, by frequency"),
}


def by_other_doors(names):
    """Return the patterns of these names; most of them run by `make patterns` alone."""
    return [
        pytest.param(name, marks=() if name in ALWAYS else pytest.mark.patterns) for name in names
    ]


def by_module():
    """Return all names; most operators and modules run by `make patterns` alone."""
    many = {*operator_patterns.PATTERNS, *module_patterns.PATTERNS, *image_patterns.PATTERNS}
    rare = many - ONE_OF_EACH | BESIDE_OTHERS
    return [
        pytest.param(name, marks=pytest.mark.patterns if name in rare else ()) for name in PATTERNS
    ]


@pytest.fixture(autouse=True)
def start_anew():
    torch._dynamo.reset()


def test_names_are_unique():
    assert len(PATTERNS) == sum(len(table) for table in TABLES)
    assert {*ALWAYS, *ONE_OF_EACH, *BESIDE_OTHERS} <= PATTERNS.keys()


@pytest.mark.parametrize("name", by_module())
def test_module(name):
    compare_calls(PATTERNS[name], lambda m: steep.ORTModule(m, fallback="parts"))


@pytest.mark.parametrize("name", by_other_doors(PATTERNS))
def test_backend(name):
    compare_calls(PATTERNS[name], lambda m: torch.compile(m, backend=backend.backend))


@pytest.mark.parametrize(
    "name", by_other_doors(n for n in PATTERNS if n not in NOT_TRAINED | WITHOUT_LOSS)
)
def test_trainer(name):
    compare_steps(PATTERNS[name], steep.trainer)


@pytest.mark.patterns
@pytest.mark.parametrize("name", sorted(NOT_TRAINED))
def test_trainer_refuses(name):
    with pytest.raises(steep.Error):
        compare_steps(PATTERNS[name], steep.trainer)


def written_by_out(m, x):
    y, sums = m.layer(x), torch.zeros(2, WIDTH)
    with torch.no_grad():
        torch.sum(x, 0, out=sums[0])
    return y * sums[0]


def overlapping(m, a, b):
    a[-1] = 2
    return m.layer(b) + a.sum()


X = torch.randn(3, WIDTH)


def test_what_would_get_lost_is_refused():
    with pytest.raises(steep.ModelError):
        steep.ORTModule(Fn(overlapping))(X[:2], X[1:])


def test_a_part_is_written_by_out():
    module = Fn(written_by_out)
    net = steep.ORTModule(copy.deepcopy(module), fallback=None)
    for m in (module, net):
        m(X).sum().backward()
    assert_same([p.grad for p in net.parameters()], [p.grad for p in module.parameters()])
