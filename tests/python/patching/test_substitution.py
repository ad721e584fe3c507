"""The registry of what is replaced in PyTorch: who replaces when, and what is declared."""

import subprocess
import sys
import threading
from typing import ClassVar

import pytest
from checkout import ROOT

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._dynamo import trace_rules  # noqa: E402
from torch.nn.modules import transformer  # noqa: E402

import steep.dynamo.captured_module  # noqa: E402, F401 - declares them all
from steep import ModelError, ORTModule  # noqa: E402
from steep.patching import substitution, torch_versions  # noqa: E402
from steep.patching.substitution import Substitution, replaces, substitute  # noqa: E402


def declared_for_a_test(*args, **options):
    own = Substitution(*args, **options)
    substitution.DECLARED.remove(own)
    return own


def test_the_page_of_substitutions_is_up_to_date():
    """And every substitution is found, has a target in this PyTorch, and gives a reason."""
    script = ROOT / "scripts" / "substitutions.py"
    if torch_versions.RELEASE == torch_versions.OLDEST:  # names of others differ
        subprocess.run([sys.executable, script, "--check"], check=True)
    declared = substitution.DECLARED
    assert len(declared) > 30
    for each in declared:
        assert each.exists or not each.applies, each.target
        assert each.target.startswith("torch.") and each.why.endswith(".")


def test_what_a_class_inherits_it_inherits_again():
    class Base:
        def f(self):
            return 1

    class Derived(Base):
        pass

    own = declared_for_a_test(Derived, "f", "A test.")
    with pytest.raises(KeyError), substitute({own: lambda self: 2}):
        assert Derived().f() == 2
        raise KeyError
    assert Derived().f() == 1 and "f" not in vars(Derived)
    missing = declared_for_a_test(Derived, "g", "A test.")
    with pytest.raises(ModelError, match=r"Derived\.g\b"), substitute({missing: None}):
        pass


class Owner:
    name = "first"
    table: ClassVar = {"there": "first"}


def test_an_entry_of_a_dict():
    there = declared_for_a_test(Owner, "table", "A test.", key="there")
    new = declared_for_a_test(Owner, "table", "A test.", key="new", absent=True)
    with pytest.raises(ZeroDivisionError), substitute({there: "ours", new: "ours"}):
        assert Owner.table == {"there": "ours", "new": "ours"}
        raise ZeroDivisionError
    assert Owner.table == {"there": "first"}
    missing = declared_for_a_test(Owner, "table", "A test.", key="new")
    assert not missing.exists
    with pytest.raises(ModelError, match="new"), substitute({missing: "ours"}):
        pass


def test_what_nothing_would_look_up_is_not_put_there():
    found = declared_for_a_test(Owner, "other", "A test.", absent=True, like="name")
    with substitute({found: "ours"}):
        assert Owner.other == "ours"
    unused = declared_for_a_test(Owner, "other", "A test.", absent=True, like="renamed")
    assert not unused.exists
    with pytest.raises(ModelError, match=r"Owner\.other"), substitute({found: 1, unused: 2}):
        pass
    assert not hasattr(Owner, "other")


@pytest.mark.parametrize("fallback", [None, "parts"])
@pytest.mark.parametrize(
    "target", ["ConstDictVariable.has_new_items", "TensorVariable.method_attr_requires_grad"]
)
def test_a_capture_stops_without_a_guard_that_it_needs(monkeypatch, target, fallback):
    """It would run a graph that is no longer valid, or give the module to PyTorch unsaid."""
    owner, name = target.split(".")
    owner = next(c for c in getattr(torch._dynamo.variables, owner).__mro__ if name in vars(c))
    monkeypatch.delattr(owner, name)
    model = ORTModule(nn.Linear(2, 2), fallback=fallback)
    with pytest.raises(ModelError, match="lacks a name that Steep's capture needs") as refused:
        model(torch.ones(1, 2))
    assert refused.value.node.startswith("torch._dynamo.variables.")
    assert refused.value.remedy == 'pip install "torch>=2.13,<2.16"'


def test_one_thread_replaces_at_a_time():
    """The second thread would restore what the first had put there, after it had left."""
    own = declared_for_a_test(Owner, "name", "A test.")
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def first():
        with substitute({own: "by the first"}):
            entered.set()
            leave.wait(10)

    def second():
        entered.wait(10)
        with substitute({own: "by the second"}):
            seen.append(Owner.name)

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    threads[1].join(0.2)
    assert threads[1].is_alive() and seen == []
    assert Owner.name == "by the first"
    leave.set()
    for thread in threads:
        thread.join(10)
    assert seen == ["by the second"]
    assert Owner.name == "first"


def test_a_thread_may_replace_more_within():
    own = declared_for_a_test(Owner, "name", "A test.")
    with substitute({own: "outer"}):
        with substitute({own: "inner"}):
            assert Owner.name == "inner"
        assert Owner.name == "outer"
    assert Owner.name == "first"


def test_changes_have_the_order_of_what_they_replace():
    one, two = (declared_for_a_test(Owner, "name", "A test.", order=n) for n in (1, 2))

    @replaces(one)
    def earlier():
        with substitute({one: Owner.name + " one"}):
            yield "value"

    @replaces(two)
    def later(text):
        with substitute({two: Owner.name + text}):
            yield

    changes = sorted([later(" two"), earlier()], key=lambda change: change.order)
    with changes[0] as value, changes[1]:
        assert value == "value"
        assert Owner.name == "first one two"
    assert Owner.name == "first"


def test_substitutions_of_one_target_differ_in_their_order():
    """Which of them is called first would depend on where captured_module.py names them."""
    by_target = {}
    for each in substitution.DECLARED:
        by_target.setdefault(each.target, []).append(each.order)
    shared = {target: orders for target, orders in by_target.items() if len(orders) > 1}
    assert len(shared) > 3
    assert {t: orders for t, orders in shared.items() if len(set(orders)) < len(orders)} == {}


def test_nothing_is_replaced_by_an_import():
    """Dynamo's rule for a mask of a transformer layer holds during a capture of ours alone."""
    rules = trace_rules.get_torch_obj_rule_map()
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    x, mask = torch.randn(2, 3, 8), nn.Transformer.generate_square_subsequent_mask(3)
    found = ORTModule(encoder, fallback=None)
    torch.testing.assert_close(found(x, mask), encoder(x, mask))
    assert transformer._detect_is_causal_mask not in rules
