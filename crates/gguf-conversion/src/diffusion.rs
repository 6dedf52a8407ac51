//! Conversion of image and video models: names of the checkpoint, types by their cards, hardly any keys.
//!
//! The files are those of ComfyUI-GGUF's `convert.py` and `fix_5d_tensors.py`. Recognition and types are rules of
//! [`gguf_arch::diffusion`].

mod error;
mod folder;
mod layout;
mod order;
mod pieces;
pub(crate) mod text_encoder;
mod warnings;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::conversion::QUANTIZATION_VERSION;
use crate::drops::unmatched;
use crate::{ConvertError, ConvertOptions};
use gguf_arch::OutType;
use gguf_arch::diffusion::{
    CommonRules, DiffusionCard, DiffusionCards, DiffusionRules, Layout, NamePrefix, Recognition, Unequal,
    first_names,
};
use gguf_blocks::SmallRows;
use gguf_checkpoint::{BarePath, BareWeights, CheckpointError, ModelDir, SelectedWeights};
use gguf_core::account::{Piece, PieceKind};
use gguf_core::sync::Unpoisoned;
use gguf_core::text::{escape, plural};
use gguf_core::{
    Content, ElementType, GgmlType, Shape, SourceError, TensorMeta, TensorSource, WeightSource, input,
};
use gguf_dequant::{ImageWeights, layers_of_header};
use gguf_format::{Array, Metadata, TensorLimits, Value};
use gguf_views::{ReadPolicy, Recipe};

pub use error::DiffusionError;
use folder::Folder;
use layout::{Own, Recognized};

/// Prefix of the keys that hold the shape of a tensor that is written in other rows.
const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

/// Entry of a header with descriptions of quantized layers.
const DESCRIBED: &str = "_quantization_metadata";

/// Plan of the GGUF file of an image or video model. No weight has been read; as a [`TensorSource`] it produces rows on
/// demand.
pub struct DiffusionConversion {
    weights: ImageWeights,
    rules: DiffusionRules,
    /// False for a checkpoint in the layout of another program.
    is_original: bool,
    metadata: Metadata,
    tensors: Vec<TensorMeta>,
    parts: Vec<Part>,
    file_type: GgmlType,
    paths: Vec<PathBuf>,
    name: String,
    policy: ReadPolicy,
    warnings: Vec<String>,
    notes: Vec<String>,
    pieces: Vec<Piece>,
}

/// Recipe of a tensor, and what was found while it was read.
struct Part {
    recipe: Recipe,
    /// False for a tensor without values that nothing of the checkpoint is in.
    has_sources: bool,
    content: Content,
    small: Mutex<SmallRows>,
}

