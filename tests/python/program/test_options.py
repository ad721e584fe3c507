"""One table of options (src/train/option_rows.h): whatever repeats a row by hand says the same."""

import importlib.util
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from checkout import ROOT
from steep_program import built, output_of

import steep
from steep import _steep

ROWS = _steep.option_rows()
OPTIONS = _steep.TrainingOptions()
# No single values: each front door has its own way to say them.
PARTS = {"attributes", "own", "groups", "updates", "optimizer", "schedule", "loss_scale"}
PARTS |= {"limits", "providers", "loss_model"}
PYTHONS_OWN = {"attributes", "groups", "updates", "limits", "providers", "weights"}
PYTHONS_OWN |= {"parallel", "zero", "full_checkpoints", "wire_precision"}
IN_C_ALONE = {"loss_scale_min", "loss_scale_max"}


def default_of(part: str, field: str) -> Any:
    return getattr(getattr(OPTIONS, part) if part else OPTIONS, field)


def keywords() -> dict[str, Any]:
    """The keywords of Python, and their defaults."""
    found = {key: default_of(part, field) for part, field, key, _, _ in ROWS}
    found["betas"] = (found.pop("beta1"), found.pop("beta2"))
    found["eps"] = found.pop("epsilon")
    found = {k: () if v == [] else v for k, v in found.items() if k not in IN_C_ALONE}
    return found


def of_signature(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_every_field_has_a_row() -> None:
    header = (ROOT / "include" / "steep" / "steep.h").read_text()
    structs = {"": "TrainingOptions", "optimizer": "OptimizerOptions"}
    structs |= {"schedule": "ScheduleOptions", "loss_scale": "LossScaleOptions"}
    for part, struct in structs.items():
        (body,) = re.findall(rf"^struct {struct} {{\n(.*?)^}};", header, re.M | re.S)
        fields = re.findall(r"^  [\w:<>, ]+ (\w+)(?: = [^;]+|\{\});", body, re.M)
        assert len(fields) > 3
        assert {*fields} - PARTS == {row[1] for row in ROWS if row[0] == part}


def test_the_session_in_python() -> None:
    given = of_signature(steep.TrainingSession.__init__)
    assert {name: given[name] for name in given if name not in PYTHONS_OWN} == keywords()
    undescribed = [name for name in given if not describes(steep.TrainingSession, name)]
    assert not undescribed


def describes(thing: Any, name: str) -> bool:
    """Is the name before a colon in the arguments of a docstring?"""
    return bool(
        re.search(rf"^ +(?:\w+, *\n? *)*{name}\b[\w,\n ]*:", inspect.getdoc(thing) or "", re.M)
    )


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("trainer", {"seed": None}),
        ("ORTTrainer", {"seed": None, "precision": None}),
    ],
)
def test_trainers(name: str, other: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    thing = getattr(steep, name)
    given = of_signature(thing if name == "trainer" else thing.__init__)
    table = keywords() | {"providers": None}
    own = {
        "predictions",
        "opset",
        "parallel",
        "zero",
        "full_checkpoints",
        "wire_precision",
        "use_mixed_precision",
        "_opset_version",
    }
    assert {k: v for k, v in given.items() if k not in own} == {
        k: other.get(k, v) for k, v in table.items() if k in given
    }
    # Of the rest, the optimizer says some, some are what the model says, and PyTorch's number of
    # threads is the engine's too.
    assert {*table} - {*given} == {
        *("loss", "output", "label", "ignore_index", "trainable", "frozen", "bound_to_graph"),
        *("huber_delta", "label_smoothing", "class_weights", "ema_decay"),
        *("lora_rank", "lora_alpha", "lora_targets", "offload"),
        *("schedule", "warmup_steps", "total_steps", "min_lr_ratio", "grad_norm", "step_outputs"),
        *({k for p, _, k, _, _ in ROWS if p == "optimizer" and k in table} - {*given}),
        *("betas", "eps", "threads"),
    }


def test_no_front_door_takes_what_it_does_not_name() -> None:
    pytest.importorskip("torch")
    classes = (steep.TrainingSession, steep.InferenceSession, steep.ORTTrainer, steep.ORTModule)
    for door in (*classes, steep.trainer):
        kinds = {p.kind for p in inspect.signature(door).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert {"fallback", "precision", "providers"} <= {
        *inspect.signature(steep.ORTModule).parameters
    }


def test_the_program() -> None:
    help_text = " ".join(output_of(built("steep"), "train", "--help").split())
    for part, field, _, spelled, about in ROWS:
        if not spelled:
            continue
        flag = spelled.removeprefix("!")
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", help_text), flag
        assert " ".join(about.split()) in help_text
        default = default_of(part, field)
        if isinstance(default, float) and default and "default:" not in about:
            assert re.search(rf"{flag} FLOAT(:[^=]*)?={default:g}(?!\d)", help_text), flag


def test_the_header_in_c() -> None:
    header = (ROOT / "include" / "steep_c.h").read_text()
    (listed,) = re.findall(r"\*   training   TrainingOptions.*?\n(.*?)\*   inference", header, re.S)
    listed = re.sub(r"\([^)]*\)", "", listed)
    words = re.findall(r"\b[a-z][a-z0-9_]*\b", listed)
    kinds = {"strings", "numbers", "integers", "or", "lists"}
    assert {*words} - kinds == {row[2] for row in ROWS}


def test_the_page() -> None:
    script = ROOT / "scripts" / "options.py"
    spec = importlib.util.spec_from_file_location("options", script)
    assert spec is not None and spec.loader is not None
    options = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(options)
    assert options.FILE.read_text() == options.text(), "run `make options`"
