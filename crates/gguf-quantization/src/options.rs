//! Options of a quantization: the file type, rules for single tensors, changes of metadata, and conditions to refuse.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Value as Json, json};

use crate::{FileType, GivenTypes, QuantizeError};
use gguf_blocks::can_quantize;
use gguf_core::similar::{did_you_mean, meant};
use gguf_core::{GgmlType, Hint, simd::SimdLevel, text::escape};
use gguf_format::keys::key_info;
use gguf_format::{Metadata, Value, ValueType};

/// Everything that decides about the output, except for the source and the importance matrix.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "switches of a command line, independent of one another")]
pub struct QuantizeOptions {
    /// File type of the output.
    pub file_type: FileType,
    /// Gives every weight the base type: no mixture, and no better type for the output.
    pub pure: bool,
    /// Leaves `output.weight` unchanged.
    pub leave_output_tensor: bool,
    /// Type of `output.weight` and of tied embeddings; without a fallback if the columns do not fit.
    pub output_tensor_type: Option<GgmlType>,
    /// Type of the token embeddings; without a fallback if the columns do not fit.
    pub token_embedding_type: Option<GgmlType>,
    /// Types by name; the first rule that matches is used. Without effect if the base type is not a block type.
    pub tensor_types: Vec<TensorTypeRule>,
    /// Types of single tensors in place of the mixture's; options that name a type come first.
    pub given: GivenTypes,
    /// Accepts tensors that are already quantized.
    pub allow_requantize: bool,
    /// Makes a fallback to another type (because of the columns) an error.
    pub no_fallback: bool,
    /// Layers to leave out; later ones move up.
    pub prune_layers: BTreeSet<u32>,
    /// Writes as many files as the source has.
    pub keep_split: bool,
    /// Metadata to set, in order.
    pub overrides: Vec<Override>,
    /// Continues at NaN and infinity.
    pub allow_nonfinite: bool,
    /// Treatment of tensors that the importance matrix does not cover.
    pub coverage: CoveragePolicy,
    /// Gives a tensor without importance data that of another tensor with the same input.
    pub share_importance: bool,
    /// Vector instructions to use; the output bytes are the same for all.
    pub simd: SimdLevel,
}

impl QuantizeOptions {
    /// Options with llama-quantize's defaults.
    pub fn new(file_type: FileType) -> Self {
        Self {
            file_type,
            pure: false,
            leave_output_tensor: false,
            output_tensor_type: None,
            token_embedding_type: None,
            tensor_types: Vec::new(),
            given: GivenTypes::default(),
            allow_requantize: false,
            no_fallback: false,
            prune_layers: BTreeSet::new(),
            keep_split: false,
            overrides: Vec::new(),
            allow_nonfinite: false,
            coverage: CoveragePolicy::default(),
            share_importance: false,
            simd: SimdLevel::detect(),
        }
    }

    /// Options that decide the result: files are split, instructions chosen and gaps of the importance matrix reported
    /// without effect on the bytes of a tensor.
    pub fn identity(&self) -> Json {
        let Self {
            file_type,
            pure,
            leave_output_tensor,
            output_tensor_type,
            token_embedding_type,
            tensor_types,
            given,
            allow_requantize,
            no_fallback,
            prune_layers,
            keep_split: _,
            overrides,
            allow_nonfinite,
            coverage: _,
            share_importance,
            simd: _,
        } = self;
        let rule = |rule: &TensorTypeRule| json!([rule.pattern, rule.ty.name()]);
        let set = |set: &Override| match &set.value {
            OverrideValue::Int(value) => json!([set.key, "int", value]),
            OverrideValue::Float(value) => json!([set.key, "float", value]),
            OverrideValue::Bool(value) => json!([set.key, "bool", value]),
            OverrideValue::Str(value) => json!([set.key, "str", value]),
        };
        let given_type = |(name, ty): (&String, &GgmlType)| json!([name, ty.name()]);
        let mut identity = json!({
            "file_type": file_type.name(),
            "pure": pure,
            "leave_output_tensor": leave_output_tensor,
            "output_tensor_type": output_tensor_type.map(GgmlType::name),
            "token_embedding_type": token_embedding_type.map(GgmlType::name),
            "tensor_types": tensor_types.iter().map(rule).collect::<Vec<_>>(),
            "allow_requantize": allow_requantize,
            "no_fallback": no_fallback,
            "prune_layers": prune_layers,
            "overrides": overrides.iter().map(set).collect::<Vec<_>>(),
            "allow_nonfinite": allow_nonfinite,
            "share_importance": share_importance,
        });
        // Without types by name, the identity is that of earlier versions.
        if let (Some(members), true) = (identity.as_object_mut(), *given != GivenTypes::default()) {
            let types: Vec<Json> = given.types.iter().map(given_type).collect();
            members.insert("given".to_owned(), json!({ "types": types, "file_type": given.file_type_id }));
        }
        identity
    }
}

