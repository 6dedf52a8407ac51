//! Writes the reference of `--json`: every key is a field of a report type, its meaning the field's documentation.
//!
//! `cargo run -p gguf-foundry-json-page -- FILE` fills the tables of `page.md`; a release contains the result.

#![allow(clippy::unwrap_used, reason = "a program for developers stops by panicking")]

use std::collections::{HashMap, HashSet};
use std::path::Path;

use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, ExprLit, Field, Fields, GenericArgument, Item, ItemEnum, ItemStruct, Lit, Meta,
    PathArguments, Token, Type,
};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Headings and texts, with a marker for each table.
const PAGE: &str = include_str!("page.md");
/// Start of a marker, with the type whose keys the table lists.
const MARKER: &str = "<!-- keys of ";
/// After the type: the keys of its flattened fields are in another table.
const OWN: &str = ", without those of flattened fields";
const HEAD: &str = "| key | type | meaning |\n|---|---|---|\n";

/// Types with a serializer of their own, and what they print.
const VALUES: [(&str, &str); 17] = [
    ("GgmlType", "string"),
    ("Shape", "integers"),
    ("Check", "string"),
    ("Exit", "integer"),
    ("Figure", "string"),
    ("ShownValue", "any"),
    ("Solver", "string"),
    ("TensorClass", "string"),
    ("FileType", "string"),
    ("String", "string"),
    ("str", "string"),
    ("PathBuf", "string"),
    ("bool", "boolean"),
    ("f32", "number"),
    ("f64", "number"),
    ("Value", "any"),
    ("Json", "any"),
];

/// Functions of `serialize_with` by the start of their name, and what they print.
const FUNCTIONS: [(&str, &str); 7] = [
    ("as_count", "integer"),
    ("as_paths", "strings"),
    ("as_names", "strings"),
    ("as_path", "string"),
    ("as_name", "string"),
    ("as_text", "string"),
    ("as_number", "number"),
];

/// Declared type that is serialized.
enum Declared {
    Struct(ItemStruct),
    Enum(ItemEnum),
}

struct Types {
    declared: HashMap<String, Declared>,
    /// Types with a table of their own, which are not described again where another contains them.
    roots: HashSet<String>,
}

enum Printed {
    /// A string, a number, a list of strings, …
    Plain(String),
    /// An object, or a list of objects, with the keys of the named types; more than one: one of them.
    Objects { is_list: bool, types: Vec<String> },
    /// An object with names as keys.
    Named(Box<Printed>),
}

/// Arguments of a `serde` attribute: `rename = "tensors"`, `flatten`.
struct Serde(Vec<(String, Option<String>)>);

impl Serde {
    fn of(attributes: &[Attribute]) -> Self {
        let mut found = Vec::new();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            let list = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap();
            for meta in list {
                let name = meta.path().get_ident().unwrap().to_string();
                let value = match &meta {
                    Meta::NameValue(pair) => text_of(&pair.value),
                    _ => None,
                };
                found.push((name, value));
            }
        }
        Self(found)
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name)?.1.as_deref()
    }
}

fn text_of(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Returns the first paragraph of a documentation, as a cell of a table.
fn meaning(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => text_of(&pair.value),
        _ => None,
    });
    let lines: Vec<String> =
        lines.map(|line| line.trim().to_owned()).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

fn is_serialized(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("derive")).any(|attribute| {
        let derived =
            attribute.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated).unwrap();
        derived.iter().any(|path| path.segments.last().unwrap().ident == "Serialize")
    })
}

