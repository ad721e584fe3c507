"""Trains one step of every architecture of transformers in PyTorch and in Steep, and compares.

usage: python scripts/architectures.py [--kinds causal masked seq2seq …] [--only NAME …]
       [--again OUTCOME …] [--out build/architectures.json] [--write-docs]

Each is made from a small random configuration, in a process of its own, and must agree in its loss
(1e-5) and in every gradient (1e-4 of its largest entry; of the model's largest, where the true one
is zero) at two batch sizes and lengths, with padding: as one graph in the engine, else with parts
in PyTorch. Where PyTorch's own float32 is as far from its float64, that is the measure. What
PyTorch itself does not train from such a configuration is left out. Takes hours; what is in the
file already is not run again. --write-docs runs nothing: it writes the file into docs/models.md.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import multiprocessing
import os
import re
import resource
import signal
import statistics
import textwrap
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm
from transformers.models.auto import modeling_auto

from steep import ORTModule
from steep.lowering import to_onnx

KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "audio": modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    "ctc": modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES,
    "speech": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
ROOT = Path(__file__).resolve().parents[1]
WORDS = 99
SECONDS = 240  # of a processor, of one architecture; of the clock, a few times that
MOST_PARAMETERS = 20_000_000
CALLS = ((2, 24), (3, 16))  # (batch, length)
# Of images; where statistics are of two rows, rounding alone is 1e-3 of a gradient.
ROWS = {2: 8, 3: 6}
SAMPLES = {24: 2400, 16: 1600}  # of sound, for each length

LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("encoder_layers", "decoder_layers", "num_decoder_layers", "speech_encoder_layers"),
)
# Whatever a configuration calls them.
SMALL = {
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "n_vocab"), WORDS),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "hidden_dim", "dim_model"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_size"), 8),
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "ffn_hidden_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 64),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk"), 2),
    # Latent attention, its index, and rotary dimensions: nope + rope make 16, values 8.
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_head_dim", "q_lora_rank", "kv_lora_rank", "index_head_dim"), 16),
    **dict.fromkeys(("index_topk",), 4),
    **dict.fromkeys(("index_n_heads",), 16),  # of 4, all are often zero, and words score the same
    **dict.fromkeys(("rotary_dim",), 4),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("num_kv_shared_layers",), 0),
    # State spaces: heads times their size make the hidden size times the expansion.
    **dict.fromkeys(("mamba_expand", "expand"), 2),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_num_heads", "mamba_head_dim"), 8),
    **dict.fromkeys(("vocab_size_per_layer_input",), WORDS),
    **dict.fromkeys(("hidden_size_per_layer_input",), 8),
    **dict.fromkeys(("image_size",), 32),
    **dict.fromkeys(("num_mel_bins", "input_feat_per_channel"), 16),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "max_length"), 64),
    **dict.fromkeys(("conv_channels", "output_hidden_size", "classifier_proj_size"), 32),
    **dict.fromkeys(("num_conv_pos_embeddings",), 16),
    **dict.fromkeys(("num_conv_pos_embedding_groups",), 4),
    **dict.fromkeys(("patch_size", "num_groups"), 4),
    **dict.fromkeys(("window_size",), 2),
    **dict.fromkeys(("pooler_hidden_size",), 32),
}
# Of each stage of an image model.
STAGES = {
    "hidden_sizes": 32,
    "depths": 1,
    "embed_dims": 32,
    "num_attention_heads": 4,
    "num_heads": 4,
    "conv_dim": 32,
    "tdnn_dim": 32,
}
# These are derived, or missing, where a configuration has None.
FILLED = ("vocab_size", "head_dim", "num_experts_per_tok", "n_routed_experts")
NO_DROPOUT = (
    *("dropout", "_pdrop", "drop_rate", "drop_path_rate", "layerdrop", "jitter"),
    *("mask_time_prob", "mask_feature_prob"),
)


def shrink(config: Any) -> Any:
    """Make a configuration small, its parts too; no dropout, whose masks differ."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            shrink(value)
        elif isinstance(value, float | list | tuple) and any(p in name for p in NO_DROPOUT):
            setattr(config, name, 0.0 if isinstance(value, float) else [0.0] * len(value))
        elif name in SMALL and (type(value) is int or (value is None and name in FILLED)):
            setattr(config, name, SMALL[name])
        elif name in STAGES and isinstance(value, list | tuple):
            setattr(config, name, type(value)(STAGES[name] for _ in value))
        elif name == "layer_types" and isinstance(value, list):
            setattr(config, name, [value[0], value[-1]])
        elif name.endswith("token_id") and isinstance(value, int) and value >= WORDS:
            setattr(config, name, 1)
    if isinstance(vars(config).get("kv_lora_rank"), int):  # one latent for all heads
        config.num_key_value_heads = config.num_attention_heads
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    if isinstance(vars(config).get("window_size"), int) and "image_size" in vars(config):
        config.image_size = 64  # four stages, the last of them as large as a window
    config.use_cache = False
    return config


