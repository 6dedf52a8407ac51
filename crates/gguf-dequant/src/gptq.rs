//! GPTQ: `qweight`, `qzeros`, `scales` and an optional `g_idx`; codes are packed along columns of words.
//!
//! `qweight` is `[in · bits / 32, out]`, a stream of inputs down each column. `qzeros` is `[n_groups, out · bits /
//! 32]`, a stream of outputs along each row. Version 1 stores zero points minus one; see [`ZeroShift`].
//!
//! # Layout
//! Dense bit streams, lowest bit first: element k has the bits `k·n` to `(k+1)·n` of the words in order, so values of
//! three bits cross words. `W[o,i] = scales[g,o] · (code[i,o] - zero[g,o])` with `g = g_idx[i]`, or column / group size.
//! The writers of version 1 subtract `0x55555555`, `0x11111111` or `0x01010101` from whole words, so a zero of 0 borrows
//! from the next field; the exact inverse adds the word first. Three bits are stored field by field: plus 1 modulo 8.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::bits::{CodeStream, WordLayout};
use crate::grouped::{CodeLayout, ColumnGroups, GroupLayout, Grouped, ScaleOrder, ZeroShift, Zeros};
use crate::patterns::{ModulePattern, Patterns};
use crate::values::{NumberTensor, SCALE_TYPES};
use crate::{Result, Settings, Tensors};
use gguf_core::ElementType;
use gguf_core::little_endian::{i32s, u32s};
use gguf_core::text::escape;

/// Quantization parameters of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GptqParams {
    /// Bits per code.
    pub(super) bits: u32,
    /// Columns per group; `None` for whole rows.
    pub(super) group_size: Option<u64>,
    /// Format version, which determines the storage of zero points.
    pub(super) version: GptqVersion,
}

/// Version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GptqVersion {
    /// Zero points are stored minus one.
    One,
    /// Zero points are stored unchanged.
    Two,
}

/// A rule of `dynamic` for the modules that match a pattern.
pub(super) enum DynamicRule {
    /// The module was not quantized.
    Skip,
    Override(Map<String, Value>),
}

/// Plans all modules of `gptq`.
///
/// # Errors
/// [`DequantError`]: formats for one GPU kernel, settings that contradict the tensors, incomplete modules.
pub(super) fn plan(settings: &Settings, tensors: &mut Tensors<'_>, warnings: &mut Vec<String>) -> Result<()> {
    let version = version(settings)?;
    if let Some(dtype) = settings.text("pack_dtype")?.filter(|dtype| *dtype != "int32") {
        return Err(settings.variant("pack_dtype", dtype, "only codes in 32-bit words are read"));
    }
    let rules = rules(settings)?;
    let mut remarks = Remarks::default();
    for (module, _) in tensors.ending(".qweight") {
        let rule = rules.iter().find(|(pattern, _)| pattern.is_match(module)).map(|(_, rule)| rule);
        let own = match rule {
            Some(DynamicRule::Skip) => {
                let (rule, tensor) = ("a rule that leaves the module alone", format!("{module}.qweight"));
                return Err(settings.conflict("dynamic", rule, tensor, "codes"));
            }
            Some(DynamicRule::Override(map)) => settings.with(map),
            None => settings.clone(),
        };
        let params = GptqParams { bits: bits(&own)?, group_size: group_size(&own)?, version };
        put(&own, tensors, module, params, &mut remarks)?;
    }
    warnings.extend(remarks.warnings());
    Ok(())
}

/// What is worth a warning about modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Remark {
    WrappedZeros,
    ZerosOfOtherVersion,
    NoOrder,
    UnsetOrder,
}

/// Modules by what is worth a warning about them.
#[derive(Debug, Default)]
pub(super) struct Remarks(BTreeMap<Remark, Vec<String>>);

impl Remarks {
    fn add(&mut self, remark: Remark, module: &str) {
        self.0.entry(remark).or_default().push(module.to_owned());
    }

