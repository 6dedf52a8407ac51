//! Conversion of a checkpoint: everything about the output, decided from headers; then a source of its tensors.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::codes::{self, ChosenStorage, FittingType, FloatReason, FloatRole, KeptRole, PackingsOf};
use crate::computable::Planned;
use crate::key_check::KeysError;
use crate::left_out::{OtherModalities, of_training};
use crate::mapping::{CardScope, map};
use crate::metadata::{GeneralMetadata, MetadataFiles, MetadataInputs, general_metadata};
use crate::mlx::SavedByMlx;
use crate::naming::ParameterCounts;
use crate::target::OpenTarget;
use crate::{
    ConvertError, ConvertOptions, ModelSource, SizesError, account, model_vocabulary, plain_names, sentence,
    short_tower, token_rows,
};
use gguf_arch::{
    CardKind, DraftHeads, DropReason, Dropped, Mapping, OutType, exports_heads, foreign_names, is_bound,
    loader_faults,
};
use gguf_blocks::SmallRows;
use gguf_checkpoint::CheckpointError;
use gguf_core::account::Piece;
use gguf_core::sync::Unpoisoned;
use gguf_core::{Content, GgmlType, Hint, SourceError, TensorMeta, TensorSource, WeightMeta, WeightSource};
use gguf_format::name_fault::name_fault;
use gguf_format::{Array, Metadata, Value, id_of_blocks};
use gguf_views::{self, ReadPolicy, Recipe};

/// Version of the block formats, as declared by files.
pub(super) const QUANTIZATION_VERSION: u32 = 2;
const FILE_TYPE: &str = "general.file_type";

/// Plan of a GGUF file. Nothing has been written, and no weight read; as a [`TensorSource`] it produces rows on demand.
pub struct Conversion {
    pub(super) source: ModelSource,
    /// Keys of the files, with what becomes of them.
    pub(super) keys: Vec<Piece>,
    mapping: Mapping,
    metadata: Metadata,
    general: GeneralMetadata,
    tensors: Vec<TensorMeta>,
    /// Recipe and storage of each tensor.
    pub(super) parts: Vec<ConvertedTensor>,
    /// Declared type of the file, if it differs from the requested one.
    counts_as: Option<GgmlType>,
    policy: ReadPolicy,
    warnings: Vec<String>,
    has_towers: bool,
    pub(super) options: ConvertOptions,
}

/// Recipe and storage of a tensor.
pub(super) struct ConvertedTensor {
    pub(super) recipe: Recipe,
    /// Storage of its codes, if they are kept.
    fit: Option<FittingType>,
    /// Reason why they are not kept.
    reason: Option<FloatReason>,
    content: Content,
    /// Count of rows whose values were too small for the type.
    small: Mutex<SmallRows>,
}

impl ConvertedTensor {
    fn new(recipe: Recipe, fit: Option<FittingType>, reason: Option<FloatReason>) -> Self {
        Self { recipe, fit, reason, content: Content::default(), small: Mutex::default() }
    }
}

impl fmt::Debug for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversion")
            .field("card", &self.mapping.card.name())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// Weights of a conversion that has none.
struct NoWeights;

impl WeightSource for NoWeights {
    fn weights(&self) -> &[WeightMeta] {
        &[]
    }

    fn read_elems(&self, weight: usize, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        panic!("there is no weight {weight}")
    }
}

/// Maximum number of empty tensors that an error names.
const MAX_NAMED: usize = 3;

/// Ends of names of weights that are matrices in every model.
const MATRICES: [&str; 5] =
    ["_proj.weight", "embed_tokens.weight", "lm_head.weight", "wte.weight", "word_embeddings.weight"];