/// Treatment of tensors without importance data, and of experts that no token of the calibration text reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoveragePolicy {
    /// Reports nothing. Types that need importance data are still refused without it.
    Ignore,
    /// Lists them and continues, as llama-quantize does.
    #[default]
    Warn,
    /// Stops if a tensor that would be quantized with importance weights has none.
    Tensors,
    /// Stops also if no token reached an expert.
    Error,
}

impl CoveragePolicy {
    /// All policies, with their names.
    pub const ALL: [(&'static str, Self); 4] =
        [("ignore", Self::Ignore), ("warn", Self::Warn), ("tensors", Self::Tensors), ("error", Self::Error)];

    /// Looks up a policy by name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.0 == name).map(|row| row.1)
    }
}

/// Rule `REGEX=TYPE`: the type of all tensors whose name contains a match.
#[derive(Clone, Debug)]
pub struct TensorTypeRule {
    /// Regular expression as it is used: in lower case.
    pub pattern: String,
    /// Type of these tensors.
    pub ty: GgmlType,
    regex: fancy_regex::Regex,
}

impl TensorTypeRule {
    /// Parses one rule.
    ///
    /// # Exactness
    /// ref: the whole expression is lower-cased, including escapes, so `\D` becomes `\d`.
    ///
    /// # Errors
    /// [`OptionError`]: no `=`, an empty side, a bad expression, an unknown type.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let malformed = || OptionError::TensorType { text: text.to_owned() };
        let (pattern, ty) = text.split_once('=').ok_or_else(malformed)?;
        let (pattern, ty) = (pattern.trim(), ty.trim());
        if pattern.is_empty() || ty.is_empty() {
            return Err(malformed());
        }
        let pattern = pattern.to_ascii_lowercase();
        let regex = fancy_regex::Regex::new(&pattern)
            .map_err(|source| OptionError::Pattern { pattern: pattern.clone(), source: Box::new(source) })?;
        Ok(Self { pattern, ty: parse_ggml_type(ty)?, regex })
    }

    /// Parses a list of rules separated by white space, perhaps after a byte order mark.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, OptionError> {
        text.trim_start_matches('\u{feff}').split_ascii_whitespace().map(Self::parse).collect()
    }

    /// Returns true if the rule matches this tensor. An expression that exceeds the backtracking limit does not match.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.is_match(name).unwrap_or(false)
    }
}

/// Parses the name of a block type, in any case.
pub fn parse_ggml_type(name: &str) -> Result<GgmlType, OptionError> {
    GgmlType::from_name(name).ok_or_else(|| {
        let nearest = meant(name, GgmlType::all().filter(|&ty| can_quantize(ty)).map(GgmlType::name));
        OptionError::UnknownType { name: name.to_owned(), nearest: lower_case(&nearest) }
    })
}

/// Parses the name or number of a file type.
pub fn parse_file_type(text: &str) -> Result<FileType, OptionError> {
    parse_file_type_or(text, &[])
}

/// Parses the name or number of a file type, in a place where `words` are also valid: the error may suggest them.
pub fn parse_file_type_or(text: &str, words: &[&str]) -> Result<FileType, OptionError> {
    FileType::parse(text).ok_or_else(|| {
        let names = FileType::all().flat_map(|row| [Some(row.name()), row.alias()]).flatten();
        let nearest = meant(text, names.chain(words.iter().copied()));
        OptionError::UnknownFileType { name: text.to_owned(), nearest: lower_case(&nearest) }
    })
}

fn lower_case(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_ascii_lowercase()).collect()
}

/// Parses layer numbers separated by commas.
pub fn parse_layers(text: &str) -> Result<BTreeSet<u32>, OptionError> {
    let layer = |number: &str| {
        let parsed = number.trim().parse::<u32>().ok().filter(|&layer| i32::try_from(layer).is_ok());
        parsed.ok_or_else(|| OptionError::Layer { text: number.to_owned() })
    };
    text.split(',').map(layer).collect()
}

