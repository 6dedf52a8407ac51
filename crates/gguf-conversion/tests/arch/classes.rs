//! Every class that llama.cpp's converter accepts for a text model has a card.

use std::collections::BTreeSet;

use gguf_arch::Registry;

use gguf_testkit::fixture;

/// Classes without a card; `docs/differences.md` has the reasons.
const WITHOUT: &[&str] = &["PocketTTSModel", "Qwen3TTSForConditionalGeneration", "UltravoxModel"];

#[test]
fn every_class_of_the_peer_is_claimed_once() {
    let registry = Registry::embedded().unwrap();
    let claimed: BTreeSet<&str> = registry.classes().iter().map(|row| row.class).collect();
    let text = fs_err::read_to_string(fixture("classes.tsv")).unwrap();
    let names: BTreeSet<&str> = text.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names.len(), 267, "llama.cpp 0.5.0 registers this many");
    let missing: Vec<&&str> = names.iter().filter(|name| !claimed.contains(**name)).collect();
    assert_eq!(
        missing,
        WITHOUT.iter().collect::<Vec<_>>(),
        "{} of {}",
        names.len() - missing.len(),
        names.len()
    );
}

/// Classes for which llama.cpp changes the architecture during the conversion.
const CHANGED: &[&str] = &[
    "DeepseekOCRForCausalLM",
    "Eagle3DraftModel",
    "Eagle3LlamaForCausalLM",
    "Eagle3Speculator",
    "LlamaForCausalLMEagle3",
    "NomicBertModel",
    "UnlimitedOCRForCausalLM",
];

/// Each class has the architecture that llama.cpp gives it, in one of its cards.
#[test]
fn classes_have_the_architecture_of_the_peer() {
    let registry = Registry::embedded().unwrap();
    let ours: BTreeSet<(&str, &str)> = registry.classes().iter().map(|row| (row.class, row.gguf)).collect();
    let text = fs_err::read_to_string(fixture("classes.tsv")).unwrap();
    let claimed = |class: &str| ours.iter().any(|row| row.0 == class);
    let wrong: Vec<&str> = text
        .lines()
        .filter(|line| {
            let (class, gguf) = line.split_once('\t').unwrap();
            claimed(class) && !CHANGED.contains(&class) && !ours.contains(&(class, gguf))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
