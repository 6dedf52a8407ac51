//! Class of a configuration that names none, or that names a wrapper: FSDP, PEFT and others write their own name into
//! `architectures`, around the model's class or instead of it.

use serde_json::{Map, Value as Json};

use crate::arch::error::ArchError;
use crate::arch::load::Registry;
use crate::arch::warning::ArchWarning;

/// Prefixes that wrappers add to a model's class.
const PREFIXES: &[&str] = &[
    "FSDP2",
    "FSDP",
    "FullyShardedDataParallel",
    "DistributedDataParallel",
    "DDP",
    "DeepSpeed",
    "PeftModel",
    "Peft",
    "peft",
    "LoRA",
    "Lora",
    "OptimizedModule",
    "Optimized",
    "Compiled",
    "Unsloth",
    "ORT",
];
/// Suffixes that wrappers add to a model's class.
const SUFFIXES: &[&str] = &["WithValueHead", "WithLoRA", "WithLora", "LoRA", "Lora", "Peft", "FSDP"];
/// Classes of wrappers that name no model.
const WRAPPERS: &[&str] = &[
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForCausalLMWithValueHead",
    "DeepSpeedEngine",
    "DistributedDataParallel",
    "FastLanguageModel",
    "FullyShardedDataParallel",
    "LoraModel",
    "ORTModelForCausalLM",
    "OptimizedModule",
    "PeftModel",
    "PeftModelForCausalLM",
    "PreTrainedModel",
];

/// Returns the class that a configuration means, with a warning if it does not name it. `named` is the class that it
/// names.
///
/// # Errors
/// The error of `named` if `model_type` does not determine the class either.
pub(super) fn recognized(
    registry: &Registry,
    named: Result<String, ArchError>,
    config: &Map<String, Json>,
) -> Result<(String, Option<ArchWarning>), ArchError> {
    let classes = registry.classes();
    let is_known = |class: &str| classes.iter().any(|row| row.class == class);
    let of_type = || {
        let text = config.get("text_config").and_then(Json::as_object);
        let types = [Some(config), text].into_iter().flatten();
        types.filter_map(|part| part.get("model_type")?.as_str()).find_map(|model_type| {
            let row = CLASSES.iter().find(|row| row.0 == model_type && is_known(row.1))?;
            Some((model_type.to_owned(), row.1.to_owned()))
        })
    };
    match named {
        Ok(found) if is_known(&found) => Ok((found, None)),
        Ok(found) => {
            let inner = unwrapped(&found).find(|class| is_known(class)).map(str::to_owned);
            let is_wrapper = WRAPPERS.contains(&found.as_str());
            // transformers selects the class by the type, unless the model brings its own code.
            let has_code = config.get("auto_map").is_some_and(|map| !map.is_null());
            let means = |class: &str| is_wrapper || (!has_code && found.ends_with(class));
            let class = inner.or_else(|| of_type().map(|row| row.1).filter(|class| means(class)));
            match class {
                Some(class) => Ok((class.clone(), Some(ArchWarning::WrappedClass { found, class }))),
                None => Ok((found, None)),
            }
        }
        Err(error @ ArchError::NoClass { .. }) => {
            let (model_type, class) = of_type().ok_or(error)?;
            Ok((class.clone(), Some(ArchWarning::ClassOfType { model_type, class })))
        }
        Err(error) => Err(error),
    }
}

/// Returns a class without a wrapper's prefix or suffix, and without its module.
fn unwrapped(class: &str) -> impl Iterator<Item = &str> {
    let module = class.rsplit_once('.').map(|row| row.1);
    let in_front = PREFIXES.iter().filter_map(|prefix| class.strip_prefix(prefix));
    let behind = SUFFIXES.iter().filter_map(|suffix| class.strip_suffix(suffix));
    module.into_iter().chain(in_front).chain(behind).map(|class| class.trim_matches(['_', '.', '-']))
}

