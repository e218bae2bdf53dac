"""The configuration of kTiny for transformers and for the shipped config.json."""

TEXT = {"attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": 8159, "dtype": "bfloat16",
        "eos_token_id": 8159, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 256,
        "initializer_range": 0.02, "layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 3 + ["full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 32768, "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 64, "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": 8, "num_experts": 32, "num_experts_per_tok": 8,
        "num_hidden_layers": 8, "num_key_value_heads": 1, "output_router_logits": False, "pad_token_id": None,
        "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 10000000, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 64, "tie_word_embeddings": False, "use_cache": True,
        "vocab_size": 8192}


def text_config():
    from transformers import Qwen3_5MoeTextConfig
    return Qwen3_5MoeTextConfig(**{k: v for k, v in TEXT.items() if k not in ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mlp_only_layers", "mamba_ssm_dtype", "attn_output_gate")})


def hf_model(state):
    """transformers' model in float32 with these parameters (mtp.* left out)."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM
    config = text_config()
    model = Qwen3_5MoeForCausalLM(config).float().eval()
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items() if not k.startswith("mtp.")}, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return model
