//! The lines of `options.txt`.

use std::fmt;

/// Commands with what they read, in place of `{in}`; a group of the table stands for all that have its word.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("TO_GGUF QUANTIZE TINY HF", "gguf-convert hf2gguf", "model"),
    ("TO_GGUF QUANTIZE TINY", "gguf-convert msmodelslim2gguf", "ms"),
    ("TO_GGUF QUANTIZE", "gguf-convert flm2gguf", "flm/model.flm"),
    ("TO_GGUF QUANTIZE TINY", "gguf-convert merge-lora", "model adapter"),
    ("QUANTIZE TINY", "gguf-quantize", "tiny.gguf"),
    ("EDIT", "gguf-inspect set", "tiny.gguf general.name=Zebra"),
    ("EDIT", "gguf-inspect remove", "tiny.gguf general.name"),
    ("EDIT", "gguf-inspect rename", "base.gguf output_norm.weight=x --force"),
    ("EDIT", "gguf-inspect drop", "base.gguf ^output_norm --force"),
    ("EDIT", "gguf-inspect template", "tiny.gguf --set chat.jinja"),
];

/// What an option does.
pub enum Effect {
    /// This file has other bytes.
    Changes(String),
    /// Of the tensors of this file others change: only those with a word in their names, or none of those.
    ChangesTensors { file: String, word: String, is_in_all: bool },
    /// This file is written.
    Makes(String),
    /// This file holds these words.
    Holds(String, String),
    /// `gguf-inspect` prints these words about this file; one blank stands for any number of them.
    Describes(String, String),
    /// The program prints these words.
    Prints(String),
    /// The exit code is this one, and the program prints these words.
    Exits(i32, String),
}

/// An option of a command, with the two command lines that show its effect.
pub struct Case {
    pub command: String,
    pub option: String,
    pub without: String,
    pub with: String,
    pub effect: Effect,
    /// True if the effect is that something is no longer there.
    pub is_absent: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (`{}`)", self.command, self.option, self.with)
    }
}

fn effect(text: &str) -> (Effect, bool) {
    let (is_absent, text) = text.strip_prefix("no longer ").map_or((false, text), |rest| (true, rest));
    let (verb, rest) = text.split_once(' ').unwrap_or_else(|| panic!("no effect: {text}"));
    let two = || rest.split_once(' ').unwrap_or((rest, ""));
    let effect = match verb {
        "changes" => match rest.split(' ').collect::<Vec<_>>()[..] {
            [file, how @ ("only" | "but"), word] => Effect::ChangesTensors {
                file: file.to_owned(),
                word: word.to_owned(),
                is_in_all: how == "only",
            },
            _ => Effect::Changes(rest.to_owned()),
        },
        "makes" => Effect::Makes(rest.to_owned()),
        "holds" => Effect::Holds(two().0.to_owned(), two().1.to_owned()),
        "describes" => Effect::Describes(two().0.to_owned(), two().1.to_owned()),
        "prints" => Effect::Prints(rest.to_owned()),
        "exits" => Effect::Exits(two().0.parse().unwrap(), two().1.to_owned()),
        other => panic!("no effect: {other}"),
    };
    (effect, is_absent)
}

/// Parses the table: command or group, option, arguments without it, arguments with it, effect.
pub fn cases(text: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let columns: Vec<&str> = line.splitn(5, '|').map(str::trim).collect();
        let [who, option, without, with, done] = columns[..] else { panic!("{line}") };
        if done.starts_with("elsewhere") {
            continue;
        }
        let in_group = |row: &&(&str, &str, &str)| row.0.split(' ').any(|group| group == who);
        let group: Vec<_> = COMMANDS.iter().filter(in_group).map(|row| (row.1, row.2)).collect();
        let own = COMMANDS.iter().find(|row| row.1 == who).map_or("", |row| row.2);
        let mut rows = if group.is_empty() { vec![(who, own)] } else { group };
        // Conversions of a model without experts, one with experts, and an encoder.
        if who == "HF" {
            rows = ["model", "moe --no-tokenizer", "encoder --no-tokenizer"]
                .map(|model| (rows[0].0, model))
                .to_vec();
        }
        for (command, input) in rows {
            let words = |arguments: &str| format!("{command} {}", arguments.replace("{in}", input));
            let (effect, is_absent) = effect(done);
            cases.push(Case {
                command: command.to_owned(),
                option: option.to_owned(),
                without: words(without),
                with: words(&with.replace("{..}", without)),
                effect,
                is_absent,
            });
        }
    }
    cases
}