/// Refuses weights of which another process of a training has the elements.
fn refuse_partitioned(weights: &[WeightMeta]) -> Result<(), CheckpointError> {
    let is_matrix = |meta: &&WeightMeta| MATRICES.iter().any(|end| meta.name.ends_with(end));
    let flat =
        weights.iter().filter(is_matrix).filter(|meta| meta.shape.rank() == 1 && meta.shape.dims() != [0]);
    let flat: Vec<String> = flat.map(|meta| meta.name.clone()).collect();
    if !flat.is_empty() {
        return Err(CheckpointError::Flattened { names: flat, n: weights.iter().filter(is_matrix).count() });
    }
    refuse_empty(weights)
}

/// Refuses weights without elements, which another process of a training has.
pub(crate) fn refuse_empty(weights: &[WeightMeta]) -> Result<(), CheckpointError> {
    let is_empty = |meta: &&WeightMeta| *meta.shape.dims() == [0] && meta.name.ends_with(".weight");
    let empty: Vec<&WeightMeta> = weights.iter().filter(is_empty).collect();
    if empty.is_empty() {
        return Ok(());
    }
    let names = empty.iter().take(MAX_NAMED).map(|meta| meta.name.clone()).collect();
    Err(CheckpointError::Partitioned { names, n_empty: empty.len(), n: weights.len() })
}

/// Adds to an error that MLX saved the weights: what is unknown or missing has another name there.
fn source_error(mlx: Option<&SavedByMlx>, error: ConvertError) -> ConvertError {
    match (mlx, error) {
        (Some(mlx), ConvertError::Arch(error)) if error.is_about_tensors() => {
            ConvertError::SavedByMlx { path: mlx.path.clone(), source: Box::new(error.into()) }
        }
        (_, error) => error,
    }
}

impl Conversion {
    /// Plans the conversion of a checkpoint directory.
    ///
    /// # Errors
    /// [`ConvertError`]: the checkpoint, its configuration, its tokenizer, or the card do not fit together.
    pub fn plan(path: &Path, options: &ConvertOptions) -> Result<Self, ConvertError> {
        Self::of(ModelSource::open(path, options)?, options)
    }

    /// Plans the conversion of an open model.
    pub fn of(source: ModelSource, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let weights = source.weights.clone();
        let packings =
            |weight: usize| weights.as_ref().map_or(Ok(Vec::new()), |weights| weights.packings(weight));
        let is_single_file = source.dir.path().is_file() && options.drop.is_empty();
        Self::with_packings(source, options, &packings).map_err(|error| {
            let mut texts = error.hints().into_iter().chain([error.to_string()]);
            let is_about_config = is_single_file && texts.any(|text| text.contains("config.json"));
            if is_about_config { ConvertError::Dictionary(Box::new(error)) } else { error }
        })
    }

