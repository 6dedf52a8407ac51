//! Experts: adapters trained on stacked parameters (PEFT's `target_parameters`), and layouts of experts that differ
//! between an adapter and its base model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::lora::AdapterError;
use crate::lora::names::{WeightNames, core_of};
use crate::lora::pair::MatrixPair;
use gguf_core::{Shape, WeightMeta};
use gguf_dequant::{LoraPair, LoraPart};

/// Parameters of a module of experts in the order in which transformers declares them: PEFT wraps the first one
/// innermost.
const ORDER: [&str; 8] =
    ["gate_up_proj", "gate_up_proj_bias", "gate_proj", "up_proj", "w1", "v1", "down_proj", "down_proj_bias"];
/// Suffix that PEFT adds for each wrapper inside another one.
const INNER: &str = ".base_layer";
const EXPERTS: &str = "experts";
/// Matrices of single experts in a stack, one after the other, each under its possible names.
const MEMBERS: [(&str, &[&[&str]]); 6] = [
    ("gate_up_proj", &[&["gate_proj", "w1"], &["up_proj", "w3"]]),
    ("gate_up_proj", &[&["gate_up_proj", "gate_up_projs"]]),
    ("down_proj", &[&["down_proj", "w2", "down_projs"]]),
    ("gate_proj", &[&["gate_proj", "w1"]]),
    ("up_proj", &[&["up_proj", "w3"]]),
    ("up_proj", &[&["up_proj", "w1"]]),
];
/// Names of MLX for stacks and their containers, and those of transformers.
const OF_MLX: [(&str, &str); 5] = [
    (".experts.switch_glu.", ".experts."),
    (".switch_mlp.", ".experts."),
    (".switch_glu.", ".experts."),
    (".experts.fc1", ".experts.up_proj"),
    (".experts.fc2", ".experts.down_proj"),
];
/// Modules of single experts in checkpoints, and which of the names of their matrices belong to them.
const SINGLES: [(&str, usize); 3] = [("mlp", 0), ("block_sparse_moe", 1), ("feed_forward", 1)];
/// Module of DBRX with the matrices of all experts one after the other, as one matrix.
const FLAT: &str = ".experts.mlp.";
/// Other names of stacks in checkpoints.
const STACKS: [(&str, &str); 2] =
    [("experts.gate_up_proj", "input_linear.weight"), ("experts.down_proj", "output_linear.weight")];

/// Returns the tensors of the base by the modules of an adapter with `target_parameters`: PEFT names a module's pairs
/// by their nesting, not by their parameters.
pub(super) fn parameters<'a>(
    modules: impl Iterator<Item = &'a str>,
    targets: &[String],
) -> Result<HashMap<String, String>, AdapterError> {
    let mut depths: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for module in modules.filter(|_| !targets.is_empty()) {
        let (mut outer, mut depth) = (module, 0);
        while let Some(rest) = outer.strip_suffix(INNER) {
            (outer, depth) = (rest, depth + 1);
        }
        depths.entry(outer).or_default().push((depth, module));
    }
    let mut names = HashMap::new();
    for (outer, mut found) in depths {
        let mut own: Vec<&str> = targets.iter().filter_map(|target| parameter_of(target, outer)).collect();
        own.sort_unstable_by_key(|name| ORDER.iter().position(|known| known == name));
        own.dedup();
        // The pairs of another module have one wrapper at most.
        if own.is_empty() && found.iter().all(|row| row.0 == 0) {
            continue;
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        let is_known = own.len() == 1 || own.iter().all(|name| ORDER.contains(name));
        let is_whole = found.iter().map(|row| row.0).eq((0..own.len()).rev());
        if !is_known || !is_whole {
            let (module, n_pairs) = (outer.to_owned(), found.len());
            return Err(AdapterError::Parameters { module, n_pairs, targets: targets.join(", ") });
        }
        names.extend(
            found
                .iter()
                .zip(own)
                .map(|((_, module), name)| ((*module).to_owned(), format!("{outer}.{name}"))),
        );
    }
    Ok(names)
}

/// Returns the parameter of a module that a target means; PEFT matches the end of the parameter's full name.
fn parameter_of<'t>(target: &'t str, module: &str) -> Option<&'t str> {
    let is_end =
        |end: &str| module.strip_suffix(end).is_some_and(|head| head.is_empty() || head.ends_with('.'));
    match target.rsplit_once('.') {
        Some((owner, name)) => is_end(owner).then_some(name),
        None => is_end(EXPERTS).then_some(target),
    }
}

