//! Unknown names in a template: filters, tests, functions and methods, including branches that no chat reaches.
//!
//! Python's Jinja rejects a template with an unknown filter or test before it runs it; our interpreter only when it
//! gets there. Both detect unknown functions and methods only at run time. Therefore the tags are scanned word by word.

use std::collections::BTreeSet;

/// Use of a word in a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameUse {
    Filter,
    Test,
    Function,
    Method,
}

impl NameUse {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Test => "test",
            Self::Function => "function",
            Self::Method => "method",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownTemplateName {
    pub(crate) used_as: NameUse,
    pub(crate) name: String,
    /// Line number, from 1.
    pub(crate) line: usize,
}

/// Filters of Jinja, and additional ones of our interpreter or of llama.cpp's.
const FILTERS: &str = "abs attr batch capitalize center chain count d default dictsort e escape filesizeformat first float \
    forceescape format from_json groupby indent int items join keys last length lines list lower lstrip map max min pluralize pprint \
    random reject rejectattr replace reverse round rstrip safe select selectattr slice sort split string striptags sum \
    title tojson trim truncate unique upper urlencode urlize values wordcount wordwrap xmlattr zip bool";
const TESTS: &str = "boolean callable containing defined divisibleby endingwith eq equalto escaped even false filter float ge \
    greaterthan gt in integer iterable le lessthan lower lt mapping ne none None number odd safe sameas sequence startingwith \
    string test true undefined upper True False";
const FUNCTIONS: &str =
    "caller cycler debug dict joiner lipsum loop namespace raise_exception range strftime_now super";
/// Methods of Python's strings, lists, dictionaries, sets, numbers and dates, and of Jinja's own objects.
const METHODS: &str = "add append as_integer_ratio bit_count bit_length capitalize casefold center changed clear conjugate copy \
    count cycle decode difference discard encode endswith expandtabs extend find format format_map fromkeys get hex index \
    insert intersection isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isoformat isprintable isspace \
    istitle isupper is_integer items join keys ljust lower lstrip maketrans next partition pop popitem remove removeprefix \
    removesuffix replace reset reverse rfind rindex rjust rpartition rsplit rstrip setdefault sort split splitlines startswith \
    strftime strip swapcase title to_bytes translate union update upper values zfill";
/// Words after which a parenthesis groups.
const KEYWORDS: &str = "and as block break call continue do elif else extends filter for from if ignore import in include is \
    macro not or recursive set unless with without autoescape print";

/// Word or sign of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagToken<'a> {
    Word(&'a str),
    Sign(char),
    /// Beginning of a tag.
    Tag,
}

/// Returns the unknown names, in the order of the template; each once per use.
pub(crate) fn unknown(source: &str) -> Vec<UnknownTemplateName> {
    let tokens = tokens(source);
    let own = defined(&tokens);
    let mut found: Vec<UnknownTemplateName> = Vec::new();
    for (at, &(token, line)) in tokens.iter().enumerate() {
        let TagToken::Word(word) = token else { continue };
        let before = |n: usize| at.checked_sub(n).and_then(|at| tokens.get(at)).map(|(token, _)| *token);
        let is_called = tokens.get(at + 1).is_some_and(|(token, _)| *token == TagToken::Sign('('));
        let is = |n: usize, text: &str| before(n) == Some(TagToken::Word(text));
        let (used_as, known) = match before(1) {
            Some(TagToken::Sign('|')) => (NameUse::Filter, FILTERS),
            _ if is(1, "filter") && before(2) == Some(TagToken::Tag) => (NameUse::Filter, FILTERS),
            _ if word != "not" && (is(1, "is") || (is(1, "not") && is(2, "is"))) => (NameUse::Test, TESTS),
            Some(TagToken::Sign('.')) if is_called => (NameUse::Method, METHODS),
            Some(TagToken::Sign('.')) => continue,
            _ if is_called && !is_in(word, KEYWORDS) => (NameUse::Function, FUNCTIONS),
            _ => continue,
        };
        let is_own = matches!(used_as, NameUse::Function | NameUse::Method) && own.contains(word);
        let is_told = found.iter().any(|other| other.used_as == used_as && other.name == word);
        if !(is_own || is_told || is_in(word, known)) {
            found.push(UnknownTemplateName { used_as, name: word.to_owned(), line });
        }
    }
    found
}

/// Returns true if the name in an error is known to other interpreters: a limit of this program, not of the template.
pub(crate) fn is_known_elsewhere(reason: &str) -> bool {
    let lists = [
        ("unknown filter", FILTERS),
        ("unknown test", TESTS),
        ("unknown function", FUNCTIONS),
        ("unknown method", METHODS),
    ];
    let Some((kind, list)) = lists.into_iter().find(|(kind, _)| reason.starts_with(kind)) else {
        return false;
    };
    let kind = kind.trim_start_matches("unknown ");
    let mut words = reason.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).skip(2);
    words.any(|word| word != kind && is_in(word, list) && !["in", "of", "is", "no"].contains(&word))
}

