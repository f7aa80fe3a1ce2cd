"""Tiny seeded Qwen3-TTS models as official folders, made with the official classes.

Only imported by make_golden.py, in an environment with torch, transformers and qwen-tts.
Everything random is drawn by numpy from a seed and the parameter's name, so the weights do not
depend on torch's generators or on the order in which modules are built.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import (
    Qwen3TTSTokenizerV2Config,
)
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model
from safetensors.torch import save_file

__all__ = ["TinyModel", "build_folder"]

# The official code suppresses the last 1024 codec ids, whatever the model; so a codec vocabulary
# is one codebook followed by 1024 control ids.
CODEBOOK = 64
CONTROL_IDS = 1024
CODEC_VOCAB = CODEBOOK + CONTROL_IDS
CODE_GROUPS = 16
TEXT_VOCAB = 384
TEXT_HIDDEN = 64

# Words whose merges give single tokens; "assistant" and "user" must be single by the prompt
# template's slicing (role = 3 ids).
MERGED_WORDS = (
    "assistant",
    "user",
    "the",
    "Ġthe",
    "Ġand",
    "Ġof",
    "ing",
    "Bon",
    "jour",
    "Ġvo",
    "ix",
)
SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)

# Codec control ids, none of them the released values.
CODEC_IDS = {
    "codec_pad_id": 101,
    "codec_bos_id": 103,
    "codec_eos_token_id": 107,
    "codec_think_id": 111,
    "codec_nothink_id": 112,
    "codec_think_bos_id": 114,
    "codec_think_eos_id": 117,
}
LANGUAGES = {"chinese": 205, "english": 201, "french": 209, "german": 213, "beijing_dialect": 222}
SPEAKERS = {"vivian": 1015, "ryan": 1009, "dylan": 1030}
DIALECTS = {"vivian": False, "ryan": False, "dylan": "beijing_dialect"}


@dataclass(frozen=True)
class TinyModel:
    """Shapes and kind of one golden model."""

    name: str
    kind: str  # custom_voice | voice_design | base
    size: str  # the config's tts_model_size
    seed: int
    hidden: int
    cp_hidden: int
    layers: int = 2
    cp_layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    cp_heads: int = 4
    cp_kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 96
    cp_ffn: int = 96
    latent: int = 32
    dec_hidden: int = 32
    dec_head_dim: int = 4
    dec_ffn: int = 32
    dec_dim: int = 32
    codebook_dim: int = 32


def _bytes_to_chars() -> list[str]:
    """Printable stand-ins for the 256 byte values, as byte-level BPE vocabularies use them."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {b: chr(b) for b in keep}
    spare = 256
    for b in range(256):
        if b not in chars:
            chars[b] = chr(spare)
            spare += 1
    return [chars[b] for b in range(256)]


def _vocabulary() -> tuple[dict[str, int], list[str], dict[str, int]]:
    """Plain tokens, merges in rank order, and the special tokens' ids."""
    tokens = list(_bytes_to_chars())
    merges: list[str] = []
    for word in MERGED_WORDS:
        left = word[0]
        for ch in word[1:]:
            if left + ch not in tokens:
                merges.append(f"{left} {ch}")
                tokens.append(left + ch)
            left += ch
    vocab = {t: i for i, t in enumerate(tokens)}
    return vocab, merges, {t: len(tokens) + i for i, t in enumerate(SPECIALS)}