impl Types {
    /// Reads the declarations of all crates, and the types with tables from the page.
    fn read(page: &str) -> Self {
        let mut found = HashMap::new();
        let mut crates: Vec<_> =
            fs_err::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path()).collect();
        crates.push(root().to_owned());
        for folder in crates {
            read_folder(&folder.join("src"), &mut found);
        }
        assert!(!found.is_empty());
        Self { declared: found, roots: page.lines().filter_map(root_of).map(str::to_owned).collect() }
    }

    fn declared(&self, name: &str) -> &Declared {
        self.declared.get(name).unwrap_or_else(|| panic!("`{name}` is no type that derives `Serialize`"))
    }

    fn printed(&self, ty: &Type) -> Printed {
        match ty {
            Type::Reference(reference) => self.printed(&reference.elem),
            Type::Slice(slice) => self.list(&slice.elem),
            Type::Array(array) => self.list(&array.elem),
            Type::Path(path) => {
                let segment = path.path.segments.last().unwrap();
                let arguments: Vec<&Type> = match &segment.arguments {
                    PathArguments::AngleBracketed(arguments) => arguments
                        .args
                        .iter()
                        .filter_map(|argument| match argument {
                            GenericArgument::Type(ty) => Some(ty),
                            _ => None,
                        })
                        .collect(),
                    _ => Vec::new(),
                };
                self.named(&segment.ident.to_string(), &arguments)
            }
            _ => panic!("a report has a field of an unexpected form"),
        }
    }

    fn named(&self, name: &str, arguments: &[&Type]) -> Printed {
        match (name, arguments) {
            ("Box" | "Cow" | "Arc" | "Rc" | "Option", [.., ty]) => self.printed(ty),
            ("Vec" | "BTreeSet", [ty]) => self.list(ty),
            ("BTreeMap" | "HashMap" | "IndexMap" | "Map", [_, ty]) => {
                Printed::Named(Box::new(self.printed(ty)))
            }
            ("u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "NonZeroUsize", []) => {
                Printed::Plain("integer".to_owned())
            }
            _ => match VALUES.iter().find(|(value, _)| *value == name) {
                Some((_, printed)) => Printed::Plain((*printed).to_owned()),
                None => self.declared_type(name),
            },
        }
    }

    fn declared_type(&self, name: &str) -> Printed {
        match self.declared(name) {
            Declared::Struct(declared) => match &declared.fields {
                Fields::Unnamed(fields) if fields.unnamed.len() == 1 => self.printed(&fields.unnamed[0].ty),
                _ => Printed::Objects { is_list: false, types: vec![name.to_owned()] },
            },
            Declared::Enum(declared) if declared.variants.iter().all(|variant| variant.fields.is_empty()) => {
                Printed::Plain("string".to_owned())
            }
            Declared::Enum(declared) => {
                let mut types = Vec::new();
                let mut plain = Vec::new();
                for variant in &declared.variants {
                    match self.printed(&variant.fields.iter().next().unwrap().ty) {
                        Printed::Objects { types: more, .. } => types.extend(more),
                        Printed::Plain(one) => plain.push(one),
                        Printed::Named(_) => panic!("{name}: a map in an enumeration"),
                    }
                }
                if types.is_empty() {
                    plain.dedup();
                    return Printed::Plain(plain.join(" or "));
                }
                if plain.is_empty() {
                    Printed::Objects { is_list: false, types }
                } else {
                    Printed::Plain("any".to_owned())
                }
            }
        }
    }

    fn list(&self, element: &Type) -> Printed {
        match self.printed(element) {
            Printed::Objects { is_list: false, types } => Printed::Objects { is_list: true, types },
            Printed::Plain(one) if ["string", "integer", "number", "object"].contains(&one.as_str()) => {
                let is_open = matches!(element, Type::Path(path) if path.path.segments[0].ident == "Option");
                Printed::Plain(if is_open { "any".to_owned() } else { format!("{one}s") })
            }
            _ => Printed::Plain("any".to_owned()),
        }
    }

    /// Adds the rows of the keys of some types, below a path that ends with a dot or is empty.
    fn rows(&self, types: &[String], path: &str, is_optional: bool, rows: &mut Vec<[String; 3]>) {
        for name in types {
            match self.declared(name) {
                Declared::Struct(declared) => {
                    let is_optional = is_optional || types.len() > 1;
                    for field in &declared.fields {
                        self.field(name, field, path, is_optional, rows);
                    }
                }
                Declared::Enum(_) => panic!("{name}: an enumeration within an enumeration"),
            }
        }
    }

    fn field(&self, of: &str, field: &Field, path: &str, is_optional: bool, rows: &mut Vec<[String; 3]>) {
        let serde = Serde::of(&field.attrs);
        if serde.has("skip") || serde.has("skip_serializing") {
            return;
        }
        let is_option = matches!(&field.ty, Type::Path(path) if path.path.segments[0].ident == "Option");
        if serde.has("flatten") {
            let Printed::Objects { types, .. } = self.printed(&field.ty) else {
                panic!("{of}: a flattened field is no object");
            };
            return self.rows(&types, path, is_optional || is_option, rows);
        }
        let own = field.ident.as_ref().unwrap().to_string();
        let key = format!("{path}{}", serde.value("rename").unwrap_or(&own));
        let printed = match serde.value("serialize_with") {
            Some(function) => {
                let function = function.rsplit("::").next().unwrap();
                let found = FUNCTIONS.iter().find(|(start, _)| function.starts_with(start));
                Printed::Plain(
                    found.unwrap_or_else(|| panic!("{of}.{own}: what `{function}` prints")).1.to_owned(),
                )
            }
            None => self.printed(&field.ty),
        };
        let is_absent = serde.has("skip_serializing_if");
        let form = match &printed {
            Printed::Plain(plain) => plain.as_str(),
            Printed::Objects { is_list: true, .. } => "objects",
            Printed::Objects { is_list: false, .. } | Printed::Named(_) => "object",
        };
        let null = if is_option && !is_absent && form != "any" { " or null" } else { "" };
        let optional = if is_absent || is_optional { "?" } else { "" };
        let said = meaning(&field.attrs);
        assert!(!said.is_empty(), "{of}.{own} has no documentation");
        rows.push([key.clone(), format!("{form}{null}{optional}"), said]);
        match printed {
            Printed::Plain(_) => {}
            Printed::Objects { types, .. } if types.iter().all(|name| self.roots.contains(name)) => {}
            Printed::Objects { is_list, types } => {
                let dot = if is_list { "[]." } else { "." };
                self.rows(&types, &format!("{key}{dot}"), false, rows);
            }
            Printed::Named(value) => match *value {
                Printed::Objects { is_list: false, types } => {
                    rows.push([format!("{key}.<name>"), "object".to_owned(), "One of them.".to_owned()]);
                    self.rows(&types, &format!("{key}.<name>."), false, rows);
                }
                Printed::Plain(plain) => {
                    rows.push([format!("{key}.<name>"), plain, "One of them.".to_owned()]);
                }
                _ => panic!("{of}.{own}: a map of lists or maps"),
            },
        }
    }

    /// Returns the table of a type, or of a list of it: `[ListedClass]`.
    fn table(&self, name: &str) -> String {
        let (name, is_own) = name.strip_suffix(OWN).map_or((name, false), |name| (name, true));
        let element = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let Printed::Objects { types, .. } = self.declared_type(element.unwrap_or(name)) else {
            panic!("`{name}` prints no object");
        };
        let mut rows = Vec::new();
        if is_own && let Declared::Struct(declared) = self.declared(name) {
            let is_flat = |field: &&Field| Serde::of(&field.attrs).has("flatten");
            declared.fields.iter().filter(|field| !is_flat(field)).for_each(|field| {
                self.field(name, field, "", false, &mut rows);
            });
            return written(&rows);
        }
        self.rows(&types, if element.is_some() { "[]." } else { "" }, false, &mut rows);
        written(&rows)
    }
}

