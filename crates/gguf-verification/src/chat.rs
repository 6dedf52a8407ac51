//! Rendering of chats with a file's own template, like transformers' `apply_chat_template`.
//!
//! Templates are untrusted programs. They run in an interpreter without files, clock or network, with limits on steps,
//! depth and output. The interpreter does not limit the size of a string or list that a template builds (`indent`,
//! `batch`, `slice`, a width of `%`), the time of one step (`in` on a long text), the depth of nested expressions when
//! it parses, and self-referential values. Therefore there are two [`ChatRenderer`]s. [`ChatTemplate`] runs in the
//! calling process and can exhaust memory, time and stack. [`IsolatedChat`] runs the same in a child process with
//! limits of the operating system, for callers with a program that can act as the child.

pub(super) mod builtin;
mod filters;
mod isolated;
mod methods;
pub(super) mod names;
mod prepared;
mod renderer;
pub(super) mod stop;

use std::fmt::Write as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value as Jinja};
use serde_json::Value as Json;

use gguf_core::isolated::IsolatedError;
use gguf_core::text::escape;
use gguf_format::{Array, Metadata, Value};

pub use builtin::Chat;
pub use isolated::IsolatedChat;
pub use renderer::renderer;

/// Key of the default template; other templates have a name appended.
pub(super) const KEY: &str = "tokenizer.chat_template";

const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Maximum number of bytes of a rendered chat.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Maximum number of steps of one rendering; real chats take some tens per message.
const FUEL: u64 = 1_000_000;
/// Maximum depth of loops and macros.
const DEPTH: usize = 300;

/// Reasons why a chat cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum ChatError {
    #[error("key `tokenizer.chat_template` is missing")]
    Missing,
    #[error("chat template of {bytes} bytes: expected at most {limit}")]
    TooLong { bytes: usize, limit: usize },
    #[error("chat template: line {line}: {}", escape(reason))]
    Syntax { line: usize, reason: String },
    #[error("chat template refuses the chat: {}", escape(reason))]
    Refused { reason: String },
    #[error("chat template: line {line}: {}", escape(reason))]
    Failed { line: usize, reason: String },
    #[error("chat template: output of more than {limit} bytes")]
    Output { limit: usize },
    #[error("chat template: {0}")]
    Isolated(IsolatedError),
}

impl ChatError {
    /// Returns true if the template is at fault: a finding about the model. Other errors end the run: refused messages,
    /// a file without a template, cancellation, a child that cannot be started.
    pub fn is_finding(&self) -> bool {
        !matches!(
            self,
            Self::Missing
                | Self::Refused { .. }
                | Self::Isolated(IsolatedError::Cancelled | IsolatedError::Start { .. })
        )
    }
}

/// Renderer of chats by a file's template, in this process or elsewhere.
pub trait ChatRenderer {
    /// Parses the template.
    fn check(&self) -> Result<(), ChatError>;

    /// Renders a chat with its tools, by the template that it names.
    fn render_chat(&self, chat: &Chat) -> Result<String, ChatError>;

    /// Renders messages, without the generation prompt, tools and documents.
    fn render(&self, messages: &Json) -> Result<String, ChatError> {
        self.render_chat(&Chat::of(messages.clone()))
    }
}

/// Renderer that failed to open: it returns its error for every chat.
impl<R: ChatRenderer> ChatRenderer for Result<R, ChatError> {
    fn check(&self) -> Result<(), ChatError> {
        self.as_ref().map_err(Clone::clone)?.check()
    }

    fn render_chat(&self, chat: &Chat) -> Result<String, ChatError> {
        self.as_ref().map_err(Clone::clone)?.render_chat(chat)
    }
}

/// Renderer for models without a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTemplate;

impl ChatRenderer for NoTemplate {
    fn check(&self) -> Result<(), ChatError> {
        Err(ChatError::Missing)
    }

    fn render_chat(&self, _: &Chat) -> Result<String, ChatError> {
        Err(ChatError::Missing)
    }
}

/// Names of special tokens in templates, and in keys.
const TOKENS: [(&str, &str); 5] = [
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("pad_token", "padding"),
    ("sep_token", "seperator"),
];

/// Templates and special tokens of a file.
struct TemplateSource<'a> {
    source: &'a str,
    /// Named templates: name, source.
    named: Vec<(&'a str, &'a str)>,
    tokens: Vec<(&'static str, String)>,
}