def settle(model: torch.nn.Module) -> None:
    """Leave no dropout that no configuration names, and no weights that are all the same.

    Of equal scores, which expert is taken is not defined; a gradient of zero shows nothing.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and bool((p == p.flatten()[:1]).all()):
                p.add_(torch.randn_like(p), alpha=0.02)


def count_parameters(model: torch.nn.Module) -> None:
    """Raise ValueError where there are too many."""
    if (count := sum(p.numel() for p in model.parameters())) > MOST_PARAMETERS:
        raise ValueError(f"{count} parameters")


def batch(
    kind: str, config: Any, rows: int, length: int, main_input: str = "input_ids"
) -> dict[str, torch.Tensor]:
    """Return what a model of this kind, whose main argument is ``main_input``, is called with."""
    if kind == "image":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else size[0]
        channels = getattr(config, "num_channels", 3)
        labels = torch.randint(0, config.num_labels, (rows,))
        return {"pixel_values": torch.randn(rows, channels, size, size), "labels": labels}
    if kind in ("audio", "ctc", "speech"):
        return sound(kind, config, rows, length, main_input)
    words = torch.randint(3, WORDS, (rows, length))
    if isinstance(end := getattr(config, "eos_token_id", None), int):
        words[:, length - 6] = end  # the last one that is not padding
    mask = torch.ones_like(words)
    mask[0, length - 5 :] = 0  # padding, on the right
    inputs = {"input_ids": words, "attention_mask": mask}
    if kind == "sequence":
        return {**inputs, "labels": torch.randint(0, config.num_labels, (rows,))}
    if kind == "token":
        return {**inputs, "labels": torch.randint(0, config.num_labels, (rows, length))}
    return {**inputs, "labels": words.masked_fill(mask == 0, -100)}


def sound(
    kind: str, config: Any, rows: int, length: int, main_input: str
) -> dict[str, torch.Tensor]:
    """Return samples, or a spectrum, as the model's main argument, with labels."""
    parts = [config, *(v for v in vars(config).values() if hasattr(v, "model_type"))]
    names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    bands = next((b for p in parts for n in names if (b := getattr(p, n, None))), 80)
    if config.model_type == "whisper":
        samples = torch.randn(rows, bands, 2 * config.max_source_positions)
    elif config.model_type == "audio-spectrogram-transformer":
        samples = torch.randn(rows, config.max_length, bands)
    elif main_input == "input_features":
        samples = torch.randn(rows, 4 * length, bands)
    else:
        samples = torch.randn(rows, SAMPLES[length])
    inputs = {main_input: samples}
    if kind == "audio":
        return {**inputs, "labels": torch.randint(0, config.num_labels, (rows,))}
    if kind == "speech":
        return {**inputs, "labels": torch.randint(3, WORDS, (rows, length))}
    mask = torch.ones(samples.shape[:2], dtype=torch.int64)
    return {**inputs, "attention_mask": mask, "labels": torch.randint(3, WORDS, (rows, 4))}


def step(net: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, list[Any]]:
    """Loss and gradients."""
    net.zero_grad()
    torch.manual_seed(3)
    loss = net(**inputs).loss
    loss.backward()
    return loss.detach(), [p.grad for p in net.parameters()]


def first_line(e: BaseException) -> str:
    """Say what happened in one line."""
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text}"[:400]