/// Returns rows as a table. A key of several types stands once.
fn written(rows: &[[String; 3]]) -> String {
    let is_first = |at: usize| rows[..at].iter().all(|[before, ..]| *before != rows[at][0]);
    let lines = rows.iter().enumerate().filter(|(at, _)| is_first(*at));
    let lines = lines.map(|(_, [key, form, said])| format!("| `{key}` | {form} | {said} |\n"));
    HEAD.to_owned() + &lines.collect::<String>()
}

fn read_folder(folder: &Path, found: &mut HashMap<String, Declared>) {
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_folder(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs_err::read_to_string(&path).unwrap();
            if text.contains("Serialize") {
                let file =
                    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                file.items.into_iter().for_each(|item| keep(item, &path, found));
            }
        }
    }
}

fn keep(item: Item, path: &Path, found: &mut HashMap<String, Declared>) {
    let (name, declared) = match item {
        Item::Struct(item) if is_serialized(&item.attrs) => (item.ident.to_string(), Declared::Struct(item)),
        Item::Enum(item) if is_serialized(&item.attrs) => (item.ident.to_string(), Declared::Enum(item)),
        _ => return,
    };
    let before = found.insert(name.clone(), declared);
    assert!(before.is_none(), "{}: another serialized type is named `{name}`", path.display());
}

/// Returns the type that a marker names.
fn root_of(line: &str) -> Option<&str> {
    line.strip_prefix(MARKER)?.strip_suffix(" -->")
}

fn page() -> String {
    let types = Types::read(PAGE);
    PAGE.lines()
        .map(|line| root_of(line).map_or_else(|| format!("{line}\n"), |name| types.table(name)))
        .collect()
}

fn main() {
    let path = std::env::args_os().nth(1).expect("a file to write");
    fs_err::write(path, page()).unwrap();
}

#[test]
fn every_table_has_rows() {
    let text = page();
    let n_tables = PAGE.lines().filter(|line| root_of(line).is_some()).count();
    assert!(n_tables > 30 && text.matches(HEAD).count() == n_tables, "{n_tables}");
    assert!(!text.contains(MARKER) && !text.contains(&format!("{HEAD}\n")));
    assert!(text.contains("| `error.exit_code` | integer |"), "{text}");
}