    /// Returns a warning for each remark, with the first module.
    pub(super) fn warnings(self) -> impl Iterator<Item = String> {
        self.0.into_iter().filter_map(|(remark, modules)| {
            let (what, reading) = match remark {
                Remark::WrappedZeros => (
                    "zero points of 0",
                    "read as the format's own loader does, with a carry between the fields of a word",
                ),
                Remark::ZerosOfOtherVersion => (
                    "`sym` is true, and the zero points are the middle of the codes in the format's other version",
                    "read as the middle",
                ),
                Remark::NoOrder => {
                    ("`desc_act` is true without `g_idx`", "the columns are taken in the order of the groups")
                }
                Remark::UnsetOrder => {
                    ("`g_idx` that is all 0", "the columns are taken in the order of the groups")
                }
            };
            let (first, others) = modules.split_first()?;
            Some(format!("{what} in `{}` and {} other modules: {reading}", escape(first), others.len()))
        })
    }
}

fn version(settings: &Settings) -> Result<GptqVersion> {
    if settings.bool("is_marlin_format")? == Some(true) {
        return Err(settings.variant("is_marlin_format", "true", "weights are repacked for a GPU kernel"));
    }
    let key = if settings.text("checkpoint_format")?.is_some() { "checkpoint_format" } else { "format" };
    match settings.text(key)?.map(str::to_ascii_lowercase).as_deref() {
        None | Some("gptq") => Ok(GptqVersion::One),
        Some("gptq_v2") => Ok(GptqVersion::Two),
        Some(name @ "gptq_p") => Err(settings.variant(key, name, "codes lie in bit planes")),
        Some(name) => Err(settings.variant(key, name, "weights are repacked for a GPU kernel")),
    }
}

/// Reads `dynamic`: overrides by module name, in order.
pub(super) fn rules(settings: &Settings) -> Result<Vec<(ModulePattern, DynamicRule)>> {
    const KEY: &str = "dynamic";
    let Some(value) = settings.map.get(KEY).filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    let Some(map) = value.as_object() else { return Err(settings.bad(KEY, "must be an object")) };
    let (mut rules, mut patterns) = (Vec::with_capacity(map.len()), Patterns::default());
    for (name, value) in map {
        let (skip, pattern) = match name.strip_prefix("-:") {
            Some(pattern) => (true, pattern),
            None => (false, name.strip_prefix("+:").unwrap_or(name)),
        };
        let pattern = patterns.compile(pattern).map_err(|error| {
            settings.bad(KEY, &format!("has the pattern `{name}`, which {}", error.what()))
        })?;
        let rule = match value.as_object() {
            _ if skip => DynamicRule::Skip,
            Some(map) => DynamicRule::Override(map.clone()),
            None => return Err(settings.bad(KEY, &format!("has a rule `{name}` that is not an object"))),
        };
        rules.push((pattern, rule));
    }
    Ok(rules)
}

/// Reads `bits`, one of the supported numbers.
pub(super) fn bits(settings: &Settings) -> Result<u32> {
    match settings.int("bits")? {
        Some(bits @ (2 | 3 | 4 | 8)) => Ok(bits as u32),
        Some(bits) => Err(settings.bad("bits", &format!("is {bits}, expected 2, 3, 4 or 8"))),
        None => Err(settings.bad("bits", "is missing")),
    }
}

/// Reads `group_size`; -1 or absence means whole rows.
pub(super) fn group_size(settings: &Settings) -> Result<Option<u64>> {
    // AutoAWQ's own file has the names of its command line.
    match settings.int("group_size")?.or(settings.int("q_group_size")?) {
        None | Some(-1) => Ok(None),
        Some(size) => match u64::try_from(size) {
            Ok(size) if size > 0 => Ok(Some(size)),
            _ => Err(settings.bad("group_size", &format!("is {size}, expected -1 or a positive number"))),
        },
    }
}