def compare(kind: str, name: str) -> dict[str, Any]:
    """Return {"outcome": …, "why": …, "seconds": …}.

    The outcome is "agrees", as one graph; "parts", if it agrees and PyTorch runs some of it;
    "differs", "refused" or "left out".
    """
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    try:
        config = shrink(transformers.AutoConfig.for_model(name))
        config.pad_token_id = 0
        class_name = KINDS[kind][name]
        class_name = class_name if isinstance(class_name, str) else class_name[0]
        model_class = getattr(transformers, class_name)
        sketch = torch.nn.Module()
        with contextlib.suppress(Exception), torch.device("meta"):  # it takes no memory
            sketch = model_class(copy.deepcopy(config))
        count_parameters(sketch)
        model = model_class(config).train()
        settle(model)
        count_parameters(model)
        fresh = copy.deepcopy(model)
        expected = []
        for rows, length in CALLS:
            torch.manual_seed(5)
            many = ROWS[rows] if kind == "image" else rows
            inputs = batch(kind, config, many, length, model.main_input_name)
            expected.append((inputs, *step(model, inputs)))
        for _, loss, gradients in expected:
            if not all(bool(t.isfinite().all()) for t in (loss, *gradients) if t is not None):
                raise ValueError("its loss or a gradient is not finite")
            if all(g is None or not g.any() for g in gradients):
                raise ValueError("it has no gradient")
        with contextlib.suppress(RuntimeError):  # it keeps what has a history
            fresh = copy.deepcopy(model)
        torch.manual_seed(4)
        if abs(float(model(**inputs).loss / loss) - 1) > 1e-5:
            raise ValueError("its loss is random")
    except Exception as e:  # whatever such a configuration makes of the model
        return {"outcome": "left out", "why": first_line(e)}
    start = time.perf_counter()
    refusal = ""
    for fallback in (None, "parts"):
        try:
            net = ORTModule(copy.deepcopy(fresh), fallback=fallback)
            why = ""
            for inputs, *true in expected:
                torch.manual_seed(5)
                actual = step(net, inputs)
                off = difference(model, actual, true)
                if off and not agrees_as_well(fresh, fallback, inputs, actual, true):
                    why = why or off
        except Exception as e:
            refusal = refusal or first_line(e)
            continue
        seconds = round(time.perf_counter() - start, 1)
        outcome = "differs" if why else "parts" if refusal else "agrees"
        return {"outcome": outcome, "why": why or refusal, "seconds": seconds}
    return {"outcome": "refused", "why": refusal}


def difference(
    model: torch.nn.Module, actual: Any, expected: Any, within: float = 1e-4, slack: Any = None
) -> str:
    """Say what of (loss, gradients) is off; "" where nothing is.

    ``slack`` is what each gradient may be off beside.
    """
    error = abs(float(actual[0] - expected[0])) / max(abs(float(expected[0])), 1e-6)
    if not error <= within / 10:
        return f"loss by {error:.1e}"
    allowed = slack or [0.0] * len(expected[1])
    errors = relative_errors(actual[1], expected[1])
    for (name, _), error, more in zip(model.named_parameters(), errors, allowed, strict=True):
        if not error <= max(within, more):  # NaN is none
            return f"{name} by {error:.1e}"
    return ""


def relative_errors(actual: list[Any], expected: list[Any]) -> list[float]:
    """Of each gradient's largest entry, or of a thousandth of the model's, if that is more."""
    largest = max(float(g.abs().max()) for g in expected if g is not None)
    errors = []
    for own, true in zip(actual, expected, strict=True):
        if own is None and true is None:
            errors.append(0.0)
            continue
        a = torch.zeros_like(true) if own is None else own
        b = torch.zeros_like(own) if true is None else true
        scale = max(float(b.abs().max()), 1e-3 * largest)
        errors.append(float((a - b).abs().max()) / scale)
    return errors


def agrees_as_well(
    model: torch.nn.Module, fallback: str | None, inputs: Any, actual: Any, theirs: Any
) -> bool:
    """Are we as near to float64 as PyTorch's float32 is?

    In each gradient, but for a factor of 2; or in most, where our own float64 agrees in each: of
    gradients that rounding makes, one may well be twice as far as the other.
    """
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    try:
        torch.manual_seed(5)
        true = step(copy.deepcopy(model).double(), wide)
    except Exception:  # not every model can be float64
        return False
    own, errors = (relative_errors(g[1], true[1]) for g in (actual, theirs))
    if not difference(model, actual, true, slack=[2 * e for e in errors]):
        return True
    if statistics.median(own) > 2 * statistics.median(errors):
        return False
    torch.manual_seed(5)
    exact = step(ORTModule(copy.deepcopy(model).double(), fallback=fallback), wide)
    return not difference(model, exact, true, within=1e-7)