/// Returns the shape of a stack's product. PEFT trains matrices of `rank` for each of its experts.
pub(super) fn shape_of(a: &Shape, b: &Shape, rank: u64) -> Option<(u64, Shape)> {
    let (&[a_rows, n_cols], &[n_rows, b_cols]) = (a.dims(), b.dims()) else { return None };
    let n_experts = a_rows.checked_div(rank).filter(|n| *n > 0 && n * rank == a_rows && a_rows == b_cols)?;
    let dims = if n_experts == 1 { vec![n_rows, n_cols] } else { vec![n_experts, n_rows, n_cols] };
    Some((n_experts, Shape::new(dims)?))
}

/// Iterates over the ways in which checkpoints store the experts that transformers stacks: each returns the pairs of an
/// adapter with the names of such a checkpoint.
pub(super) fn layouts(pairs: &[MatrixPair]) -> impl Iterator<Item = Vec<MatrixPair>> {
    let has_stacks = pairs.iter().any(|pair| pair.n_experts > 1);
    let renamed = has_stacks.then(|| pairs.iter().map(with_stored_name).collect());
    let single = SINGLES.iter().filter(move |_| has_stacks).map(|(module, member)| {
        let experts = |pair: &MatrixPair| match pair.n_experts {
            1 => vec![pair.clone()],
            _ => single_experts(pair, module, *member),
        };
        pairs.iter().flat_map(experts).collect()
    });
    renamed.into_iter().chain(single)
}

fn with_stored_name(pair: &MatrixPair) -> MatrixPair {
    let name = STACKS.iter().fold(pair.name.clone(), |name, (own, stored)| name.replacen(own, stored, 1));
    MatrixPair { name, ..pair.clone() }
}

/// Returns the pairs of a stack's single experts; `member` is the index of their names in [`MEMBERS`].
fn single_experts(pair: &MatrixPair, module: &str, member: usize) -> Vec<MatrixPair> {
    let found = pair.name.rsplit_once(".experts.").and_then(|(owner, stack)| {
        let parts = MEMBERS.iter().find(|row| row.0 == stack)?.1;
        Some((owner.rsplit_once('.').map_or(owner, |(layer, _)| layer), parts))
    });
    let (Some((layer, parts)), &[_, n_rows, n_cols]) = (found, pair.meta.shape.dims()) else {
        return vec![pair.clone()];
    };
    let n = n_rows / parts.len() as u64;
    let Some(shape) = Shape::new(vec![n, n_cols]) else { return vec![pair.clone()] };
    let all = (0..pair.n_experts).flat_map(|expert| (0..).zip(parts.iter()).map(move |row| (expert, row)));
    let one = |(expert, (part, names)): (u64, (u64, &&[&str]))| {
        let member = names.get(member).or(names.first()).copied().unwrap_or_default();
        let name = format!("{layer}.{module}.experts.{expert}.{member}.weight");
        let meta = WeightMeta { name: name.clone(), shape: shape.clone(), ty: pair.meta.ty };
        MatrixPair { name, meta, expert: Some((expert, part * n..(part + 1) * n)), ..pair.clone() }
    };
    all.map(one).collect()
}

/// Returns the sums by which an adapter's experts change the base, whichever of the two stacks them. `alternating` are the
/// base's stacks in which rows of several matrices alternate.
pub(super) fn merged(
    pair: &MatrixPair,
    names: &WeightNames<'_>,
    base: &[WeightMeta],
    alternating: &BTreeSet<usize>,
    scale: f32,
) -> Result<Vec<LoraPair>, AdapterError> {
    let row = |base, is_transposed, part| LoraPair { base, a: pair.a, b: pair.b, scale, is_transposed, part };
    if pair.n_experts == 1 {
        let (at, is_transposed, part) = single(pair, names, base, alternating)?;
        return Ok(vec![row(at, is_transposed != pair.is_of_mlx, part)]);
    }
    let n_experts = pair.n_experts;
    let name = parameter_name(pair);
    let Some(at) = stack_of(&pair.name, names).or_else(|| stack_of(&name, names)) else {
        let parts = joined(pair, &name, names, base, alternating)
            .map_or_else(|| members(pair, &name, names, base), Ok)?;
        return Ok(parts.into_iter().map(|(at, is_transposed, part)| row(at, is_transposed, part)).collect());
    };
    if base[at].shape.dims().first() != Some(&n_experts) || base[at].shape.rank() != 3 {
        return Err(other_shape(pair, &base[at]));
    }
    let part = LoraPart { n_experts, experts: 0..n_experts, ..LoraPart::default() };
    Ok(vec![row(at, is_transposed(pair, &base[at], names, base), part)])
}