/// Assembles one module.
pub(super) fn put(
    settings: &Settings,
    tensors: &mut Tensors<'_>,
    module: &str,
    params: GptqParams,
    remarks: &mut Remarks,
) -> Result<()> {
    let qweight = tensors.member(module, ".qweight")?;
    let qzeros = tensors.member(module, ".qzeros")?;
    let scales = tensors.member(module, ".scales")?;
    tensors.check_no_plain(module, qweight)?;
    tensors.check_type(qweight, &[ElementType::I32])?;
    tensors.check_type(qzeros, &[ElementType::I32])?;
    let scale_values = NumberTensor::new(tensors, scales, &SCALE_TYPES)?;
    let bits = u64::from(params.bits);

    let (words, n_rows) = tensors.matrix(qweight)?;
    let (n_groups, scale_rows) = tensors.matrix(scales)?;
    if scale_rows != n_rows {
        return Err(tensors.shape_error(scales, format!("[{n_groups}, {n_rows}], as `qweight` has columns")));
    }
    let n_cols = words.checked_mul(32).filter(|n| n % bits == 0).map(|n| n / bits);
    let n_cols = n_cols.ok_or_else(|| {
        tensors.shape_error(qweight, format!("a number of words that {bits}-bit codes fill"))
    })?;
    let zero_words = CodeStream::words(params.bits, WordLayout::Dense, n_rows);
    let (zero_groups, found_words) = tensors.matrix(qzeros)?;
    if zero_groups != n_groups || found_words != zero_words {
        let expected = format!("[{n_groups}, {zero_words}]: `scales` has {n_groups} groups of {n_rows}");
        return Err(tensors.shape_error(qzeros, expected));
    }

    let g_idx = tensors.find(&format!("{module}.g_idx"));
    if let Some(g_idx) = g_idx {
        tensors.check_type(g_idx, &[ElementType::I32])?;
        let n = tensors.meta(g_idx).shape.n_elems();
        // `g_idx` gives the number of inputs independently: if `bits` is wrong, the number computed from it differs.
        if n != n_cols && n.checked_mul(bits).is_some_and(|n_bits| n_bits.div_ceil(32) != words) {
            let right = words.saturating_mul(32) / n.max(1);
            if [2, 3, 4, 8].contains(&right) {
                let found = format!("{right}: {words} rows for {n} inputs");
                return Err(settings.conflict("bits", bits.to_string(), &tensors.meta(qweight).name, found));
            }
        }
        tensors.check_shape(g_idx, &[n_cols])?;
    }
    let group_size = params.group_size.unwrap_or(n_cols.max(1));
    if n_cols.div_ceil(group_size) != n_groups {
        let found = format!("{n_groups} groups for {n_cols} inputs");
        let tensor = &tensors.meta(scales).name;
        return Err(settings.conflict("group_size", group_size.to_string(), tensor, found));
    }
    let order = match g_idx {
        Some(g_idx) => order(tensors, g_idx, group_size, n_groups)?,
        None if n_groups > 1 && settings.is_set_to("desc_act", true) => {
            remarks.add(Remark::NoOrder, module);
            ColumnOrder::Groups
        }
        None => ColumnOrder::Groups,
    };
    if order == ColumnOrder::Unset {
        remarks.add(Remark::UnsetOrder, module);
    }
    let groups = match g_idx {
        Some(g_idx) if order == ColumnOrder::Other => ColumnGroups::Index(g_idx),
        _ => ColumnGroups::Runs(group_size),
    };

    // Where the zero points say by themselves which version stored them, they are believed.
    let of_zeros = if settings.is_set_to("sym", true) {
        symmetric_version(tensors, qzeros, params.bits, n_rows)?
    } else {
        None
    };
    if of_zeros.is_some_and(|version| version != params.version) {
        remarks.add(Remark::ZerosOfOtherVersion, module);
    }
    let shift = match (of_zeros.unwrap_or(params.version), params.bits) {
        (GptqVersion::Two, _) => ZeroShift::None,
        (GptqVersion::One, 3) => ZeroShift::Field,
        (GptqVersion::One, _) => ZeroShift::Word,
    };
    let stream = |index, step, stride| CodeStream {
        index,
        bits: params.bits,
        layout: WordLayout::Dense,
        step,
        stride,
    };
    let zeros = stream(qzeros, 1, zero_words);
    if shift == ZeroShift::Word && has_full_field(tensors, qzeros, params.bits)? {
        remarks.add(Remark::WrappedZeros, module);
    }
    let name = format!("{module}.weight");
    let mut members = vec![qweight, qzeros, scales];
    members.extend(g_idx);
    let coded = Grouped {
        codes: CodeLayout::ByRow(stream(qweight, n_rows, 1)),
        code_range: (0, (1 << params.bits) - 1),
        zeros: Zeros::ByGroup(zeros, shift),
        scales: scale_values,
        order: ScaleOrder::GroupMajor,
        groups,
        n_groups,
        n_rows,
        n_cols,
        members,
        layout: GroupLayout { group_size, is_symmetric: !settings.is_set_to("sym", false) },
    };
    let shape = tensors.weight_shape(qweight, Some(vec![n_rows, n_cols]))?;
    tensors.append(name, shape, Box::new(coded));
    Ok(())
}

