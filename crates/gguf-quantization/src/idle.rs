//! Options that change nothing. llama-quantize ignores them silently; here each is reported with the reason.

use crate::{FileType, QuantizeOptions, Reason, TensorClass, TensorTypeRule, TypeChoice};
use gguf_core::text::escape;
use gguf_core::{GgmlType, TensorMeta};

/// Option without effect on the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleOption {
    /// The option as written on a command line.
    pub option: String,
    /// Reason.
    pub why: String,
}

/// Lists the options about types that have no effect on any of these tensors.
pub(crate) fn idle_options(
    options: &QuantizeOptions,
    tensors: &[TensorMeta],
    choices: &[TypeChoice],
) -> Vec<IdleOption> {
    let output = Output { options, tensors, choices };
    let rules = options.tensor_types.iter().filter_map(|rule| {
        let option = format!("--tensor-type {}={}", escape(&rule.pattern), rule.ty.name().to_lowercase());
        Some(IdleOption { option, why: output.idle_rule(rule)? })
    });
    let named = [
        ("--output-tensor-type", options.output_tensor_type.and_then(|ty| output.idle_output_type(ty))),
        (
            "--token-embedding-type",
            options.token_embedding_type.and_then(|ty| output.idle_embedding_type(ty)),
        ),
        (
            "--leave-output-tensor",
            (options.leave_output_tensor && !output.has(TensorClass::Output)).then(|| output.no_head()),
        ),
        ("--pure", options.pure.then(|| output.no_mixture()).flatten()),
    ];
    let named = named
        .into_iter()
        .filter_map(|(option, why)| Some(IdleOption { option: option.to_owned(), why: why? }));
    rules.chain(named).collect()
}

/// Tensors of an output with the types that were chosen for them.
struct Output<'a> {
    options: &'a QuantizeOptions,
    tensors: &'a [TensorMeta],
    choices: &'a [TypeChoice],
}

impl Output<'_> {
    fn no_head(&self) -> String {
        let is_tied = self.has(TensorClass::TokenEmbd);
        let why = if is_tied { ": its head is the token embedding" } else { "" };
        format!("the model has no `output.weight`{why}")
    }

    fn rows(&self) -> impl Iterator<Item = (&TensorMeta, &TypeChoice)> {
        self.tensors.iter().zip(self.choices)
    }

    fn has(&self, class: TensorClass) -> bool {
        self.choices.iter().any(|choice| choice.class == class)
    }

    /// Reason that the file type has no mixture that an option could change.
    fn no_mixture(&self) -> Option<String> {
        if self.options.file_type == FileType::Copy {
            return Some("every tensor is copied as it is".to_owned());
        }
        let plain = self.options.file_type.base().filter(|base| !base.is_quantized())?;
        Some(format!("every matrix becomes {plain}"))
    }

    fn idle_rule(&self, rule: &TensorTypeRule) -> Option<String> {
        let matched: Vec<_> = self.rows().filter(|(tensor, _)| rule.matches(&tensor.name)).collect();
        if matched.is_empty() {
            return Some("no tensor has such a name".to_owned());
        }
        // A tensor that is kept may have the type by chance.
        let is_changed = |choice: &TypeChoice| choice.reason != Reason::Kept && is_obeyed(*choice, rule.ty);
        let others = || matched.iter().filter(|(_, choice)| !is_obeyed(**choice, rule.ty));
        let (example, choice) = others().next().filter(|_| !matched.iter().any(|row| is_changed(row.1)))?;
        Some(self.no_mixture().unwrap_or_else(|| decided_otherwise(example, **choice)))
    }

    fn idle_output_type(&self, ty: GgmlType) -> Option<String> {
        let class = if self.has(TensorClass::Output) { TensorClass::Output } else { TensorClass::TokenEmbd };
        self.idle_class(class, ty, &self.no_head())
    }

    fn idle_embedding_type(&self, ty: GgmlType) -> Option<String> {
        self.idle_class(TensorClass::TokenEmbd, ty, "the model has no `token_embd.weight`")
    }

    /// Reason that no tensor of a class got this type.
    fn idle_class(&self, class: TensorClass, ty: GgmlType, absent: &str) -> Option<String> {
        let of_class = || self.rows().filter(|(_, choice)| choice.class == class);
        if of_class().any(|(_, choice)| is_obeyed(*choice, ty)) {
            return None;
        }
        Some(match of_class().next() {
            None => absent.to_owned(),
            Some((tensor, choice)) => self.no_mixture().unwrap_or_else(|| {
                let is_head = class == TensorClass::TokenEmbd && !self.has(TensorClass::Output);
                if is_head && !matches!(choice.reason, Reason::Kept) {
                    absent.to_owned()
                } else {
                    decided_otherwise(tensor, *choice)
                }
            }),
        })
    }
}

/// Reason that a tensor did not get the type of an option.
fn decided_otherwise(tensor: &TensorMeta, choice: TypeChoice) -> String {
    match choice.reason {
        Reason::Kept => format!("`{}` stays {}", escape(&tensor.name), choice.ty),
        _ => format!("another option decides about `{}`", escape(&tensor.name)),
    }
}

