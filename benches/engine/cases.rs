//! Benchmark models: mixers and experts in the shapes of released models. Parts that are not measured are small:
//! feed-forwards of mixer models, attention of expert models.

mod recurrent;

/// Use of a tensor in the model.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TensorUse {
    /// Vector in F32 that is not multiplied as a matrix.
    Vector,
    /// Multiplied with all tokens.
    Matrix,
    /// One matrix per expert; the number of experts used per token.
    Experts(usize),
}

/// A tensor, its dimensions outermost first.
pub(crate) struct Tensor {
    pub(crate) name: &'static str,
    pub(crate) dims: Vec<usize>,
    /// One value everywhere; `None` for random values.
    pub(crate) value: Option<f32>,
    pub(crate) is_used: TensorUse,
}

/// Heads of softmax attention.
pub(crate) struct Heads {
    pub(crate) n: usize,
    pub(crate) dk: usize,
    pub(crate) dv: usize,
    pub(crate) window: Option<usize>,
}

/// A benchmark model.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) model: &'static str,
    pub(crate) what: &'static str,
    pub(crate) arch: &'static str,
    pub(crate) n_layers: usize,
    pub(crate) n_embd: usize,
    pub(crate) keys: Vec<(&'static str, usize)>,
    /// Tensors of every layer.
    pub(crate) tensors: Vec<Tensor>,
    /// Tensors outside of layers.
    pub(crate) ends: Vec<Tensor>,
    pub(crate) heads: Option<Heads>,
}

/// Width of feed-forwards that are not measured.
const SMALL: usize = 64;

fn matrix(name: &'static str, rows: usize, cols: usize) -> Tensor {
    Tensor { name, dims: vec![rows, cols], value: None, is_used: TensorUse::Matrix }
}

fn experts(name: &'static str, dims: [usize; 3], n_used: usize) -> Tensor {
    Tensor { name, dims: dims.to_vec(), value: None, is_used: TensorUse::Experts(n_used) }
}

fn random(name: &'static str, dims: &[usize]) -> Tensor {
    Tensor { name, dims: dims.to_vec(), value: None, is_used: TensorUse::Vector }
}

fn filled(name: &'static str, dims: &[usize], value: f32) -> Tensor {
    Tensor { value: Some(value), ..random(name, dims) }
}

fn norm(name: &'static str, n: usize) -> Tensor {
    filled(name, &[n], 1.0)
}

fn ffn(n_embd: usize) -> [Tensor; 3] {
    [
        matrix("ffn_gate.weight", SMALL, n_embd),
        matrix("ffn_up.weight", SMALL, n_embd),
        matrix("ffn_down.weight", n_embd, SMALL),
    ]
}

fn attention(n_embd: usize, n_heads: usize, n_kv_heads: usize, dk: usize) -> [Tensor; 4] {
    [
        matrix("attn_q.weight", n_heads * dk, n_embd),
        matrix("attn_k.weight", n_kv_heads * dk, n_embd),
        matrix("attn_v.weight", n_kv_heads * dk, n_embd),
        matrix("attn_output.weight", n_embd, n_heads * dk),
    ]
}

/// Returns all models, narrower by a factor.
pub(crate) fn all(by: usize) -> Vec<Case> {
    vec![
        gqa(by),
        window(by),
        mla(by),
        recurrent::mamba(by),
        recurrent::mamba2(by),
        recurrent::delta_net(by),
        recurrent::kda(by),
        recurrent::rwkv6(by),
        recurrent::rwkv7(by),
        recurrent::shortconv(by),
        recurrent::lightning(by),
        experts_64(by),
        experts_128(by),
    ]
}

