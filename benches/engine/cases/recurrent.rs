//! Models whose mixers have a state.

use super::{Case, SMALL, Tensor, TensorUse, experts, ffn, filled, matrix, norm, random};

pub(super) fn mamba(by: usize) -> Case {
    let (n_embd, inner, n_states, rank) = (2560 / by, 5120 / by, 16, 160 / by);
    Case {
        name: "mamba",
        model: "Mamba 2.8B",
        what: "5120 channels, 16 states",
        arch: "mamba",
        n_layers: 2,
        n_embd,
        keys: vec![
            ("ssm.conv_kernel", 4),
            ("ssm.inner_size", inner),
            ("ssm.state_size", n_states),
            ("ssm.time_step_rank", rank),
        ],
        tensors: vec![
            norm("attn_norm.weight", n_embd),
            filled("ssm_a", &[inner, n_states], -1.0),
            filled("ssm_d", &[inner], 1.0),
            random("ssm_conv1d.weight", &[inner, 4]),
            random("ssm_conv1d.bias", &[inner]),
            matrix("ssm_in.weight", 2 * inner, n_embd),
            matrix("ssm_x.weight", rank + 2 * n_states, inner),
            matrix("ssm_dt.weight", inner, rank),
            random("ssm_dt.bias", &[inner]),
            matrix("ssm_out.weight", n_embd, inner),
        ],
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}

pub(super) fn mamba2(by: usize) -> Case {
    let (n_embd, inner, n_states, n_heads) = (2560 / by, 5120 / by, 128, 80 / by);
    let width = inner + 2 * n_states;
    Case {
        name: "mamba2",
        model: "Mamba2 2.7B",
        what: "80 heads of 64, 128 states",
        arch: "mamba2",
        n_layers: 2,
        n_embd,
        keys: vec![
            ("ssm.conv_kernel", 4),
            ("ssm.inner_size", inner),
            ("ssm.state_size", n_states),
            ("ssm.time_step_rank", n_heads),
            ("ssm.group_count", 1),
        ],
        tensors: vec![
            norm("attn_norm.weight", n_embd),
            filled("ssm_a", &[n_heads, 1], -1.0),
            filled("ssm_d", &[n_heads, 1], 1.0),
            random("ssm_conv1d.weight", &[width, 4]),
            random("ssm_conv1d.bias", &[width]),
            random("ssm_dt.bias", &[n_heads]),
            matrix("ssm_in.weight", inner + width + n_heads, n_embd),
            filled("ssm_norm.weight", &[1, inner], 1.0),
            matrix("ssm_out.weight", n_embd, inner),
        ],
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}

pub(super) fn delta_net(by: usize) -> Case {
    let (n_embd, n_keys, n_heads, dim) = (2048 / by, 16 / by, 32 / by, 128);
    let (inner, width) = (n_heads * dim, (2 * n_keys + n_heads) * dim);
    let mut tensors = vec![
        norm("attn_norm.weight", n_embd),
        norm("post_attention_norm.weight", n_embd),
        filled("ssm_a", &[n_heads], -1.0),
        random("ssm_conv1d.weight", &[width, 4]),
        random("ssm_dt.bias", &[n_heads]),
        matrix("ssm_alpha.weight", n_heads, n_embd),
        matrix("ssm_beta.weight", n_heads, n_embd),
        matrix("attn_qkv.weight", width, n_embd),
        matrix("attn_gate.weight", inner, n_embd),
        norm("ssm_norm.weight", dim),
        matrix("ssm_out.weight", n_embd, inner),
    ];
    tensors.extend(ffn(n_embd));
    Case {
        name: "deltanet",
        model: "Qwen3-Next 80B A3B",
        what: "gated delta net, 32 heads on 16 of 128",
        arch: "qwen35",
        n_layers: 2,
        n_embd,
        keys: vec![
            ("attention.head_count", 16),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 256),
            ("attention.value_length", 256),
            ("full_attention_interval", 100),
            ("rope.dimension_count", 64),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", dim),
            ("ssm.group_count", n_keys),
            ("ssm.time_step_rank", n_heads),
            ("ssm.inner_size", inner),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}

pub(super) fn kda(by: usize) -> Case {
    let (n_embd, n_heads, dim) = (2304 / by, 32 / by, 128);
    let inner = n_heads * dim;
    let mut tensors = vec![
        norm("attn_norm.weight", n_embd),
        norm("ffn_norm.weight", n_embd),
        filled("ssm_a", &[n_heads], -1.0),
        matrix("ssm_beta.weight", n_heads, n_embd),
        random("ssm_dt.bias", &[inner]),
        matrix("ssm_f_a.weight", dim, n_embd),
        matrix("ssm_f_b.weight", inner, dim),
        matrix("ssm_g_a.weight", dim, n_embd),
        matrix("ssm_g_b.weight", inner, dim),
        random("ssm_conv1d_q.weight", &[inner, 4]),
        random("ssm_conv1d_k.weight", &[inner, 4]),
        random("ssm_conv1d_v.weight", &[inner, 4]),
        matrix("attn_q.weight", inner, n_embd),
        matrix("attn_k.weight", inner, n_embd),
        matrix("attn_v.weight", inner, n_embd),
        norm("ssm_norm.weight", dim),
        matrix("attn_output.weight", n_embd, inner),
    ];
    tensors.extend(ffn(n_embd));
    Case {
        name: "kda",
        model: "Kimi Linear 48B A3B",
        what: "Kimi delta attention, 32 heads of 128",
        arch: "kimi-linear",
        n_layers: 2,
        n_embd,
        keys: vec![
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", 0),
            ("leading_dense_block_count", 2),
            ("ssm.conv_kernel", 4),
            ("kda.head_dim", dim),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}

/// Returns RWKV's tensors outside of its layers.
fn rwkv_ends(n_embd: usize) -> Vec<Tensor> {
    vec![
        norm("output_norm.weight", n_embd),
        filled("output_norm.bias", &[n_embd], 0.0),
        norm("token_embd_norm.weight", n_embd),
        filled("token_embd_norm.bias", &[n_embd], 0.0),
    ]
}

/// Returns the norms of RWKV's layers.
fn rwkv_norms(n_embd: usize) -> [Tensor; 6] {
    [
        norm("attn_norm.weight", n_embd),
        filled("attn_norm.bias", &[n_embd], 0.0),
        norm("attn_norm_2.weight", n_embd),
        filled("attn_norm_2.bias", &[n_embd], 0.0),
        norm("time_mix_ln.weight", n_embd),
        filled("time_mix_ln.bias", &[n_embd], 0.0),
    ]
}

pub(super) fn rwkv6(by: usize) -> Case {
    let n_embd = 2048 / by;
    let mut tensors = vec![
        matrix("time_mix_receptance.weight", n_embd, n_embd),
        matrix("time_mix_key.weight", n_embd, n_embd),
        matrix("time_mix_value.weight", n_embd, n_embd),
        matrix("time_mix_gate.weight", n_embd, n_embd),
        matrix("time_mix_output.weight", n_embd, n_embd),
        random("time_mix_decay.weight", &[n_embd]),
        matrix("time_mix_decay_w1.weight", 64, n_embd),
        matrix("time_mix_decay_w2.weight", n_embd, 64),
        random("time_mix_first.weight", &[n_embd / 64, 64]),
        random("time_mix_lerp_fused.weight", &[5, 1, 1, n_embd]),
        matrix("time_mix_w1.weight", 160, n_embd),
        Tensor {
            name: "time_mix_w2.weight",
            dims: vec![5, n_embd, 32],
            value: None,
            is_used: TensorUse::Matrix,
        },
        random("time_mix_lerp_x.weight", &[n_embd]),
        matrix("channel_mix_key.weight", SMALL, n_embd),
        matrix("channel_mix_value.weight", n_embd, SMALL),
        matrix("channel_mix_receptance.weight", n_embd, n_embd),
        random("channel_mix_lerp_k.weight", &[n_embd]),
        random("channel_mix_lerp_r.weight", &[n_embd]),
    ];
    tensors.extend(rwkv_norms(n_embd));
    Case {
        name: "rwkv6",
        model: "RWKV 6 World 1.6B",
        what: "32 heads of 64",
        arch: "rwkv6",
        n_layers: 2,
        n_embd,
        keys: vec![
            ("wkv.head_size", 64),
            ("time_mix_extra_dim", 32),
            ("time_decay_extra_dim", 64),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: rwkv_ends(n_embd),
        heads: None,
    }
}

pub(super) fn rwkv7(by: usize) -> Case {
    let (n_embd, decay, rate, values, gate) = (2048 / by, 96, 96, 64, 256);
    let mut tensors = vec![
        matrix("time_mix_receptance.weight", n_embd, n_embd),
        matrix("time_mix_key.weight", n_embd, n_embd),
        matrix("time_mix_value.weight", n_embd, n_embd),
        matrix("time_mix_output.weight", n_embd, n_embd),
        random("time_mix_w0.weight", &[n_embd]),
        matrix("time_mix_w1.weight", decay, n_embd),
        matrix("time_mix_w2.weight", n_embd, decay),
        random("time_mix_a0.weight", &[n_embd]),
        matrix("time_mix_a1.weight", rate, n_embd),
        matrix("time_mix_a2.weight", n_embd, rate),
        random("time_mix_v0.weight", &[n_embd]),
        matrix("time_mix_v1.weight", values, n_embd),
        matrix("time_mix_v2.weight", n_embd, values),
        matrix("time_mix_g1.weight", gate, n_embd),
        matrix("time_mix_g2.weight", n_embd, gate),
        random("time_mix_k_k.weight", &[n_embd]),
        random("time_mix_k_a.weight", &[n_embd]),
        random("time_mix_r_k.weight", &[n_embd]),
        random("time_mix_lerp_fused.weight", &[6, 1, 1, n_embd]),
        matrix("channel_mix_key.weight", SMALL, n_embd),
        matrix("channel_mix_value.weight", n_embd, SMALL),
        random("channel_mix_lerp_k.weight", &[n_embd]),
    ];
    tensors.extend(rwkv_norms(n_embd));
    Case {
        name: "rwkv7",
        model: "RWKV 7 World 1.5B",
        what: "32 heads of 64",
        arch: "rwkv7",
        n_layers: 2,
        n_embd,
        keys: vec![
            ("wkv.head_size", 64),
            ("attention.decay_lora_rank", decay),
            ("attention.iclr_lora_rank", rate),
            ("attention.value_residual_mix_lora_rank", values),
            ("attention.gate_lora_rank", gate),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: rwkv_ends(n_embd),
        heads: None,
    }
}

pub(super) fn shortconv(by: usize) -> Case {
    let n_embd = 2048 / by;
    let mut tensors = vec![
        norm("attn_norm.weight", n_embd),
        norm("ffn_norm.weight", n_embd),
        random("shortconv.conv.weight", &[n_embd, 3]),
        matrix("shortconv.in_proj.weight", 3 * n_embd, n_embd),
        matrix("shortconv.out_proj.weight", n_embd, n_embd),
    ];
    tensors.extend(ffn(n_embd));
    Case {
        name: "shortconv",
        model: "LFM2 1.2B",
        what: "gated short convolution",
        arch: "lfm2",
        n_layers: 4,
        n_embd,
        keys: vec![
            ("attention.head_count", 32),
            ("attention.head_count_kv", 0),
            ("shortconv.l_cache", 3),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("token_embd_norm.weight", n_embd)],
        heads: None,
    }
}

pub(super) fn lightning(by: usize) -> Case {
    let (n_embd, n_heads, dim) = (6144 / by, 64 / by, 128);
    let inner = n_heads * dim;
    Case {
        name: "lightning",
        model: "MiniMax-Text-01",
        what: "lightning attention, 64 heads of 128",
        arch: "minimax-01",
        n_layers: 1,
        n_embd,
        keys: vec![
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", (8 / by).max(1)),
            ("attention.key_length", dim),
            ("attention.value_length", dim),
            ("rope.dimension_count", 64),
            ("expert_count", 2),
            ("expert_used_count", 1),
            ("feed_forward_length", SMALL),
        ],
        tensors: vec![
            norm("attn_norm.weight", n_embd),
            norm("ffn_norm.weight", n_embd),
            norm("attn_norm_2.weight", inner),
            matrix("attn_qkv.weight", 3 * inner, n_embd),
            matrix("attn_gate.weight", inner, n_embd),
            matrix("attn_output.weight", n_embd, inner),
            matrix("ffn_gate_inp.weight", 2, n_embd),
            experts("ffn_gate_exps.weight", [2, SMALL, n_embd], 1),
            experts("ffn_up_exps.weight", [2, SMALL, n_embd], 1),
            experts("ffn_down_exps.weight", [2, n_embd, SMALL], 1),
        ],
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}
