//! Parsing of model names, size labels, and the default name of the output file.

use std::sync::LazyLock;

use regex::Regex;

use gguf_core::TensorMeta;
use gguf_core::text::is_unsafe;

/// Parameter counts of a model, as the size label needs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCounts {
    /// Number of all parameters; negative if estimated from an adapter.
    pub total: i64,
    /// Number of parameters outside the experts.
    pub shared: i64,
    /// Number of parameters of one expert, over all layers.
    pub expert: i64,
    /// Number of experts per layer, the mean if layers differ; 0 without experts.
    pub n_experts: i64,
}

impl ParameterCounts {
    /// Counts the parameters of a GGUF file's tensors.
    ///
    /// An expert tensor has `_exps.` in its name and the experts in its third dimension from the end (second for a
    /// bias).
    ///
    /// # Exactness
    /// gguf-py's `get_total_parameter_count`; sums saturate. A pair of an adapter counts as its product, and the total
    /// is then negative. If the two tensors of a pair are not adjacent, nothing is counted.
    pub fn of<'a>(tensors: impl IntoIterator<Item = &'a TensorMeta>) -> Self {
        let mut counts = Self::default();
        let (mut expert_sum, mut n_expert_tensors) = (0i64, 0);
        let mut last_a: Option<&TensorMeta> = None;
        for tensor in tensors {
            if tensor.name.ends_with(".lora_a") {
                last_a = Some(tensor);
                continue;
            }
            let mut dims = tensor.shape.dims().to_vec();
            if let Some(stem) = tensor.name.strip_suffix(".lora_b") {
                let Some(a) = last_a.filter(|a| a.name.strip_suffix(".lora_a") == Some(stem)) else {
                    return Self::default();
                };
                dims.pop();
                dims.extend(a.shape.dims().last());
            }
            let n_elems =
                dims.iter().fold(1i64, |n, &dim| n.saturating_mul(i64::try_from(dim).unwrap_or(i64::MAX)));
            let axis = if tensor.name.contains(".bias") { 2 } else { 3 };
            let experts = (tensor.name.contains("_exps.") && dims.len() >= 3)
                .then(|| i64::try_from(dims[dims.len() - axis]).unwrap_or(i64::MAX))
                .filter(|&n| n > 0);
            if let Some(n) = experts {
                counts.expert = counts.expert.saturating_add(n_elems / n);
                expert_sum = expert_sum.saturating_add(n);
                n_expert_tensors += 1;
            } else {
                counts.shared = counts.shared.saturating_add(n_elems);
            }
            counts.total = counts.total.saturating_add(n_elems);
        }
        if n_expert_tensors > 0 {
            counts.n_experts = expert_sum / n_expert_tensors;
        }
        if last_a.is_some() {
            counts.total = -counts.total;
        }
        counts
    }

    /// Size label of the model: `6.7B`, `180K`, `8x7.2B`.
    ///
    /// # Exactness
    /// gguf-py's `size_label`; a million is `1000K`, because the limits are exclusive.
    pub fn size_label(&self) -> String {
        if self.n_experts > 0 {
            let per_expert = self.shared.unsigned_abs().saturating_add(self.expert.unsigned_abs());
            format!("{}x{}", self.n_experts, rounded(per_expert))
        } else {
            rounded(self.total.unsigned_abs())
        }
    }
}

/// Formats a count with a unit and at least two digits.
fn rounded(n: u64) -> String {
    let n = n as f64;
    let (scaled, unit) = if n > 1e12 {
        (n * 1e-12, 'T')
    } else if n > 1e9 {
        (n * 1e-9, 'B')
    } else if n > 1e6 {
        (n * 1e-6, 'M')
    } else {
        (n * 1e-3, 'K')
    };
    let whole = scaled.round_ties_even();
    // A leading zero does not count as a digit.
    let n_digits = if whole == 0.0 { 0 } else { format!("{whole:.0}").len() };
    format!("{scaled:.*}{unit}", 2usize.saturating_sub(n_digits))
}

/// Components of a model id (`org/Base-7B-Chat-v1.0`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdParts {
    /// Text after the first slash.
    pub full_name: Option<String>,
    /// Text before the first slash.
    pub organization: Option<String>,
    /// Leading words.
    pub basename: Option<String>,
    /// Description of the finetune: `Chat`, `Instruct-DPO`.
    pub finetune: Option<String>,
    /// Version: `v1.0`, `2507`.
    pub version: Option<String>,
    /// Size: `7B`, `30B-A3B`, `mini`.
    pub size_label: Option<String>,
}

