//! Expressions of cards: a small, closed language, parsed here and evaluated by `eval`.
//!
//! ```text
//! expr = if(c, a, b) | expr op expr | "-" expr | "not" expr | name(expr, …) | atom
//! op   = "??" | "or" | "and" | "==" "!=" "<" "<=" ">" ">=" "in" | "+" "-" | "*" "/" "//" "%" | "**"
//! atom = int | float | true | false | null | 'text' | [expr, …] | (expr) | path
//! path = name ("." name | "[" expr "]")* "?"?
//! ```
//! Operators bind as in Python, `??` loosest of all. A path must exist unless it ends in `?`; then an absent one is
//! null.

use std::fmt;

/// Maximum nesting depth of an expression.
const MAX_DEPTH: usize = 64;
/// Maximum length of an expression in bytes.
const MAX_BYTES: usize = 4096;

/// Parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// An integer literal.
    Int(i128),
    /// A float literal.
    Float(f64),
    /// `'text'`.
    Text(String),
    /// `[a, b, …]`.
    List(Vec<Expr>),
    /// Configuration value, definition of the card, or root.
    Path(Path),
    /// `if(condition, then, else)`; only the chosen branch is evaluated.
    If(Box<[Expr; 3]>),
    /// `not a`.
    Not(Box<Expr>),
    /// `-a`.
    Neg(Box<Expr>),
    /// `a op b`.
    Binary(BinaryOp, Box<[Expr; 2]>),
    /// Call of a function of the closed list.
    Call(Function, Vec<Expr>),
}

/// Name and the steps into its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// First name.
    pub root: String,
    /// Members and indices after it.
    pub steps: Vec<PathStep>,
    /// True if it ends in `?`: null if something on the path is absent.
    pub optional: bool,
}

impl Path {
    /// Returns the configuration key that the path reads: `raw.NAME` is the same key before defaults are filled in.
    pub fn key(&self) -> &str {
        match self.steps.first() {
            Some(PathStep::Field(field)) if self.root == "raw" => field,
            _ => &self.root,
        }
    }
}

/// Step of a path.
#[derive(Clone, Debug, PartialEq)]
pub enum PathStep {
    /// `.name`
    Field(String),
    /// `[index]`
    Index(Expr),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root)?;
        for step in &self.steps {
            match step {
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Index(_) => write!(f, "[…]")?,
            }
        }
        Ok(())
    }
}

macro_rules! binary_ops {
    ($( $variant:ident $text:literal $left:literal $right:literal; )*) => {
        /// A binary operator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BinaryOp { $( #[doc = concat!("`", $text, "`")] $variant, )* }

        /// Text, operator, left and right binding power.
        const BINARY: &[(&str, BinaryOp, u8, u8)] = &[$( ($text, BinaryOp::$variant, $left, $right), )*];
    };
}

// `**` binds tighter than a minus on its left and looser than one on its right, as in Python.
binary_ops! {
    Coalesce "??" 1 2;
    Or "or" 3 4;
    And "and" 5 6;
    Eq "==" 9 10;
    Ne "!=" 9 10;
    Le "<=" 9 10;
    Lt "<" 9 10;
    Ge ">=" 9 10;
    Gt ">" 9 10;
    In "in" 9 10;
    Add "+" 11 12;
    Sub "-" 11 12;
    Pow "**" 18 15;
    Mul "*" 13 14;
    FloorDiv "//" 13 14;
    Div "/" 13 14;
    Mod "%" 13 14;
}

const NOT_POWER: u8 = 7;
const NEG_POWER: u8 = 15;

impl BinaryOp {
    /// Returns the operator's text.
    pub fn text(self) -> &'static str {
        BINARY.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }
}

macro_rules! functions {
    ($( $variant:ident $name:literal $min:literal $max:literal $doc:literal; )*) => {
        /// A function of the closed list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Function { $( #[doc = $doc] $variant, )* }

        /// Name, function, fewest and most arguments.
        const FUNCTIONS: &[(&str, Function, usize, usize)] = &[$( ($name, Function::$variant, $min, $max), )*];
    };
}