/// Variables that transformers sets, and words of the language.
const SET: &str = "messages tools documents add_generation_prompt bos_token eos_token unk_token pad_token sep_token true false none \
    True False None self loop varargs kwargs";

/// Returns the variables that a template reads, but that neither it nor transformers sets.
pub(crate) fn free(source: &str) -> Vec<String> {
    let tokens = tokens(source);
    let own = defined(&tokens);
    let mut found: Vec<String> = Vec::new();
    for (at, &(token, _)) in tokens.iter().enumerate() {
        let TagToken::Word(word) = token else { continue };
        let before = at.checked_sub(1).and_then(|at| tokens.get(at)).map(|(token, _)| *token);
        let next = tokens.get(at + 1).map(|(token, _)| *token);
        let is_name = matches!(
            before,
            Some(TagToken::Sign('.' | '|') | TagToken::Word("is" | "filter") | TagToken::Tag)
        ) || matches!(next, Some(TagToken::Sign('=' | '(')));
        let is_word =
            [SET, KEYWORDS, FUNCTIONS, TESTS].iter().any(|list| is_in(word, list)) || word.starts_with("end");
        if !(is_name || is_word || own.contains(word) || found.iter().any(|other| other == word)) {
            found.push(word.to_owned());
        }
    }
    found
}

fn is_in(word: &str, list: &str) -> bool {
    list.split_ascii_whitespace().any(|known| known == word)
}

/// Returns the names that the template defines: macros, variables, attributes, targets of loops and imports.
fn defined<'a>(tokens: &[(TagToken<'a>, usize)]) -> BTreeSet<&'a str> {
    let mut own = BTreeSet::new();
    // True between the words that begin a definition and the sign that ends its names.
    let mut is_target = false;
    for &(token, _) in tokens {
        match token {
            TagToken::Word("macro" | "set" | "for" | "import" | "as" | "with" | "call" | "block") => {
                is_target = true;
            }
            TagToken::Word("in") | TagToken::Tag | TagToken::Sign('=') => is_target = false,
            TagToken::Word(word) if is_target => {
                own.insert(word);
            }
            _ => {}
        }
    }
    own
}

/// Returns the words and signs of all tags, with their lines. Text, comments, strings and raw blocks have none.
fn tokens(source: &str) -> Vec<(TagToken<'_>, usize)> {
    let bytes = source.as_bytes();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(start) = find(source, at, "{") {
        line += lines(bytes, at, start);
        at = start + 1;
        match bytes.get(at) {
            Some(b'#') => {
                let end = find(source, at, "#}").unwrap_or(source.len());
                line += lines(bytes, at, end);
                at = end;
            }
            Some(&open @ (b'{' | b'%')) => {
                let first = found.len();
                found.push((TagToken::Tag, line));
                let end = tag(source, at + 1, if open == b'{' { b'}' } else { b'%' }, &mut line, &mut found);
                at = end;
                let is_raw = open == b'%'
                    && found.get(first + 1).is_some_and(|(token, _)| *token == TagToken::Word("raw"));
                if is_raw {
                    let end = find(source, at, "endraw").unwrap_or(source.len());
                    line += lines(bytes, at, end);
                    at = end;
                }
            }
            _ => {}
        }
    }
    found
}

fn find(source: &str, from: usize, what: &str) -> Option<usize> {
    source.get(from..)?.find(what).map(|at| from + at)
}

fn lines(bytes: &[u8], from: usize, to: usize) -> usize {
    bytes.get(from..to).unwrap_or_default().split(|&byte| byte == b'\n').count() - 1
}

