"""The pair of GGUF files: which tensors they hold, and in which type.

The layout is the one llama.cpp reads: a talker file (`general.architecture` = qwen3tts) and a
codec file (clip) with the code predictor, the codec decoder and a speaker encoder.  Keys of ours
start with `kazeia.`.  `convert` fills it from a checkpoint, `synth` from random numbers.

Shapes are in numpy order, outermost first; a row is the last axis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import gguf
import numpy as np

from kazeia_engine.errors import InvalidInput
from kazeia_engine.modelfiles import TYPE_SIZES

__all__ = [
    "FORMAT_VERSION",
    "TYPE_NAMES",
    "CodecShape",
    "ModelShape",
    "PartTypes",
    "Role",
    "SpeakerShape",
    "TensorSpec",
    "TransformerShape",
    "codec_tensors",
    "file_names",
    "file_type",
    "nbytes",
    "plain_name",
    "spec_of",
    "talker_tensors",
    "tensor_type",
]

FORMAT_VERSION = 1
Part = Literal["talker", "cp", "decoder", "speaker"]
# small: kept f32.  table: looked up by row.  down: a product whose input exceeds the f16 range.
Role = Literal["small", "matrix", "table", "head", "down", "conv", "tconv"]
Op = Literal["copy", "stack", "text_table", "codebook", "snake_alpha", "snake_beta", "zero"]

_FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q4_1": gguf.LlamaFileType.MOSTLY_Q4_1,
    "q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "q5_1": gguf.LlamaFileType.MOSTLY_Q5_1,
    "q4_k": gguf.LlamaFileType.MOSTLY_Q4_K_M,
    "q5_k": gguf.LlamaFileType.MOSTLY_Q5_K_M,
    "q6_k": gguf.LlamaFileType.MOSTLY_Q6_K,
}
TYPE_NAMES = tuple(_FILE_TYPES)
_TYPES = {name: gguf.GGMLQuantizationType[name.upper()] for name in TYPE_NAMES}
DECODER_TYPES = ("f32", "f16", "bf16", "q8_0")
_FLOAT_TYPES = ("f32", "f16", "bf16")
_EIGHT_BITS_UP = (*_FLOAT_TYPES, "q8_0")
_CP_ROLES: tuple[tuple[str, Role], ...] = (
    ("embd.weight", "table"),
    ("code.head.weight", "head"),
    ("ffn_down.weight", "down"),
)
_TRANSPOSED = re.compile(r"a\.gen\.wav\.(up|dac)\.blk\.\d+\.conv\.weight")


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """Widths of a decoder-only transformer."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class CodecShape:
    """Widths of the codec decoder; `transformer` is its pre_transformer."""

    transformer: TransformerShape
    codebook_size: int
    codebook_dim: int
    latent: int
    dim: int
    ratios: tuple[int, ...] = (2, 2)
    rates: tuple[int, ...] = (8, 5, 4, 3)


@dataclass(frozen=True, slots=True)
class SpeakerShape:
    """Widths of the ECAPA-TDNN speaker encoder; channels and kernels of its five stages."""

    out: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...] = (5, 3, 3, 3, 1)
    attention: int = 128
    squeeze: int = 128
    mels: int = 128
    scale: int = 8
    placeholder: bool = False

    @classmethod
    def none(cls, hidden: int) -> SpeakerShape:
        """The smallest one that llama.cpp accepts, for models that have none.

        Its loader refuses a codec file without an audio encoder; the weights are zero and the key
        kazeia.speaker_encoder says false.
        """
        return cls(hidden, (8, 8, 8, 8, 24), attention=8, squeeze=8, placeholder=True)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything that decides the tensors of a pair."""

    talker: TransformerShape
    cp: TransformerShape
    codec: CodecShape
    speaker: SpeakerShape
    text_vocab: int
    text_hidden: int
    codec_vocab: int
    cp_vocab: int
    groups: int  # codes a frame

    @property
    def projected(self) -> bool:
        """Whether the code predictor has a projection in front (its width differs)."""
        return self.talker.hidden != self.cp.hidden


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file, and where a checkpoint has it."""

    name: str
    shape: tuple[int, ...]
    part: Part
    role: Role
    sources: tuple[str, ...] = ()
    op: Op = "copy"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(np.prod(self.shape[:-1], dtype=np.int64)) if len(self.shape) > 1 else 1


