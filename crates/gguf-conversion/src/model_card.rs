//! Front matter of a model card: YAML between two lines `---` at the head of `README.md`.
//!
//! Every scalar keeps its written text: a version `1.5` is not a number, `no` is a language. Only an empty value, `~`
//! and `null` count as null. (The reference reads YAML 1.1 types. If that changes a value, it fails on the value or
//! drops it.)

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value};

use gguf_core::output::LADDER_PAGE;

/// Maximum size of front matter in bytes; real cards have a few thousand.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of nodes, including those that aliases repeat.
const MAX_NODES: usize = 100_000;
/// Maximum depth of nested lists and maps.
const MAX_DEPTH: usize = 64;

/// Reasons why a model card's front matter cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum CardError {
    #[error("line {line}: {problem}")]
    Syntax { line: usize, problem: String },
    #[error("line {line}: front matter is too large")]
    TooLarge { line: usize },
    #[error("line {line}: expected a map with text keys")]
    NotAMap { line: usize },
}

/// Parses the front matter of a card into strings, lists, and maps in file order. The last value of a duplicate key
/// wins. A card without front matter gives an empty map, and so does the page of quantizations beside their source.
pub(crate) fn parse_card(card: &str) -> Result<Map<String, Value>, CardError> {
    if is_ladder_page(card) {
        return Ok(Map::new());
    }
    let Some(yaml) = front_matter(card)? else { return Ok(Map::new()) };
    let mut builder = ValueBuilder::default();
    let mut parser = Parser::new_from_str(&yaml);
    while let Some(event) = parser.next_event() {
        // The front matter starts on the card's second line.
        let (event, span) = event.map_err(|error| CardError::Syntax {
            line: error.marker().line() + 1,
            problem: error.info().to_owned(),
        })?;
        builder.line = span.start.line() + 1;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        builder.take(event)?;
    }
    match builder.root {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(_) => Err(CardError::NotAMap { line: 2 }),
    }
}

/// Returns true for the page of a folder of quantizations. It describes them, not the checkpoint beside them.
pub(crate) fn is_ladder_page(text: &str) -> bool {
    text.lines().any(|line| line == LADDER_PAGE)
}

/// Returns the lines between the first, which is `---`, and the next such line or the end. Tabs become two spaces,
/// because some cards indent with them.
fn front_matter(card: &str) -> Result<Option<String>, CardError> {
    let mut lines = lines(card);
    if lines.next() != Some("---") {
        return Ok(None);
    }
    let mut yaml = String::new();
    for (number, line) in (2..).zip(lines.take_while(|line| *line != "---")) {
        if yaml.len() + line.len() > MAX_BYTES {
            return Err(CardError::TooLarge { line: number });
        }
        yaml.push_str(&line.replace('\t', "  "));
        yaml.push('\n');
    }
    Ok(Some(yaml))
}

/// Splits a text into lines like Python's `splitlines`.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(end) = rest.find(is_end) else { return Some(std::mem::take(&mut rest)) };
        let (line, tail) = rest.split_at(end);
        let n = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        rest = &tail[n..];
        Some(line)
    })
}

/// A list or map under construction, with its anchor (0 for none).
enum OpenCollection {
    List(Vec<Value>, usize),
    Map(Map<String, Value>, Option<String>, usize),
}

/// Builder that turns the parser's events into a value without recursion.
#[derive(Default)]
struct ValueBuilder {
    line: usize,
    stack: Vec<OpenCollection>,
    anchors: HashMap<usize, Value>,
    n_nodes: usize,
    root: Option<Value>,
}

impl ValueBuilder {
    fn take(&mut self, event: Event<'_>) -> Result<(), CardError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = tag.as_deref().is_some_and(|tag: &Tag| tag.suffix == "str");
                let is_null = style == ScalarStyle::Plain
                    && !is_text
                    && matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL");
                let value = if is_null { Value::Null } else { Value::String(text.into_owned()) };
                self.finish(value, anchor)
            }
            Event::SequenceStart(anchor, _) => self.open(OpenCollection::List(Vec::new(), anchor)),
            Event::MappingStart(anchor, _) => self.open(OpenCollection::Map(Map::new(), None, anchor)),
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(OpenCollection::List(list, anchor)) => self.finish(Value::Array(list), anchor),
                Some(OpenCollection::Map(map, _, anchor)) => self.finish(Value::Object(map), anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().unwrap_or(Value::Null);
                self.count(n_nodes(&value))?;
                self.finish(value, 0)
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, n: usize) -> Result<(), CardError> {
        self.n_nodes += n;
        if self.n_nodes > MAX_NODES { Err(CardError::TooLarge { line: self.line }) } else { Ok(()) }
    }

