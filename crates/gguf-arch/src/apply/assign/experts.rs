//! The layouts in which programs store the experts of a layer, for all cards.
//!
//! A card lists the layout of its model's own release. Others store the same matrices
//!
//! - one tensor per expert: `experts.3.gate_proj.weight`, or in lists, `experts.gate_up_projs.3.weight`,
//! - one tensor for all experts: `experts.gate_proj`, `switch_mlp.gate_proj.weight`,
//! - gate and up in one tensor: `experts.gate_up_proj`,
//!
//! each as `[out, in]` or as `[in, out]`. The rows of gate and up follow each other, or alternate where they do so in the
//! model's release.

use std::collections::{HashMap, HashSet};

use crate::language::eval::Scope;
use crate::language::expr::Expr;
use crate::language::names::{Pattern, Placeholder, SUFFIXES, Stars};
use crate::language::ops::{OpKind, OpSpec, Param};
use crate::mapping::matching::kind_of_pattern;
use crate::read::base;
use crate::read::fusion::Fusion;
use crate::read::schema::{Card, CardKind, EntryTarget, EntryType, Join, TensorEntry};
use gguf_core::WeightMeta;

use super::{Emission, EmissionKey};
use indexmap::IndexMap;

/// Matrices of experts that a tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Gate,
    Up,
    Down,
    GateUp,
}

/// Targets of a role in every block, and the words that name it in checkpoints.
struct RoleRow {
    role: Role,
    targets: &'static [&'static str],
    words: &'static [&'static str],
}

const ROLES: [RoleRow; 5] = [
    RoleRow { role: Role::Gate, targets: &["ffn_gate_exps"], words: &["gate_proj", "w1", "fc1"] },
    RoleRow { role: Role::Up, targets: &["ffn_up_exps"], words: &["up_proj", "w3", "fc3"] },
    RoleRow { role: Role::Down, targets: &["ffn_down_exps"], words: &["down_proj", "w2", "fc2"] },
    RoleRow { role: Role::GateUp, targets: &["ffn_gate_exps", "ffn_up_exps"], words: &["gate_up_proj"] },
    RoleRow { role: Role::GateUp, targets: &["ffn_gate_up_exps"], words: &["gate_up_proj"] },
];
/// Words for the first matrix of experts without a gate.
const UP_ALONE: [&str; 3] = ["up_proj", "w1", "fc1"];
/// Containers of the experts in a layer's feed-forward module.
const CONTAINERS: [&str; 3] = ["experts", "switch_mlp", "experts.switch_glu"];
/// Name of that module in transformers 5.
const MODULE: &str = "mlp";
/// Keys of the width of experts that work on a projection of the layer's state.
const LATENT: [&str; 2] = ["moe_latent_size", "routed_expert_hidden_size"];
/// Names of routers, and of shared experts, in the programs that store experts in another layout.
const ROUTERS: [&str; 5] = ["gate", "router", "router.linear", "gate.gate", "gate.gate_proj"];
/// Target of the router in a block.
const ROUTER: &str = "ffn_gate_inp";

/// Facts about an entry whose tensors are matrices of experts.
#[derive(Clone, Debug)]
pub(super) struct ExpertEntry {
    role: Role,
    /// True if the entry's operations begin with the transposition of `[in, out]`.
    is_turned: bool,
    /// Entry of the card in whose place each target is written.
    pub(super) ranks: Vec<usize>,
}

pub(super) type ExpertEntries = HashMap<usize, ExpertEntry>;

