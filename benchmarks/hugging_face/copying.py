"""Weights of a model of `transformers` → those of ours, family by family."""

from __future__ import annotations

import torch
from torch import Tensor

from cost_models.specs.transformer import TransformerSpec
from executor.models.transformer import Transformer

_NEIGHBOURS_TURN = (
    "gptj",
    "cohere",
    "cohere2",
    "glm",
    "glm4",
    "deepseek_v2",
    "deepseek_v3",
    "helium",
    "ernie4_5",
    "ernie4_5_moe",
)
"""Families that turn neighbouring numbers of a head together; ours are those of its two halves."""
_OLD = {
    "gptj": {"blocks": "transformer.h", "embedding": "wte", "norm": "ln_f"},
    "falcon": {"blocks": "transformer.h", "embedding": "word_embeddings", "norm": "ln_f"},
    "bloom": {"blocks": "transformer.h", "embedding": "word_embeddings", "norm": "ln_f"},
    "gpt_neox": {"blocks": "gpt_neox.layers", "embedding": "embed_in", "norm": "final_layer_norm"},
    "phi": {"blocks": "model.layers", "embedding": "embed_tokens", "norm": "final_layernorm"},
}
_USUAL = {"blocks": "model.layers", "embedding": "embed_tokens", "norm": "norm"}
_NORMS = {
    "olmo2": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    "olmo3": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    "gemma2": (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    "glm4": (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    "gptj": ("ln_1", "", "", ""),
}
"""What it calls our norms before and after attention, before and after the MLP."""
_NORMS["gemma3_text"] = _NORMS["gemma2"]
_NORMS["vaultgemma"] = ("input_layernorm", "", "pre_feedforward_layernorm", "")
_NORMS["exaone4"] = _NORMS["flex_olmo"] = _NORMS["olmo2"]
_OURS = ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")
_MLPS = {
    "gptj": {"mlp.fc_in": "up", "mlp.fc_out": "down"},
    "phi": {"mlp.fc1": "up", "mlp.fc2": "down"},
    "starcoder2": {"mlp.c_fc": "up", "mlp.c_proj": "down"},
    "falcon": {"mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down"},
}
_MLPS["nemotron"] = _MLPS["arcee"] = {"mlp.up_proj": "up", "mlp.down_proj": "down"}
_MLPS["bloom"] = _MLPS["gpt_neox"] = _MLPS["falcon"]
_GATED = {f"mlp.{name}_proj": name for name in ("gate", "up", "down")}
_NOT_WEIGHTS = ("inv_freq", ".attn.bias", "masked_bias", "e_score_correction_bias")


def copy_weights(model: Transformer, spec: TransformerSpec, family: str, theirs: dict[str, Tensor]) -> None:
    """Fill `model` in place; AssertionError where a weight of either is left over."""
    _Copy(model, spec, family, theirs).all()


class _Copy:
    def __init__(
        self, model: Transformer, spec: TransformerSpec, family: str, theirs: dict[str, Tensor]
    ) -> None:
        self.ours, self.spec, self.family = dict(model.named_parameters()), spec, family
        self.theirs = {
            name: weight for name, weight in theirs.items() if not any(word in name for word in _NOT_WEIGHTS)
        }
        self.filled: set[str] = set()

    def all(self) -> None:
        names = _OLD.get(self.family, _USUAL)
        stem = names["blocks"].rpartition(".")[0]
        self.layer("embedding.tokens", f"{stem}.{names['embedding']}")
        self.layer("embedding.norm", f"{stem}.word_embeddings_layernorm")
        self.norm("norm", f"{stem}.{names['norm']}")
        head = "embed_out" if self.family == "gpt_neox" else "lm_head"
        if self.spec.tied_embeddings:
            self.theirs.pop(f"{head}.weight", None)
        else:
            self.layer("head", head)
        for index in range(self.spec.num_layers):
            self.block(f"blocks.{index}", f"{names['blocks']}.{index}.")
        assert self.filled == set(self.ours), set(self.ours) - self.filled
        assert not self.theirs, list(self.theirs)

    def block(self, ours: str, theirs: str) -> None:
        usual = ("input_layernorm", "", "post_attention_layernorm", "")
        if f"{theirs}ln_attn.weight" in self.theirs:
            usual = ("ln_attn", "", "ln_mlp", "")
        for mine, name in zip(_OURS, _NORMS.get(self.family, usual), strict=True):
            self.norm(f"{ours}.{mine}", theirs + name)
        self.attention(f"{ours}.attention", theirs)
        if f"{theirs}mlp.gate_up_proj.weight" in self.theirs:
            for name, half in zip(
                ("gate", "up"), self.take(f"{theirs}mlp.gate_up_proj.weight").chunk(2), strict=True
            ):
                self.put(f"{ours}.mlp.{name}.weight", half)
        for name, mine in _MLPS.get(self.family, _GATED).items():
            self.layer(f"{ours}.mlp.{mine}", theirs + name)
        if f"{theirs}mlp.gate.weight" in self.theirs:
            self.mixture(f"{ours}.mlp", f"{theirs}mlp.")

    def mixture(self, ours: str, theirs: str) -> None:
        self.layer(f"{ours}.routed.router", f"{theirs}gate")
        self.layer(f"{ours}.shared_gate", f"{theirs}shared_expert_gate")
        for part in ("gate", "up", "down"):
            experts = [f"{theirs}experts.{one}.{part}_proj.weight" for one in range(self.spec.num_experts)]
            self.put(f"{ours}.routed.experts.{part}", torch.stack([self.take(name) for name in experts]))
            for name in ("shared_expert", "shared_experts"):
                self.layer(f"{ours}.shared.{part}", f"{theirs}{name}.{part}_proj")

    def attention(self, ours: str, theirs: str) -> None:
        core = {
            "gptj": "attn",
            "falcon": "self_attention",
            "bloom": "self_attention",
            "gpt_neox": "attention",
        }
        stem = f"{theirs}{core.get(self.family, 'self_attn')}."
        out = {"gptj": "out_proj", "falcon": "dense", "bloom": "dense", "gpt_neox": "dense", "phi": "dense"}
        self.layer(f"{ours}.out", stem + out.get(self.family, "o_proj"))
        if self.spec.latent_attention:
            self.latents(ours, stem)
            return
        for kind in ("weight", "bias"):
            for name, rows in zip(("query", "key", "value"), self.heads(stem, kind), strict=False):
                self.put(f"{ours}.{name}.{kind}", rows)
        self.norm(f"{ours}.query_norm", f"{stem}q_norm")
        self.norm(f"{ours}.key_norm", f"{stem}k_norm")

    def heads(self, stem: str, kind: str) -> list[Tensor]:
        """Rows of queries, keys and values; nothing where there are none of this kind."""
        heads, groups, width = self.spec.num_heads, self.spec.num_kv_heads, self.spec.head_dim
        if f"{stem}qkv_proj.{kind}" in self.theirs:
            joined = self.take(f"{stem}qkv_proj.{kind}")
            return list(joined.split([heads * width, groups * width, groups * width]))
        if f"{stem}query_key_value.{kind}" in self.theirs:
            each = heads // groups  # queries of a key head lie beside it
            joined = self.take(f"{stem}query_key_value.{kind}").unflatten(0, (groups, each + 2, width))
            return [
                joined[:, :each].flatten(0, 2),
                joined[:, each].flatten(0, 1),
                joined[:, each + 1].flatten(0, 1),
            ]
        if f"{stem}q_proj.{kind}" not in self.theirs:
            return []
        query, key, value = (self.take(f"{stem}{one}_proj.{kind}") for one in "qkv")
        if self.family in _NEIGHBOURS_TURN:
            turned = self.spec.rotary.dim if self.spec.rotary and self.spec.rotary.dim else width
            query, key = (_halves(rows, width, 0, turned) for rows in (query, key))
        return [query, key, value]

    def latents(self, ours: str, stem: str) -> None:
        latent, width = self.spec.latent_attention, self.spec.head_dim
        assert latent is not None
        plain = width - latent.position_dim
        self.layer(f"{ours}.query_down", f"{stem}q_a_proj")
        self.norm(f"{ours}.query_norm", f"{stem}q_a_layernorm")
        query = "q_b_proj" if latent.query_rank else "q_proj"
        self.put(f"{ours}.query.weight", _halves(self.take(f"{stem}{query}.weight"), width, plain, width))
        down = self.take(f"{stem}kv_a_proj_with_mqa.weight")
        self.put(f"{ours}.down.weight", _halves(down, len(down), latent.kv_rank, len(down)))
        self.norm(f"{ours}.latent_norm", f"{stem}kv_a_layernorm")
        self.layer(f"{ours}.key_value", f"{stem}kv_b_proj")

    def norm(self, ours: str, theirs: str) -> None:
        """A Gemma's and a Nemotron's gains are what is added to one."""
        if self.family.startswith(("gemma", "vaultgemma", "nemotron")) and f"{theirs}.weight" in self.theirs:
            self.theirs[f"{theirs}.weight"] = 1 + self.theirs[f"{theirs}.weight"]
        self.layer(ours, theirs)

    def layer(self, ours: str, theirs: str) -> None:
        """Weight and bias, where there are any."""
        for kind in ("weight", "bias"):
            if f"{theirs}.{kind}" in self.theirs:
                self.put(f"{ours}.{kind}", self.take(f"{theirs}.{kind}"))

    def take(self, name: str) -> Tensor:
        return self.theirs.pop(name)

    def put(self, name: str, weight: Tensor) -> None:
        with torch.no_grad():
            self.ours[name].copy_(weight.view_as(self.ours[name]))
        self.filled.add(name)


def _halves(rows: Tensor, width: int, first: int, last: int) -> Tensor:
    """In each `width` rows, those from `first` to `last`: neighbours → halves."""
    heads = rows.unflatten(0, (-1, width))
    turned = heads[:, first:last]
    parts = [heads[:, :first], turned[:, 0::2], turned[:, 1::2], heads[:, last:]]
    return torch.cat(parts, dim=1).flatten(0, 1)