    /// Plans a conversion like [`Conversion::of`]; `packings` returns the packings of a weight.
    pub(super) fn with_packings(
        source: ModelSource,
        options: &ConvertOptions,
        packings: PackingsOf<'_>,
    ) -> Result<Self, ConvertError> {
        let scope = if options.vocab_only { CardScope::Keys } else { CardScope::KeysAndTensors };
        let mut source = source;
        let mlx = source.mlx.clone();
        refuse_partitioned(source.metas())?;
        let (mut mapping, mut warnings) = plain_names::map_by(&mut source, options, scope)
            .map_err(|error| source_error(mlx.as_ref(), error))?;
        let (dir, weights) = (&source.dir, source.metas());
        warnings.extend(token_rows::settle(&mut mapping, weights));

        warnings.extend(mapping.lost.iter().map(|lost| format!("config.json: {lost}")));
        let mut keys = account::keys(&source, &mapping);
        warnings.extend(account::unknown_keys(&keys));
        let has_tower = || {
            let options = ConvertOptions { kind: CardKind::Mmproj, ..ConvertOptions::default() };
            map(&source, weights, &options, CardScope::Keys, &mut Vec::new()).is_ok()
        };
        warnings.extend(of_training(&mapping, weights));
        warnings.extend(mapping.differs.iter().cloned());
        match &source.adapter {
            Some(adapter) => warnings.extend(adapter.warnings(&mapping, weights, options.kind)?),
            None => warnings.extend(gguf_checkpoint::unmerged_adapter(dir)),
        }
        warnings.extend(short_tower::warning(&mapping));
        let others = OtherModalities::of(&mapping, weights, has_tower);
        let has_towers = others.as_ref().is_some_and(OtherModalities::is_converted);
        warnings.extend(others.map(|parts| parts.to_string()));

        if options.kind == CardKind::Text {
            let names = mapping.outputs.iter().map(|output| output.name.as_str());
            warnings.extend(foreign_names(&mapping.card.gguf, names).map(|foreign| foreign.to_string()));
            let own = sentence::pieces(&source, &mapping)?;
            warnings.extend(own.iter().filter_map(account::warning));
            keys.extend(own);
        }
        warnings.extend(mapping.tie.as_ref().map(ToString::to_string));

        let recipes = mapping.outputs.iter().map(|output| gguf_views::recipe(output, weights));
        let recipes = recipes.collect::<Result<Vec<_>, _>>()?;
        let floats: &dyn WeightSource = source.weights.as_deref().map_or(&NoWeights, |weights| weights);
        let mut choices = codes::choose(options.codes, &mapping, &recipes, floats, packings)?;
        if options.fp8_as_q8 {
            let all = choices.iter_mut().zip(&mapping.outputs).zip(&recipes);
            for ((choice, output), recipe) in all.filter(|((choice, _), _)| choice.fit.is_none()) {
                choice.ty = codes::fp8_as_q8(output, recipe, floats).unwrap_or(choice.ty);
            }
        }
        let (tensors, parts) = in_file_order(&mapping, recipes, choices);

        let metadata_files = MetadataFiles::read(dir, options.metadata_file.as_deref())?;
        // ref: names come from `config.json`, if there is one, in Mistral's own format too
        let hf_config = if dir.is_mistral_format() { dir.json("config.json")? } else { None };
        let mut general = general_metadata(&MetadataInputs {
            dir_name: &dir.name()?,
            config: hf_config.as_ref().unwrap_or(dir.config()),
            files: &metadata_files,
            model_name: options.model_name.as_deref(),
            counts: ParameterCounts::of(&tensors),
        });
        general.adapter = source.adapter.as_ref().map(|adapter| adapter.name.clone());
        warnings.extend(general.warnings.iter().map(ToString::to_string));

        let built = model_vocabulary::build(&source, &mapping, options, general.model_name())?;
        warnings.extend(built.warnings.iter().map(ToString::to_string));
        keys.extend(built.pieces);

        let extra = tensor_extra(&tensors, &parts);
        let mut metadata = metadata(&mapping, &general, &extra, &built.rows, options);
        warnings.extend(no_context_length(&mapping, &metadata));
        if options.card.is_none() {
            let file = if dir.is_mistral_format() { "params.json" } else { "config.json" };
            warnings.extend(KeysError::check(file, &mapping, &metadata, &options.set)?);
            let named = name_fault(&metadata);
            warnings.extend(named.map(|fault| format!("{fault}; `--model-name NAME` gives it another name")));
        }
        let names = |tensor: usize| {
            let indices = parts.get(tensor).map(|part| part.recipe.weights()).unwrap_or_default();
            let names = indices.into_iter().filter_map(|at| Some(weights.get(at)?.name.clone()));
            names.collect()
        };
        SizesError::check(&mapping, &metadata, &tensors, &names, &options.set)?;
        if mapping.card.kind == CardKind::Text {
            // A user's own card may be for another runtime.
            if scope == CardScope::KeysAndTensors
                && options.heads != DraftHeads::Alone
                && options.card.is_none()
            {
                let (card, config) = (&mapping.card, dir.config());
                warnings.extend(Planned { card, config, metadata: &metadata, tensors: &tensors }.check()?);
                warnings.extend(loader_faults(&metadata, &tensors).iter().map(ToString::to_string));
            }
        }
        let fits = parts.iter().filter_map(|part| part.fit.as_ref());
        let counts_as = codes::counts_as(options.codes, mapping.file_type, &tensors, fits);
        let is_given = options.set.iter().any(|(key, _)| key == FILE_TYPE);
        if let Some(ty) = counts_as.filter(|_| !is_given && metadata.contains(FILE_TYPE)) {
            metadata.set(FILE_TYPE, id_of_blocks(ty));
        }
        let policy = ReadPolicy { level: options.level, allow_nonfinite: options.allow_nonfinite };
        let kept =
            parts.iter().filter(|part| part.fit.as_ref().is_some_and(|fit| fit.companions.has_input()));
        let kept: Vec<usize> = kept.flat_map(|part| part.recipe.weights()).collect();
        let mut said = HashSet::new();
        warnings.retain(|warning| said.insert(warning.clone()));
        let mut source = source;
        source.keep_input_factors(&kept);
        account::sampling(&metadata, &mut keys);
        let options = options.clone();
        Ok(Self {
            source,
            keys,
            mapping,
            metadata,
            general,
            tensors,
            parts,
            counts_as,
            policy,
            warnings,
            has_towers,
            options,
        })
    }

