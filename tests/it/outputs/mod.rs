//! Whole outputs of the programs: tables of cases (`*.toml`), and a snapshot of each (`snapshots/*.snap`).
//!
//! A case names the files it is given and the commands that run on them in one new directory. Its snapshot holds what
//! each command prints, its exit code, and the files that it makes, changes or removes: that a refused command leaves
//! everything as it was is part of every snapshot.

mod given;
mod transcript;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rayon::prelude::*;
use serde::Deserialize;

use crate::support::{files, root};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Files by their names in [`given::MATERIALS`].
    #[serde(default)]
    given: Vec<String>,
    /// Text files by name.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Commands, one a line, with variables in front and `> FILE` behind them as in a shell.
    run: String,
    /// Regular expressions of what differs between machines, and what is printed in their place.
    #[serde(default)]
    redact: Vec<(String, String)>,
}

impl Case {
    /// Runs the commands, and returns the transcript.
    fn play(&self) -> String {
        let dir = tempfile::tempdir().unwrap();
        for name in &self.given {
            given::write(name, dir.path());
        }
        for (name, text) in &self.files {
            let path = dir.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        transcript::of(self, dir.path())
    }
}

fn folder() -> PathBuf {
    root().join("tests/it/outputs")
}

/// Plays the cases of a table and compares each with its snapshot; `OUTPUTS=WORDS` chooses those whose names contain the
/// words.
fn play(table: &str) {
    let text = fs_err::read_to_string(folder().join(format!("{table}.toml"))).unwrap();
    let cases: BTreeMap<String, Case> = toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    let words = std::env::var("OUTPUTS").unwrap_or_default();
    let chosen: Vec<_> = cases.iter().filter(|(name, _)| name.contains(&words)).collect();
    let wrong: Vec<&str> = chosen
        .par_iter()
        .filter(|(name, case)| {
            let compared = catch_unwind(AssertUnwindSafe(|| {
                let mut settings = insta::Settings::clone_current();
                settings.set_prepend_module_to_snapshot(false);
                settings.set_omit_expression(true);
                settings.bind(|| insta::assert_snapshot!(format!("{table}__{name}"), case.play()));
            }));
            compared.is_err()
        })
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(wrong.is_empty(), "{table}: {wrong:?}");
    let known: BTreeSet<String> = cases.keys().map(|name| format!("{table}__{name}.snap")).collect();
    let kept = files::names(folder().join("snapshots")).into_iter();
    let kept: BTreeSet<String> = kept.filter(|name| name.starts_with(&format!("{table}__"))).collect();
    assert_eq!(kept, known, "snapshots without a case, or cases without a snapshot");
}

macro_rules! tables {
    ($($table:ident)*) => {
        $(
            #[test]
            fn $table() {
                play(stringify!($table));
            }
        )*

        #[test]
        fn every_table_is_played() {
            let tables = files::names(folder()).into_iter();
            let tables: Vec<String> =
                tables.filter_map(|name| name.strip_suffix(".toml").map(str::to_owned)).collect();
            assert_eq!(tables, [$(stringify!($table)),*]);
        }
    };
}

tables! { common inspect quantize verify }
