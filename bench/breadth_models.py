"""The models of bench/breadth.py: a loss, and batches of random data for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from breadth_nets import (
    Adapted,
    Autoencoder,
    Convolutions,
    Field,
    Messages,
    Points,
    Recommender,
    Recurrent,
    UNet,
)
from torch import nn

Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Made:
    """A module whose forward returns the loss, and what makes its arguments."""

    module: nn.Module
    batch: Callable[[torch.Generator], Batch]


class LossOf(nn.Module):
    """A model with its loss: `loss(model(inputs), target)`."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        *inputs, target = arguments
        return self.loss(self.model(*inputs), target)


class OwnLoss(nn.Module):
    """A model of `transformers` that computes its loss from `labels`."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, arguments, strict=True))).loss


def scores_of(model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return the loss of a classifier's `logits`."""
    return lambda result, labels: F.cross_entropy(result.logits, labels)


def cross_entropy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


def language(model: nn.Module, words: int, rows: int = 4, length: int = 128) -> Made:
    def batch(rng: torch.Generator) -> Batch:
        ids = torch.randint(0, words, (rows, length), generator=rng)
        return ids, ids

    return Made(OwnLoss(model, "input_ids", "labels"), batch)


def images(model: nn.Module, rows: int, size: int, loss: Any = F.cross_entropy) -> Made:
    def batch(rng: torch.Generator) -> Batch:
        x = torch.randn(rows, 3, size, size, generator=rng)
        return x, torch.randint(0, 10, (rows,), generator=rng)

    return Made(LossOf(model, loss), batch)


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    return language(LlamaForCausalLM(config), 8000)


def llama_lora() -> Made:
    work = llama()
    work.module.requires_grad_(False)
    for block in work.module.model.model.layers:
        block.self_attn.q_proj = Adapted(block.self_attn.q_proj)
        block.self_attn.v_proj = Adapted(block.self_attn.v_proj)
    return work


def mixtral() -> Made:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=4000,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_local_experts=8,
    )
    return language(MixtralForCausalLM(config), 4000)


def gpt2_long() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=4000, n_layer=3, n_embd=256, n_head=4, n_positions=1024)
    return language(GPT2LMHeadModel(config), 4000, rows=1, length=1024)


def deberta() -> Made:
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    config = DebertaV2Config(
        vocab_size=6000,
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=768,
        relative_attention=True,
        position_buckets=64,
        pos_att_type=["c2p", "p2c"],
    )
    return language(DebertaV2ForMaskedLM(config), 6000, rows=4, length=96)


def albert() -> Made:
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        vocab_size=6000,
        embedding_size=64,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    return language(AlbertForMaskedLM(config), 6000)


def mamba() -> Made:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=4000, hidden_size=128, state_size=8, num_hidden_layers=2)
    return language(MambaForCausalLM(config), 4000, rows=2, length=64)


def t5() -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=6000,
        d_model=192,
        d_kv=32,
        d_ff=512,
        num_layers=3,
        num_heads=6,
        decoder_start_token_id=0,
    )

    def batch(rng: torch.Generator) -> Batch:
        source = torch.randint(2, 6000, (4, 96), generator=rng)
        return source, torch.randint(2, 6000, (4, 48), generator=rng)

    return Made(OwnLoss(T5ForConditionalGeneration(config), "input_ids", "labels"), batch)


def whisper() -> Made:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=2000,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_source_positions=200,
        num_mel_bins=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
    )

    def batch(rng: torch.Generator) -> Batch:
        sound = torch.randn(4, 40, 400, generator=rng)
        return sound, torch.randint(2, 2000, (4, 32), generator=rng)

    model = WhisperForConditionalGeneration(config)
    return Made(OwnLoss(model, "input_features", "labels"), batch)


def resnet50() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=10))
    return images(model, 8, 96, scores_of(model))


def convnext() -> Made:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2], num_labels=10)
    model = ConvNextForImageClassification(config)
    return images(model, 8, 96, scores_of(model))


def swin() -> Made:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=112, embed_dim=48, depths=[2, 2, 2], num_heads=[3, 6, 12], num_labels=10
    )
    model = SwinForImageClassification(config)
    return images(model, 8, 112, scores_of(model))


def mobilenet() -> Made:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    model = MobileNetV2ForImageClassification(
        MobileNetV2Config(image_size=96, depth_multiplier=0.5, num_labels=10)
    )
    return images(model, 8, 96, scores_of(model))


def unet() -> Made:
    def batch(rng: torch.Generator) -> Batch:
        x = torch.randn(4, 3, 64, 64, generator=rng)
        return x, x * 0.5

    return Made(LossOf(UNet(), F.mse_loss), batch)


def recurrent(layer: nn.Module, width: int, length: int = 48) -> Made:
    def batch(rng: torch.Generator) -> Batch:
        ids = torch.randint(0, 4000, (16, length), generator=rng)
        return ids, ids

    return Made(LossOf(Recurrent(layer, width, 4000), cross_entropy), batch)


def lstm() -> Made:
    return recurrent(nn.LSTM(192, 192, 2, batch_first=True), 192)


def gru() -> Made:
    return recurrent(nn.GRU(128, 128, 1, batch_first=True, bidirectional=True), 128)


def tcn() -> Made:
    def batch(rng: torch.Generator) -> Batch:
        x = torch.randn(8, 1, 512, generator=rng)
        return x, x.cumsum(2) / 10

    return Made(LossOf(Convolutions(), F.mse_loss), batch)


def graph_network() -> Made:
    def batch(rng: torch.Generator) -> Batch:
        return (
            torch.randn(1000, 16, generator=rng),
            torch.randint(0, 1000, (2, 6000), generator=rng),
            torch.randint(0, 10, (1000,), generator=rng),
        )

    return Made(LossOf(Messages(), F.cross_entropy), batch)


def recommender() -> Made:
    def batch(rng: torch.Generator) -> Batch:
        return (
            torch.randn(512, 13, generator=rng),
            torch.randint(0, 5000, (512, 8, 4), generator=rng),
            torch.rand(512, generator=rng).round(),
        )

    return Made(LossOf(Recommender(), F.binary_cross_entropy_with_logits), batch)


def vae() -> Made:
    return Made(Autoencoder(), lambda rng: (torch.randn(32, 3, 32, 32, generator=rng),))


def field() -> Made:
    def batch(rng: torch.Generator) -> Batch:
        return torch.rand(4096, 3, generator=rng), torch.rand(4096, 4, generator=rng)

    return Made(LossOf(Field(), F.mse_loss), batch)


def point_net() -> Made:
    def batch(rng: torch.Generator) -> Batch:
        x = torch.randn(16, 3, 512, generator=rng)
        return x, torch.randint(0, 10, (16,), generator=rng)

    return Made(LossOf(Points(), F.cross_entropy), batch)


MODELS: dict[str, Callable[[], Made]] = {
    "llama": llama,
    "llama_lora": llama_lora,
    "mixtral": mixtral,
    "gpt2_long": gpt2_long,
    "deberta": deberta,
    "albert": albert,
    "mamba": mamba,
    "t5": t5,
    "whisper": whisper,
    "resnet50": resnet50,
    "convnext": convnext,
    "swin": swin,
    "mobilenet": mobilenet,
    "unet": unet,
    "lstm": lstm,
    "gru": gru,
    "tcn": tcn,
    "graph_network": graph_network,
    "recommender": recommender,
    "vae": vae,
    "field": field,
    "point_net": point_net,
}
"""By name, in the order of the table."""