/// Returns the name that a stack of an adapter has as a parameter of transformers.
fn parameter_name(pair: &MatrixPair) -> String {
    if !pair.is_of_mlx {
        return pair.name.clone();
    }
    let name = OF_MLX.iter().fold(pair.name.clone(), |name, (own, other)| name.replacen(own, other, 1));
    name.trim_end_matches(".weight").to_owned()
}

/// Returns the places of a stack's matrices in the base's stack of those and others.
fn joined(
    pair: &MatrixPair,
    name: &str,
    names: &WeightNames<'_>,
    base: &[WeightMeta],
    alternating: &BTreeSet<usize>,
) -> Option<Vec<(usize, bool, LoraPart)>> {
    let (owner, stack) = name.rsplit_once(".experts.")?;
    let &[n_experts, n, k] = pair.meta.shape.dims() else { return None };
    MEMBERS.iter().filter(|row| row.1.len() > 1).find_map(|(all, parts)| {
        let half = parts.iter().position(|own| own.contains(&stack))? as u64;
        let at = stack_of(&format!("{owner}.experts.{all}"), names)?;
        let down = stack_of(&format!("{owner}.experts.down_proj"), names).map(|at| &base[at]);
        let place = Place { half, n_parts: parts.len() as u64, alternates: alternating.contains(&at) };
        let part = |expert: u64| {
            let (is_transposed, part) = place.of(expert, [n, k], &base[at], down)?;
            Some((at, is_transposed, LoraPart { n_experts, experts: expert..expert + 1, ..part }))
        };
        (base[at].shape.dims()[0] == n_experts).then(|| (0..n_experts).map(part).collect())?
    })
}

/// One of the matrices that a stack of the base has of each expert.
struct Place {
    half: u64,
    n_parts: u64,
    /// True if rows of the matrices alternate; else they follow each other.
    alternates: bool,
}

impl Place {
    /// Returns whether a stack has the matrix `[n, k]` of an expert transposed, and where. If the sizes of the stack fit
    /// both, `down` shows it.
    fn of(
        &self,
        expert: u64,
        [n, k]: [u64; 2],
        stack: &WeightMeta,
        down: Option<&WeightMeta>,
    ) -> Option<(bool, LoraPart)> {
        let &[n_experts, rows, columns] = stack.shape.dims() else { return None };
        let all = n.checked_mul(self.n_parts)?;
        let is_as_stored = (rows, columns) == (all, k);
        let is_transposed = if is_as_stored && all == k && self.n_parts > 1 {
            down.is_some_and(|down| down.shape.dims()[1..] == [n, k])
        } else {
            !is_as_stored
        };
        let fits = expert < n_experts && (!is_transposed || (columns, rows) == (all, k));
        let (first, step) = if self.alternates { (self.half, self.n_parts) } else { (self.half * n, 1) };
        let base = LoraPart { step, n_rows: Some(if is_transposed { k } else { n }), ..LoraPart::default() };
        let part = if is_transposed && self.n_parts > 1 {
            LoraPart { first_row: expert * rows, first_col: Some(first), ..base }
        } else {
            LoraPart { first_row: expert * rows + first, ..base }
        };
        fits.then_some((is_transposed, part))
    }
}

/// Returns a stack of the base by the name of its parameter in transformers.
fn stack_of(name: &str, names: &WeightNames<'_>) -> Option<usize> {
    let others = STACKS.iter().map(|(own, stored)| name.replacen(own, stored, 1));
    let mut all = [name.to_owned(), format!("{name}.weight")].into_iter().chain(others);
    all.find_map(|name| names.find(&name).ok())
}