/// Order of the columns by an index of their groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnOrder {
    /// The groups are consecutive, as without an index.
    Groups,
    /// All are 0 although there are more groups, as tools leave it that do not reorder.
    Unset,
    Other,
}

/// Returns the order of the columns. Checks all indices, before any row is read.
fn order(tensors: &Tensors<'_>, g_idx: usize, group_size: u64, n_groups: u64) -> Result<ColumnOrder> {
    tensors.inner().try_with_elems(g_idx, 0..tensors.meta(g_idx).shape.n_elems(), |bytes| {
        let (mut in_order, mut is_unset) = (true, n_groups > 1);
        for (col, found) in (0..).zip(i32s(bytes)) {
            if u64::try_from(found).ok().is_none_or(|group| group >= n_groups) {
                let expected = format!("0 to {}", n_groups.saturating_sub(1));
                return Err(tensors.inner().out_of_range(g_idx, col, i64::from(found), expected));
            }
            in_order &= u64::try_from(found) == Ok(col / group_size);
            is_unset &= found == 0;
        }
        Ok(match (in_order, is_unset) {
            (true, _) => ColumnOrder::Groups,
            (false, true) => ColumnOrder::Unset,
            (false, false) => ColumnOrder::Other,
        })
    })
}

/// Returns the version in which all zero points are the middle of the codes, as those of a symmetric quantization are.
fn symmetric_version(
    tensors: &Tensors<'_>,
    qzeros: usize,
    bits: u32,
    n_rows: u64,
) -> Result<Option<GptqVersion>> {
    let words = |value: u64| -> Vec<u32> {
        let (mut words, mut held, mut n_held) = (Vec::new(), 0u64, 0);
        for _ in 0..n_rows {
            held |= value << n_held;
            n_held += bits;
            if n_held >= 32 {
                words.push(held as u32);
                held >>= 32;
                n_held -= 32;
            }
        }
        words.extend((n_held > 0).then_some(held as u32));
        words
    };
    let middle = 1u64 << (bits - 1);
    let n = tensors.meta(qzeros).shape.n_elems();
    for (version, value) in [(GptqVersion::One, middle - 1), (GptqVersion::Two, middle)] {
        let row = words(value);
        let is_all = tensors.inner().with_elems(qzeros, 0..n, |bytes| {
            let found: Vec<u32> = u32s(bytes).collect();
            found.chunks(row.len().max(1)).all(|found| found == row)
        })?;
        if is_all {
            return Ok(Some(version));
        }
    }
    Ok(None)
}

/// Returns true if some field of the words is all ones.
fn has_full_field(tensors: &Tensors<'_>, index: usize, bits: u32) -> Result<bool> {
    let full = (1u32 << bits) - 1;
    let found = tensors.inner().with_elems(index, 0..tensors.meta(index).shape.n_elems(), |bytes| {
        u32s(bytes).any(|word| (0..32 / bits).any(|field| word >> (field * bits) & full == full))
    })?;
    Ok(found)
}