impl<'a> TemplateSource<'a> {
    fn of(metadata: &'a Metadata) -> Result<Self, ChatError> {
        let source = metadata.get(KEY).and_then(Value::as_str).ok_or(ChatError::Missing)?;
        let named = metadata
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(KEY)?.strip_prefix('.')?, value.as_str()?)));
        let named: Vec<(&str, &str)> = named.collect();
        let bytes = named.iter().map(|(_, source)| source.len()).chain([source.len()]).max().unwrap_or(0);
        if bytes > MAX_TEMPLATE_BYTES {
            return Err(ChatError::TooLong { bytes, limit: MAX_TEMPLATE_BYTES });
        }
        let vocabulary = match metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array) {
            Some(Array::String(tokens)) => tokens.as_slice(),
            _ => &[],
        };
        let token = |name: &str| {
            let id = metadata.get(&format!("tokenizer.ggml.{name}_token_id"))?.as_u64()?;
            String::from_utf8(vocabulary.get(usize::try_from(id).ok()?)?.clone()).ok()
        };
        let tokens = TOKENS.into_iter().filter_map(|(name, key)| Some((name, token(key)?)));
        Ok(Self { source, named, tokens: tokens.collect() })
    }
}

/// Chat template of a file, parsed and run in this process. Its text, steps, depth of calls and output are limited. The
/// memory that it uses, the depth of its expressions and the time of one step are not. For untrusted files use
/// [`IsolatedChat`].
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// Named templates: name, source; parsed when they are used.
    named: Vec<(String, String)>,
    /// Special tokens: name in templates (`bos_token` etc.), text.
    tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Parses the template of a file's metadata.
    ///
    /// # Errors
    /// No template, or one that cannot be parsed.
    pub fn of(metadata: &Metadata) -> Result<Self, ChatError> {
        let TemplateSource { source, named, tokens } = TemplateSource::of(metadata)?;
        let named = named.into_iter().map(|(name, source)| (name.to_owned(), source.to_owned()));
        Ok(Self::new(source, tokens)?.with_named(named.collect()))
    }

    fn with_named(self, named: Vec<(String, String)>) -> Self {
        let prepared = named.into_iter().map(|(name, source)| (name, prepared(&source)));
        Self { named: prepared.collect(), ..self }
    }

    /// Parses a template; `tokens` are the special tokens that it may name.
    ///
    /// # Errors
    /// A template that cannot be parsed.
    pub fn new(source: &str, tokens: Vec<(&'static str, String)>) -> Result<Self, ChatError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(ChatError::TooLong { bytes: source.len(), limit: MAX_TEMPLATE_BYTES });
        }
        let syntax =
            |error: Error| ChatError::Syntax { line: error.line().unwrap_or(0), reason: reason(&error) };
        let config = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax)?;
        let mut environment = Environment::new();
        environment.set_syntax(config);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.set_unknown_method_callback(methods::method);
        environment.set_formatter(write_value);
        environment.add_filter("tojson", to_json);
        environment.add_filter("string", filters::string);
        environment.add_filter("truncate", filters::truncate);
        environment.add_filter("urlencode", |text: String| filters::urlencode(&text));
        environment.add_filter("int", filters::int);
        for name in ["length", "count"] {
            environment.add_filter(name, filters::length);
        }
        environment.add_filter("replace", filters::replace);
        environment.add_filter("center", filters::center);
        environment.add_filter("wordcount", |text: String| text.split_whitespace().count());
        environment.add_filter("wordwrap", filters::wordwrap);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, RAISED).with_source(RaisedException(message)))
        });
        environment.add_function("strftime_now", |format: String| strftime(&format));
        environment
            .add_function("cycler", |items: Rest<Jinja>| minijinja_contrib::globals::cycler(items.to_vec()));
        environment.add_function("joiner", minijinja_contrib::globals::joiner);
        let source = prepared(source);
        let template = Self { environment, source, named: Vec::new(), tokens };
        template.environment.template_from_str(&template.source).map_err(syntax)?;
        Ok(template)
    }

    /// Renders messages, without the generation prompt, tools and documents.
    ///
    /// # Errors
    /// Messages that the template refuses or fails on; steps or output beyond the limits.
    pub fn render(&self, messages: &Json) -> Result<String, ChatError> {
        ChatRenderer::render(self, messages)
    }

    fn write(&self, chat: &Chat) -> Result<String, ChatError> {
        let failed = |error: &Error| {
            let line = error.line().unwrap_or(0);
            match raised(error) {
                Some(message) => ChatError::Refused { reason: message.to_owned() },
                None => ChatError::Failed { line, reason: reason(error) },
            }
        };
        let source = match &chat.template {
            None => &self.source,
            Some(name) => {
                let named = self.named.iter().find(|(own, _)| own == name);
                &named.ok_or(ChatError::Missing)?.1
            }
        };
        let syntax =
            |error: Error| ChatError::Syntax { line: error.line().unwrap_or(0), reason: reason(&error) };
        let template = self.environment.template_from_str(source).map_err(syntax)?;
        let mut context: Vec<(&str, Jinja)> = vec![
            ("messages", Jinja::from(Serde(&prepared::messages(&chat.messages)))),
            ("tools", Jinja::from(Serde(&chat.tools))),
            ("documents", Jinja::from(())),
            ("add_generation_prompt", Jinja::from(chat.add_generation_prompt)),
        ];
        context.extend(self.tokens.iter().map(|(name, text)| (*name, Jinja::from(text))));
        // As in transformers, these are stronger than what has the same name.
        context.retain(|(name, _)| !chat.variables.contains_key(*name));
        context.extend(chat.variables.iter().map(|(name, value)| (name.as_str(), Jinja::from(Serde(value)))));
        let mut out = BoundedBuffer { bytes: Vec::new(), is_full: false };
        // The library panics on some templates, e.g. for an empty list sliced backwards: only this chat fails.
        let done = catch_unwind(AssertUnwindSafe(|| {
            template.render_captured_to(Jinja::from_pairs(context), &mut out).map(|_| ())
        }));
        if out.is_full {
            return Err(ChatError::Output { limit: MAX_OUTPUT_BYTES });
        }
        let panicked = || ChatError::Failed { line: 0, reason: "the template library panicked".to_owned() };
        done.map_err(|_| panicked())?.map_err(|error| failed(&error))?;
        let text = String::from_utf8(out.bytes);
        text.map_err(|error| ChatError::Failed { line: 0, reason: error.to_string() })
    }
}