/// `model_type` and its class in transformers 5.24, for classes that cards know; from `scripts/peers/model_types.py`.
#[rustfmt::skip]
const CLASSES: &[(&str, &str)] = &[
    ("afmoe", "AfmoeForCausalLM"),
    ("apertus", "ApertusForCausalLM"),
    ("arcee", "ArceeForCausalLM"),
    ("audioflamingo3", "AudioFlamingo3ForConditionalGeneration"),
    ("bamba", "BambaForCausalLM"),
    ("bert", "BertModel"),
    ("bitnet", "BitNetForCausalLM"),
    ("bloom", "BloomForCausalLM"),
    ("camembert", "CamembertModel"),
    ("chameleon", "ChameleonForConditionalGeneration"),
    ("cohere", "CohereForCausalLM"),
    ("cohere2", "Cohere2ForCausalLM"),
    ("cohere2_moe", "Cohere2MoeForCausalLM"),
    ("dbrx", "DbrxForCausalLM"),
    ("deepseek_v2", "DeepseekV2ForCausalLM"),
    ("deepseek_v3", "DeepseekV3ForCausalLM"),
    ("deepseek_v32", "DeepseekV32ForCausalLM"),
    ("deepseek_v4", "DeepseekV4ForCausalLM"),
    ("distilbert", "DistilBertModel"),
    ("dots1", "Dots1ForCausalLM"),
    ("dots3_note", "Dots3NoteForCausalLM"),
    ("dots3_note_text", "Dots3NoteForCausalLM"),
    ("ernie4_5", "Ernie4_5ForCausalLM"),
    ("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    ("eurobert", "EuroBertModel"),
    ("exaone4", "Exaone4ForCausalLM"),
    ("exaone4_5", "Exaone4_5_ForConditionalGeneration"),
    ("exaone_moe", "ExaoneMoeForCausalLM"),
    ("falcon", "FalconForCausalLM"),
    ("falcon_h1", "FalconH1ForCausalLM"),
    ("falcon_mamba", "FalconMambaForCausalLM"),
    ("gemma", "GemmaForCausalLM"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "Gemma3ForConditionalGeneration"),
    ("gemma3_text", "Gemma3ForCausalLM"),
    ("gemma3n", "Gemma3nForConditionalGeneration"),
    ("gemma3n_text", "Gemma3nForCausalLM"),
    ("gemma4", "Gemma4ForConditionalGeneration"),
    ("gemma4_assistant", "Gemma4AssistantForCausalLM"),
    ("gemma4_text", "Gemma4ForCausalLM"),
    ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration"),
    ("gemma4_unified_assistant", "Gemma4UnifiedAssistantForCausalLM"),
    ("glm", "GlmForCausalLM"),
    ("glm4", "Glm4ForCausalLM"),
    ("glm4_moe", "Glm4MoeForCausalLM"),
    ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    ("glm4v", "Glm4vForConditionalGeneration"),
    ("glm4v_moe", "Glm4vMoeForConditionalGeneration"),
    ("glm5_next", "Glm5NextForConditionalGeneration"),
    ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    ("glm_ocr", "GlmOcrForConditionalGeneration"),
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt_bigcode", "GPTBigCodeForCausalLM"),
    ("gpt_neox", "GPTNeoXForCausalLM"),
    ("gpt_oss", "GptOssForCausalLM"),
    ("granite", "GraniteForCausalLM"),
    ("granite_swa", "GraniteSWAForCausalLM"),
    ("granitemoe", "GraniteMoeForCausalLM"),
    ("granitemoe_swa", "GraniteMoeSWAForCausalLM"),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    ("granitemoeshared", "GraniteMoeSharedForCausalLM"),
    ("hrm_text", "HrmTextForCausalLM"),
    ("hunyuan_vl", "HunYuanVLForConditionalGeneration"),
    ("hy_v3", "HYV3ForCausalLM"),
    ("hy_v4", "HYV4ForCausalLM"),
    ("jais2", "Jais2ForCausalLM"),
    ("jamba", "JambaForCausalLM"),
    ("janus", "JanusForConditionalGeneration"),
    ("kimi_linear", "KimiLinearForCausalLM"),
    ("laguna", "LagunaForCausalLM"),
    ("lfm2", "Lfm2ForCausalLM"),
    ("lfm2_moe", "Lfm2MoeForCausalLM"),
    ("llama", "LlamaForCausalLM"),
    ("llama4", "Llama4ForCausalLM"),
    ("llama4_text", "Llama4ForCausalLM"),
    ("llava", "LlavaForConditionalGeneration"),
    ("mamba", "MambaForCausalLM"),
    ("mamba2", "Mamba2ForCausalLM"),
    ("mellum", "MellumForCausalLM"),
    ("mimo_v2_flash", "MiMoV2FlashForCausalLM"),
    ("minicpm3", "MiniCPM3ForCausalLM"),
    ("minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration"),
    ("minimax_m2", "MiniMaxM2ForCausalLM"),
    ("ministral3", "Ministral3ForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("mistral3", "Mistral3ForConditionalGeneration"),
    ("mixtral", "MixtralForCausalLM"),
    ("modernbert", "ModernBertModel"),
    ("mt5", "MT5ForConditionalGeneration"),
    ("muse_glimmer", "MuseGlimmerForConditionalGeneration"),
    ("muse_glimmer_assistant", "MuseGlimmerAssistantModel"),
    ("nemotron", "NemotronForCausalLM"),
    ("nemotron_h", "NemotronHForCausalLM"),
    ("nomic_bert", "NomicBertModel"),
    ("olmo", "OlmoForCausalLM"),
    ("olmo2", "Olmo2ForCausalLM"),
    ("olmo3", "Olmo3ForCausalLM"),
    ("olmoe", "OlmoeForCausalLM"),
    ("paddleocr_vl", "PaddleOCRVLForConditionalGeneration"),
    ("phi", "PhiForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    ("qwen2_audio", "Qwen2AudioForConditionalGeneration"),
    ("qwen2_moe", "Qwen2MoeForCausalLM"),
    ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_5", "Qwen3_5ForCausalLM"),
    ("qwen3_5_moe", "Qwen3_5MoeForCausalLM"),
    ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    ("qwen3_asr", "Qwen3ASRForConditionalGeneration"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
    ("qwen3_next", "Qwen3NextForCausalLM"),
    ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    ("qwen4_exp", "Qwen4ExpForCausalLM"),
    ("qwen4_exp_text", "Qwen4ExpForCausalLM"),
    ("roberta", "RobertaModel"),
    ("seed_oss", "SeedOssForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
    ("solar_open", "SolarOpenForCausalLM"),
    ("stablelm", "StableLmForCausalLM"),
    ("starcoder2", "Starcoder2ForCausalLM"),
    ("step3p7", "Step3p7ForConditionalGeneration"),
    ("t5", "T5ForConditionalGeneration"),
    ("umt5", "UMT5ForConditionalGeneration"),
    ("voxtral", "VoxtralForConditionalGeneration"),
    ("xlm-roberta", "XLMRobertaModel"),
    ("youtu", "YoutuForCausalLM"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn class(json: &str) -> Result<(String, bool), String> {
        let registry = Registry::embedded().unwrap();
        let config = crate::arch::with_text_config(&serde_json::from_str(json).unwrap());
        let found = recognized(&registry, crate::arch::class_of(&config), &config);
        found.map(|(class, warning)| (class, warning.is_some())).map_err(|error| error.to_string())
    }

    #[test]
    fn wrappers_are_taken_off() {
        for (json, want, is_told) in [
            (r#"{"architectures": ["LlamaForCausalLM"]}"#, "LlamaForCausalLM", false),
            (r#"{"architectures": ["FSDPLlamaForCausalLM"]}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": ["FSDPQwen3MoeForCausalLM"]}"#, "Qwen3MoeForCausalLM", true),
            (r#"{"architectures": ["Qwen2ForCausalLMWithValueHead"]}"#, "Qwen2ForCausalLM", true),
            (
                r#"{"architectures": ["PeftModelForCausalLM"], "model_type": "qwen2"}"#,
                "Qwen2ForCausalLM",
                true,
            ),
            (r#"{"architectures": ["OptimizedModule"], "model_type": "gemma2"}"#, "Gemma2ForCausalLM", true),
            (r#"{"architectures": null, "model_type": "bert"}"#, "BertModel", true),
            (r#"{"model_type": "llama"}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": [], "model_type": "xlm-roberta"}"#, "XLMRobertaModel", true),
            (r#"{"architectures": ["FSDP_LlamaForCausalLM"]}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": ["a.b.LlamaForCausalLM"]}"#, "LlamaForCausalLM", true),
            (r#"{"architectures": ["MyLlamaForCausalLM"], "model_type": "llama"}"#, "LlamaForCausalLM", true),
            // The model's own code may compute something else.
            (
                r#"{"architectures": ["MyLlamaForCausalLM"], "model_type": "llama", "auto_map": {"AutoConfig": "x"}}"#,
                "MyLlamaForCausalLM",
                false,
            ),
            (
                r#"{"architectures": ["MyLlamaForCausalLM"], "model_type": "mine"}"#,
                "MyLlamaForCausalLM",
                false,
            ),
            (r#"{"architectures": ["PeftModel"], "model_type": "nobodys"}"#, "PeftModel", false),
        ] {
            assert_eq!(class(json), Ok((want.to_owned(), is_told)), "{json}");
        }
        let error = class(r#"{"model_type": "nobodys"}"#).unwrap_err();
        assert_eq!(error, "config.json: `architectures` names no model class");
    }

    #[test]
    fn the_table_is_sorted_and_its_classes_are_known() {
        assert!(CLASSES.is_sorted());
        let registry = Registry::embedded().unwrap();
        let classes = registry.classes();
        for (model_type, class) in CLASSES {
            assert!(classes.iter().any(|row| row.class == *class), "{model_type}: {class}");
        }
    }
}