/// Returns true if the base stores the product transposed. Of a square one, the other stack of the layer shows it: the
/// matrix of gate and up has more rows than columns.
fn is_transposed(pair: &MatrixPair, meta: &WeightMeta, names: &WeightNames<'_>, base: &[WeightMeta]) -> bool {
    let (own, stored) = (&pair.meta.shape.dims()[1..], &meta.shape.dims()[1..]);
    if own[0] != own[1] {
        return own != stored;
    }
    let name = parameter_name(pair);
    let other = match name.strip_suffix("down_proj") {
        Some(owner) => format!("{owner}gate_up_proj"),
        None => name.replace("gate_up_proj", "down_proj"),
    };
    let other = stack_of(&other, names).map(|at| base[at].shape.dims().to_vec());
    matches!(other.as_deref(), Some([_, rows, columns]) if rows < columns)
}

/// Returns the place of single experts in the base's stack of them.
fn single(
    pair: &MatrixPair,
    names: &WeightNames<'_>,
    base: &[WeightMeta],
    alternating: &BTreeSet<usize>,
) -> Result<(usize, bool, LoraPart), AdapterError> {
    let missing = match names.find(&pair.name) {
        Ok(at) => return Ok((at, false, LoraPart::default())),
        Err(error) => error,
    };
    let found = || {
        let (owner, rest) = pair.name.strip_suffix(".weight")?.rsplit_once(".experts.")?;
        let (expert, member) = numbered(rest)?;
        let &[n, k] = pair.meta.shape.dims() else { return None };
        if let Ok(at) = names.find(&format!("{owner}{FLAT}{member}")) {
            let &[rows, columns] = base[at].shape.dims() else { return None };
            // ref: DBRX multiplies by these matrices as they are stored.
            let is_transposed = member == "w2";
            let (n, k) = if is_transposed { (k, n) } else { (n, k) };
            let first_row = expert.checked_mul(n)?;
            let fits = columns == k && first_row.checked_add(n)? <= rows;
            let part = LoraPart { first_row, n_rows: Some(n), ..LoraPart::default() };
            return fits.then_some((at, is_transposed, part));
        }
        MEMBERS.iter().find_map(|(stack, parts)| {
            let half = parts.iter().position(|names| names.contains(&member))? as u64;
            let at = stack_of(&format!("{owner}.experts.{stack}"), names)?;
            let down = stack_of(&format!("{owner}.experts.down_proj"), names).map(|at| &base[at]);
            let place = Place { half, n_parts: parts.len() as u64, alternates: alternating.contains(&at) };
            let (is_transposed, part) = place.of(expert, [n, k], &base[at], down)?;
            Some((at, is_transposed, part))
        })
    };
    found().ok_or(missing)
}

/// Returns number and matrix of an expert: `3.w1`, or `w1.3`.
fn numbered(text: &str) -> Option<(u64, &str)> {
    let (first, second) = text.split_once('.')?;
    match (first.parse(), second.parse()) {
        (Ok(number), _) => Some((number, second)),
        (_, Ok(number)) => Some((number, first)),
        _ => None,
    }
}