impl ChatRenderer for ChatTemplate {
    fn check(&self) -> Result<(), ChatError> {
        Ok(())
    }

    fn render_chat(&self, chat: &Chat) -> Result<String, ChatError> {
        self.write(chat)
    }
}

const RAISED: &str = "raise_exception";

/// Message that `raise_exception` was given.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RaisedException(String);

fn raised(error: &Error) -> Option<&str> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(RaisedException(message)) = error.downcast_ref() {
            return Some(message);
        }
        cause = error.source();
    }
    None
}

/// Returns the message of an error without the template's name.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Output buffer of limited size.
struct BoundedBuffer {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            self.is_full = true;
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the text that is parsed: with the line ends that Jinja reads, and without blocks that it does not know.
fn prepared(source: &str) -> String {
    without_generation(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

/// Replaces the block `generation`, which marks the assistant's text and is only used in training. It becomes a block
/// that is always rendered, so that the rules for blanks around blocks stay the same.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // After the opening mark: `{%}` is no tag.
        let Some(len) = rest[start + 2..].find("%}").map(|len| len + 2) else { break };
        let inner = &rest[start + 2..start + len];
        let open = inner.starts_with(['-', '+']) as usize;
        let close = (inner.len() > open && inner.ends_with(['-', '+'])) as usize;
        let word = match inner[open..inner.len() - close].trim() {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => {
                // Skips only the mark: an apparent end may be inside a string, with tags after it.
                out.push_str(&rest[..start + 2]);
                rest = &rest[start + 2..];
                continue;
            }
        };
        out.push_str(&rest[..start + 2 + open]);
        let _ = write!(out, " {word} ");
        rest = &rest[start + len - close..];
    }
    out.push_str(rest);
    out
}

/// Writes a value as text: floats as in Python.
fn write_value(out: &mut Output, state: &mut State, value: &Jinja) -> Result<(), Error> {
    if value.is_number() && !value.is_integer() {
        return Ok(out.write_str(&python_float(f64::try_from(value.clone())?, ["nan", "inf"]))?);
    }
    minijinja::escape_formatter(out, state, value)
}

/// Formats a float as Python's `repr`: with an exponent below 1e-4 and from 1e16 on. `names` are those of what is no
/// number, and of infinity.
fn python_float(number: f64, names: [&str; 2]) -> String {
    let size = number.abs();
    if number.is_nan() {
        names[0].to_owned()
    } else if number.is_infinite() {
        format!("{}{}", if number > 0.0 { "" } else { "-" }, names[1])
    } else if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    } else {
        format!("{number:?}")
    }
}

