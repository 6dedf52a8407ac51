//! compressed-tensors: groups of modules with one quantization scheme each; several formats share tensor names.
//!
//! # Layout
//! `pack-quantized`: `weight_packed` I32 `[out, P]`, `weight_scale` `[out, G]`, `weight_shape` = `[out, in]`,
//! `weight_zero_point` packed along `out` if asymmetric, `weight_g_idx`. Codes and zero points have `2^(n-1)` added. P
//! tells a dense bit stream (`⌈in·n/32⌉`) from `⌊32/n⌋` values per word. `int-quantized`, `float-quantized` and
//! `naive-quantized` have codes in `weight`. `nvfp4-pack-quantized`: even columns in the low nibble, `weight_scale` E4M3
//! for 16 columns, `weight_global_scale` *divides*. `mxfp4-pack-quantized`: an exponent byte for 32 columns. Sparse
//! masks have one bit per element, lowest first: elements whose bit is set take the next stored value, the others are 0.

mod arguments;

use serde_json::{Map, Value};

use crate::bits::{CodeStream, WordLayout};
use crate::fp4::{Factor, Fp4, Nvfp4Params};
use crate::fp8::{self, Fp8, ScaleLayout};
use crate::grouped::{CodeLayout, ColumnGroups, GroupLayout, Grouped, ZeroShift, Zeros};
use crate::integers::{integers, sizes};
use crate::patterns::{ModulePattern, Patterns, spellings};
use crate::stack::unpacked;
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{Result, Settings, Tensors, sparse};
use arguments::{ScaleGroups, Strategy, is_float, num_bits, scale_groups, strategy};
use gguf_core::ElementType;

/// Entry of a list of modules.
enum ModuleTarget {
    Name(String),
    Pattern(ModulePattern),
    /// The class of embeddings.
    Embeddings,
    /// The class of linear modules.
    Class,
}

/// A quantization scheme: the arguments of the weights, and the group's own format, if it has one.
struct ConfigGroup {
    targets: Vec<ModuleTarget>,
    format: Option<String>,
    weights: Settings,
}

/// Plans all modules of `compressed-tensors`.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    check_transforms(settings)?;
    let groups = groups(settings)?;
    if settings.text("quantization_status")?.is_some_and(|status| status != "compressed") {
        leave_out_scales_of_floats(tensors);
    }
    if sparse::plan(settings, tensors)? {
        return Ok(());
    }
    let ignored = targets(settings, "ignore", settings.map.get("ignore"), &mut Patterns::default())?;
    let format = settings.text("format")?.unwrap_or("dense").to_owned();
    for (module, codes) in modules(tensors) {
        let conflict = |key: &str, configured: &str| {
            settings.conflict(key, configured, &tensors.meta(codes).name, "codes")
        };
        if ignored.iter().any(|target| !target.is_class() && target.rank(module).is_some()) {
            return Err(conflict("ignore", "a list with the module in it"));
        }
        let group = groups
            .iter()
            .filter_map(|group| Some((group.targets.iter().filter_map(|t| t.rank(module)).min()?, group)))
            .min_by_key(|row| row.0)
            .map(|row| row.1)
            .ok_or_else(|| conflict("config_groups", "without a group for the module"))?;
        let format = group.format.as_deref().unwrap_or(&format);
        put(&group.weights, tensors, module, codes, format)?;
    }
    Ok(())
}

/// Returns all modules with the tensors of their codes.
fn modules<'a>(tensors: &Tensors<'a>) -> Vec<(&'a str, usize)> {
    let mut modules: Vec<(&str, usize)> = tensors.ending(".weight_packed");
    let scales = tensors.ending(".weight_scale").into_iter().filter(|(_, scale)| tensors.is_free(*scale));
    let plain = scales.filter_map(|(module, _)| Some((module, tensors.find(&format!("{module}.weight"))?)));
    modules.extend(plain.collect::<Vec<_>>());
    modules
}

/// Plans all modules of a program that describes these layouts otherwise: each in the format that its tensors have.
pub(super) fn plan_by_tensors(settings: &Settings, tensors: &mut Tensors<'_>) -> Result<()> {
    for (module, codes) in modules(tensors) {
        settings.check_not_ignored(&format!("{module}.weight"))?;
        let format = format_of(tensors, module, codes);
        let is_plain = format == "naive-quantized" || format == "pack-quantized";
        if is_plain {
            return Err(settings.variant("packing_format", format, "only MXFP4, MXFP8 and NVFP4 are read"));
        }
        put(settings, tensors, module, codes, format)?;
    }
    Ok(())
}