/// Metadata key to set, given as `KEY=TYPE:VALUE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Name of the key.
    pub key: String,
    /// Value of the key.
    pub value: OverrideValue,
}

/// Value of an [`Override`].
#[derive(Clone, Debug, PartialEq)]
pub enum OverrideValue {
    /// `int`: stored as u32 if it fits, else as i32, u64 or i64.
    Int(i64),
    /// `float`: stored as f32.
    Float(f64),
    /// `bool`.
    Bool(bool),
    /// `str`, of at most 127 bytes.
    Str(String),
}

/// Maximum bytes of a string in llama.cpp's table of overrides.
pub(crate) const MAX_OVERRIDE_BYTES: usize = 127;

/// Parses a finite number: NaN and infinity have no meaning for any key.
fn finite<T: std::str::FromStr + Copy + Into<f64>>(text: &str) -> Option<T> {
    text.parse::<T>().ok().filter(|&number| number.into().is_finite())
}

impl Override {
    /// Parses `KEY=TYPE:VALUE` with the types `int`, `float`, `bool` and `str`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let bad = |expected| OptionError::Override { text: text.to_owned(), expected };
        let (key, typed) = text.split_once('=').ok_or_else(|| bad("`KEY=TYPE:VALUE`"))?;
        let (ty, value) = typed.split_once(':').ok_or_else(|| bad("`KEY=TYPE:VALUE`"))?;
        if key.is_empty() || key.len() > MAX_OVERRIDE_BYTES {
            return Err(bad("a key of 1 to 127 bytes"));
        }
        let value = match ty {
            "int" => OverrideValue::Int(value.parse().map_err(|_| bad("a whole number"))?),
            "float" => OverrideValue::Float(finite(value).ok_or_else(|| bad("a finite number"))?),
            "bool" => OverrideValue::Bool(value.parse().map_err(|_| bad("`true` or `false`"))?),
            "str" if value.len() > MAX_OVERRIDE_BYTES => {
                return Err(OptionError::OverrideLength { key: key.to_owned(), found: value.len() });
            }
            "str" => OverrideValue::Str(value.to_owned()),
            _ => return Err(bad("one of the types `int`, `float`, `bool`, `str`")),
        };
        Ok(Self { key: key.to_owned(), value })
    }

    /// Converts the value to the type in which llama-quantize stores it, or to one that holds it.
    pub fn file_value(&self) -> Value {
        match &self.value {
            // ref: stored as u32, without the sign and the high bits
            OverrideValue::Int(value) => u32::try_from(*value)
                .map(Value::U32)
                .or_else(|_| i32::try_from(*value).map(Value::I32))
                .or_else(|_| u64::try_from(*value).map(Value::U64))
                .unwrap_or(Value::I64(*value)),
            OverrideValue::Float(value) => Value::F32(*value as f32),
            OverrideValue::Bool(value) => Value::Bool(*value),
            OverrideValue::Str(value) => Value::String(value.clone().into_bytes()),
        }
    }

    /// Converts the value to the type that the key has in this file, or by its definition. Unknown keys get the type in
    /// which llama-quantize stores them.
    ///
    /// # Errors
    /// [`QuantizeError::OverrideType`]: the value does not fit that type.
    pub fn value_in(&self, metadata: &Metadata) -> Result<Value, QuantizeError> {
        let arch = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let before = metadata.get(&self.key).map(Value::value_type);
        let Some(own) = key_info(&self.key, arch) else { return Ok(self.file_value()) };
        let wrong = |expected: String| QuantizeError::OverrideType {
            key: self.key.clone(),
            expected,
            given: self.to_string(),
        };
        if own.is_array {
            return Err(wrong(format!("array of {}", own.value_type)));
        }
        let before = before.filter(|&ty| ty != ValueType::Array);
        let in_type = |ty| self.value_of_type(ty);
        let value = before.and_then(in_type).or_else(|| in_type(own.value_type));
        value.ok_or_else(|| wrong(own.value_type.to_string()))
    }

    /// Converts the value to a type that can hold it exactly or, for floats, rounded.
    fn value_of_type(&self, ty: ValueType) -> Option<Value> {
        let int = || match self.value {
            OverrideValue::Int(value) => Some(value),
            _ => None,
        };
        let float = || match self.value {
            OverrideValue::Int(value) => Some(value as f64),
            OverrideValue::Float(value) => Some(value),
            _ => None,
        };
        Some(match ty {
            ValueType::U8 => Value::U8(int()?.try_into().ok()?),
            ValueType::I8 => Value::I8(int()?.try_into().ok()?),
            ValueType::U16 => Value::U16(int()?.try_into().ok()?),
            ValueType::I16 => Value::I16(int()?.try_into().ok()?),
            ValueType::U32 => Value::U32(int()?.try_into().ok()?),
            ValueType::I32 => Value::I32(int()?.try_into().ok()?),
            ValueType::U64 => Value::U64(int()?.try_into().ok()?),
            ValueType::I64 => Value::I64(int()?),
            ValueType::F32 => Value::F32(Some(float()? as f32).filter(|value| value.is_finite())?),
            ValueType::F64 => Value::F64(float()?),
            ValueType::Bool | ValueType::String => {
                Some(self.file_value()).filter(|value| value.value_type() == ty)?
            }
            ValueType::Array => return None,
        })
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = escape(&self.key);
        match &self.value {
            OverrideValue::Int(value) => write!(f, "{key}=int:{value}"),
            OverrideValue::Float(value) => write!(f, "{key}=float:{value}"),
            OverrideValue::Bool(value) => write!(f, "{key}=bool:{value}"),
            OverrideValue::Str(value) => write!(f, "{key}=str:{}", escape(value)),
        }
    }
}