    /// Metadata keys of the output, in file order.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns true if the checkpoint has vision or audio towers that a conversion of their own
    /// ([`CardKind::Mmproj`]) writes.
    pub fn has_towers(&self) -> bool {
        self.has_towers
    }

    /// Returns true if the checkpoint has draft heads that a conversion of their own ([`DraftHeads::Alone`]) writes.
    pub fn has_draft_heads(&self) -> bool {
        let mut names = self.source.metas().iter().map(|meta| meta.name.as_str());
        self.options.heads == DraftHeads::Kept
            && exports_heads(&self.mapping.card, self.source.dir.config(), &mut names)
    }

    /// Result of applying the card to the checkpoint.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Type of the file.
    pub fn file_type(&self) -> OutType {
        self.mapping.file_type
    }

    /// Name of the file type in upper case, as used in file names: `F16`, `MXFP4_MOE`.
    pub fn encoding(&self) -> String {
        match self.counts_as {
            Some(GgmlType::Mxfp4) => "MXFP4_MOE".to_owned(),
            Some(ty) => ty.name().to_owned(),
            None => self.mapping.file_type.name().to_uppercase(),
        }
    }

    /// Weights that are left out, with the reasons.
    pub fn dropped(&self) -> impl Iterator<Item = (&str, &DropReason)> {
        let name = |dropped: &Dropped| self.weights().get(dropped.weight).map(|weight| weight.name.as_str());
        self.mapping.dropped.iter().filter_map(move |dropped| Some((name(dropped)?, &dropped.why)))
    }

    /// Names of the weights that output tensor `tensor` is made of.
    pub fn sources(&self, tensor: usize) -> impl Iterator<Item = &str> {
        let weights = self.weights();
        let indices = self.parts.get(tensor).map(|part| part.recipe.weights()).unwrap_or_default();
        indices.into_iter().filter_map(|index| weights.get(index).map(|weight| weight.name.as_str()))
    }

    /// Oddities of the checkpoint that do not stop the conversion.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Tensors with rows whose values are too small for their type and became zero or nearly zero, in output order.
    /// Complete only after all rows were read.
    pub fn small_rows(&self) -> Vec<(&TensorMeta, SmallRows)> {
        let small = |part: &ConvertedTensor| *part.small.lock().unpoisoned();
        let pairs = self.tensors.iter().zip(&self.parts).map(|(tensor, part)| (tensor, small(part)));
        pairs.filter(|(_, small)| small.n_rows > 0).collect()
    }