functions! {
    First "first" 1 64 "`first(a, b, …)`: the first argument that is present, even if its value is null; null if none is.";
    Min "min" 1 64 "`min(a, b, …)`";
    Max "max" 1 64 "`max(a, b, …)`";
    Int "int" 1 1 "`int(a)`: truncates.";
    Float "float" 1 1 "`float(a)`";
    Round "round" 1 1 "`round(a)`: half to even.";
    Floor "floor" 1 1 "`floor(a)`";
    CeilDiv "ceil_div" 2 2 "`ceil_div(a, b)`: integers.";
    RoundUp "round_up" 2 2 "`round_up(a, b)`: the next multiple of b.";
    Sqrt "sqrt" 1 1 "`sqrt(a)`";
    Ln "ln" 1 1 "`ln(a)`";
    Log2 "log2" 1 1 "`log2(a)`";
    Len "len" 1 1 "`len(a)`: of a list, text or object.";
    Layers "layers" 1 2 "`layers(e[, n])`: the list of e for bid = 0..n, by default `block_count`; null if all are.";
    Find "find" 1 2 "`find(e[, n])`: the first value over bid that is not null.";
    Leading "leading" 2 2 "`leading(list, v)`: how many elements at the start equal v.";
    Lookup "lookup" 2 2 "`lookup(table, x)`: the table's number for a text; an unknown text is an error.";
    Labels "labels" 1 1 "`labels(map)`: the texts of an object whose keys are integers, by key; of a number: so many names as transformers gives labels without names (`LABEL_0`).";
    Has "has" 1 1 "`has('name')`: the checkpoint has, or stores, a tensor that is called so, there or after rewriting; `{bid}` is the block at hand.";
    Count "count" 1 1 "`count('prefix')`: one more than the highest index after the prefix in tensor names.";
    File "file" 1 1 "`file('name')`: the checkpoint's directory has this file.";
    Shape "shape" 1 2 "`shape('name'[, axis])`: the dimensions of a tensor or stored tensor, outermost first, or one of them; null without it.";
    Sorted "sorted" 1 1 "`sorted(list)`: integers, or lists of them by the first members that differ, in rising order.";
    Compact "compact" 1 1 "`compact(list)`: the list without its nulls.";
    LabelMap "label_map" 1 1 "`label_map(list)`: the object of the list's texts by place, as `id2label` has it; null of null.";
    Ints "ints" 1 1 "`ints(text)`: the integers of a list in a text, between commas or strokes (`4/8`).";
    NormalIcdf "normal_icdf" 1 1 "`normal_icdf(p)`: below which value a standard normal number is with probability p, as torch computes it in F32.";
    Tensor "tensor" 1 2 "`tensor('name'[, i])`: the values of a tensor of up to 64 KiB (one number if it has one element), or its element i; null without it. The end of the name, from a point on, will do.";
    ZeroRows "zero_rows" 2 2 "`zero_rows('name', from)`: the rows of a tensor, from the given one on, that have only zeros; null without it, or if `from` is null.";
    Kv "kv" 1 1 "`kv('key')`: the value of a metadata key, with or without the architecture before it; null without.";
}

impl Function {
    /// Returns the function's name.
    pub fn name(self) -> &'static str {
        FUNCTIONS.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }
}

/// Error in the text of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ParseError {
    #[error("column {column}: expected {expected}, found {found}")]
    Unexpected { column: usize, expected: &'static str, found: String },
    #[error("column {column}: unknown function `{name}`")]
    UnknownFunction { column: usize, name: String },
    #[error("column {column}: `{name}` takes {min} to {max} arguments, found {found}")]
    Arguments { column: usize, name: &'static str, min: usize, max: usize, found: usize },
    #[error("column {column}: comparisons do not chain")]
    Chained { column: usize },
    #[error("column {column}: number `{text}` is out of range")]
    Number { column: usize, text: String },
    #[error("expression is nested deeper than 64 levels or longer than 4096 bytes")]
    TooLarge,
}

impl Expr {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`ParseError`], with a column if it has one.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.len() > MAX_BYTES {
            return Err(ParseError::TooLarge);
        }
        let mut parser = ExprParser { text, at: 0 };
        let expr = parser.expr(0, 0)?;
        parser.skip_space();
        if parser.at < text.len() {
            return Err(parser.unexpected("an operator or the end"));
        }
        Ok(expr)
    }

    /// Calls `visit` for this expression and all nested ones.
    pub fn walk(&self, visit: &mut dyn FnMut(&Expr)) {
        visit(self);
        match self {
            Self::List(items) | Self::Call(_, items) => items.iter().for_each(|item| item.walk(visit)),
            Self::Path(path) => {
                for step in &path.steps {
                    if let PathStep::Index(index) = step {
                        index.walk(visit);
                    }
                }
            }
            Self::If(parts) => parts.iter().for_each(|part| part.walk(visit)),
            Self::Binary(_, sides) => sides.iter().for_each(|side| side.walk(visit)),
            Self::Not(inner) | Self::Neg(inner) => inner.walk(visit),
            _ => {}
        }
    }
}