/// Possible meanings of a word of a name; several may hold.
#[derive(Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "a set of five marks, any of which may be combined")]
struct WordKinds {
    basename: bool,
    size: bool,
    finetune: bool,
    version: bool,
    ty: bool,
}

impl WordKinds {
    fn count(self) -> usize {
        [self.basename, self.size, self.finetune, self.version, self.ty].iter().filter(|&&set| set).count()
    }
}

fn pattern(text: &str) -> Regex {
    #[expect(clippy::unwrap_used, reason = "every pattern is a literal below, and each is used in a test")]
    Regex::new(&format!("(?i)^(?:{text})$")).unwrap()
}

static VERSION: LazyLock<Regex> = LazyLock::new(|| pattern(r"(v|iter)?\d+([.]\d+)*"));
static TYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"i?q\d(_\w)*|b?fp?(16|32)"));
static SIZE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)"));
static FINETUNE: LazyLock<Regex> = LazyLock::new(|| pattern("chat|instruct|vision|lora"));

/// Splits a model id into its components.
///
/// `total_params` distinguishes a size from a context length (`80k`). It is 0 if unknown, negative for an adapter.
///
/// # Exactness
/// gguf-py's `Metadata.get_model_id_components`.
pub(crate) fn split_id(id: &str, total_params: i64) -> IdParts {
    // An id with a space is a sentence, not an id.
    if id.contains(' ') {
        return IdParts { full_name: Some(id.to_owned()), ..IdParts::default() };
    }
    let (organization, full_name) = match id.split_once('/') {
        // `./x` and `../x` are paths.
        Some((org, name)) => (Some(org).filter(|org| !org.starts_with('.')), name),
        None => (None, id),
    };
    let mut parts: Vec<(String, WordKinds)> = full_name
        .split('-')
        .filter(|part| !part.is_empty())
        .map(|part| (part.into(), WordKinds::default()))
        .collect();
    for (i, (part, kinds)) in parts.iter_mut().enumerate() {
        if VERSION.is_match(part) {
            kinds.version = true;
        } else if TYPE.is_match(part) {
            kinds.ty = true;
            *part = part.to_uppercase();
        } else if i > 0 && SIZE.is_match(part) {
            let (size, is_size) = normal_size(part, total_params);
            *part = size;
            kinds.size = is_size;
            kinds.finetune = !is_size;
        } else if i > 0 && FINETUNE.is_match(part) {
            // The name of an adapter need not repeat `LoRA`.
            let redundant = total_params < 0 && part.eq_ignore_ascii_case("lora");
            kinds.ty = redundant;
            kinds.finetune = !redundant;
        }
    }
    // Sizes in words (`mini`) do not count if there are sizes in figures.
    if parts.iter().any(|(part, kinds)| kinds.size && part.contains(char::is_numeric)) {
        for (part, kinds) in &mut parts {
            kinds.size &= !part.chars().all(char::is_alphabetic);
        }
    }
    mark_basename(&mut parts);

    let join = |of: fn(WordKinds) -> bool| {
        let words: Vec<&str> = parts.iter().filter(|(_, k)| of(*k)).map(|(part, _)| part.as_str()).collect();
        Some(words.join("-")).filter(|text| !text.is_empty())
    };
    let mut sizes: Vec<&str> = Vec::new();
    for (part, _) in parts.iter().filter(|(_, kinds)| kinds.size) {
        if !sizes.contains(&part.as_str()) {
            sizes.push(part);
        }
    }
    let size_label = Some(sizes.join("-")).filter(|text| !text.is_empty());
    let finetune = join(|kinds| kinds.finetune);
    let version = join(|kinds| kinds.version && !kinds.basename);
    // If nothing else was recognized, the whole name is no evidence of a base name.
    let ambiguous = size_label.is_none() && finetune.is_none() && version.is_none();
    IdParts {
        full_name: Some(full_name.to_owned()),
        organization: organization.map(ToOwned::to_owned),
        basename: join(|kinds| kinds.basename).filter(|_| !ambiguous),
        finetune,
        version,
        size_label,
    }
}