    /// Default file name of the output; `encoding` is the name of the file type (`F16`, `Q4_K_M`).
    pub fn default_file_name(&self, encoding: &str) -> String {
        if self.mapping.card.kind == CardKind::Mmproj {
            return self.general.default_tower_file_name(encoding);
        }
        match (&self.source.weights, self.options.heads) {
            (None, _) => self.general.default_vocab_file_name(),
            (Some(_), DraftHeads::Alone) => self.general.default_head_file_name(encoding),
            (Some(_), DraftHeads::Kept | DraftHeads::Dropped) => self.general.default_file_name(encoding),
        }
    }

    /// Paths of all files that are read; an output must not replace them.
    pub fn input_paths(&self) -> Vec<PathBuf> {
        let mut paths = self.source.paths.clone();
        if let Ok(Some(target)) = OpenTarget::of(&self.options) {
            paths.extend(target.paths());
        }
        paths
    }

    /// Tensors that keep the codes of a quantized checkpoint, by role.
    pub fn kept(&self) -> Vec<KeptRole> {
        let pairs = self.tensors.iter().zip(&self.parts);
        codes::kept(pairs.filter_map(|(tensor, part)| Some((tensor, part.fit.as_ref()?))))
    }

    /// Tensors whose codes become floats although they should be kept, by role.
    pub fn floats(&self) -> Vec<FloatRole> {
        let pairs = self.tensors.iter().zip(&self.parts);
        codes::floats(pairs.filter_map(|(tensor, part)| Some((tensor, part.reason?))))
    }

    /// Keeps the codes of the tensors selected by `wanted` in blocks of `ty` if they fit, with scales rounded to the
    /// values that a block can store. One-pass quantization takes tensors of its own type unchanged.
    pub fn keep(&mut self, ty: GgmlType, wanted: impl Fn(&str) -> bool) -> Result<(), ConvertError> {
        let Some(weights) = self.source.weights.as_deref() else { return Ok(()) };
        for (tensor, part) in self.tensors.iter_mut().zip(&mut self.parts) {
            if !wanted(&tensor.name) {
                continue;
            }
            match codes::keep(ty, &tensor.name, &self.mapping, &part.recipe, weights)? {
                Some(Ok(fit)) => {
                    tensor.ty = ty;
                    part.fit = Some(fit);
                }
                Some(Err(reason)) => part.reason = Some(reason),
                None => {}
            }
        }
        Ok(())
    }

    /// Names of matrices that hold only zeros; complete only after all rows were read.
    pub fn zero_tensors(&self) -> impl Iterator<Item = &str> {
        let pairs = self.tensors.iter().zip(&self.parts);
        pairs
            .filter(|(tensor, part)| tensor.shape.rank() > 1 && part.content.is_all_zero())
            .map(|(tensor, _)| tensor.name.as_str())
    }

    pub(super) fn weights(&self) -> &[WeightMeta] {
        self.source.metas()
    }
}

/// Returns the tensors and their companions, in file order.
fn in_file_order(
    mapping: &Mapping,
    recipes: Vec<Recipe>,
    choices: Vec<ChosenStorage>,
) -> (Vec<TensorMeta>, Vec<ConvertedTensor>) {
    let order = codes::file_order(&choices, &recipes);
    let mut made: Vec<_> = recipes.into_iter().zip(choices).map(Some).collect();
    let mut all = Vec::with_capacity(made.len());
    for at in order {
        let Some((recipe, ChosenStorage { ty, fit, reason })) = made[at].take() else { continue };
        let output = &mapping.outputs[at];
        let meta = TensorMeta { name: output.name.clone(), shape: output.shape.clone(), ty };
        let factors = fit.as_ref().map(|fit| fit.companions.tensors(&meta.name)).unwrap_or_default();
        all.push((meta, ConvertedTensor::new(recipe, fit, reason)));
        all.extend(
            factors.into_iter().map(|(meta, recipe)| (meta, ConvertedTensor::new(recipe, None, None))),
        );
    }
    all.into_iter().unzip()
}

