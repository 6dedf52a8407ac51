//! FastLLM files as models: the dictionary becomes the configuration, the codes floats, the vocabulary the tokenizer.

mod adapters;
mod flm_vocabulary;
mod shapes;

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::drops::Drops;
use crate::{ConvertError, ConvertOptions, ModelSource, Vocabulary, registry};
use gguf_checkpoint::fastllm::{FlmFile, FlmHeader};
use gguf_checkpoint::{CheckpointError, ModelDir, load_object};
use gguf_core::simd::SimdLevel;
use gguf_dequant::Opened;
use gguf_dequant::flm::{self, FlmMeaning, FlmSurvey};

/// Settings that a file lacks, or declares in more than one way.
#[derive(Clone, Debug, Default)]
pub struct FlmOptions {
    /// Architecture, by the name of its card.
    pub arch: Option<String>,
    /// `config.json` of the original model, for the keys that the file lacks.
    pub config: Option<PathBuf>,
    /// True to merge a LoRA adapter stored in the file; otherwise such a file is refused.
    pub merge_adapters: bool,
    /// Interpretation of value ranges.
    pub meaning: FlmMeaning,
}

impl ModelSource {
    /// Opens a FastLLM file.
    ///
    /// # Errors
    /// A broken file, one without architecture, adapters that are not to be merged or cannot be, value ranges without a
    /// meaning.
    pub fn open_flm(path: &Path, flm: &FlmOptions, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let file = FlmFile::open(path, &options.limits)?;
        let header = file.header().clone();
        let mut warnings = Vec::new();
        let mut config = header.configuration();
        if let Some(path) = &flm.config {
            let given = load_object(path, &options.limits)?;
            for (key, value) in given {
                let own = config.entry(key).or_insert(Json::Null);
                if own.is_null() {
                    *own = value;
                }
            }
        }
        name_class(path, &header, flm, options, &mut config)?;
        if header.version < 2 {
            shapes::complete(&header.tensors, &mut config, &mut warnings);
        }
        let vocabulary = match flm_vocabulary::given(&header, &mut config, &mut warnings) {
            Some(given) => Vocabulary::Given(Box::new(given)),
            None => {
                warnings.push("the file has no vocabulary, none is written".to_owned());
                Vocabulary::Absent
            }
        };
        let mut source = Self::without_weights(ModelDir::of_file(path, config, &options.limits));
        source.vocabulary = vocabulary;
        source.paths = iter::once(path.to_owned()).chain(flm.config.clone()).collect();
        if !options.vocab_only {
            let opened = weights(file, flm, options.level, &mut warnings)?;
            source.quantization = opened.quantization;
            let mut drops = Drops::of(&options.drop);
            source.weights = Some(Arc::from(drops.apply(opened.source)));
            warnings.extend(drops.warnings());
            source.pieces.extend(drops.pieces());
        }
        source.warnings = warnings;
        Ok(source)
    }
}

/// Opens the weights of a file as floats, with its adapters merged if requested.
fn weights(
    file: FlmFile,
    flm: &FlmOptions,
    level: SimdLevel,
    warnings: &mut Vec<String>,
) -> Result<Opened, ConvertError> {
    let path = file.path().to_owned();
    let adapters = file.header().adapters.clone();
    let opened = flm::open(file, flm.meaning, level)?;
    tell(&opened.survey, flm.meaning, warnings);
    if adapters.is_empty() && !opened.weights().iter().any(|meta| adapters::is_part(&meta.name)) {
        return Ok(opened.into_opened());
    }
    if !flm.merge_adapters {
        let names = adapters.into_iter().map(|adapter| adapter.name).collect();
        return Err(ConvertError::Adapters { path, names });
    }
    let found = adapters::pairs(&adapters, opened.weights());
    let pairs = found.map_err(|reason| ConvertError::Adapter { path, reason })?;
    Ok(opened.merged(&pairs)?.into_opened())
}

/// Adds warnings about the value ranges, and about the interpretation used if there are two.
fn tell(survey: &FlmSurvey, meaning: FlmMeaning, warnings: &mut Vec<String>) {
    for (name, n) in &survey.zeroed {
        warnings.push(format!("tensor `{name}`: {n} ranges without a minimum hold zeros, they become zeros"));
    }
    let by_writer = meaning == FlmMeaning::Writer;
    if survey.symmetric_int8 {
        warnings.push(if by_writer {
            "INT8 weights are read as the Python exporter meant them, scale = maximum / 127; FastLLM itself reads other \
             values"
                .to_owned()
        } else {
            "INT8 weights are read as FastLLM reads them; they come from the Python exporter, which meant scale = \
             maximum / 127: `--meaning writer` takes that"
                .to_owned()
        });
    }
    if let Some(share) = survey.present_int4.filter(|_| survey.raw_int4()) {
        let share = share * 100.0;
        warnings.push(if by_writer {
            format!("INT4 rows are read as in July 2023, minimum as stored ({share:.0} % fit present writers)")
        } else {
            format!(
                "INT4 rows look like those of July 2023 ({share:.0} % fit present writers) and are read as FastLLM \
                 reads them now: `--meaning writer` takes the meaning of that time"
            )
        });
    }
    if by_writer && !survey.symmetric_int8 && !survey.raw_int4() {
        warnings.push("`--meaning writer` changes nothing: the file means what FastLLM reads".to_owned());
    }
}

/// Ensures that the configuration names a model class: its own, or that of the architecture.
fn name_class(
    path: &Path,
    header: &FlmHeader,
    flm: &FlmOptions,
    options: &ConvertOptions,
    config: &mut Map<String, Json>,
) -> Result<(), ConvertError> {
    let model_type = match &flm.arch {
        Some(arch) => arch.clone(),
        None if config.get("architectures").is_some_and(|classes| classes.get(0).is_some()) => return Ok(()),
        None => {
            let broken = |source| CheckpointError::FastLlm { path: path.to_owned(), source };
            header.model_type().map_err(broken)?.to_owned()
        }
    };
    let registry = registry(options)?;
    let cards = registry.cards();
    let named = cards.iter().find(|card| card.name() == model_type && !card.classes.is_empty());
    let typed =
        || cards.iter().find(|card| card.defaults.contains_key(&model_type) && !card.classes.is_empty());
    match named.or_else(typed).and_then(|card| card.classes.first()) {
        Some(class) => {
            config.insert("architectures".to_owned(), Json::Array(vec![class.as_str().into()]));
            config.entry("model_type").or_insert_with(|| model_type.into());
            Ok(())
        }
        None => Err(ConvertError::UnknownArch { path: path.to_owned(), arch: model_type }),
    }
}