/// Marks leading words and versions as the base name, except versions at its end.
fn mark_basename(parts: &mut [(String, WordKinds)]) {
    let mut at_start = true;
    for (part, kinds) in &mut *parts {
        let is_word = kinds.count() == 0 && part.starts_with(char::is_alphabetic);
        if at_start && (is_word || kinds.version) {
            kinds.basename = true;
        } else {
            at_start = false;
            kinds.finetune |= kinds.count() == 0;
        }
    }
    for (_, kinds) in parts.iter_mut().rev() {
        if !kinds.basename || kinds.count() == 1 {
            break;
        }
        kinds.basename = false;
    }
}

/// Normalizes a word that looks like a size, and returns whether it is one: a figure far from the parameter count is a
/// context length.
fn normal_size(part: &str, total_params: i64) -> (String, bool) {
    let mut chars: Vec<char> = part.replace('_', ".").chars().collect();
    // `7b1` means `7.1b`.
    if let [.., unit, digit] = chars[..]
        && digit.is_numeric()
    {
        chars.truncate(chars.len() - 2);
        chars.extend(['.', digit, unit]);
    }
    if let [.., before, last] = &mut chars[..]
        && before.is_numeric()
        && matches!(last, 'k' | 'm' | 'b' | 't')
    {
        *last = last.to_ascii_uppercase();
    }
    let text = |chars: &[char]| chars.iter().collect::<String>();
    let Some((unit, figure)) = chars.split_last() else { return (part.to_owned(), true) };
    if total_params != 0
        && let Ok(figure) = text(figure).parse::<f64>()
    {
        let power = " KMBT".find(*unit).map_or(-1, |at| at as i32);
        let label = figure * 1000f64.powi(power);
        let total = i128::from(total_params);
        let implausible = if total < 0 {
            label < (total.abs() / 8) as f64
        } else {
            (label - total as f64).abs() > (7 * total / 8) as f64
        };
        if implausible {
            let last = unit.to_lowercase().collect::<Vec<_>>();
            chars.truncate(chars.len() - 1);
            chars.extend(last);
            return (text(&chars), false);
        }
    }
    (text(&chars), true)
}