/// Checks that all transforms are in the weights: those of a weight's sides are, all others are computed at run time.
fn check_transforms(settings: &Settings) -> Result<()> {
    const KEY: &str = "transform_config";
    let Some(transforms) = settings.map.get(KEY).filter(|value| !value.is_null()) else { return Ok(()) };
    let Some(transforms) = transforms.as_object() else { return Err(settings.bad(KEY, "must be an object")) };
    let Some(schemes) = transforms.get("config_groups").filter(|value| !value.is_null()) else {
        return Ok(());
    };
    for scheme in schemes.as_object().into_iter().flat_map(Map::values) {
        for place in scheme.get("apply").and_then(Value::as_array).into_iter().flatten() {
            let location = place.get("location").and_then(Value::as_str).unwrap_or("no location");
            if !location.eq_ignore_ascii_case("weight_input")
                && !location.eq_ignore_ascii_case("weight_output")
            {
                return Err(settings.variant(
                    KEY,
                    location,
                    "inputs, outputs or caches are rotated at run time",
                ));
            }
        }
    }
    Ok(())
}

/// Leaves out the scales of weights that are floats: such are stored before a compression. Older programs wrote the
/// status of that time (`frozen`) beside codes, too, so the tensors decide.
fn leave_out_scales_of_floats(tensors: &mut Tensors<'_>) {
    for suffix in [".weight_scale", ".weight_zero_point", ".weight_g_idx"] {
        for (module, index) in tensors.ending(suffix) {
            let weight = tensors.find(&format!("{module}.weight"));
            if weight.is_some_and(|weight| tensors.meta(weight).ty.is_plain_float()) {
                tensors.leave_out(index);
            }
        }
    }
}

/// Returns a test for modules that the groups name and the ignore list does not.
pub(super) fn target_test(settings: &Settings) -> Result<impl Fn(&str) -> bool + use<>> {
    let (groups, ignored) = (
        groups(settings)?,
        targets(settings, "ignore", settings.map.get("ignore"), &mut Patterns::default())?,
    );
    Ok(move |module: &str| {
        let names = |target: &ModuleTarget| target.rank(module).is_some();
        let is_ignored = ignored.iter().any(|target| !target.is_class() && names(target));
        !is_ignored && groups.iter().any(|group| group.targets.iter().any(names))
    })
}

impl ModuleTarget {
    fn is_class(&self) -> bool {
        matches!(self, Self::Class | Self::Embeddings)
    }

    /// Returns the specificity of a match with a module, lowest first; `None` if there is no match.
    fn rank(&self, module: &str) -> Option<u8> {
        match self {
            Self::Name(name) => spellings(module).any(|module| *name == module).then_some(0),
            Self::Pattern(pattern) => pattern.is_match(module).then_some(1),
            Self::Embeddings => is_embedding(module).then_some(2),
            Self::Class => Some(3),
        }
    }
}

/// Returns true for a module that is an embedding by its name.
pub(super) fn is_embedding(module: &str) -> bool {
    const NAMES: [&str; 6] =
        ["embed_tokens", "wte", "wpe", "word_embeddings", "embeddings", "embed_tokens_per_layer"];
    module.rsplit('.').next().is_some_and(|name| NAMES.contains(&name))
}

fn targets(
    settings: &Settings,
    key: &str,
    value: Option<&Value>,
    patterns: &mut Patterns,
) -> Result<Vec<ModuleTarget>> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let names = value.as_array().map(|names| names.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let Some(Some(names)) = names else { return Err(settings.bad(key, "must be a list of strings")) };
    let mut target = |name: &str| match name.strip_prefix("re:") {
        Some(pattern) => patterns.compile(pattern).map(ModuleTarget::Pattern).map_err(|error| {
            settings.bad(key, &format!("has the pattern `{pattern}`, which {}", error.what()))
        }),
        None if name == "Linear" => Ok(ModuleTarget::Class),
        None if name == "Embedding" => Ok(ModuleTarget::Embeddings),
        None => Ok(ModuleTarget::Name(name.to_owned())),
    };
    names.into_iter().map(&mut target).collect()
}