/// Errors of parsing an option.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OptionError {
    #[error("unknown type `{}`", escape(name))]
    UnknownFileType { name: String, nearest: Vec<String> },
    #[error("unknown tensor type `{}`", escape(name))]
    UnknownType { name: String, nearest: Vec<String> },
    #[error("tensor type `{}`: `REGEX=TYPE` expected", escape(text))]
    TensorType { text: String },
    #[error("tensor type: bad expression `{}`", escape(pattern))]
    Pattern { pattern: String, source: Box<fancy_regex::Error> },
    #[error("layer `{}`: a number from 0 expected", escape(text))]
    Layer { text: String },
    #[error("metadata `{}`: {expected} expected", escape(text))]
    Override { text: String, expected: &'static str },
    #[error("metadata `{}`: a text of {found} bytes, at most {MAX_OVERRIDE_BYTES} expected", escape(key))]
    OverrideLength { key: String, found: usize },
}

impl OptionError {
    /// Returns true if there is a type with a similar name.
    pub fn has_offer(&self) -> bool {
        match self {
            Self::UnknownFileType { nearest, .. } | Self::UnknownType { nearest, .. } => !nearest.is_empty(),
            Self::TensorType { .. }
            | Self::Pattern { .. }
            | Self::Layer { .. }
            | Self::Override { .. }
            | Self::OverrideLength { .. } => false,
        }
    }
}