struct ExprParser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> ExprParser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn column(&self) -> usize {
        self.text.get(..self.at).map_or(0, |before| before.chars().count()) + 1
    }

    fn unexpected(&self, expected: &'static str) -> ParseError {
        let found = match self.rest().chars().next() {
            Some(c) => format!("`{}`", c.escape_default()),
            None => "the end".to_owned(),
        };
        ParseError::Unexpected { column: self.column(), expected, found }
    }

    fn eat(&mut self, text: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn expect(&mut self, text: &str, expected: &'static str) -> Result<(), ParseError> {
        if self.eat(text) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    fn word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let word = &rest[..end];
        if word.starts_with(|c: char| c.is_ascii_digit()) { "" } else { word }
    }

    fn peek_binary(&mut self) -> Option<&'static (&'static str, BinaryOp, u8, u8)> {
        self.skip_space();
        let (rest, word) = (self.rest(), self.word());
        BINARY.iter().find(|row| {
            if row.0.starts_with(|c: char| c.is_ascii_alphabetic()) {
                word == row.0
            } else {
                rest.starts_with(row.0) && !(row.0 == "*" && rest.starts_with("**"))
            }
        })
    }

    fn expr(&mut self, min_power: u8, depth: usize) -> Result<Expr, ParseError> {
        if depth > MAX_DEPTH {
            return Err(ParseError::TooLarge);
        }
        let mut left = self.prefix(depth + 1)?;
        let mut compared = false;
        while let Some(&(text, op, left_power, right_power)) = self.peek_binary() {
            if left_power < min_power {
                break;
            }
            let is_comparison = left_power == 9;
            if is_comparison && compared {
                return Err(ParseError::Chained { column: self.column() });
            }
            compared |= is_comparison;
            self.at += text.len();
            let right = self.expr(right_power, depth + 1)?;
            left = Expr::Binary(op, Box::new([left, right]));
        }
        Ok(left)
    }

    fn prefix(&mut self, depth: usize) -> Result<Expr, ParseError> {
        if depth > MAX_DEPTH {
            return Err(ParseError::TooLarge);
        }
        self.skip_space();
        let column = self.column();
        match self.rest().chars().next() {
            Some('-') => {
                self.at += 1;
                Ok(Expr::Neg(Box::new(self.expr(NEG_POWER, depth + 1)?)))
            }
            Some('(') => {
                self.at += 1;
                let inner = self.expr(0, depth + 1)?;
                self.expect(")", "`)`")?;
                Ok(inner)
            }
            Some('[') => {
                self.at += 1;
                Ok(Expr::List(self.items("]", "`,` or `]`", depth)?))
            }
            Some('\'') => {
                self.at += 1;
                let end = self.rest().find('\'').ok_or_else(|| self.unexpected("a text that ends in `'`"))?;
                let text = self.rest()[..end].to_owned();
                self.at += end + 1;
                Ok(Expr::Text(text))
            }
            Some(c) if c.is_ascii_digit() => self.number(),
            _ => match self.word() {
                "" => Err(self.unexpected("a value")),
                word => {
                    self.at += word.len();
                    self.named(word, column, depth)
                }
            },
        }
    }

    fn named(&mut self, word: &str, column: usize, depth: usize) -> Result<Expr, ParseError> {
        match word {
            "not" => return Ok(Expr::Not(Box::new(self.expr(NOT_POWER, depth + 1)?))),
            "null" => return Ok(Expr::Null),
            "true" => return Ok(Expr::Bool(true)),
            "false" => return Ok(Expr::Bool(false)),
            "and" | "or" | "in" => {
                self.at -= word.len();
                return Err(self.unexpected("a value"));
            }
            _ => {}
        }
        if self.rest().starts_with('(') {
            self.at += 1;
            let arguments = self.items(")", "`,` or `)`", depth)?;
            let found = arguments.len();
            if word == "if" {
                let parts: Result<Box<[Expr; 3]>, _> = arguments.into_boxed_slice().try_into();
                let wrong = |_| ParseError::Arguments { column, name: "if", min: 3, max: 3, found };
                return parts.map(Expr::If).map_err(wrong);
            }
            let row = FUNCTIONS.iter().find(|row| row.0 == word);
            let &(name, function, min, max) =
                row.ok_or_else(|| ParseError::UnknownFunction { column, name: word.to_owned() })?;
            if !(min..=max).contains(&found) {
                return Err(ParseError::Arguments { column, name, min, max, found });
            }
            return Ok(Expr::Call(function, arguments));
        }
        self.path(word, depth)
    }

    fn path(&mut self, root: &str, depth: usize) -> Result<Expr, ParseError> {
        let mut path = Path { root: root.to_owned(), steps: Vec::new(), optional: false };
        loop {
            let rest = self.rest();
            if rest.starts_with('.') {
                self.at += 1;
                let name = self.word();
                if name.is_empty() {
                    return Err(self.unexpected("a name"));
                }
                self.at += name.len();
                path.steps.push(PathStep::Field(name.to_owned()));
            } else if rest.starts_with('[') {
                self.at += 1;
                let index = self.expr(0, depth + 1)?;
                self.expect("]", "`]`")?;
                path.steps.push(PathStep::Index(index));
            } else if rest.starts_with('?') && !rest.starts_with("??") {
                self.at += 1;
                path.optional = true;
            } else {
                return Ok(Expr::Path(path));
            }
        }
    }

    fn items(&mut self, end: &str, expected: &'static str, depth: usize) -> Result<Vec<Expr>, ParseError> {
        let mut items = Vec::new();
        if self.eat(end) {
            return Ok(items);
        }
        loop {
            items.push(self.expr(0, depth + 1)?);
            if self.eat(end) {
                return Ok(items);
            }
            self.expect(",", expected)?;
        }
    }

    fn number(&mut self) -> Result<Expr, ParseError> {
        let column = self.column();
        let bytes = self.rest().as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut end = digits(0);
        let mut is_float = false;
        if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            (is_float, end) = (true, digits(end + 1));
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let after = digits(end + 1 + sign);
            if after > end + 1 + sign {
                (is_float, end) = (true, after);
            }
        }
        let text = &self.rest()[..end];
        let out_of_range = || ParseError::Number { column, text: text.to_owned() };
        let expr = if is_float {
            Expr::Float(text.parse().ok().filter(|x: &f64| x.is_finite()).ok_or_else(out_of_range)?)
        } else {
            Expr::Int(text.parse::<i64>().map_err(|_| out_of_range())?.into())
        };
        self.at += end;
        Ok(expr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_columns() {
        for (text, message) in [
            ("1 +", "column 4: expected a value, found the end"),
            ("(1", "column 3: expected `)`, found the end"),
            ("a b", "column 3: expected an operator or the end, found `b`"),
            ("1 < 2 < 3", "column 7: comparisons do not chain"),
            ("foo(1)", "column 1: unknown function `foo`"),
            ("if(1, 2)", "column 1: `if` takes 3 to 3 arguments, found 2"),
            ("'open", "column 2: expected a text that ends in `'`, found `o`"),
            ("a.", "column 3: expected a name, found the end"),
            ("99999999999999999999", "column 1: number `99999999999999999999` is out of range"),
            ("1 or or 2", "column 6: expected a value, found `o`"),
            ("\u{e9}", "column 1: expected a value, found `\\u{e9}`"),
        ] {
            assert_eq!(Expr::parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        for deep in ["(".repeat(3000), "-".repeat(3000), "not ".repeat(900), "a[".repeat(2000)] {
            assert_eq!(Expr::parse(&deep), Err(ParseError::TooLarge));
        }
        assert_eq!(Expr::parse(&"1+".repeat(3000)), Err(ParseError::TooLarge));
    }

    #[test]
    fn question_marks_are_told_apart() {
        let Expr::Binary(BinaryOp::Coalesce, sides) = Expr::parse("head_dim? ?? 4").unwrap() else {
            panic!("a coalesce")
        };
        assert!(matches!(&sides[0], Expr::Path(path) if path.optional));
        assert!(matches!(Expr::parse("a??b"), Ok(Expr::Binary(BinaryOp::Coalesce, _))));
    }
}