fn gqa(by: usize) -> Case {
    let (n_embd, n_heads, n_kv) = (2048 / by, 32 / by, (8 / by).max(1));
    let mut tensors = vec![norm("attn_norm.weight", n_embd), norm("ffn_norm.weight", n_embd)];
    tensors.extend(attention(n_embd, n_heads, n_kv, 64));
    tensors.extend(ffn(n_embd));
    Case {
        name: "gqa",
        model: "Llama 3.2 1B",
        what: "attention, 32 heads on 8",
        arch: "llama",
        n_layers: 4,
        n_embd,
        keys: vec![
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", n_kv),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: Some(Heads { n: n_heads, dk: 64, dv: 64, window: None }),
    }
}

fn window(by: usize) -> Case {
    let (n_embd, n_heads, dk) = (1152 / by, 4, 256 / by);
    let mut tensors: Vec<Tensor> =
        ["attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight"]
            .map(|name| norm(name, n_embd))
            .into();
    tensors.extend([norm("attn_q_norm.weight", dk), norm("attn_k_norm.weight", dk)]);
    tensors.extend(attention(n_embd, n_heads, 1, dk));
    tensors.extend(ffn(n_embd));
    Case {
        name: "window",
        model: "Gemma 3 1B",
        what: "attention, 4 heads on 1, window 512",
        arch: "gemma3",
        n_layers: 5,
        n_embd,
        keys: vec![
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", 1),
            ("attention.key_length", dk),
            ("attention.value_length", dk),
            ("attention.sliding_window", 512),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: Some(Heads { n: n_heads, dk, dv: dk, window: Some(512) }),
    }
}

fn mla(by: usize) -> Case {
    let (n_embd, n_heads, rank, rope, own) = (2048 / by, 16 / by, 512 / by, 64, 128);
    let mut tensors = vec![
        norm("attn_norm.weight", n_embd),
        norm("ffn_norm.weight", n_embd),
        norm("attn_kv_a_norm.weight", rank),
        matrix("attn_q.weight", n_heads * (own + rope), n_embd),
        matrix("attn_kv_a_mqa.weight", rank + rope, n_embd),
        // The keys' matrices are multiplied from the other side.
        Tensor {
            name: "attn_k_b.weight",
            dims: vec![n_heads, rank, own],
            value: None,
            is_used: TensorUse::Matrix,
        },
        Tensor {
            name: "attn_v_b.weight",
            dims: vec![n_heads, own, rank],
            value: None,
            is_used: TensorUse::Matrix,
        },
        matrix("attn_output.weight", n_embd, n_heads * own),
    ];
    tensors.extend(ffn(n_embd));
    Case {
        name: "mla",
        model: "DeepSeek-V2-Lite",
        what: "latent attention, 16 heads, rank 512",
        arch: "deepseek2",
        n_layers: 4,
        n_embd,
        keys: vec![
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", 1),
            ("attention.kv_lora_rank", rank),
            ("attention.key_length", rank + rope),
            ("attention.value_length", rank),
            ("attention.key_length_mla", own + rope),
            ("attention.value_length_mla", own),
            ("rope.dimension_count", rope),
            ("leading_dense_block_count", 4),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: Some(Heads { n: n_heads, dk: own + rope, dv: own, window: None }),
    }
}

/// Returns attention of one head, and norms.
fn small_attention(n_embd: usize) -> Vec<Tensor> {
    let mut tensors = vec![norm("attn_norm.weight", n_embd), norm("ffn_norm.weight", n_embd)];
    tensors.extend(attention(n_embd, 1, 1, SMALL));
    tensors
}

fn experts_64(by: usize) -> Case {
    let (n_embd, width, n, n_used) = (2048 / by, 1408 / by, 64, 6);
    let mut tensors = small_attention(n_embd);
    tensors.extend([
        matrix("ffn_gate_inp.weight", n, n_embd),
        experts("ffn_gate_exps.weight", [n, width, n_embd], n_used),
        experts("ffn_up_exps.weight", [n, width, n_embd], n_used),
        experts("ffn_down_exps.weight", [n, n_embd, width], n_used),
        matrix("ffn_gate_shexp.weight", 2 * width, n_embd),
        matrix("ffn_up_shexp.weight", 2 * width, n_embd),
        matrix("ffn_down_shexp.weight", n_embd, 2 * width),
    ]);
    Case {
        name: "experts64",
        model: "Ling-lite 1.5",
        what: "6 of 64 experts and 2 shared",
        arch: "bailingmoe",
        n_layers: 1,
        n_embd,
        keys: vec![
            ("attention.head_count", 1),
            ("attention.head_count_kv", 1),
            ("attention.key_length", SMALL),
            ("attention.value_length", SMALL),
            ("rope.dimension_count", SMALL),
            ("leading_dense_block_count", 0),
            ("expert_count", n),
            ("expert_used_count", n_used),
            ("expert_shared_count", 2),
            ("expert_feed_forward_length", width),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}

fn experts_128(by: usize) -> Case {
    let (n_embd, width, n, n_used) = (2048 / by, 768 / by, 128, 8);
    let mut tensors = small_attention(n_embd);
    tensors.extend([
        norm("attn_q_norm.weight", SMALL),
        norm("attn_k_norm.weight", SMALL),
        matrix("ffn_gate_inp.weight", n, n_embd),
        experts("ffn_gate_exps.weight", [n, width, n_embd], n_used),
        experts("ffn_up_exps.weight", [n, width, n_embd], n_used),
        experts("ffn_down_exps.weight", [n, n_embd, width], n_used),
    ]);
    Case {
        name: "experts128",
        model: "Qwen3 30B A3B",
        what: "8 of 128 experts",
        arch: "qwen3moe",
        n_layers: 1,
        n_embd,
        keys: vec![
            ("attention.head_count", 1),
            ("attention.head_count_kv", 1),
            ("attention.key_length", SMALL),
            ("attention.value_length", SMALL),
            ("expert_count", n),
            ("expert_used_count", n_used),
            ("expert_feed_forward_length", width),
            ("feed_forward_length", SMALL),
        ],
        tensors,
        ends: vec![norm("output_norm.weight", n_embd)],
        heads: None,
    }
}