@dataclass(frozen=True, slots=True)
class PartTypes:
    """Weight type by part."""

    talker: str
    cp: str
    decoder: str

    @classmethod
    def resolve(
        cls,
        type: str,
        talker: str | None = None,
        cp: str | None = None,
        decoder: str | None = None,
    ) -> PartTypes:
        """`type` for every part without a choice of its own, within what the part bears.

        That is 8 bits or more for the code predictor, and f32 or f16 for the decoder.
        Raises InvalidInput for a type that does not exist or does not fit the part.
        """
        type = _known(type, TYPE_NAMES, "type")
        return cls(
            talker=_known(talker or type, TYPE_NAMES, "talker_type"),
            cp=_known(cp or (type if type in _EIGHT_BITS_UP else "q8_0"), TYPE_NAMES, "cp_type"),
            decoder=_known(
                decoder or ("f32" if type == "f32" else "f16"), DECODER_TYPES, "decoder_type"
            ),
        )

    @property
    def lossy(self) -> bool:
        """Whether the code predictor has fewer bits than it bears.

        Published measurements with teacher forcing: it keeps 79 % of its codes at 8 bits and 46 to
        53 % at 4, where the talker keeps 97 and 84 to 90 %.
        """
        return self.cp not in _EIGHT_BITS_UP


def _known(value: str, allowed: Sequence[str], param: str) -> str:
    name = value.lower()
    if name not in allowed:
        raise InvalidInput(f"{param} {value!r}: expected one of {', '.join(allowed)}", param=param)
    return name


def tensor_type(spec: TensorSpec, types: PartTypes) -> str:
    """The type a tensor is stored in.

    Norms, biases and codebooks stay f32; tables and heads never go below 8 bits; convolution
    kernels are what llama.cpp's kernels take (f16, transposed ones f32).  Where the row length is
    not a multiple of a type's block the next larger type is taken.
    """
    if spec.role == "small" or len(spec.shape) < 2:
        return "f32"
    if spec.part == "speaker":
        return "f32" if types.talker == "f32" or spec.op == "zero" else "f16"
    wanted = {"talker": types.talker, "cp": types.cp, "decoder": types.decoder}[spec.part]
    if spec.role in ("conv", "tconv"):
        return "f32" if wanted == "f32" or spec.role == "tconv" else "f16"
    if spec.role == "down" and wanted == "f16":
        return "f32"
    if spec.role in ("table", "head") and wanted not in _EIGHT_BITS_UP:
        wanted = "q8_0"
    for name in (wanted, "q8_0", "f16"):
        if spec.shape[-1] % TYPE_SIZES[_TYPES[name]][0] == 0:
            # f16 in place of a quantised type: its products must not overflow either.
            return "f32" if name == "f16" != wanted and spec.role == "down" else name
    raise AssertionError("f16 has blocks of one")


