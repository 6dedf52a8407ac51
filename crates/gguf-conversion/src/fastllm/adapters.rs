//! Matching of a file's LoRA matrices with their weights, and their scale.

use gguf_checkpoint::fastllm::Adapter;
use gguf_core::WeightMeta;
use gguf_core::text::escape;
use gguf_dequant::{LoraPair, LoraPart};

/// Keys of an adapter's dictionary that must be unset: they require more than a plain product.
const UNSUPPORTED: [&str; 7] = [
    "use_dora",
    "fan_in_fan_out",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "lora_bias",
    "layer_replication",
];

/// Returns true if a tensor is a matrix of an adapter.
pub(super) fn is_part(name: &str) -> bool {
    [".lora_A.", ".lora_B.", ".lora_embedding_A.", ".lora_embedding_B.", ".ia3_l."]
        .iter()
        .any(|part| name.contains(part))
}

/// Matches the matrices of a file's only adapter with their weights.
pub(super) fn pairs(adapters: &[Adapter], metas: &[WeightMeta]) -> Result<Vec<LoraPair>, String> {
    let [adapter] = adapters else {
        // The file does not record which of several adapters are active.
        return Err(format!("{} adapters, exactly one can be merged", adapters.len()));
    };
    let name = escape(&adapter.name).into_owned();
    let about = |text: &str| format!("adapter `{name}`: {text}");
    match adapter.get("peft_type").map(|ty| ty.trim_start_matches("PeftType.")) {
        Some("LORA") => {}
        Some(other) => return Err(about(&format!("type {}, only LORA can be merged", escape(other)))),
        None => return Err(about("its dictionary has no `peft_type`")),
    }
    for key in UNSUPPORTED {
        let says_nothing =
            |text: &str| matches!(text, "None" | "False" | "{}" | "[]" | "" | "null" | "false");
        if let Some(text) = adapter.get(key).filter(|text| !says_nothing(text)) {
            return Err(about(&format!("`{key}` is {}, which is not supported", escape(text))));
        }
    }
    let number = |key: &str| {
        let value = adapter.get(key).and_then(|text| text.parse::<f32>().ok());
        value.filter(|value| value.is_finite()).ok_or_else(|| about(&format!("`{key}` is no number")))
    };
    let (rank, alpha) = (number("r")?, number("lora_alpha")?);
    if rank < 1.0 {
        return Err(about("`r` is below 1"));
    }
    let by_root = adapter.get("use_rslora").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let scale = alpha / if by_root { rank.sqrt() } else { rank };

    let index_of = |name: &str| metas.iter().position(|meta| meta.name == name);
    let ending = |part: &str| format!(".{part}.{}.weight", adapter.name);
    let (end_a, end_b) = (ending("lora_A"), ending("lora_B"));
    let mut pairs = Vec::new();
    for (a, meta) in metas.iter().enumerate().filter(|(_, meta)| is_part(&meta.name)) {
        if meta.name.strip_suffix(&end_b).is_some_and(|stem| index_of(&format!("{stem}{end_a}")).is_some()) {
            continue;
        }
        let lone = || about(&format!("tensor `{}` has no counterpart or no weight", escape(&meta.name)));
        let stem = meta.name.strip_suffix(&end_a).ok_or_else(lone)?;
        let b = index_of(&format!("{stem}{end_b}")).ok_or_else(lone)?;
        // Some releases of PEFT move the weight into an inner `base_layer`.
        let base =
            index_of(&format!("{stem}.weight")).or_else(|| index_of(&format!("{stem}.base_layer.weight")));
        let base = base.ok_or_else(lone)?;
        if metas[a].shape.n_rows() as f32 != rank {
            return Err(about(&format!("`r` is {rank}, tensor `{}` is {}", escape(&meta.name), meta.shape)));
        }
        pairs.push(LoraPair { base, a, b, scale, is_transposed: false, part: LoraPart::default() });
    }
    if pairs.is_empty() {
        return Err(about("the file has none of its matrices"));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{ElementType, Shape};

    fn meta(name: &str, dims: &[u64]) -> WeightMeta {
        let shape = Shape::new(dims.to_vec()).unwrap();
        WeightMeta { name: name.to_owned(), shape, ty: ElementType::F16 }
    }

    fn adapter(entries: &[(&str, &str)]) -> Adapter {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Adapter { name: "default".to_owned(), dictionary: entries.iter().map(own).collect() }
    }

    #[test]
    fn matrices_find_their_weight_and_factor() {
        let metas = [
            meta("q.weight", &[8, 4]),
            meta("q.lora_A.default.weight", &[2, 4]),
            meta("q.lora_B.default.weight", &[8, 2]),
        ];
        let plain = adapter(&[("peft_type", "LORA"), ("r", "2"), ("lora_alpha", "6"), ("use_dora", "False")]);
        assert_eq!(
            pairs(std::slice::from_ref(&plain), &metas),
            Ok(vec![LoraPair {
                base: 0,
                a: 1,
                b: 2,
                scale: 3.0,
                is_transposed: false,
                part: LoraPart::default()
            }])
        );
        let reason = pairs(std::slice::from_ref(&plain), &metas[..2]).unwrap_err();
        assert_eq!(
            reason,
            "adapter `default`: tensor `q.lora_A.default.weight` has no counterpart or no weight"
        );
        assert_eq!(
            pairs(&[plain.clone(), plain], &metas).unwrap_err(),
            "2 adapters, exactly one can be merged"
        );
    }

    #[test]
    fn what_is_no_plain_product_is_refused_by_name() {
        for (entries, reason) in [
            (vec![("peft_type", "IA3")], "adapter `default`: type IA3, only LORA can be merged"),
            (
                vec![("peft_type", "LORA"), ("use_dora", "True")],
                "adapter `default`: `use_dora` is True, which is not supported",
            ),
            (vec![("peft_type", "LORA"), ("r", "x")], "adapter `default`: `r` is no number"),
        ] {
            assert_eq!(pairs(&[adapter(&entries)], &[]).unwrap_err(), reason);
        }
    }
}