/// Implements the test `iterable` as in Python: undefined values and strings are iterable, `none` is not.
fn is_iterable(value: &Jinja) -> bool {
    use minijinja::value::ValueKind;
    match value.kind() {
        ValueKind::None => false,
        ValueKind::Undefined | ValueKind::String => true,
        _ => value.try_iter().is_ok(),
    }
}

/// Maximum depth of values that are written as JSON.
const MAX_JSON_DEPTH: usize = 128;

/// Implements the filter `tojson`: Python's `json.dumps`, without HTML escapes, with non-ASCII text kept.
#[expect(clippy::needless_pass_by_value, reason = "the shape that the interpreter calls")]
fn to_json(value: &Jinja, options: Kwargs) -> Result<String, Error> {
    let ascii: bool = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: bool = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators: expected two")),
        // Python omits the blank at the end of a line.
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut writer = JsonWriter { out: String::new(), ascii, indent, item, key, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter {
    out: String,
    ascii: bool,
    indent: Option<usize>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl JsonWriter {
    fn value(&mut self, value: &Jinja, depth: usize) -> Result<(), Error> {
        use minijinja::value::ValueKind;
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
        if depth > MAX_JSON_DEPTH || self.out.len() > MAX_OUTPUT_BYTES {
            return refuse("value too large for JSON".to_owned());
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut any = false;
                for entry in value.try_iter()? {
                    self.separate(any, depth + 1);
                    any = true;
                    self.value(&entry, depth + 1)?;
                }
                self.close(any, depth, ']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Jinja> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.out.push('{');
                for (at, key) in keys.iter().enumerate() {
                    self.separate(at > 0, depth + 1);
                    self.text(&key.to_string());
                    let colon = self.key.clone();
                    self.out.push_str(&colon);
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.close(!keys.is_empty(), depth, '}');
            }
            kind => return refuse(format!("a value of kind {kind} is not JSON")),
        }
        Ok(())
    }

    /// Writes the separator between entries, and the line break before each.
    fn separate(&mut self, any: bool, depth: usize) {
        if any {
            self.out.push_str(&self.item);
        }
        self.line(depth);
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.min(64) * depth));
        }
    }

    /// Writes integers as they are, and floats as Python does.
    fn number(&mut self, value: &Jinja) -> Result<(), Error> {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
            return Ok(());
        }
        self.out.push_str(&python_float(f64::try_from(value.clone())?, ["NaN", "Infinity"]));
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) || (self.ascii && c == '\u{7f}') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Implements the function `strftime_now`. Figures must not depend on the day, so the time is always noon of Friday, 26
/// July 2024: the default date of Llama 3's template.
fn strftime(format: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = match rest.next() {
            Some('-') => rest.next().map(|c| (c, true)),
            other => other.map(|c| (c, false)),
        };
        out.push_str(match directive {
            Some(('a', false)) => "Fri",
            Some(('A', false)) => "Friday",
            Some(('b' | 'h', false)) => "Jul",
            Some(('B', false)) => "July",
            Some(('d' | 'e', _)) => "26",
            Some(('F', false)) => "2024-07-26",
            Some(('H' | 'I', _)) => "12",
            Some(('j', _)) => "208",
            Some(('m', false)) => "07",
            Some(('m', true)) => "7",
            Some(('M' | 'S', false)) => "00",
            Some(('M' | 'S', true)) => "0",
            Some(('p', false)) => "PM",
            Some(('T', false)) => "12:00:00",
            Some(('y', _)) => "24",
            Some(('Y', _)) => "2024",
            Some(('%', false)) => "%",
            other => {
                let directive = other.map(|(c, _)| c.to_string()).unwrap_or_default();
                let message = format!("strftime_now: unknown directive `%{directive}`");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        });
    }
    Ok(out)
}