def nbytes(spec: TensorSpec, type: str) -> int:
    """Bytes of a tensor in a type."""
    block, size = TYPE_SIZES[_TYPES[type]]
    return int(spec.rows * spec.shape[-1] // block * size)


def _block(
    part: Part, target: str, source: str, s: TransformerShape, names: dict[str, str]
) -> list[TensorSpec]:
    """Attention and SwiGLU matrices of one layer; names: our suffix -> checkpoint suffix."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (q, s.hidden),
        "attn_k": (kv, s.hidden),
        "attn_v": (kv, s.hidden),
        "attn_output": (s.hidden, q),
        "attn_out": (s.hidden, q),
        "attn_q_norm": (s.head_dim,),
        "attn_k_norm": (s.head_dim,),
        "ffn_gate": (s.ffn, s.hidden),
        "ffn_up": (s.ffn, s.hidden),
        "ffn_down": (s.hidden, s.ffn),
    }
    specs = []
    for ours, theirs in names.items():
        shape = shapes.get(ours, (s.hidden,))
        role: Role = "small" if len(shape) == 1 else "matrix"
        if ours == "ffn_down" and part == "cp":
            role = "down"
        specs.append(
            TensorSpec(f"{target}.{ours}.weight", shape, part, role, (f"{source}.{theirs}",))
        )
    return specs


_QWEN_NAMES = {
    "attn_q": "self_attn.q_proj.weight",
    "attn_k": "self_attn.k_proj.weight",
    "attn_v": "self_attn.v_proj.weight",
    "attn_q_norm": "self_attn.q_norm.weight",
    "attn_k_norm": "self_attn.k_norm.weight",
    "ffn_gate": "mlp.gate_proj.weight",
    "ffn_up": "mlp.up_proj.weight",
    "ffn_down": "mlp.down_proj.weight",
}
_TALKER_NAMES = {
    "attn_norm": "input_layernorm.weight",
    **_QWEN_NAMES,
    "attn_output": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
}
_CP_NAMES = {
    "ln1": "input_layernorm.weight",
    **_QWEN_NAMES,
    "attn_out": "self_attn.o_proj.weight",
    "ln2": "post_attention_layernorm.weight",
}
_CODEC_NAMES = {
    "ln1": "input_layernorm.weight",
    "attn_q": "self_attn.q_proj.weight",
    "attn_k": "self_attn.k_proj.weight",
    "attn_v": "self_attn.v_proj.weight",
    "attn_out": "self_attn.o_proj.weight",
    "ls1": "self_attn_layer_scale.scale",
    "ln2": "post_attention_layernorm.weight",
    "ffn_gate": "mlp.gate_proj.weight",
    "ffn_up": "mlp.up_proj.weight",
    "ffn_down": "mlp.down_proj.weight",
    "ls2": "mlp_layer_scale.scale",
}


def talker_tensors(s: ModelShape) -> list[TensorSpec]:
    """Tensors of the talker file."""
    h = s.talker.hidden
    text = "talker.model.text_embedding.weight"
    mlp = tuple(
        f"talker.text_projection.linear_fc{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")
    )
    codec = "talker.model.codec_embedding.weight"
    specs = [
        TensorSpec(
            "token_embd.weight",
            (s.text_vocab + s.codec_vocab, h),
            "talker",
            "table",
            (text, *mlp, codec),
            "text_table",
        ),
        TensorSpec("output_norm.weight", (h,), "talker", "small", ("talker.model.norm.weight",)),
        TensorSpec(
            "output.weight", (s.codec_vocab, h), "talker", "head", ("talker.codec_head.weight",)
        ),
    ]
    for i in range(s.talker.layers):
        source = f"talker.model.layers.{i}"
        specs += _block("talker", f"blk.{i}", source, s.talker, _TALKER_NAMES)
    return specs


def codec_tensors(s: ModelShape) -> list[TensorSpec]:
    """Tensors of the codec file: code predictor, codec decoder, speaker encoder."""
    return [*_cp_tensors(s), *_decoder_tensors(s.codec, s.groups), *_speaker_tensors(s.speaker)]


def _cp_tensors(s: ModelShape) -> list[TensorSpec]:
    h, wide, n = s.cp.hidden, s.talker.hidden, s.groups - 1
    pre = "talker.code_predictor"
    specs = []
    if s.projected:
        proj = f"{pre}.small_to_mtp_projection"
        specs += [
            TensorSpec("a.gen.code.proj_in.weight", (h, wide), "cp", "matrix", (f"{proj}.weight",)),
            TensorSpec("a.gen.code.proj_in.bias", (h,), "cp", "small", (f"{proj}.bias",)),
        ]
    tables = tuple(f"{pre}.model.codec_embedding.{i}.weight" for i in range(n))
    heads = tuple(f"{pre}.lm_head.{i}.weight" for i in range(n))
    first = ("talker.model.codec_embedding.weight",)
    norm = (f"{pre}.model.norm.weight",)
    specs += [
        TensorSpec("a.gen.code.embd.weight", (n, s.cp_vocab, wide), "cp", "table", tables, "stack"),
        TensorSpec("a.gen.code.head.weight", (n, s.cp_vocab, h), "cp", "head", heads, "stack"),
        TensorSpec("a.gen.code.out_embd.weight", (s.codec_vocab, wide), "cp", "table", first),
        TensorSpec("a.gen.code.output_norm.weight", (h,), "cp", "small", norm),
    ]
    for i in range(s.cp.layers):
        specs += _block("cp", f"a.gen.code.blk.{i}", f"{pre}.model.layers.{i}", s.cp, _CP_NAMES)
    return specs


@dataclass(slots=True)
class _DecoderBuilder:
    """Collects decoder specs under the two naming schemes."""

    specs: list[TensorSpec] = field(default_factory=list)

    def add(self, name: str, shape: tuple[int, ...], role: Role, source: str) -> None:
        self.specs.append(
            TensorSpec(f"a.gen.wav.{name}", shape, "decoder", role, (f"decoder.{source}",))
        )

    def layer(self, name: str, shape: tuple[int, ...], role: Role, source: str, out: int) -> None:
        """A weight and its bias."""
        self.add(f"{name}.weight", shape, role, f"{source}.weight")
        self.add(f"{name}.bias", (out,), "small", f"{source}.bias")

    def snake(self, name: str, channels: int, source: str) -> None:
        ops: tuple[tuple[str, Op], ...] = (("alpha", "snake_alpha"), ("beta", "snake_beta"))
        for key, op in ops:
            self.specs.append(
                TensorSpec(
                    f"a.gen.wav.{name}.{key}",
                    (channels,),
                    "decoder",
                    "small",
                    (f"decoder.{source}.{key}",),
                    op,
                )
            )

    def quantizer(self, name: str, source: str, books: int, s: CodecShape) -> None:
        half = s.codebook_dim // 2
        self.add(
            f"{name}.in_proj.weight", (half, s.codebook_dim), "small", f"{source}.input_proj.weight"
        )
        self.add(
            f"{name}.out_proj.weight",
            (s.codebook_dim, half),
            "small",
            f"{source}.output_proj.weight",
        )
        sources = tuple(
            f"decoder.{source}.vq.layers.{i}._codebook.{key}"
            for i in range(books)
            for key in ("embedding_sum", "cluster_usage")
        )
        shape: tuple[int, ...] = (s.codebook_size, half)
        if books > 1:
            shape = (books, *shape)
        self.specs.append(
            TensorSpec(
                f"a.gen.wav.{name}.codebook.weight", shape, "decoder", "small", sources, "codebook"
            )
        )


def _decoder_tensors(s: CodecShape, groups: int) -> list[TensorSpec]:
    b = _DecoderBuilder()
    t, lat = s.transformer, s.latent
    b.quantizer("quant.first", "quantizer.rvq_first", 1, s)
    b.quantizer("quant.rest", "quantizer.rvq_rest", groups - 1, s)
    b.layer("pre_conv", (lat, s.codebook_dim, 3), "conv", "pre_conv.conv", lat)
    b.layer("tfm.in_proj", (t.hidden, lat), "matrix", "pre_transformer.input_proj", t.hidden)
    b.layer("tfm.out_proj", (lat, t.hidden), "matrix", "pre_transformer.output_proj", lat)
    b.add("tfm.output_norm.weight", (t.hidden,), "small", "pre_transformer.norm.weight")
    for i in range(t.layers):
        source = f"decoder.pre_transformer.layers.{i}"
        b.specs += _block("decoder", f"a.gen.wav.tfm.blk.{i}", source, t, _CODEC_NAMES)
    for i, ratio in enumerate(s.ratios):
        name, source = f"up.blk.{i}", f"upsample.{i}"
        b.layer(f"{name}.conv", (lat, lat, ratio), "tconv", f"{source}.0.conv", lat)
        b.layer(f"{name}.dwconv", (lat, 1, 7), "conv", f"{source}.1.dwconv.conv", lat)
        b.layer(f"{name}.norm", (lat,), "small", f"{source}.1.norm", lat)
        b.layer(f"{name}.pw1", (4 * lat, lat), "matrix", f"{source}.1.pwconv1", 4 * lat)
        b.layer(f"{name}.pw2", (lat, 4 * lat), "matrix", f"{source}.1.pwconv2", lat)
        b.add(f"{name}.gamma", (lat,), "small", f"{source}.1.gamma")
    b.layer("dac.entry", (s.dim, lat, 7), "conv", "decoder.0.conv", s.dim)
    width = s.dim
    for i, rate in enumerate(s.rates):
        name, source, out = f"dac.blk.{i}", f"decoder.{i + 1}.block", width // 2
        b.snake(f"{name}.snake", width, f"{source}.0")
        b.layer(f"{name}.conv", (width, out, 2 * rate), "tconv", f"{source}.1.conv", out)
        for j in range(3):
            unit, theirs = f"{name}.res.{j}", f"{source}.{j + 2}"
            b.snake(f"{unit}.act1", out, f"{theirs}.act1")
            b.layer(f"{unit}.conv1", (out, out, 7), "conv", f"{theirs}.conv1.conv", out)
            b.snake(f"{unit}.act2", out, f"{theirs}.act2")
            b.layer(f"{unit}.conv2", (out, out, 1), "conv", f"{theirs}.conv2.conv", out)
        width = out
    last = len(s.rates) + 1
    b.snake("dac.post_snake", width, f"decoder.{last}")
    b.layer("dac.post_conv", (1, width, 7), "conv", f"decoder.{last + 1}.conv", 1)
    return b.specs


def _speaker_tensors(s: SpeakerShape) -> list[TensorSpec]:
    specs: list[TensorSpec] = []

    def conv(name: str, source: str, out: int, width: int, kernel: int) -> None:
        op: Op = "zero" if s.placeholder else "copy"
        for kind, shape in (("weight", (out, width, kernel)), ("bias", (out,))):
            role: Role = "conv" if kind == "weight" else "small"
            sources = () if s.placeholder else (f"speaker_encoder.{source}.{kind}",)
            specs.append(TensorSpec(f"{name}.{kind}", shape, "speaker", role, sources, op))

    ch = s.channels
    conv("a.conv1d.0", "blocks.0.conv", ch[0], s.mels, s.kernels[0])
    for i in (1, 2, 3):
        block, width = f"blocks.{i}", ch[i]
        part = width // s.scale
        conv(f"a.blk.{i}.conv_pw1", f"{block}.tdnn1.conv", width, ch[i - 1], 1)
        for j in range(s.scale - 1):
            source = f"{block}.res2net_block.blocks.{j}.conv"
            conv(f"a.blk.{i}.res2.{j}", source, part, part, s.kernels[i])
        conv(f"a.blk.{i}.conv_pw2", f"{block}.tdnn2.conv", width, width, 1)
        conv(f"a.blk.{i}.se_conv1", f"{block}.se_block.conv1", s.squeeze, width, 1)
        conv(f"a.blk.{i}.se_conv2", f"{block}.se_block.conv2", width, s.squeeze, 1)
    wide = ch[4]
    conv("a.conv_out", "mfa.conv", wide, sum(ch[1:4]), s.kernels[4])
    conv("a.asp_tdnn", "asp.tdnn.conv", s.attention, 3 * wide, 1)
    conv("a.asp_attn", "asp.conv", wide, s.attention, 1)
    conv("mm.a.fc", "fc", s.out, 2 * wide, 1)
    return specs


def spec_of(name: str, shape: tuple[int, ...]) -> TensorSpec:
    """Part and role of a tensor of a finished file, by its name."""
    part: Part = "speaker"
    role: Role = "conv"
    if name.startswith(("token_embd.", "output", "blk.")):
        part, role = "talker", "matrix"
        if not name.startswith("blk."):
            role = "table" if name.startswith("token_embd.") else "head"
    elif name.startswith("a.gen.code."):
        part, role = "cp", "matrix"
        for ending, found in _CP_ROLES:
            role = found if name.endswith(ending) else role
    elif name.startswith("a.gen.wav."):
        part = "decoder"
        if _TRANSPOSED.fullmatch(name):
            role = "tconv"
        elif ".tfm." in name or ".pw" in name:
            role = "matrix"
    if len(shape) == 1 or name.startswith("a.gen.wav.quant."):
        role = "small"
    return TensorSpec(name, shape, part, role)


def plain_name(name: str) -> str:
    """A name with nothing in it that file systems or shells take for something else."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def file_names(name: str, types: PartTypes) -> tuple[str, str]:
    """Names of the talker and the codec file."""
    return f"{name}-talker-{types.talker.upper()}.gguf", f"mmproj-{name}-codec.gguf"


def file_type(type: str) -> int:
    """The value of `general.file_type`."""
    return int(_FILE_TYPES[type])