/// Returns `general.tensor_extra.*`: the names of tensors that must not be multiplied with 4-bit activations.
fn tensor_extra(tensors: &[TensorMeta], parts: &[ConvertedTensor]) -> Metadata {
    let mut extra = Metadata::new();
    let is_float = |part: &ConvertedTensor| part.fit.as_ref().is_some_and(|fit| fit.float_activations);
    let pairs = tensors.iter().zip(parts).filter(|(_, part)| is_float(part));
    let mut names: Vec<&str> = pairs.map(|(tensor, _)| tensor.name.as_str()).collect();
    names.sort_unstable();
    if !names.is_empty() {
        let values = vec![false; names.len()];
        let names = names.into_iter().map(|name| name.as_bytes().to_vec()).collect();
        extra.set("general.tensor_extra.name", Value::Array(Array::String(names)));
        extra.set("general.tensor_extra.prec_a4", Value::Array(Array::Bool(values)));
    }
    extra
}

/// Returns a warning if the file has no context length: llama.cpp does not load it.
fn no_context_length(mapping: &Mapping, metadata: &Metadata) -> Option<String> {
    let key = format!("{}.context_length", mapping.card.gguf);
    if mapping.card.kind != CardKind::Text || metadata.contains(&key) {
        return None;
    }
    Some(format!(
        "config.json has no length of the context (`max_position_embeddings`), and llama.cpp loads no file without `{key}`: \
         `--set {key}=u32:LENGTH` sets it"
    ))
}

/// Returns all keys in file order: architecture, early rows, type, `general.*`, hyper-parameters and annotations, extra
/// keys of single tensors, tokenizer, and keys set by the user.
fn metadata(
    mapping: &Mapping,
    general: &GeneralMetadata,
    extra: &Metadata,
    tokenizer: &Metadata,
    options: &ConvertOptions,
) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", mapping.card.gguf.as_str());
    for (key, value) in mapping.early.iter() {
        metadata.set(key, value.clone());
    }
    metadata.set(
        "general.type",
        match mapping.card.kind {
            CardKind::Text => "model",
            CardKind::Mmproj => "mmproj",
        },
    );
    for (key, value) in &general.entries {
        metadata.set(key.as_str(), value.clone());
    }
    for (key, value) in mapping.metadata.iter().chain(mapping.annotations.iter()) {
        metadata.set(key, value.clone());
    }
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    for (key, value) in extra.iter().chain(tokenizer.iter()) {
        metadata.set(key, value.clone());
    }
    for (key, value) in &options.set {
        metadata.set(key.as_str(), value.clone());
    }
    metadata
}

impl TensorSource for Conversion {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let Some(weights) = self.source.weights.as_deref() else { return Ok(()) };
        let (meta, part) = (&self.tensors[tensor], &self.parts[tensor]);
        let read = match &part.fit {
            Some(fit) => {
                part.recipe.read_packed(weights, fit.ty, first_row, out).map(|()| SmallRows::default())
            }
            None => {
                let allow_nonfinite = self.policy.allow_nonfinite || is_bound(&meta.name);
                let policy = ReadPolicy { allow_nonfinite, ..self.policy };
                part.recipe.read_rows(weights, meta.ty, policy, first_row, out)
            }
        };
        let small = read.map_err(|error| SourceError { tensor: meta.name.clone(), source: error.into() })?;
        if small.n_rows > 0 {
            part.small.lock().unpoisoned().add(small, 0);
        }
        part.content.note(|| out.iter().any(|&byte| byte != 0));
        Ok(())
    }

    fn expect(&self, tensor: usize) {
        if let Some(weights) = self.source.weights.as_deref() {
            self.parts[tensor].recipe.weights().into_iter().for_each(|weight| weights.expect(weight));
        }
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        if let Some(weights) = self.source.weights.as_deref() {
            self.parts[tensor].recipe.release_rows(weights, first_row, n_rows);
        }
    }
}