impl fmt::Debug for DiffusionConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiffusionConversion")
            .field("architecture", &self.card().map(|card| &card.gguf))
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl DiffusionConversion {
    /// Plans the conversion of a file or folder; `None` if it holds no image or video model, but what another converter
    /// may read.
    ///
    /// # Errors
    /// [`ConvertError`]: a broken file, a model or a storage that is not converted.
    pub fn find(path: &Path, options: &ConvertOptions) -> Result<Option<Self>, ConvertError> {
        let places = BarePath::find(path, &options.limits)?;
        let mut planned: Vec<(PathBuf, Self)> = Vec::new();
        let (mut failed, mut refused) = (None, None);
        for place in &places {
            let opened = place.open(&options.limits).map_err(ConvertError::from);
            match opened.and_then(|opened| Self::plan(opened, options)) {
                Ok(conversion) => planned.push((place.shown(), conversion)),
                // What is no image model for certain may be another model, with its own errors.
                Err(error) if place.is_certain || is_meant(&error, path) => failed = failed.or(Some(error)),
                Err(ConvertError::Diffusion(mut error)) if !place.is_named_as_language() => {
                    if error.tells_of(place.shown()) || !path.is_dir() {
                        refused = refused.or(Some(ConvertError::Diffusion(error)));
                    }
                }
                Err(_) => {}
            }
        }
        // A release may hold its model in another layout, too.
        let arch = |own: &Self| own.card().map(|card| card.gguf.clone());
        let originals: Vec<_> =
            planned.iter().filter(|row| row.1.is_original).map(|row| arch(&row.1)).collect();
        planned.retain(|(_, own)| own.is_original || !originals.contains(&arch(own)));
        if let [(first, _), (second, _), ..] = planned.as_slice() {
            let (path, first, second) = (path.to_owned(), first.clone(), second.clone());
            return Err(DiffusionError::Several { path, first, second }.into());
        }
        let refused = || refused.filter(|_| is_nothing_else(path, options));
        match (planned.pop(), failed.or_else(refused)) {
            (Some((_, conversion)), _) => Ok(Some(conversion)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    fn plan(bare: BareWeights, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let folder = Folder(bare.configs()?);
        Self::plan_in(bare, &folder, options).map_err(|error| folder.explain(error))
    }

    fn plan_in(bare: BareWeights, folder: &Folder, options: &ConvertOptions) -> Result<Self, ConvertError> {
        let bare = Arc::new(bare);
        let path = bare.path().to_owned();
        let mut warnings = bare.warnings().to_vec();
        let cards = Cards::of(options, &mut warnings)?;
        let cards = cards.get();
        let (name, paths, entries) = (bare.name()?, bare.paths(), bare.entries().collect::<Vec<_>>());
        let names: Vec<&str> = bare.weights().iter().map(|meta| meta.name.as_str()).collect();
        let prefix = cards.prefix(&names);
        check_prefix(&names, prefix, cards.common(), &path)?;
        let mut notes: Vec<String> = warnings::left_out(&names, prefix).into_iter().collect();
        let (card, layout) = recognized(cards, &names, prefix, &path, folder.class())?;
        let rules = DiffusionRules::new(cards, card);
        let source = SelectedWeights::mapped(bare.clone(), |name| prefix.strip(name));
        let described = entries.iter().find(|(name, _)| name == DESCRIBED);
        let layers =
            described.map(|(_, text)| layers_of_header(text, |name| prefix.strip(name))).transpose()?;
        let weights = ImageWeights::open(Arc::new(source), options.level, &layers.unwrap_or_default())?;
        let is_dropped = |name: &str| options.drop.iter().any(|pattern| pattern.is_match(name));
        crate::conversion::refuse_empty(weights.weights())?;
        let own = Recognized { card, layout, path: &path }.tensors(&weights, is_dropped)?;
        let own_names: Vec<&str> = own.iter().map(|tensor| tensor.name.as_str()).collect();
        let unlike = rules.unlike(&own_names);
        if let Some(names) = first_names(unlike.missing.iter().map(String::as_str)) {
            let others = first_names(unlike.unknown.iter().map(String::as_str));
            return Err(DiffusionError::Missing { path, arch: card.gguf.clone(), names, others }.into());
        }
        warnings.extend(warnings::of_odd(&unlike.odd));
        let is_beside = |name: &&str| weights.beside().any(|beside| beside == *name);
        let unknown = unlike.unknown.iter().map(String::as_str).filter(|name| !is_beside(name));
        warnings.extend(warnings::of_unknown(&card.gguf, unknown));
        let has = |name: &str| own_names.contains(&name);
        warnings.extend(warnings::lost_entries(card, has, &entries));
        let (lost, marked): (Vec<_>, Vec<_>) =
            folder.unmarked(card, has).into_iter().partition(|row| row.way_out.is_some());
        warnings.extend(lost.iter().filter_map(|row| warnings::lost_setting(row)));

        let wide = if options.then_quantized { None } else { options.file_type.and_then(wide_type) };
        let file_type = wide.unwrap_or_else(|| most_frequent(&own));
        let mut planned = Vec::with_capacity(own.len());
        let mut shapes = Vec::with_capacity(own.len());
        let stored = weights.weights().iter().map(|meta| meta.name.as_str());
        let all: HashSet<&str> = stored.chain(own_names.iter().copied()).collect();
        warnings.extend(
            options.drop.iter().filter(|own| !all.iter().any(|name| own.is_match(name))).map(unmatched),
        );
        let mut dropped = HashSet::new();
        dropped
            .extend(weights.weights().iter().map(|meta| meta.name.clone()).filter(|name| is_dropped(name)));
        for tensor in own {
            if is_dropped(&tensor.name) {
                dropped.extend(tensor.sources);
            } else if !card.leaves_out(&tensor.name) {
                check_storage(&tensor, &path)?;
                shapes.push((tensor.name.clone(), tensor.shape.clone()));
                planned.push(PlannedTensor::new(&rules, tensor, wide, options.then_quantized, &path)?);
            }
        }
        check_shapes(card, &shapes, &path)?;
        for tensor in marked.iter().filter_map(|row| folder::marker(row, &weights)) {
            planned.push(PlannedTensor::new(&rules, tensor, wide, options.then_quantized, &path)?);
        }
        if !dropped.is_empty() {
            warnings.push(format!("{} left out by `--drop`", plural(dropped.len() as u64, "tensor")));
        }
        warnings.extend(warnings::further_models(&bare));
        warnings.extend(warnings::of_factors(&weights));
        let formats: Vec<&str> = weights.formats().collect();
        if !formats.is_empty() {
            notes.push(format!("quantized by ComfyUI ({}): written as its values", formats.join(", ")));
        }
        warnings.extend(warnings::without_factors(&weights));
        warnings.extend(warnings::unloadable(&rules, &planned));
        warnings.extend(warnings::without_effect(options));
        order::convolutions_behind_their_biases(&mut planned);
        let metadata = metadata(card, file_type, &planned, &entries, options);
        warnings.extend(warnings::other_architecture(card, &metadata));
        let mut pieces = pieces::of_notes(bare.notes(), &metadata);
        pieces.extend(folder::account(&marked, &paths));
        pieces.extend(pieces::of_tensors(&names, prefix, card, &planned, &dropped));
        let (tensors, parts) = planned.into_iter().map(PlannedTensor::parts).unzip();
        let policy = ReadPolicy { level: options.level, allow_nonfinite: options.allow_nonfinite };
        Ok(Self {
            weights,
            rules,
            is_original: layout.is_none(),
            metadata,
            tensors,
            parts,
            file_type,
            paths,
            name,
            policy,
            warnings,
            notes,
            pieces,
        })
    }

    /// Returns what becomes of the files that are read, of each note in their headers, and of each tensor.
    pub fn account(&self) -> Vec<Piece> {
        let names = self.paths.iter().filter_map(|path| path.file_name()?.to_str());
        let names = names.filter(|name| *name != folder::CONFIG);
        let to = || vec!["tensors, listed below".to_owned()];
        let files = names.map(|name| Piece::written(PieceKind::File, name, to()));
        files.chain(self.pieces.iter().cloned()).collect()
    }

    /// Card of the architecture.
    pub fn card(&self) -> Option<&DiffusionCard> {
        self.rules.card()
    }

    /// Rules for the types of the tensors.
    pub fn rules(&self) -> &DiffusionRules {
        &self.rules
    }

    /// Metadata keys of the output, in file order.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Name of the file type in upper case, as used in file names.
    pub fn encoding(&self) -> String {
        self.file_type.name().to_owned()
    }

    /// Name of the weight that output tensor `tensor` is made of.
    pub fn sources(&self, tensor: usize) -> impl Iterator<Item = &str> {
        let part = self.parts.get(tensor).filter(|part| part.has_sources);
        let indices = part.map(|part| part.recipe.weights()).unwrap_or_default();
        indices.into_iter().filter_map(|at| self.weights.weights().get(at).map(|meta| meta.name.as_str()))
    }

    /// Oddities of the checkpoint that do not stop the conversion.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Facts about the conversion that are no warnings, such as the part of a whole checkpoint that is taken.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Default file name of the output; `encoding` is the name of the file type.
    pub fn default_file_name(&self, encoding: &str) -> String {
        format!("{}-{encoding}.gguf", self.name)
    }

    /// Paths of all files that are read; an output must not replace them.
    pub fn input_paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Tensors with rows whose values are too small for their type, in output order. Complete only after all rows were
    /// read.
    pub fn small_rows(&self) -> Vec<(&TensorMeta, SmallRows)> {
        let pairs = self.tensors.iter().zip(&self.parts);
        let found = pairs.map(|(tensor, part)| (tensor, *part.small.lock().unpoisoned()));
        found.filter(|(_, small)| small.n_rows > 0).collect()
    }

    /// Names of matrices that hold only zeros; complete only after all rows were read.
    pub fn zero_tensors(&self) -> impl Iterator<Item = &str> {
        let pairs = self.tensors.iter().zip(&self.parts);
        let zeros = pairs.filter(|(tensor, part)| tensor.shape.rank() > 1 && part.content.is_all_zero());
        zeros.map(|(tensor, _)| tensor.name.as_str())
    }
}

/// Returns true for an error that shows an image or video model, or a broken file that was named.
fn is_meant(error: &ConvertError, path: &Path) -> bool {
    match error {
        ConvertError::Diffusion(error) => error.is_recognized(),
        ConvertError::Checkpoint(_) => !path.is_dir(),
        _ => true,
    }
}

/// Returns true for what no configuration shows to be a language model, itself or inside.
fn is_nothing_else(path: &Path, options: &ConvertOptions) -> bool {
    match ModelDir::open(path, &options.limits) {
        Err(error @ CheckpointError::FileMissing { .. }) => !path.is_dir() || !error.is_inside(),
        _ => false,
    }
}

enum Cards {
    Embedded(&'static DiffusionCards),
    WithGiven(Box<DiffusionCards>),
}

impl Cards {
    fn get(&self) -> &DiffusionCards {
        match self {
            Self::Embedded(cards) => cards,
            Self::WithGiven(cards) => cards,
        }
    }

    /// Returns the embedded cards, and those of `--card`.
    fn of(options: &ConvertOptions, warnings: &mut Vec<String>) -> Result<Self, ConvertError> {
        let embedded = DiffusionCards::embedded()?;
        let Some(path) = &options.card else { return Ok(Self::Embedded(embedded)) };
        let texts = if path.is_dir() {
            crate::mapping::card_texts(path)?
        } else {
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            vec![(stem, input::read_to_string(path)?)]
        };
        let mut cards = None;
        for (stem, text) in texts.iter().filter(|(_, text)| DiffusionCard::is_one(text)) {
            cards = Some(cards.as_ref().unwrap_or(embedded).with(stem, text)?);
        }
        match cards {
            Some(cards) => Ok(Self::WithGiven(Box::new(cards))),
            None => {
                let path = path.display().to_string();
                warnings.push(format!("{}: no card of an image or video model", escape(&path)));
                Ok(Self::Embedded(embedded))
            }
        }
    }
}

/// Returns the names without their prefix; each must be different.
fn stripped(names: &[&str], prefix: NamePrefix<'_>, path: &Path) -> Result<Vec<String>, DiffusionError> {
    let own: Vec<String> = names.iter().filter_map(|name| prefix.strip(name)).collect();
    let mut seen = HashSet::with_capacity(own.len());
    match own.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(DiffusionError::Twice { path: path.to_owned(), name: name.clone() }),
        None => Ok(own),
    }
}

fn recognized<'a>(
    cards: &'a DiffusionCards,
    names: &[&str],
    prefix: NamePrefix<'_>,
    path: &Path,
    class: Option<&str>,
) -> Result<(&'a Arc<DiffusionCard>, Option<&'a Layout>), DiffusionError> {
    let own = stripped(names, prefix, path)?;
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let path = path.to_owned();
    match cards.recognize(&own) {
        Recognition::Card(card) => Ok((card, None)),
        Recognition::Layout(card, layout) => Ok((card, Some(layout))),
        Recognition::Two(first, second) => {
            let (first, second) = (first.gguf.clone(), second.gguf.clone());
            Err(DiffusionError::TwoArchitectures { path, first, second })
        }
        Recognition::Refused { what, way_out } => {
            Err(DiffusionError::Refused { path, what, way_out: way_out.to_owned() })
        }
        Recognition::Unknown => {
            // Names that a prefix would hide show what else the file may be.
            if let Recognition::Refused { what, way_out } = cards.recognize(names) {
                return Err(DiffusionError::Refused { path, what, way_out: way_out.to_owned() });
            }
            let first = names.first().copied().unwrap_or_default().to_owned();
            let class = class.map(str::to_owned);
            Err(DiffusionError::Unknown { path, n_tensors: names.len(), first, class })
        }
    }
}

/// Checks that no module has names with and without the prefix: those without it would be left out as another model's.
fn check_prefix(
    names: &[&str],
    prefix: NamePrefix<'_>,
    common: &CommonRules,
    path: &Path,
) -> Result<(), DiffusionError> {
    let own: Vec<String> = names.iter().filter_map(|name| prefix.strip(name)).collect();
    let modules: HashSet<&str> =
        own.iter().filter_map(|name| name.split_once('.').map(|(module, _)| module)).collect();
    let mut others = names.iter().filter(|name| prefix.strip(name).is_none());
    let is_mixed = |name: &&&str| common.module_of(name).is_some_and(|module| modules.contains(module));
    match others.find(is_mixed) {
        None => Ok(()),
        Some(name) => Err(DiffusionError::MixedPrefix {
            path: path.to_owned(),
            name: (*name).to_owned(),
            prefix: prefix.text().unwrap_or_default().to_owned(),
        }),
    }
}

/// Refuses a weight of integers: codes of a quantization that nothing describes. Buffers with other names may be some.
fn check_storage(tensor: &Own, path: &Path) -> Result<(), DiffusionError> {
    if !is_integer(tensor.stored) || ![".weight", ".bias"].iter().any(|end| tensor.name.ends_with(end)) {
        return Ok(());
    }
    let tensor_name = tensor.sources.first().unwrap_or(&tensor.name).clone();
    Err(DiffusionError::Codes { path: path.to_owned(), tensor: tensor_name, ty: tensor.stored })
}

/// Returns true for elements that are no floats, which weights are not.
fn is_integer(ty: ElementType) -> bool {
    use ElementType::{Bool, I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(ty, I64 | I32 | I16 | I8 | U64 | U32 | U16 | U8 | Bool)
}

/// Refuses a tensor whose shape differs from that in other blocks: runtimes load blocks of one shape.
fn check_shapes(card: &DiffusionCard, shapes: &[(String, Shape)], path: &Path) -> Result<(), DiffusionError> {
    let rows: Vec<(&str, &Shape)> = shapes.iter().map(|(name, shape)| (name.as_str(), shape)).collect();
    let Some(Unequal { name, other, expected }) = card.unequal(&rows) else { return Ok(()) };
    let shape = rows.iter().find(|row| row.0 == name).map_or(&expected, |row| row.1).clone();
    let expected = format!("{expected}, that of `{other}`");
    Err(DiffusionError::PartShape { path: path.to_owned(), tensor: name, shape, expected })
}

/// Type of weights for a type that the user asked for.
fn wide_type(file_type: OutType) -> Option<GgmlType> {
    match file_type {
        OutType::F32 => Some(GgmlType::F32),
        OutType::F16 => Some(GgmlType::F16),
        OutType::Bf16 => Some(GgmlType::Bf16),
        _ => None,
    }
}

/// Type of the file by the most frequent element type.
///
/// # Exactness
/// ref: BF16 if it is the most frequent type by number of tensors, else F16. Left-out tensors count; at a tie, which the
/// reference decides by chance, BF16 wins.
fn most_frequent(tensors: &[Own]) -> GgmlType {
    let types: Vec<ElementType> = tensors.iter().map(|tensor| tensor.stored).collect();
    let count = |ty: ElementType| types.iter().filter(|own| **own == ty).count();
    let n = count(ElementType::Bf16);
    let mut others = types.clone();
    others.sort_unstable();
    others.dedup();
    if n > 0 && others.into_iter().all(|ty| count(ty) <= n) { GgmlType::Bf16 } else { GgmlType::F16 }
}

struct PlannedTensor {
    meta: TensorMeta,
    recipe: Recipe,
    /// Shape in the checkpoint, if it differs.
    original: Option<Shape>,
    /// Names in the checkpoint.
    sources: Vec<String>,
}

impl PlannedTensor {
    fn new(
        rules: &DiffusionRules,
        own: Own,
        wide: Option<GgmlType>,
        then_quantized: bool,
        path: &Path,
    ) -> Result<Self, DiffusionError> {
        let Own { name, shape, view, stored, is_wider, sources } = own;
        let too_many = || DiffusionError::Dimensions {
            path: path.to_owned(),
            tensor: name.clone(),
            shape: shape.clone(),
            most: TensorLimits::IMAGE.dims,
        };
        if shape.rank() > TensorLimits::IMAGE.dims as usize {
            return Err(too_many());
        }
        let (found, most) = (name.len(), TensorLimits::IMAGE.name_bytes);
        if found == 0 || found as u64 > most {
            let path = path.to_owned();
            return Err(DiffusionError::NameLength { path, tensor: name.clone(), found, most });
        }
        let ty = rules.plain_type(&name, &shape, stored, wide);
        let (view, original) = match rules.reshaped(&shape) {
            None => (view, None),
            // The number of values is the same.
            Some(rows) => (view.reshape(rows.dims()).map_err(|_| too_many())?, Some(shape.clone())),
        };
        let recipe = Recipe::new(&view).ok_or_else(too_many)?;
        let mut meta = TensorMeta { shape: recipe.shape().clone(), name, ty };
        // Blocks are made of the values themselves.
        if then_quantized && is_wider && rules.is_quantized(&meta) {
            meta.ty = GgmlType::F32;
        }
        Ok(Self { meta, recipe, original, sources })
    }

    fn parts(self) -> (TensorMeta, Part) {
        let has_sources = !self.sources.is_empty();
        let (content, small) = (Content::default(), Mutex::default());
        (self.meta, Part { recipe: self.recipe, has_sources, content, small })
    }
}

/// Returns the keys, in file order.
fn metadata(
    card: &DiffusionCard,
    file_type: GgmlType,
    tensors: &[PlannedTensor],
    entries: &[(String, String)],
    options: &ConvertOptions,
) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", card.gguf.as_str());
    metadata.set("general.quantization_version", QUANTIZATION_VERSION);
    metadata.set("general.file_type", gguf_format::id_of_blocks(file_type));
    for tensor in tensors {
        let Some(shape) = &tensor.original else { continue };
        // Sizes of a tensor in a file fit.
        let dims = shape.dims().iter().map(|&dim| i32::try_from(dim).unwrap_or(i32::MAX)).collect();
        metadata.set(format!("{ORIGINAL_SHAPE}{}", tensor.meta.name), Value::Array(Array::I32(dims)));
    }
    for key in &card.copied {
        if let Some((_, value)) = entries.iter().find(|(name, _)| name == key) {
            metadata.set(key.as_str(), value.as_str());
        }
    }
    if let Some(name) = &options.model_name {
        metadata.set("general.name", name.as_str());
    }
    for (key, value) in &options.set {
        metadata.set(key.as_str(), value.clone());
    }
    metadata
}

impl TensorSource for DiffusionConversion {
    fn tensors(&self) -> &[TensorMeta] {
        &self.tensors
    }

    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let (meta, part) = (&self.tensors[tensor], &self.parts[tensor]);
        let read = part.recipe.read_rows(&self.weights, meta.ty, self.policy, first_row, out);
        let small = read.map_err(|error| SourceError { tensor: meta.name.clone(), source: error.into() })?;
        if small.n_rows > 0 {
            part.small.lock().unpoisoned().add(small, 0);
        }
        part.content.note(|| out.iter().any(|&byte| byte != 0));
        Ok(())
    }

    fn expect(&self, tensor: usize) {
        self.parts[tensor].recipe.weights().into_iter().for_each(|weight| self.weights.expect(weight));
    }

    fn release_rows(&self, tensor: usize, first_row: u64, n_rows: u64) {
        self.parts[tensor].recipe.release_rows(&self.weights, first_row, n_rows);
    }
}