/// Returns true if a tensor got the type that was asked for, or its replacement for these columns.
fn is_obeyed(choice: TypeChoice, ty: GgmlType) -> bool {
    choice.ty == ty || matches!(choice.reason, Reason::Fallback { wanted } if wanted == ty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelFacts, choose_types};
    use gguf_core::Shape;

    fn found(file_type: FileType, names: &[&str], change: impl Fn(&mut QuantizeOptions)) -> Vec<String> {
        let tensor = |name: &&str| {
            let dims = if name.contains("norm") || name.ends_with("bias") { vec![256] } else { vec![8, 256] };
            let ty = if name.ends_with("bias") { GgmlType::F32 } else { GgmlType::F16 };
            TensorMeta { name: (*name).to_owned(), shape: Shape::new(dims).unwrap(), ty }
        };
        let tensors: Vec<_> = names.iter().map(tensor).collect();
        let mut options = QuantizeOptions::new(file_type);
        change(&mut options);
        let choices = choose_types(&ModelFacts::default(), &tensors, &options, false).unwrap();
        let idle = idle_options(&options, &tensors, &choices);
        idle.into_iter().map(|idle| format!("{}: {}", idle.option, idle.why)).collect()
    }

    const TIED: [&str; 3] = ["token_embd.weight", "blk.0.attn_norm.weight", "blk.0.ffn_down.weight"];
    const UNTIED: [&str; 3] = ["token_embd.weight", "output.weight", "blk.0.ffn_down.weight"];

    fn rule(text: &str) -> impl Fn(&mut QuantizeOptions) {
        move |options| options.tensor_types.push(TensorTypeRule::parse(text).unwrap())
    }

    #[test]
    fn rules_for_single_tensors() {
        assert!(found(FileType::Q4KM, &TIED, rule("ffn_down=q8_0")).is_empty());
        // A rule has an effect even if the mixture gives the same type.
        assert!(found(FileType::Q8_0, &TIED, rule("ffn_down=q8_0")).is_empty());
        assert_eq!(
            found(FileType::Bf16, &TIED, rule("ffn_down=q8_0")),
            ["--tensor-type ffn_down=q8_0: every matrix becomes BF16"]
        );
        assert_eq!(
            found(FileType::Copy, &TIED, rule("ffn_down=q8_0")),
            ["--tensor-type ffn_down=q8_0: every tensor is copied as it is"]
        );
        assert_eq!(
            found(FileType::Q4KM, &TIED, rule("attn_norm=bf16")),
            ["--tensor-type attn_norm=bf16: `blk.0.attn_norm.weight` stays F16"]
        );
        // A kept tensor that has the type anyway is no effect.
        assert_eq!(
            found(FileType::Q4KM, &["txt.bias", "txt_norm.weight"], rule("txt=f32")),
            ["--tensor-type txt=f32: `txt_norm.weight` stays F16"]
        );
        assert!(found(FileType::Q4KM, &["txt.bias"], rule("txt=f32")).is_empty());
        assert!(
            found(FileType::Q4KM, &["txt.bias", "txt_norm.weight", "txt.weight"], rule("txt=f32")).is_empty()
        );
        assert_eq!(
            found(FileType::Q4KM, &TIED, rule("ffn_dwon=q8_0")),
            ["--tensor-type ffn_dwon=q8_0: no tensor has such a name"]
        );
        let both = |options: &mut QuantizeOptions| {
            rule("down=q8_0")(options);
            rule("ffn_down=q6_k")(options);
        };
        assert_eq!(
            found(FileType::Q4KM, &TIED, both),
            ["--tensor-type ffn_down=q6_k: another option decides about `blk.0.ffn_down.weight`"]
        );
    }

    #[test]
    fn options_for_the_ends_of_the_model() {
        let leave = |options: &mut QuantizeOptions| options.leave_output_tensor = true;
        assert!(found(FileType::Q4KM, &UNTIED, leave).is_empty());
        assert_eq!(
            found(FileType::Q4KM, &TIED, leave),
            ["--leave-output-tensor: the model has no `output.weight`: its head is the token embedding"]
        );
        let output = |options: &mut QuantizeOptions| options.output_tensor_type = Some(GgmlType::Q5K);
        assert!(found(FileType::Q4KM, &UNTIED, output).is_empty());
        // In a tied model the embedding is the output.
        assert!(found(FileType::Q4KM, &TIED, output).is_empty());
        assert_eq!(found(FileType::Copy, &UNTIED, output).len(), 1);
        let embedding = |options: &mut QuantizeOptions| options.token_embedding_type = Some(GgmlType::Q8_0);
        assert!(found(FileType::Q4KM, &TIED, embedding).is_empty());
        assert_eq!(
            found(FileType::Q4KM, &TIED[1..], embedding),
            ["--token-embedding-type: the model has no `token_embd.weight`"]
        );
        let kept = |options: &mut QuantizeOptions| {
            leave(options);
            output(options);
        };
        assert_eq!(found(FileType::Q4KM, &UNTIED, kept), ["--output-tensor-type: `output.weight` stays F16"]);
    }

    #[test]
    fn pure_without_a_mixture() {
        let pure = |options: &mut QuantizeOptions| options.pure = true;
        assert!(found(FileType::Q4KM, &TIED, pure).is_empty());
        assert_eq!(found(FileType::F16, &TIED, pure), ["--pure: every matrix becomes F16"]);
    }
}