fn groups(settings: &Settings) -> Result<Vec<ConfigGroup>> {
    const KEY: &str = "config_groups";
    let Some(value) = settings.map.get(KEY).filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let Some(map) = value.as_object() else { return Err(settings.bad(KEY, "must be an object")) };
    let (mut groups, mut patterns) = (Vec::with_capacity(map.len()), Patterns::default());
    for (name, group) in map {
        let key = format!("{KEY}.{name}");
        let Some(own) = group.as_object() else { return Err(settings.bad(&key, "must be an object")) };
        // A group of activations or caches alone.
        let Some(weights) = own.get("weights").filter(|value| !value.is_null()) else { continue };
        let Some(weights) = weights.as_object() else {
            return Err(settings.bad(&format!("{key}.weights"), "must be an object"));
        };
        let of = |map: &Map<String, Value>| Settings { map: map.clone(), ..settings.clone() };
        groups.push(ConfigGroup {
            targets: targets(settings, &format!("{key}.targets"), own.get("targets"), &mut patterns)?,
            format: of(own).text("format")?.map(str::to_owned),
            weights: of(weights),
        });
    }
    Ok(groups)
}

/// Assembles one module in the format of its group.
fn put(
    weights: &Settings,
    tensors: &mut Tensors<'_>,
    module: &str,
    codes: usize,
    format: &str,
) -> Result<()> {
    let is_float = is_float(weights)?;
    // A checkpoint of several formats whose groups do not say theirs: the tensors do.
    let format = if format == "mixed-precision" { format_of(tensors, module, codes) } else { format };
    match format {
        "pack-quantized" => pack_quantized(weights, tensors, module, codes),
        "nvfp4-pack-quantized" => nvfp4(tensors, module, codes),
        "mxfp4-pack-quantized" => mxfp4(tensors, module, codes),
        "mxfp8-quantized" => mxfp8(tensors, module, codes),
        "float-quantized" | "naive-quantized" | "int-quantized" if is_float => {
            float_quantized(weights, tensors, module, codes)
        }
        "int-quantized" | "naive-quantized" => int_quantized(weights, tensors, module, codes),
        "marlin-24" => Err(weights.variant("format", format, "weights are stored in a GPU tile order")),
        _ => Err(weights.variant("format", format, "no such format of compressed-tensors is read")),
    }
}

/// Distinguishes dense and padded words by their number.
fn word_layout(
    tensors: &Tensors<'_>,
    index: usize,
    bits: u32,
    n_codes: u64,
    n_words: u64,
) -> Result<WordLayout> {
    let dense = CodeStream::words(bits, WordLayout::Dense, n_codes);
    let padded = CodeStream::words(bits, WordLayout::Padded, n_codes);
    let is_same = 32 % bits == 0;
    match (dense == n_words, padded == n_words) {
        (true, _) if is_same => Ok(WordLayout::Dense),
        (true, false) => Ok(WordLayout::Dense),
        (false, true) => Ok(WordLayout::Padded),
        (true, true) => {
            let expected = format!("words that tell whether {bits}-bit codes straddle them");
            Err(tensors.shape_error(index, expected))
        }
        (false, false) => {
            let expected = format!("{dense} or {padded} words for {n_codes} codes of {bits} bits");
            Err(tensors.shape_error(index, expected))
        }
    }
}