/// Returns the base's single experts that a stack of the adapter changes.
fn members(
    pair: &MatrixPair,
    name: &str,
    names: &WeightNames<'_>,
    base: &[WeightMeta],
) -> Result<Vec<(usize, bool, LoraPart)>, AdapterError> {
    let missing = || AdapterError::NotInBase { tensor: pair.name.clone() };
    let core = core_of(name);
    let (owner, stack) = core.rsplit_once(".experts.").ok_or_else(missing)?;
    // The module of the experts may have another name in checkpoints, but not its layer.
    let layer = owner.rfind(|c: char| c.is_ascii_digit()).map_or("", |at| &owner[..=at]);
    let in_layer = |meta: &WeightMeta| {
        let core = core_of(&meta.name);
        let (owner, rest) = core.strip_suffix(".weight")?.rsplit_once(".experts.")?;
        let (expert, member) = numbered(rest)?;
        let is_of_layer = owner.strip_prefix(layer).is_some_and(|rest| rest.starts_with('.'));
        is_of_layer.then(|| ((expert, member.to_owned()), owner.to_owned()))
    };
    let mut all: HashMap<(u64, String), usize> = HashMap::new();
    let mut owners: Vec<String> = Vec::new();
    for (at, meta) in base.iter().enumerate().filter(|(_, meta)| meta.name.contains(".experts.")) {
        if let Some((key, owner)) = in_layer(meta) {
            all.insert(key, at);
            owners.push(owner);
        }
    }
    owners.sort_unstable();
    owners.dedup();
    if owners.len() != 1 {
        return Err(names.find(&pair.name).err().unwrap_or_else(missing));
    }
    let n_stored = all.keys().map(|key| key.0 + 1).max().unwrap_or(0);
    for (_, parts) in MEMBERS.iter().filter(|row| row.0 == stack) {
        let of = |expert: u64, names: &[&str]| {
            names.iter().find_map(|name| all.get(&(expert, (*name).to_owned()))).copied()
        };
        let rows = (0..pair.n_experts)
            .flat_map(|expert| (0..).zip(parts.iter()).map(move |(half, part)| (expert, half, part)));
        let found: Option<Vec<_>> =
            rows.map(|(expert, half, part)| Some((expert, half, of(expert, part)?))).collect();
        let Some(found) = found else { continue };
        let part = |(expert, half, at): (u64, u64, usize)| {
            let (&[n, k], &[_, rows, columns]) = (base[at].shape.dims(), pair.meta.shape.dims()) else {
                return None;
            };
            let n_parts = parts.len() as u64;
            let is_transposed = (rows, columns) != (n * n_parts, k);
            let part = LoraPart {
                n_experts: pair.n_experts,
                experts: expert..expert + 1,
                skip: half * n,
                n_rows: Some(n),
                ..LoraPart::default()
            };
            (!is_transposed || (columns, rows) == (n * n_parts, k)).then_some((at, is_transposed, part))
        };
        let wrong = || found.first().map_or_else(missing, |row| other_shape(pair, &base[row.2]));
        if n_stored != pair.n_experts {
            return Err(wrong());
        }
        return found.iter().copied().map(part).collect::<Option<_>>().ok_or_else(wrong);
    }
    Err(missing())
}

fn other_shape(pair: &MatrixPair, meta: &WeightMeta) -> AdapterError {
    let (tensor, found, product) = (meta.name.clone(), meta.shape.clone(), pair.meta.shape.to_string());
    AdapterError::OtherShape { tensor, found, product }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_pairs_belong_to_parameters_in_the_order_of_the_model() {
        let of = |modules: &[&str], targets: &[&str]| {
            let targets: Vec<String> = targets.iter().map(|target| (*target).to_owned()).collect();
            let found = parameters(modules.iter().copied(), &targets).map_err(|error| error.to_string())?;
            Ok::<_, String>(
                modules
                    .iter()
                    .map(|module| found.get(*module).cloned().unwrap_or_default())
                    .collect::<Vec<_>>(),
            )
        };
        let both = ["l.1.mlp.experts", "l.1.mlp.experts.base_layer", "l.1.q_proj"];
        let want = vec![
            "l.1.mlp.experts.down_proj".to_owned(),
            "l.1.mlp.experts.gate_up_proj".to_owned(),
            String::new(),
        ];
        for targets in [
            &["mlp.experts.down_proj", "mlp.experts.gate_up_proj"][..],
            &["1.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj", "2.mlp.experts.down_proj"],
            &["gate_up_proj", "down_proj"],
        ] {
            assert_eq!(of(&both, targets).unwrap(), want);
        }
        assert_eq!(
            of(&["experts", "mlp.gate"], &["experts.down_proj", "gate.weight"]).unwrap(),
            ["experts.down_proj", "mlp.gate.weight"]
        );
        assert_eq!(of(&both, &[]).unwrap(), ["", "", ""]);
        for targets in
            [&["experts.down_proj"][..], &["experts.down_proj", "experts.own"], &["else.down_proj"]]
        {
            let error = of(&both, targets).unwrap_err();
            assert!(
                error.starts_with("`target_parameters` (") && error.contains("`l.1.mlp.experts`"),
                "{error}"
            );
        }
    }

    #[test]
    fn ranks_tell_the_number_of_experts() {
        let of = |a: [u64; 2], b: [u64; 2], rank| {
            shape_of(&Shape::new(a.to_vec()).unwrap(), &Shape::new(b.to_vec()).unwrap(), rank)
                .map(|(n, shape)| (n, shape.dims().to_vec()))
        };
        assert_eq!(of([6, 4], [8, 6], 2), Some((3, vec![3, 8, 4])));
        assert_eq!(of([2, 4], [8, 2], 2), Some((1, vec![8, 4])));
        assert_eq!([of([6, 4], [8, 6], 4), of([6, 4], [8, 5], 2), of([6, 4], [8, 6], 0)], [None, None, None]);
    }
}