/// Returns the card with entries for all layouts of its experts, if the checkpoint has any.
pub(super) fn with_all_layouts(card: &Card, weights: &[WeightMeta]) -> (Card, ExpertEntries) {
    let mut card = card.clone();
    let mut facts = ExpertEntries::new();
    if card.kind != CardKind::Text || !weights.iter().any(|weight| is_of_experts(&weight.name)) {
        return (card, facts);
    }
    let own: Vec<(usize, Role)> =
        card.entries.iter().enumerate().filter_map(|(at, entry)| Some((at, role(entry)?))).collect();
    for &(at, role) in &own {
        let entry = &card.entries[at];
        if entry.ty != EntryType::Blocks && !is_numbered(entry) && knows_its_face(entry) {
            let ranks = vec![at; entry.targets.len()];
            facts.insert(at, ExpertEntry { role, is_turned: begins_turned(entry), ranks });
        }
    }
    let modules = modules(&card, &own);
    let mut made = Vec::new();
    for (seed, role, targets) in seeds(&card, &own) {
        let entry = &card.entries[seed];
        let words = words(&card, role, entry);
        for module in &modules {
            for container in CONTAINERS {
                let at = format!("{module}.{container}");
                for word in &words {
                    for layout in layouts(entry, role, &targets, &at, word) {
                        made.push((layout, role, targets.clone()));
                    }
                }
            }
        }
    }
    let known = KnownNames::of(&card);
    add_names(&mut card, &modules, &known);
    for (mut entry, role, targets) in made {
        entry.patterns.retain(|pattern| !known.has(pattern, entry.exact));
        if entry.patterns.is_empty() {
            continue;
        }
        let ranks = targets.iter().map(|target| rank(&card, &own, target)).collect();
        let is_turned = begins_turned(&entry);
        facts.insert(card.entries.len(), ExpertEntry { role, is_turned, ranks });
        card.entries.push(entry);
    }
    (card, facts)
}

/// Returns true if the card knows gate and up of experts as one tensor of the file alone.
pub(super) fn are_joined(card: &Card) -> bool {
    let (parts, joined) = Fusion::GateUpExps.names();
    let has = |word: &str| {
        let yields = |entry: &TensorEntry| {
            entry.targets.iter().any(|to| bare(to.name.text()).strip_prefix("blk.{bid}.") == Some(word))
        };
        card.entries.iter().any(yields)
    };
    has(joined) && !parts.iter().any(|part| has(part))
}

pub(in crate::apply) fn is_of_experts(name: &str) -> bool {
    name.split('.').any(|part| part.contains("experts") || part.starts_with("switch_"))
}

fn role(entry: &TensorEntry) -> Option<Role> {
    let bare = |target: &EntryTarget| bare(target.name.text()).to_owned();
    let targets: Vec<String> = entry.targets.iter().map(bare).collect();
    let is_of = |row: &&RoleRow| {
        targets.len() == row.targets.len()
            && targets.iter().zip(row.targets).all(|(own, row)| own.strip_prefix("blk.{bid}.") == Some(*row))
    };
    ROLES.iter().find(is_of).map(|row| row.role)
}