impl Hint for OptionError {
    fn hints(&self) -> Vec<String> {
        match self {
            Self::UnknownFileType { name, .. } if GgmlType::from_name(name).is_some() => {
                vec![format!(
                    "a whole file cannot be {name}, single tensors can: `--tensor-type REGEX={name}`"
                )]
            }
            Self::UnknownFileType { nearest, .. } => {
                let offer = did_you_mean(nearest.iter().map(String::as_str));
                offer.into_iter().chain(["`--help` lists the types".to_owned()]).collect()
            }
            Self::UnknownType { name, .. } if FileType::parse(name).is_some() => {
                vec![format!("`{name}` is a file type; tensors have block types such as `q4_k`")]
            }
            Self::UnknownType { nearest, .. } => {
                let is_block_type = |ty: &GgmlType| ty.is_quantized() && can_quantize(*ty);
                let names: Vec<_> = GgmlType::all().filter(is_block_type).map(GgmlType::name).collect();
                let offer = did_you_mean(nearest.iter().map(String::as_str));
                offer.into_iter().chain([format!("the block types are {}", names.join(", "))]).collect()
            }
            Self::OverrideLength { key, .. } => {
                let command = if key.starts_with("tokenizer.chat_template") {
                    "template FILE --set TEXT_FILE".to_owned()
                } else {
                    format!("set FILE {}=@TEXT_FILE", escape(key))
                };
                vec![format!("write it into the finished file: `gguf-inspect {command}`")]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_lower_cased_and_searched() {
        let rule = TensorTypeRule::parse("ATTN_(Q|K)=Q6_k").unwrap();
        assert_eq!((rule.pattern.as_str(), rule.ty), ("attn_(q|k)", GgmlType::Q6K));
        assert!(rule.matches("blk.0.attn_k.weight"));
        assert!(!rule.matches("blk.0.attn_v.weight"));
        let spaced = TensorTypeRule::parse("attn_q = q8_0").unwrap();
        assert_eq!((spaced.pattern.as_str(), spaced.ty), ("attn_q", GgmlType::Q8_0));
        assert_eq!(TensorTypeRule::parse_list("\u{feff}a=f16").unwrap()[0].pattern, "a");
        assert_eq!(TensorTypeRule::parse_list(" a=f16\n\tb=q8_0 ").unwrap().len(), 2);
    }

    #[test]
    fn bad_rules() {
        let message = |text| TensorTypeRule::parse(text).map(|_| ()).unwrap_err().to_string();
        assert_eq!(message("attn_q"), "tensor type `attn_q`: `REGEX=TYPE` expected");
        assert_eq!(message("=q4_k"), "tensor type `=q4_k`: `REGEX=TYPE` expected");
        assert_eq!(message("x="), "tensor type `x=`: `REGEX=TYPE` expected");
        assert_eq!(message("attn_q=q9_9"), "unknown tensor type `q9_9`");
        assert_eq!(message("attn_(q=q4_k"), "tensor type: bad expression `attn_(q`");
    }

    #[test]
    fn overrides() {
        let value = |text| Override::parse(text).unwrap().file_value();
        assert_eq!(value("a=int:4294967295"), Value::U32(u32::MAX));
        assert_eq!(value("a=int:-9"), Value::I32(-9));
        assert_eq!(value("a=int:5000000000"), Value::U64(5_000_000_000));
        assert_eq!(value("a=int:-5000000000"), Value::I64(-5_000_000_000));
        assert_eq!(value("a=float:0.3"), Value::F32(0.3));
        assert_eq!(value("a=bool:true"), Value::Bool(true));
        assert_eq!(value("a=str:x=y:z"), Value::String(b"x=y:z".to_vec()));
        for text in ["a", "a=int", "=int:1", "a=int:1.5", "a=bool:1", "a=u8:1"] {
            assert!(matches!(Override::parse(text), Err(OptionError::Override { .. })), "{text}");
        }
        let long = |key: &str| Override::parse(&format!("{key}=str:{}", "x".repeat(128))).unwrap_err();
        assert_eq!(long("a").to_string(), "metadata `a`: a text of 128 bytes, at most 127 expected");
        assert!(long("a").hints()[0].ends_with("`gguf-inspect set FILE a=@TEXT_FILE`"));
        assert!(long("tokenizer.chat_template").hints()[0].contains("gguf-inspect template"));
    }

    #[test]
    fn layers() {
        assert_eq!(parse_layers("3,1,3").unwrap().into_iter().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(parse_layers("1,x").unwrap_err().to_string(), "layer `x`: a number from 0 expected");
        assert!(parse_layers("-1").is_err());
        assert!(parse_layers("").is_err());
    }

    #[test]
    fn names_that_are_nearly_types_are_offered() {
        let hints = |text| parse_file_type(text).unwrap_err().hints();
        assert_eq!(hints("q4_km"), ["did you mean `q4_k_m`?", "`--help` lists the types"]);
        assert_eq!(hints("Q9_9"), ["`--help` lists the types"]);
        assert_eq!(
            parse_file_type_or("natve", &["native"]).unwrap_err().hints()[0],
            "did you mean `native`?"
        );
        let rule = TensorTypeRule::parse("attn_q=q4k").map(|_| ()).unwrap_err();
        assert_eq!(rule.hints()[0], "did you mean `q4_k`?");
        let far = TensorTypeRule::parse("attn_q=q8_2").map(|_| ()).unwrap_err().hints();
        assert!(far.iter().all(|hint| !hint.contains("q8_1") && !hint.contains("Q8_K")), "{far:?}");
    }

    #[test]
    fn a_block_type_is_no_file_type_and_the_hint_says_so() {
        let error = parse_file_type("nvfp4").unwrap_err();
        assert_eq!(error.to_string(), "unknown type `nvfp4`");
        assert!(error.hints()[0].contains("--tensor-type REGEX=nvfp4"));
    }
}
