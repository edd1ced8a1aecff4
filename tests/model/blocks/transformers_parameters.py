"""Writes transformers_parameters.json: configurations of Hugging Face's transformers and the parameters of its modules.

Each line has the config.json of a model type and the number of parameters of its causal language model without layers
of multi-token prediction, counted on modules without memory (the meta device). Models.HaveTheParametersOfTransformers
compares them with ours. Needs torch and transformers (5.24.0 wrote the file):

    python3 tests/model/blocks/transformers_parameters.py > tests/model/blocks/transformers_parameters.json
"""

import json
import math

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TYPES = """
    arcee bloom deepseek_v3 deepseek_v32 deepseek_v4 ernie4_5_moe exaone_moe falcon falcon_h1 gemma2 gemma3 gemma4
    glm4_moe glm5_next glm_moe_dsa gpt2 gpt_neox granitemoehybrid hy_v3 kimi_linear lfm2_moe llama llama4 mimo_v2_flash minimax minimax_m2 mistral
    mixtral nemotron_h olmo2 olmo3 olmo_hybrid olmoe opt phi phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_moe
    qwen3_next seed_oss smollm3
""".split()
# What the defaults do not have.
VARIANTS = {
    "deepseek_v4": [{"num_hidden_layers": 5}],
    "falcon": [{"new_decoder_architecture": True, "num_kv_heads": 8, "num_attention_heads": 64, "hidden_size": 4096}],
    "gemma4": [
        {"num_kv_shared_layers": 10, "use_double_wide_mlp": True},
        {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0},
        {"enable_moe_block": True, "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 704},
        {"num_hidden_layers": 8},
    ],
    "glm4_moe": [{"use_qk_norm": True, "first_k_dense_replace": 2}],
    "llama4": [{"interleave_moe_layer_step": 2}],
    "lfm2_moe": [
        {"layer_types": (["conv"] * 3 + ["full_attention"]) * 8},
        {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    ],
    "mimo_v2_flash": [{"num_hidden_layers": 8, "attention_bias": True}, {"num_hidden_layers": 8, "num_key_value_heads": 8}],
    "phimoe": [{"lm_head_bias": True}],
    "qwen2_moe": [{"decoder_sparse_step": 2}, {"num_hidden_layers": 6, "mlp_only_layers": [3]}],
    "qwen3_moe": [{"decoder_sparse_step": 2}],
    "qwen3_next": [{"num_hidden_layers": 7, "mlp_only_layers": [1]}, {"attention_bias": True}],
}
IGNORED = set(
    """_name_or_path architectures attention_dropout bos_token_id chunk_size_feed_forward dtype eos_token_id hidden_act
    id2label initializer_range is_encoder_decoder label2id output_attentions output_hidden_states pad_token_id
    problem_type return_dict rms_norm_eps rope_parameters rope_scaling rope_theta transformers_version
    use_cache""".split()
)


def plain(value):
    """The value as JSON: without what has no meaning for sizes, and without infinities."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in IGNORED}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value if not (isinstance(v, float) and math.isinf(v))]
    return value


def parameters(whole, config):
    with torch.device("meta"):
        if config.model_type == "glm5_next_text":  # has no class of its own
            module = AutoModelForImageTextToText.from_config(whole)
        else:
            module = AutoModelForCausalLM.from_config(config)
    of_text = lambda name: "mtp" not in name and "visual" not in name
    shared = {id(p): p.numel() for name, p in module.named_parameters() if of_text(name)}
    return sum(shared.values())


def main():
    for model_type in TYPES:
        for variant in [{}, *VARIANTS.get(model_type, [])]:
            config = CONFIG_MAPPING[model_type]()
            text = getattr(config, "text_config", None) or config
            if variant:
                of_text = type(text)(**variant)
                config = of_text if text is config else type(config)(text_config=of_text.to_dict())
                text = of_text
            whole = plain(config.to_dict())
            whole.pop("vision_config", None)
            whole.pop("audio_config", None)
            if text.model_type == "lfm2_moe" and not text.layer_types:
                continue  # transformers builds no model without the list
            print(json.dumps({"config": whole, "parameters": parameters(config, text)}, default=str))


if __name__ == "__main__":
    main()