/// Returns the format that stores a module in tensors of these names and types.
fn format_of(tensors: &Tensors<'_>, module: &str, codes: usize) -> &'static str {
    let has = |suffix: &str| tensors.find(&format!("{module}{suffix}"));
    let has_exponents = has(".weight_scale").is_some_and(|scale| tensors.meta(scale).ty == ElementType::U8);
    match tensors.meta(codes).ty {
        ElementType::I32 => "pack-quantized",
        ElementType::U8 if has(".weight_global_scale").is_some() => "nvfp4-pack-quantized",
        ElementType::U8 => "mxfp4-pack-quantized",
        _ if has_exponents => "mxfp8-quantized",
        _ => "naive-quantized",
    }
}

fn pack_quantized(weights: &Settings, tensors: &mut Tensors<'_>, module: &str, packed: usize) -> Result<()> {
    let bits = num_bits(weights)?;
    let scale = tensors.member(module, ".weight_scale")?;
    let shape_index = tensors.member(module, ".weight_shape")?;
    tensors.check_no_plain(module, packed)?;
    tensors.check_type(packed, &[ElementType::I32])?;
    let scales = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
    let (n_rows, n_cols) = shape_of(tensors, shape_index)?;
    let (rows, n_words) = tensors.matrix(packed)?;
    // There cannot be more codes than bits; this also rejects sizes that would overflow.
    if rows != n_rows || n_cols > n_words.saturating_mul(32) {
        let expected = format!("what `weight_shape` [{n_rows}, {n_cols}] needs");
        return Err(tensors.shape_error(packed, expected));
    }
    let layout = word_layout(tensors, packed, bits, n_cols, n_words)?;
    let ScaleGroups { order, n_groups, size } = scale_groups(weights, tensors, scale, n_rows, n_cols)?;
    let mut members = vec![packed, scale, shape_index];
    let middle = 1i32 << (bits - 1);
    let zeros = if weights.bool("symmetric")?.unwrap_or(true) {
        Zeros::Const(middle)
    } else {
        let index = tensors.member(module, ".weight_zero_point")?;
        members.push(index);
        tensors.check_type(index, &[ElementType::I32, ElementType::I8])?;
        if tensors.meta(index).ty == ElementType::I8 {
            // That of a whole matrix is not packed.
            tensors.check_shape(index, tensors.meta(scale).shape.dims())?;
            Zeros::Bytes { index, middle }
        } else {
            let stream = CodeStream { index, bits, layout, step: n_groups, stride: 1 };
            check_packed_zeros(tensors, stream, n_rows)?;
            Zeros::ByGroup(stream, ZeroShift::None)
        }
    };
    let by_column = column_order(tensors, module, [n_cols, n_groups])?;
    members.extend(by_column);
    let groups = by_column.map_or(ColumnGroups::Runs(size), ColumnGroups::Index);
    let name = format!("{module}.weight");
    let shape = tensors.weight_shape(packed, Some(vec![n_rows, n_cols]))?;
    let coded = Grouped {
        codes: CodeLayout::ByRow(CodeStream { index: packed, bits, layout, step: 1, stride: n_words }),
        code_range: (0, (1 << bits) - 1),
        zeros,
        scales,
        order,
        groups,
        n_groups,
        n_rows,
        n_cols,
        members,
        layout: GroupLayout { group_size: size, is_symmetric: !weights.is_set_to("symmetric", false) },
    };
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}

/// Checks the shape of zero points, which are packed along the rows.
fn check_packed_zeros(tensors: &Tensors<'_>, zeros: CodeStream, n_rows: u64) -> Result<()> {
    let CodeStream { index, bits, layout, step: n_groups, .. } = zeros;
    let (words, groups) = tensors.matrix(index)?;
    if groups != n_groups {
        return Err(tensors.shape_error(index, format!("{n_groups} columns, one for each group")));
    }
    // Zero points have the same word layout as the codes: another number of words would be another layout.
    let zero_words = CodeStream::words(bits, layout, n_rows);
    if words != zero_words {
        return Err(tensors.shape_error(index, format!("[{zero_words}, {n_groups}], as the codes lie")));
    }
    Ok(())
}

/// Reads `weight_shape`, a tensor of two numbers.
fn shape_of(tensors: &Tensors<'_>, index: usize) -> Result<(u64, u64)> {
    tensors.check_type(index, &[ElementType::I64, ElementType::I32])?;
    if tensors.meta(index).shape.n_elems() != 2 {
        return Err(tensors.shape_error(index, "2 elements"));
    }
    let sizes = sizes(tensors, index, 0..2, "a size")?;
    Ok((sizes[0], sizes[1]))
}

/// Returns the tensor with the group of each column, if columns have an order of their own; else leaves it out.
fn column_order(
    tensors: &mut Tensors<'_>,
    module: &str,
    [n_cols, n_groups]: [u64; 2],
) -> Result<Option<usize>> {
    let Some(index) = tensors.find(&format!("{module}.weight_g_idx")) else { return Ok(None) };
    tensors.check_type(index, &[ElementType::I32])?;
    tensors.check_shape(index, &[n_cols])?;
    let groups = integers(tensors, index, 0..n_cols)?;
    // Such as were never set.
    if groups.iter().all(|&group| group == -1) {
        tensors.leave_out(index);
        return Ok(None);
    }
    let is_bad = |group: i64| !u64::try_from(group).is_ok_and(|group| group < n_groups);
    match (0..).zip(groups).find(|row| is_bad(row.1)) {
        None => Ok(Some(index)),
        Some((at, group)) => {
            let expected = format!("0 to {}", n_groups.saturating_sub(1));
            Err(tensors.inner().out_of_range(index, at, group, expected))
        }
    }
}

fn int_quantized(weights: &Settings, tensors: &mut Tensors<'_>, module: &str, codes: usize) -> Result<()> {
    let bits = num_bits(weights)?;
    let scale = tensors.member(module, ".weight_scale")?;
    tensors.check_type(codes, &[ElementType::I8])?;
    let scales = NumberTensor::new(tensors, scale, &SCALE_TYPES)?;
    let (n_rows, n_cols) = tensors.matrix(codes)?;
    let ScaleGroups { order, n_groups, size } = scale_groups(weights, tensors, scale, n_rows, n_cols)?;
    let mut members = vec![codes, scale];
    let zeros = if weights.bool("symmetric")?.unwrap_or(true) {
        Zeros::Const(0)
    } else {
        let index = tensors.member(module, ".weight_zero_point")?;
        tensors.check_type(index, &[ElementType::I8])?;
        tensors.check_shape(index, tensors.meta(scale).shape.dims())?;
        members.push(index);
        Zeros::Bytes { index, middle: 0 }
    };
    // Symmetric weights may come with a zero point that is always zero.
    if let Some(index) = tensors.find(&format!("{module}.weight_zero_point")).filter(|i| !members.contains(i))
    {
        tensors.leave_out(index);
    }
    let by_column = column_order(tensors, module, [n_cols, n_groups])?;
    members.extend(by_column);
    let groups = by_column.map_or(ColumnGroups::Runs(size), ColumnGroups::Index);
    let coded = Grouped {
        codes: CodeLayout::Bytes(codes),
        code_range: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        zeros,
        scales,
        order,
        groups,
        n_groups,
        n_rows,
        n_cols,
        members,
        layout: GroupLayout { group_size: size, is_symmetric: !weights.is_set_to("symmetric", false) },
    };
    tensors.decode_in_place(codes, Box::new(coded));
    Ok(())
}

fn float_quantized(weights: &Settings, tensors: &mut Tensors<'_>, module: &str, codes: usize) -> Result<()> {
    let scale = tensors.member(module, ".weight_scale")?;
    let grid = match strategy(weights)? {
        Strategy::Tensor => match fp8::layout(tensors, codes, scale) {
            ScaleLayout::Matrix => ScaleLayout::Matrix,
            _ => ScaleLayout::Tensor,
        },
        Strategy::Channel => ScaleLayout::Row,
        Strategy::Group(size) => ScaleLayout::Block { rows: 1, cols: size },
        Strategy::Block(rows, cols) => ScaleLayout::Block { rows, cols },
    };
    let mut coded = Fp8::new(tensors, codes, scale, grid)?;
    if let ScaleLayout::Block { rows: 1, cols } = grid {
        let n_cols = tensors.meta(codes).shape.n_cols();
        if let Some(index) = column_order(tensors, module, [n_cols, n_cols.div_ceil(cols)])? {
            coded = coded.ordered_by(index);
        }
    }
    tensors.decode_in_place(codes, Box::new(coded));
    Ok(())
}

fn mxfp8(tensors: &mut Tensors<'_>, module: &str, codes: usize) -> Result<()> {
    let scale = tensors.member(module, ".weight_scale")?;
    tensors.check_type(scale, &[ElementType::U8, ElementType::F8E8M0])?;
    let scales = NumberTensor::exponents(tensors, scale);
    let coded = Fp8::with_scales(tensors, codes, scales, ScaleLayout::Block { rows: 1, cols: 32 })?;
    tensors.decode_in_place(codes, Box::new(coded));
    Ok(())
}

fn mxfp4(tensors: &mut Tensors<'_>, module: &str, packed: usize) -> Result<()> {
    let scale = tensors.member(module, ".weight_scale")?;
    tensors.check_no_plain(module, packed)?;
    let shape = unpacked(tensors, packed)?;
    let name = format!("{module}.weight");
    let coded = Fp4::mx(tensors, packed, scale, &shape)?;
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}

fn nvfp4(tensors: &mut Tensors<'_>, module: &str, packed: usize) -> Result<()> {
    let scale = tensors.member(module, ".weight_scale")?;
    let global = tensors.member(module, ".weight_global_scale")?;
    tensors.check_no_plain(module, packed)?;
    let shape = unpacked(tensors, packed)?;
    let name = format!("{module}.weight");
    let input = match tensors.find(&format!("{module}.input_global_scale")) {
        Some(input) => Factor::Over(NumberTensor::new(tensors, input, &SCALE_TYPES)?),
        None => Factor::None,
    };
    let factor = Factor::Over(NumberTensor::new(tensors, global, &SCALE_TYPES)?);
    // ref: a scheme without `input_activations` is not marked as one of float activations, keep.
    let params = Nvfp4Params { factor, input, float_activations: false };
    let coded = Fp4::nv(tensors, packed, scale, params, &shape)?;
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}