fn bare(name: &str) -> &str {
    SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

/// Returns true if every expert has a tensor of its own.
fn is_numbered(entry: &TensorEntry) -> bool {
    matches!(entry.join, Some(Join::StackBy(_)))
}

/// Returns true if the operations are a transposition and a division into gate and up, or less.
fn knows_its_face(entry: &TensorEntry) -> bool {
    let known = |op: &OpSpec| matches!(op.kind, OpKind::Transpose | OpKind::Split | OpKind::Unzip);
    entry.pre.is_empty() && entry.join.is_none() && entry.ops.iter().all(known)
}

fn begins_turned(entry: &TensorEntry) -> bool {
    entry.ops.first().is_some_and(|op| op.kind == OpKind::Transpose)
}

/// Returns the modules whose children are the experts, by the card and as transformers 5 names them.
fn modules(card: &Card, own: &[(usize, Role)]) -> Vec<String> {
    let mut modules = Vec::new();
    let mut add = |module: String| {
        if !modules.contains(&module) {
            modules.push(module);
        }
    };
    for pattern in own.iter().flat_map(|(at, _)| &card.entries[*at].patterns) {
        let text = pattern.text();
        let parent = match text.split_once(".experts.") {
            Some((parent, _)) => parent,
            None => bare(text).rsplit_once('.').map_or("", |(parent, _)| parent.trim_end_matches(".{eid}")),
        };
        if !parent.contains("{bid}") {
            continue;
        }
        add(parent.to_owned());
        let own = parent.rsplit_once('.').filter(|(_, module)| ![MODULE, "{bid}"].contains(module));
        if let Some((block, _)) = own {
            add(format!("{block}.{MODULE}"));
        }
    }
    modules
}

/// Returns the entries from which layouts are derived, with role and targets: those with a tensor per expert, else those
/// with a tensor for all. Gate and up are two matrices of a tensor for both, and one tensor of the two matrices.
fn seeds(card: &Card, own: &[(usize, Role)]) -> Vec<(usize, Role, Vec<String>)> {
    let of = |wanted: Role| {
        let is_bias = |at: usize| card.entries[at].targets[0].name.text().ends_with(SUFFIXES[1]);
        let all = own.iter().filter(|(at, role)| *role == wanted && !is_bias(*at)).map(|(at, _)| *at);
        let (numbered, stacked): (Vec<usize>, Vec<usize>) =
            all.partition(|&at| is_numbered(&card.entries[at]));
        if numbered.is_empty() { stacked } else { numbered }
    };
    let (gate, up, down, both) = (of(Role::Gate), of(Role::Up), of(Role::Down), of(Role::GateUp));
    let target = |word: &str| format!("blk.{{bid}}.{word}");
    let one =
        |role: Role| vec![target(ROLES.iter().find(|row| row.role == role).map_or("", |row| row.targets[0]))];
    let mut seeds = Vec::new();
    let mut add = |entries: &[usize], role: Role, targets: &[String]| {
        seeds.extend(entries.iter().map(|&at| (at, role, targets.to_vec())));
    };
    add(&down, Role::Down, &one(Role::Down));
    add(if gate.is_empty() { &both } else { &gate }, Role::Gate, &one(Role::Gate));
    add(if up.is_empty() { &both } else { &up }, Role::Up, &one(Role::Up));
    if both.is_empty() {
        add(&gate, Role::GateUp, &[target("ffn_gate_exps"), target("ffn_up_exps")]);
    }
    for at in both {
        let targets: Vec<String> =
            card.entries[at].targets.iter().map(|target| bare(target.name.text()).to_owned()).collect();
        add(&[at], Role::GateUp, &targets);
    }
    seeds
}

/// Returns the words that may name a role: the usual ones, and the card's own.
fn words(card: &Card, role: Role, seed: &TensorEntry) -> Vec<String> {
    let has_gate = card.entries.iter().any(|entry| {
        entry.targets.iter().any(|target| {
            target.name.text().contains(".ffn_gate_exps") || target.name.text().contains(".ffn_gate_up_exps")
        })
    });
    let usual = match role {
        Role::Up if !has_gate => &UP_ALONE[..],
        _ => ROLES.iter().find(|row| row.role == role).map_or(&[][..], |row| row.words),
    };
    let mut words: Vec<String> = usual.iter().map(|word| (*word).to_owned()).collect();
    let own = seed.patterns.iter().filter_map(|pattern| bare(pattern.text()).rsplit('.').next());
    for word in own.filter(|word| !word.contains('{') && self::role(seed) == Some(role)) {
        if !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    words
}

/// Returns the entries for one word in one container: a tensor per expert, a list of them, a tensor for all.
fn layouts(seed: &TensorEntry, role: Role, targets: &[String], at: &str, word: &str) -> Vec<TensorEntry> {
    let halves = if role == Role::GateUp && targets.len() == 2 { vec![halves(seed)] } else { Vec::new() };
    let by = match seed.join {
        Some(Join::StackBy(by)) => by,
        _ => Placeholder::Eid,
    };
    let number = format!("{{{}}}", by.name());
    let names = |ending: &str| targets.iter().map(|name| format!("{name}{ending}")).collect::<Vec<_>>();
    let entry = |patterns: &[String], ending: &str, ops: Vec<OpSpec>, join: Option<Join>| {
        let parsed = |text: &String| Pattern::parse(text, Stars::Refused).ok();
        let to = |name: Pattern| EntryTarget { name, ops: Vec::new() };
        TensorEntry {
            patterns: patterns.iter().filter_map(parsed).collect(),
            targets: names(ending).iter().filter_map(parsed).map(to).collect(),
            exact: !ending.is_empty(),
            ops,
            join,
            n: seed.n.clone().filter(|_| join.is_some()),
            pre: Vec::new(),
            with: Vec::new(),
            also: Vec::new(),
            ..seed.clone()
        }
    };
    let numbered = Some(Join::StackBy(by));
    // What changes values does so in every layout. A factor of one matrix says nothing about a tensor of two.
    let factors: Vec<OpSpec> =
        seed.pre.iter().chain(&seed.ops).filter(|op| op.kind == OpKind::Scale).cloned().collect();
    if !factors.is_empty() && self::role(seed) != Some(role) {
        return Vec::new();
    }
    let matrices = [factors, halves.clone()].concat();
    let mut parameter = matrices.clone();
    if begins_turned(seed) {
        parameter.insert(0, turn());
    }
    vec![
        entry(&[format!("{at}.{number}.{word}")], "", matrices.clone(), numbered),
        entry(&[format!("{at}.{word}s.{number}")], "", matrices.clone(), numbered),
        // Modules store [out, in]; parameters are as the card knows them.
        entry(&[format!("{at}.{word}")], ".weight", parameter, None),
        entry(&[format!("{at}.{word}.weight")], ".weight", matrices, None),
        entry(&[format!("{at}.{word}_bias"), format!("{at}.{word}.bias")], ".bias", halves, None),
    ]
}

/// Returns the division of gate and up along the rows: every other row, if the model's release alternates them.
fn halves(seed: &TensorEntry) -> OpSpec {
    let axis = ("axis", Param::One(Expr::Int(1)));
    if seed.ops.iter().any(|op| op.kind == OpKind::Unzip) {
        return OpSpec { kind: OpKind::Unzip, params: vec![axis] };
    }
    let half = Expr::parse("d1 // 2").unwrap_or(Expr::Null);
    OpSpec { kind: OpKind::Split, params: vec![axis, ("sizes", Param::Many(vec![half.clone(), half]))] }
}

fn turn() -> OpSpec {
    OpSpec {
        kind: OpKind::Transpose,
        params: vec![("axes", Param::Many(vec![Expr::Int(-1), Expr::Int(-2)]))],
    }
}

/// Names that the card has itself, with `#` for numbers.
struct KnownNames(HashSet<String>);

impl KnownNames {
    fn of(card: &Card) -> Self {
        let mut kinds = HashSet::new();
        for entry in &card.entries {
            for pattern in entry.patterns.iter().chain(&entry.with) {
                kinds.extend(kinds_of(pattern, entry.exact));
            }
        }
        Self(kinds)
    }

    fn has(&self, pattern: &Pattern, is_exact: bool) -> bool {
        kinds_of(pattern, is_exact).iter().any(|kind| self.0.contains(kind))
    }
}

fn kinds_of(pattern: &Pattern, is_exact: bool) -> Vec<String> {
    let kind = kind_of_pattern(pattern).unwrap_or_default();
    if is_exact {
        return vec![kind];
    }
    SUFFIXES.iter().map(|suffix| format!("{kind}{suffix}")).chain([kind.clone()]).collect()
}

/// Returns the card's first entry that yields a target.
fn rank(card: &Card, own: &[(usize, Role)], target: &str) -> usize {
    let yields = |at: &usize| card.entries[*at].targets.iter().any(|to| bare(to.name.text()) == target);
    own.iter().map(|(at, _)| *at).find(yields).unwrap_or(usize::MAX)
}

/// Adds the names that the other tensors of a layer with experts have in other programs: routers, and whatever is in the
/// module that transformers 5 calls `mlp`.
fn add_names(card: &mut Card, modules: &[String], known: &KnownNames) {
    for entry in &mut card.entries {
        let is_router = entry.targets.len() == 1
            && bare(entry.targets[0].name.text()).strip_prefix("blk.{bid}.") == Some(ROUTER);
        let mut names: Vec<String> = Vec::new();
        for (pattern, module) in
            entry.patterns.iter().flat_map(|pattern| modules.iter().map(move |m| (pattern, m)))
        {
            let rest = pattern.text().strip_prefix(module.as_str()).and_then(|rest| rest.strip_prefix('.'));
            let Some(rest) = rest.filter(|rest| !rest.contains("{eid}") && !rest.contains("{xid}")) else {
                continue;
            };
            let routers = if is_router && !entry.exact { &ROUTERS[..] } else { &[] };
            for other in modules {
                names.extend(routers.iter().chain([&rest]).map(|name| format!("{other}.{name}")));
            }
        }
        names.sort();
        names.dedup();
        let patterns = names.iter().filter_map(|name| Pattern::parse(name, Stars::Refused).ok());
        entry.patterns.extend(patterns.filter(|pattern| !known.has(pattern, entry.exact)));
    }
}

/// Returns the operations of an entry for experts that are stored in the other direction than the card knows them;
/// `None` if the shapes do not tell so.
///
/// Both matrices of the layer tell the direction, if their sizes fit together in one direction only; else the model's
/// width does.
pub(super) fn other_face(
    entry: &TensorEntry,
    fact: &ExpertEntry,
    dims: &[u64],
    sibling: Option<&[u64]>,
    scope: &Scope<'_>,
) -> Option<Vec<OpSpec>> {
    let [_, rows, columns] = *dims else { return None };
    // A module of its own is `[out, in]`, and blocks are as their format has them.
    if is_numbered(entry) || entry.ty == EntryType::Blocks {
        return None;
    }
    let is_in_first = match sibling {
        Some(&[_, other_rows, other_columns]) if fact.role != Role::Down => {
            of_pair((rows, columns), (other_rows, other_columns), fact.role)
        }
        Some(&[_, other_rows, other_columns]) => {
            of_pair((other_rows, other_columns), (rows, columns), Role::GateUp)
        }
        _ => None,
    };
    let is_in_first = is_in_first.or_else(|| {
        let keys = LATENT.iter().copied().chain(base().widths.iter().map(String::as_str));
        let width = keys.filter_map(|key| scope.config.get(key)?.as_u64()).find(|width| *width > 0)?;
        let (inside, outside) = if fact.role == Role::Down { (rows, columns) } else { (columns, rows) };
        match (inside == width, outside == width) {
            (true, false) => Some(false),
            (false, true) => Some(true),
            _ => None,
        }
    })?;
    (is_in_first != fact.is_turned).then(|| {
        if fact.is_turned {
            return entry.ops[1..].to_vec();
        }
        std::iter::once(turn()).chain(entry.ops.iter().cloned()).collect()
    })
}

/// Returns whether gate with up, and down, are `[in, out]`, if only one direction fits both.
fn of_pair((a, b): (u64, u64), (c, d): (u64, u64), role: Role) -> Option<bool> {
    if role != Role::GateUp {
        return None;
    }
    match (d.checked_mul(2) == Some(a) && b == c, a == d && c.checked_mul(2) == Some(b)) {
        (true, false) => Some(false),
        (false, true) => Some(true),
        _ => None,
    }
}

/// Returns the shape of the tensor that holds the other matrices of the same layer's experts: down for gate with up, and
/// the reverse.
pub(super) fn sibling<'w>(
    facts: &ExpertEntries,
    emissions: &IndexMap<EmissionKey, Emission>,
    weights: &'w [WeightMeta],
    key: &EmissionKey,
) -> Option<&'w [u64]> {
    let role = facts.get(&key.entry)?.role;
    let wanted = match role {
        Role::GateUp => Role::Down,
        Role::Down => Role::GateUp,
        Role::Gate | Role::Up => return None,
    };
    emissions.iter().find_map(|(other, emission)| {
        let is_it = other.captures.bid == key.captures.bid && facts.get(&other.entry)?.role == wanted;
        let weight = emission.parts.values().next().filter(|_| is_it)?;
        Some(weights[*weight].shape.dims()).filter(|dims| dims.len() == 3)
    })
}