def child(pipe: Any, *job: Any) -> None:
    """Run one comparison; nothing else is said."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    pipe.send(compare(*job))


def apart(*job: Any) -> dict[str, Any]:
    """Run one comparison in a process of its own, for so long."""
    late = {"outcome": "refused", "why": f"not done in {SECONDS} s"}
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs, *job))
    process.start()
    theirs.close()
    try:
        if ours.poll(4 * SECONDS):
            return ours.recv()  # type: ignore[no-any-return]
        return late
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return late
        return {"outcome": "refused", "why": f"the process ended: {process.exitcode}"}
    finally:
        process.kill()
        process.join()


HEADING = "## Architectures of transformers"


def reason(why: str) -> str:
    """Say why in the cell of a table, without paths of this machine."""
    if received := re.search(r"received: (.*?)(?= remedy: |$)", why):
        why = received.group(1)
    why = re.sub(r"[^\s(]*/site-packages/", "", why).split("Call using an FX-traced")[0]
    why = why if len(why) <= 160 else why[:157] + "…"
    return why.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").strip()


def write_docs(outcomes: dict[str, Any], page: Path) -> None:
    """Put what was found into the page, from its heading on."""
    words = {"agrees": "whole", "parts": "in parts", "differs": "**differs**"}
    tables = []
    ends: Counter[str] = Counter()
    for kind, names in KINDS.items():
        rows = []
        for name in names:
            if (record := outcomes.get(f"{kind} {name}")) is None:
                continue
            outcome = words.get(record["outcome"], record["outcome"])
            ends[outcome] += 1
            why = f": {reason(record['why'])}" if record["why"] else ""
            rows.append(f"| {name} | {outcome}{why} |")
        if rows:
            count = f"{len(rows)} of {len(names)} were run"
            tables += [f"### {kind}", "", f"{count}.", "", "| | |", "| --- | --- |", *rows, ""]
    trained = sum(ends.values()) - ends["left out"]
    sizes = " and ".join(f"{rows}×{length}" for rows, length in CALLS)
    images = " and ".join(str(rows) for rows in ROWS.values())
    summary = f"""**PyTorch trained {trained} of the small configurations. Of these
{ends["whole"]} are whole ({ends["whole"] / max(trained, 1):.1%}), {ends["in parts"]} agree in
parts, {ends["**differs**"]} differ and {ends["refused"]} are refused.** {ends["left out"]} more
were left out, because PyTorch itself does not train them. {sum(ends.values())} were run, of the
{sum(map(len, KINDS.values()))} names that these auto classes of transformers
{transformers.__version__} know; the others were not tried."""
    text = f"""{HEADING}

{textwrap.fill(summary, 120, break_on_hyphens=False)}

`scripts/architectures.py` made the tables with PyTorch {torch.__version__}. It uses random
weights, two layers if the configuration allows it, no dropout, words padded on the right, and one
thread. It compares loss and gradients after one step in PyTorch, for {sizes} words, or {images}
images.

- *Whole*: the engine runs the model as one graph, without PyTorch (`fallback=None`). The loss is
  within 1e-5 of PyTorch's. Each gradient is within 1e-4 of its largest entry, or of a thousandth
  of the largest entry of all gradients if that is more. A gradient that is further off is
  compared with PyTorch in float64: its error is at most twice that of PyTorch in float32. Or the
  median error is at most twice that of PyTorch, and our float64 gradients are within 1e-7.
- *In parts*: the same, but PyTorch runs some parts (`fallback="parts"`), for the reason beside
  it.
- *Refused*: an error, or no end within {SECONDS} s, for the reason beside it.

"""
    above = page.read_text().split(HEADING)[0].rstrip()
    page.write_text(f"{above}\n\n{text}" + "\n".join(tables).rstrip() + "\n")


def main() -> None:
    """Compare what is asked for; write and print the outcome."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--only", nargs="+", help="names of architectures, as transformers has them"
    )
    parser.add_argument("--again", nargs="+", default=[], help="outcomes to be run again")
    parser.add_argument("--out", type=Path, default=Path("build/architectures.json"))
    parser.add_argument("--write-docs", action="store_true", help="of what was found so far")
    args = parser.parse_args()
    os.environ["STEEP_CACHE"] = "off"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    outcomes = json.loads(args.out.read_text()) if args.out.exists() else {}
    if args.write_docs:
        write_docs(outcomes, ROOT / "docs" / "models.md")
        return
    # Loaded once, for all processes.
    assert to_onnx._registry()
    # In turn, so that a run that is stopped has seen something of each kind.
    turns = itertools.zip_longest(*([(k, n) for n in KINDS[k]] for k in args.kinds))
    jobs = [j for turn in turns for j in turn if j and (not args.only or j[1] in args.only)]
    for kind, name in (bar := tqdm(jobs, unit="model")):
        key = f"{kind} {name}"
        if key in outcomes and not args.only and outcomes[key]["outcome"] not in args.again:
            continue
        bar.set_postfix_str(key)
        outcomes[key] = apart(kind, name)
        args.out.write_text(json.dumps(outcomes, indent=1) + "\n")
        if args.only:
            print(key, outcomes[key])
    for kind in args.kinds:
        ends = Counter(o["outcome"] for k, o in outcomes.items() if k.startswith(kind + " "))
        print(kind, dict(ends))


if __name__ == "__main__":
    main()