    fn open(&mut self, open: OpenCollection) -> Result<(), CardError> {
        if self.stack.len() == MAX_DEPTH {
            return Err(CardError::TooLarge { line: self.line });
        }
        self.stack.push(open);
        Ok(())
    }

    fn finish(&mut self, value: Value, anchor: usize) -> Result<(), CardError> {
        self.count(1)?;
        if anchor != 0 {
            // The anchored copy counts as well: copies of copies let small files explode.
            self.count(n_nodes(&value))?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.stack.last_mut() {
            None => self.root = Some(value),
            Some(OpenCollection::List(list, _)) => list.push(value),
            Some(OpenCollection::Map(map, key, _)) => match (key.take(), value) {
                (Some(key), value) => {
                    map.insert(key, value);
                }
                (None, Value::String(text)) => *key = Some(text),
                (None, Value::Null) => *key = Some("null".to_owned()),
                (None, _) => return Err(CardError::NotAMap { line: self.line }),
            },
        }
        Ok(())
    }
}

/// Counts the values in a value. The recursion is bounded: nothing is deeper than [`MAX_DEPTH`], and aliases are
/// counted when they are resolved.
fn n_nodes(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(n_nodes).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(n_nodes).sum::<usize>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(yaml: &str) -> Result<Value, CardError> {
        parse_card(&format!("---\n{yaml}\n---\n# Title\n")).map(Value::Object)
    }

    #[test]
    fn scalars_stay_what_was_written() {
        let card = "version: 1.5\nlanguage:\n- en\n- no\n- yes\ndate: 2024-01-01\nn: 010\nb: true\ne:\nt: ~\nq: '~'\ns: !!str null\n";
        assert_eq!(
            read(card).unwrap(),
            json!({"version": "1.5", "language": ["en", "no", "yes"], "date": "2024-01-01", "n": "010",
                   "b": "true", "e": null, "t": null, "q": "~", "s": "null"})
        );
    }

    #[test]
    fn structures() {
        assert_eq!(
            read("a: &x [1, {b: c}]\nd: *x\ntext: >\n  folded\n  text\nlines: |\n  one\n  two\nk: 1\nk: 2")
                .unwrap(),
            json!({"a": ["1", {"b": "c"}], "d": ["1", {"b": "c"}], "text": "folded text\n", "lines": "one\ntwo\n", "k": "2"})
        );
        assert_eq!(read("list:\n\t- tab").unwrap(), json!({"list": ["tab"]}));
    }

    #[test]
    fn only_the_first_line_opens_front_matter() {
        for card in
            ["", "# Title\n---\na: b\n---\n", " ---\na: b\n---\n", "\u{feff}---\na: b\n", "---\n---\n", "---"]
        {
            assert_eq!(parse_card(card), Ok(Map::new()), "{card:?}");
        }
        let page = format!("---\n{LADDER_PAGE}\na: b\n---\n");
        assert_eq!(parse_card(&page), Ok(Map::new()), "the page of a ladder");
        for card in ["---\na: b\n---\nc: d", "---\r\na: b\r\n---\r\n", "---\ra: b\r---", "---\na: b"] {
            assert_eq!(parse_card(card).map(Value::Object), Ok(json!({"a": "b"})), "{card:?}");
        }
    }

    #[test]
    fn broken_cards_name_the_line() {
        assert_eq!(read("a: [1, 2"), Err(read("a: [1, 2").unwrap_err()));
        assert!(
            matches!(read("a: 1\nb: [1, 2"), Err(CardError::Syntax { line: 3.., .. })),
            "{:?}",
            read("a: 1\nb: [1, 2")
        );
        assert_eq!(read("- a\n- b"), Err(CardError::NotAMap { line: 2 }));
        assert_eq!(read("? [a]\n: b"), Err(CardError::NotAMap { line: 2 }));
    }

    #[test]
    fn bombs_are_refused() {
        let line = |i: usize| format!("a{i}: &a{i} [{}]", vec![format!("*a{}", i - 1); 8].join(", "));
        let lines: Vec<String> =
            std::iter::once("a0: &a0 [x, x, x]".to_owned()).chain((1..12).map(line)).collect();
        assert!(matches!(read(&lines.join("\n")), Err(CardError::TooLarge { .. })));
        let deep = "- ".repeat(100_000) + "x";
        assert!(read(&deep).is_err());
        let flow = "a: ".to_owned() + &"[".repeat(100_000);
        assert!(read(&flow).is_err());
        assert!(matches!(read(&format!("a: {}", "x".repeat(MAX_BYTES))), Err(CardError::TooLarge { .. })));
    }
}