def _write_tokenizer(folder: Path) -> dict[str, int]:
    vocab, merges, specials = _vocabulary()
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8"
    )
    added = {
        str(i): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for t, i in specials.items()
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIALS[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "processor_class": "Qwen3TTSProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return specials


def _talker_config(m: TinyModel) -> dict[str, Any]:
    third = m.head_dim // 2 // 3
    sections = [m.head_dim // 2 - 2 * third, third, third]
    custom = m.kind == "custom_voice"
    common = {
        "attention_bias": False,
        "attention_dropout": 0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        "num_code_groups": CODE_GROUPS,
        "head_dim": m.head_dim,
    }
    cp = {
        **common,
        "model_type": "qwen3_tts_talker_code_predictor",
        "hidden_size": m.cp_hidden,
        "intermediate_size": m.cp_ffn,
        "num_hidden_layers": m.cp_layers,
        "num_attention_heads": m.cp_heads,
        "num_key_value_heads": m.cp_kv_heads,
        "max_position_embeddings": 65536,
        "rope_scaling": None,
        "vocab_size": CODEBOOK,
    }
    return {
        **common,
        **CODEC_IDS,
        "model_type": "qwen3_tts_talker",
        "code_predictor_config": cp,
        "codec_language_id": LANGUAGES,
        "hidden_size": m.hidden,
        "intermediate_size": m.ffn,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "max_position_embeddings": 32768,
        "position_id_per_seconds": 13,
        "rope_scaling": {"interleaved": True, "mrope_section": sections, "rope_type": "default"},
        "spk_id": SPEAKERS if custom else {},
        "spk_is_dialect": DIALECTS if custom else {},
        "text_hidden_size": TEXT_HIDDEN,
        "text_vocab_size": TEXT_VOCAB,
        "vocab_size": CODEC_VOCAB,
    }


def _model_config(m: TinyModel, specials: dict[str, int], assistant: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "assistant_token_id": assistant,
        "im_start_token_id": specials["<|im_start|>"],
        "im_end_token_id": specials["<|im_end|>"],
        "tts_pad_token_id": specials["<tts_pad>"],
        "tts_bos_token_id": specials["<tts_text_bos>"],
        "tts_eos_token_id": specials["<tts_text_eod>"],
        "talker_config": _talker_config(m),
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": m.size,
        "tts_model_type": m.kind,
        # Up to this version transformers leaves the Qwen pre-tokenizer of a local folder alone.
        "transformers_version": "4.57.1",
    }
    if m.kind == "base":
        config["speaker_encoder_config"] = {
            "enc_dim": m.hidden,
            "mel_dim": 128,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
            "sample_rate": 24000,
        }
    return config


def _codec_config(m: TinyModel) -> dict[str, Any]:
    decoder = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "latent_dim": m.latent,
        "codebook_dim": m.codebook_dim,
        "codebook_size": CODEBOOK,
        "decoder_dim": m.dec_dim,
        "hidden_act": "silu",
        "hidden_size": m.dec_hidden,
        "intermediate_size": m.dec_ffn,
        "layer_scale_initial_scale": 0.01,
        "max_position_embeddings": 8000,
        "head_dim": m.dec_head_dim,
        "num_attention_heads": 16,
        "num_hidden_layers": 8,
        "num_key_value_heads": 16,
        "num_quantizers": CODE_GROUPS,
        "num_semantic_quantizers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "semantic_codebook_size": 4096,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "vector_quantization_hidden_dimension": 512,
    }
    encoder = {
        "audio_channels": 1,
        "codebook_dim": 8,
        "codebook_size": CODEBOOK,
        "frame_rate": 12.5,
        "head_dim": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_filters": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "num_quantizers": 16,
        "num_semantic_quantizers": 1,
        "sampling_rate": 24000,
        "upsample_groups": 16,
        "upsampling_ratios": [8, 6, 5, 4],
        "use_cache": False,
        "vector_quantization_hidden_dimension": 8,
    }
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_config": encoder,
        "decoder_config": decoder,
        "encoder_valid_num_quantizers": 16,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "transformers_version": "4.57.1",
    }


def _draw(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return rng.standard_normal(shape).astype(np.float32)


def _fan_in(name: str, shape: tuple[int, ...]) -> float:
    if len(shape) == 3 and (("upsample" in name and ".0.conv" in name) or ".block.1.conv" in name):
        # Transposed convolution [in, out, kernel]: each output sums in * kernel / stride terms,
        # with kernel == stride in the upsampler and 2 * stride in the decoder blocks.
        return shape[0] * (1 if "upsample" in name else 2)
    return float(np.prod(shape[1:]))


def _value(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights of sensible size: every stage carries signal, nothing saturates."""
    x = _draw(seed, name, shape)
    if name.endswith("cluster_usage"):
        usage = 0.5 + 3.5 * np.abs(np.tanh(x))
        usage[:1] = 0.0  # an entry no training sample ever chose: the clamp decides
        return usage.astype(np.float32)
    if name.endswith("embedding_sum"):
        usage = _value(seed, name.replace("embedding_sum", "cluster_usage"), shape[:1])
        return (x * np.maximum(usage, 1e-5)[:, None] * 0.5).astype(np.float32)
    if name.endswith(("alpha", "beta")):
        return 0.3 * x
    if name.endswith("layer_scale.scale"):
        return 0.5 + 0.1 * x
    if name.endswith("gamma"):
        return 0.7 + 0.1 * x
    if name.endswith("bias"):
        return 0.1 * x
    if len(shape) == 1:  # norms
        return 1.0 + 0.1 * x
    if "embedding" in name:
        return x
    gain = 1.0
    if "codec_head" in name or "lm_head" in name:
        gain = 3.0
    elif name.endswith(("q_proj.weight", "k_proj.weight")):
        gain = 1.5
    elif ".conv2.conv.weight" in name:  # residual branches of the decoder
        gain = 0.4
    return (gain / np.sqrt(_fan_in(name, shape))) * x


def _fill(module: torch.nn.Module, seed: int) -> None:
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.from_numpy(_value(seed, name, tuple(p.shape)).astype(np.float32)))


def _calibrate_output(decoder: torch.nn.Module, seed: int) -> None:
    """Scales the last convolution so that the audio is loud, with a few clipped samples."""
    rng = np.random.default_rng([seed, 77])
    codes = torch.from_numpy(rng.integers(0, CODEBOOK, size=(1, CODE_GROUPS, 24)))
    last = decoder.decoder[-1].conv
    seen: list[torch.Tensor] = []
    hook = last.register_forward_hook(lambda _m, _i, out: seen.append(out))
    with torch.no_grad():
        decoder(codes)
        mean, std = seen[0].mean(), seen[0].std()
        last.weight.mul_(0.4 / std)
        last.bias.copy_((last.bias - mean) * (0.4 / std))
    hook.remove()


def _state(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {k: v.detach().to(dtype).contiguous().clone() for k, v in module.state_dict().items()}


def build_folder(m: TinyModel, folder: Path, eos_row: np.ndarray | None = None) -> None:
    """Writes the official folder of `m`: main weights bf16, codec weights f32.

    eos_row: the codec head's row for end-of-speech, [hidden]; zero when None, so that a run
    never ends by itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    specials = _write_tokenizer(folder)
    assistant = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))["assistant"]
    config = _model_config(m, specials, assistant)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    generation = {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.9,
        "top_p": 1.0,
        "top_k": 50,
        "subtalker_dosample": True,
        "subtalker_temperature": 0.9,
        "subtalker_top_p": 1.0,
        "subtalker_top_k": 50,
        "max_new_tokens": 8192,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))

    model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config))
    _fill(model, m.seed)
    with torch.no_grad():
        row = torch.zeros(m.hidden) if eos_row is None else torch.from_numpy(eos_row)
        model.talker.codec_head.weight[CODEC_IDS["codec_eos_token_id"]] = row
    save_file(
        _state(model, torch.bfloat16), folder / "model.safetensors", metadata={"format": "pt"}
    )

    codec_folder = folder / "speech_tokenizer"
    codec_folder.mkdir(exist_ok=True)
    codec_config = _codec_config(m)
    (codec_folder / "config.json").write_text(json.dumps(codec_config, indent=1))
    (codec_folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "feature_extractor_type": "EncodecFeatureExtractor",
                "feature_size": 1,
                "padding_side": "right",
                "padding_value": 0.0,
                "return_attention_mask": True,
                "sampling_rate": 24000,
            },
            indent=1,
        )
    )
    codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**codec_config))
    codec.eval()
    _fill(codec, m.seed)
    _calibrate_output(codec.decoder, m.seed)
    save_file(
        _state(codec, torch.float32), codec_folder / "model.safetensors", metadata={"format": "pt"}
    )