/// Title for display: hyphens become spaces, and lower-case words except versions are capitalized.
///
/// # Exactness
/// gguf-py's `Metadata.id_to_title`.
pub(crate) fn title(id: &str) -> String {
    static PLAIN: LazyLock<Regex> = LazyLock::new(|| pattern(r"v\d+(?:\.\d+)*|\d.*"));
    let spaced = id.replace('-', " ");
    let words = spaced.split(is_space).filter(|word| !word.is_empty()).map(|word| {
        // The pattern is meant for lower case only, which `is_lower` ensures.
        if is_lower(word) && !PLAIN.is_match(word) { capitalize(word) } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns true for white space as Python defines it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Returns true if the word has at least one lower-case letter and no upper-case letter.
fn is_lower(word: &str) -> bool {
    word.contains(char::is_lowercase) && !word.contains(char::is_uppercase)
}

/// Capitalizes every letter that does not follow a letter (`gpt2xl` → `Gpt2Xl`).
fn capitalize(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut after_letter = false;
    for c in word.chars() {
        if after_letter || !c.is_lowercase() {
            out.push(c);
        } else {
            // These four digraphs have a title-case form of their own.
            let pair = match c {
                'ǆ' => Some('ǅ'),
                'ǉ' => Some('ǈ'),
                'ǌ' => Some('ǋ'),
                'ǳ' => Some('ǲ'),
                _ => None,
            };
            if let Some(pair) = pair {
                out.push(pair);
                after_letter = true;
                continue;
            }
            let mut capital = c.to_uppercase();
            out.extend(capital.next());
            out.extend(capital.flat_map(char::to_lowercase));
        }
        after_letter = c.is_lowercase();
    }
    out
}

/// Components of an output file's name.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileName<'a> {
    /// Name of the model; used without a base name.
    pub name: Option<&'a str>,
    /// Base name.
    pub basename: Option<&'a str>,
    /// Description of the finetune.
    pub finetune: Option<&'a str>,
    /// Version.
    pub version: Option<&'a str>,
    /// Size label.
    pub size_label: Option<&'a str>,
    /// File type, as in `F16`.
    pub encoding: Option<&'a str>,
    /// `vocab` or `LoRA` if the file is not a whole model.
    pub kind: Option<&'a str>,
}

impl FileName<'_> {
    /// Name without the extension, as in `Base-7B-Chat-v1.0-F16`.
    ///
    /// # Exactness
    /// gguf-py's `naming_convention`, except that no component can lead out of the directory: a slash, backslash,
    /// control character or mark of direction becomes a hyphen.
    pub fn stem(&self) -> String {
        let hyphened = |text: &str| text.trim_matches(is_space).replace(' ', "-");
        let mut stem = hyphened(self.basename.or(self.name).unwrap_or("ggml-model"));
        let encoding = self.encoding.map(str::to_uppercase);
        // Only the size label is used unchanged.
        let parts = [
            self.size_label.map(ToOwned::to_owned),
            self.finetune.map(hyphened),
            self.version.map(hyphened),
            encoding.as_deref().map(hyphened),
            self.kind.map(hyphened),
        ];
        for part in parts.into_iter().flatten() {
            stem.push('-');
            stem.push_str(&part);
        }
        stem.replace(|c: char| is_unsafe(c) || matches!(c, '/' | '\\'), "-")
    }
}

/// Replaces `{ftype}` (also `{outtype}`, `{}`) and `{FTYPE}` (`{OUTTYPE}`) in an output file's name with the type, in
/// lower and upper case.
pub fn fill_template(file_name: &str, encoding: &str) -> String {
    let (lower, upper) = (encoding.to_lowercase(), encoding.to_uppercase());
    ["{ftype}", "{outtype}", "{}", "{0}"]
        .iter()
        .fold(file_name.to_owned(), |name, place| name.replace(place, &lower))
        .replace("{FTYPE}", &upper)
        .replace("{OUTTYPE}", &upper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{GgmlType, Shape};

    #[test]
    fn experts_are_counted_once() {
        let tensor = |name: &str, dims: &[u64]| TensorMeta {
            name: name.into(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F16,
        };
        let tensors = [
            tensor("blk.0.ffn_up_exps.weight", &[8, 100, 10]),
            tensor("blk.1.ffn_up_exps.weight", &[4, 100, 10]),
            tensor("blk.1.ffn_up_exps.bias", &[4, 100]),
            tensor("output.weight", &[50, 10]),
        ];
        let counts = ParameterCounts::of(&tensors);
        assert_eq!(counts, ParameterCounts { total: 12_900, shared: 900, expert: 2000, n_experts: 6 });
        assert_eq!(counts.size_label(), "6x2.9K");
        assert_eq!(ParameterCounts::of(&tensors[3..]).size_label(), "0.50K");
    }

    #[test]
    fn ties_round_to_even() {
        let label = |total| ParameterCounts { total, ..Default::default() }.size_label();
        assert_eq!(
            (label(12_500), label(13_500), label(-12_500)),
            ("12K".into(), "14K".into(), "12K".into())
        );
    }

    #[test]
    fn titles() {
        assert_eq!(title("gpt2xl-über_straße-v1.0-7b"), "Gpt2Xl Über_Straße v1.0 7b");
        assert_eq!(title(" a--b "), "A B");
        assert_eq!(title("ßx"), "Ssx");
    }

    #[test]
    fn names_stay_in_their_directory() {
        let name = FileName {
            basename: Some("a"),
            version: Some("../../b\n"),
            encoding: Some("f16"),
            ..Default::default()
        };
        assert_eq!(name.stem(), "a-..-..-b-F16");
    }

    #[test]
    fn templates() {
        assert_eq!(fill_template("m-{ftype}-{FTYPE}-{x}.gguf", "Q8_0"), "m-q8_0-Q8_0-{x}.gguf");
    }

    #[test]
    fn pairs_of_an_adapter_count_as_their_product() {
        let meta = |name: &str, dims: &[u64]| TensorMeta {
            name: name.to_owned(),
            shape: Shape::new(dims.to_vec()).unwrap(),
            ty: GgmlType::F32,
        };
        let (a, b) = (meta("q.lora_a", &[4, 100]), meta("q.lora_b", &[30, 4]));
        let other = meta("k.lora_a", &[4, 100]);
        let counts = ParameterCounts::of([&a, &b]);
        assert_eq!((counts.total, counts.shared), (-3000, 3000));
        assert_eq!(ParameterCounts::of([&a, &other, &b]), ParameterCounts::default());
    }

    #[test]
    fn an_adapter_is_judged_by_its_own_rule() {
        let parts = split_id("Org/Base-7B-lora", -6_000_000_000);
        assert_eq!((parts.size_label.as_deref(), parts.finetune), (Some("7B"), None));
        assert_eq!(split_id("Base-7B-lora", 7_000_000_000).finetune.as_deref(), Some("lora"));
    }
}