/// Reads one tag from after its opening mark; returns the offset of its end.
fn tag<'a>(
    source: &'a str,
    from: usize,
    close: u8,
    line: &mut usize,
    found: &mut Vec<(TagToken<'a>, usize)>,
) -> usize {
    let bytes = source.as_bytes();
    let (mut at, mut depth) = (from, 0usize);
    while let Some(&byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        match byte {
            b'\'' | b'"' => {
                let end = string_end(bytes, at);
                *line += lines(bytes, at, end);
                at = end;
                continue;
            }
            _ if byte == close && next == Some(&b'}') && depth == 0 => return at + 2,
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b'\n' => *line += 1,
            _ if byte.is_ascii_alphabetic() || byte == b'_' => {
                let rest = bytes.get(at..).unwrap_or_default();
                let n = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
                found.push((TagToken::Word(source.get(at..at + n).unwrap_or_default()), *line));
                at += n;
                continue;
            }
            // `==` and the like define nothing.
            b'=' | b'!' | b'<' | b'>' if next == Some(&b'=') => at += 1,
            _ if byte.is_ascii_punctuation() => found.push((TagToken::Sign(char::from(byte)), *line)),
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// Returns the offset after the closing quote of a string that begins at `from`.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let quote = bytes.get(from);
    let mut at = from + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            byte if Some(byte) == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        let show =
            |found: UnknownTemplateName| format!("{} {} {}", found.used_as.name(), found.name, found.line);
        unknown(source).into_iter().map(show).collect()
    }

    #[test]
    fn names_that_nothing_knows_are_found_in_any_branch() {
        assert_eq!(found("a\n{% if x %}\n{{ y | shout }}{% endif %}"), ["filter shout 3"]);
        assert_eq!(found("{% if x is not odder %}{% endif %}"), ["test odder 1"]);
        assert_eq!(found("{% if x is loud and (y) %}{% endif %}"), ["test loud 1"]);
        assert_eq!(found("{{ '%}' }}{{ m.content.shout() }}"), ["method shout 1"]);
        assert_eq!(found("{{ now() }}{{ now() }}"), ["function now 1"]);
        assert_eq!(found("{% filter loud %}x{% endfilter %}"), ["filter loud 1"]);
    }

    #[test]
    fn what_is_known_or_defined_is_not_found() {
        for source in [
            "{{ m.content | trim | upper }}{{ m.content.strip().split('x')[0] }}{{ ns.a }}",
            "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1) }}{% set g = f %}{{ g(2) }}",
            "{# x | shout #}{% raw %}{{ x | shout }}{% endraw %}text | shout",
            "{{ 'a | shout' }}{{ \"x() \\\" y()\" }}{{ {'a': {'b': 1}} | tojson }}{{ x | length }}",
            "{% if (x) and (y) or not (z) %}{% elif (x) %}{% endif %}{% for (a, b) in c.items() %}{% endfor %}",
            "{%- if x is defined and x is not none and x is string -%}{%- endif -%}{{ x == f | length }}",
            "{% set ns = namespace(f=1) %}{% set ns.h = f %}{{ ns.h() }}{{ raise_exception('x') }}{{ strftime_now('%Y') }}",
            "{% set x = y is mapping %}{% if loop.index0 is divisibleby(2) %}{% endif %}{{ loop(x) }}",
        ] {
            assert_eq!(found(source), [""; 0], "{source}");
        }
    }

    #[test]
    fn variables_that_nobody_sets_are_found() {
        assert_eq!(
            free(
                "{% set a = 1 %}{{ a + datetime }}{% for m in messages %}{{ m.x | f(y=functions) }}{% endfor %}"
            ),
            ["datetime", "functions"]
        );
        assert_eq!(
            free(
                "{% filter trim %}{% if not tools is defined and x == 'b' %}{{ bos_token }}{% endif %}{% endfilter %}"
            ),
            ["x"]
        );
    }

    #[test]
    fn what_others_know_is_no_fault_of_the_template() {
        assert!(is_known_elsewhere("unknown method: sequence has no method named append"));
        assert!(is_known_elsewhere("unknown filter: filter from_json is unknown"));
        assert!(!is_known_elsewhere("unknown method: string has no method named shout"));
        assert!(!is_known_elsewhere("undefined value"));
        assert!(!is_known_elsewhere("unknown test: test odder is unknown"));
    }

    #[test]
    fn broken_tags_end_somewhere() {
        for source in ["{{", "{% 'x", "{#", "{{ \"\\", "{", "{%raw", "{% raw %}{{ x", "{{ a |"] {
            assert_eq!(found(source), [""; 0], "{source}");
        }
    }
}
