//! Help texts: `-h` is one screen with the most common options and three examples. `--help` is complete, ordered from
//! common to rare, with examples and exit codes.
//!
//! Options are documented in full where they are defined. [`PAGES`] lists those that the short help of a command shows,
//! with one line each; they also come first in the long help.

use clap::{Arg, Command};

/// Short help of a command.
struct Page {
    /// Names of the program and its commands.
    path: &'static [&'static str],
    /// Ids of options and arguments, with a line each.
    shown: &'static [(&'static str, &'static str)],
    examples: &'static [&'static str],
}

/// Common options that the short help shows.
const COMMON: [(&str, &str); 4] = [
    ("threads", "Number of threads [default: all cores]"),
    ("json", "Print one JSON document"),
    ("quiet", "No progress, no warnings"),
    ("verbose", "Print more details, and what the run took"),
];

/// One-line descriptions of subcommands whose own sentence is longer.
const ABOUT: [(&str, &str); 22] = [
    ("msmodelslim2gguf", "Convert a checkpoint of Ascend's msModelSlim to GGUF"),
    ("merge-lora", "Merge a LoRA adapter into its base model, as GGUF"),
    ("archs", "List the architectures that can be converted"),
    ("draft", "Write a first card for a new architecture"),
    ("completions", "Print what a shell needs to complete arguments"),
    ("stats", "Keep moments of a text for many quantizations"),
    ("ladder", "Write many types of a model from one reading"),
    ("recipe", "Find out how a quantized file was made"),
    ("rebuild", "Make a file again from its recipe"),
    ("pack", "Pack a folder as its model and recipes"),
    ("unpack", "Make every file of a packed folder again"),
    ("combine", "Combine the parts that `--part` wrote"),
    ("logits", "Print the logits after each prompt as JSON lines"),
    ("set", "Set metadata keys"),
    ("remove", "Remove metadata keys"),
    ("rename", "Give tensors other names"),
    ("drop", "Leave tensors out"),
    ("diff", "Compare two models: keys, tensors, values"),
    ("dump", "Print a file as Markdown or JSON"),
    ("hash", "Print SHA-256 of tensors, of all data, of the file"),
    ("memory", "Print the memory that a model needs to run"),
    ("checkpoint", "Describe a checkpoint and what it would become"),
];

const OUTPUT: (&str, &str) = ("output", "File or directory to write");
const TYPE: (&str, &str) = ("ty", "Type: f16, bf16, q8_0, q4_k_m, ... or auto");
const IMATRIX: (&str, &str) = ("imatrix", "Importance matrix (GGUF or .dat)");
const CALIBRATE: (&str, &str) = ("calibrate", "Calibrate the rounding with this text");
const TARGET: (&str, &str) = ("target_size", "Choose types for a file size, such as 3.9G");
const DRY_RUN: (&str, &str) = ("dry_run", "Print what would be done, write nothing");

const PAGES: &[Page] = &[
    Page {
        path: &["gguf-convert"],
        shown: &[],
        examples: &[
            "gguf-convert hf2gguf ./Llama-3.2-1B -o llama-f16.gguf --type f16",
            "gguf-convert ./Llama-3.2-1B --type q4_k_m     # same as hf2gguf",
            "gguf-convert lora2gguf ./adapter --base ./Llama-3.2-1B",
        ],
    },
    Page {
        path: &["gguf-convert", "hf2gguf"],
        shown: &[
            ("dir", "Directory of the checkpoint, or ORG/NAME"),
            OUTPUT,
            TYPE,
            ("mmproj", "Convert the vision and audio towers"),
            IMATRIX,
            CALIBRATE,
            TARGET,
            ("cache", "Keep what is fetched from a server here"),
            ("split_max_size", "Start another file at this size, such as 2G"),
            ("chat_template", "Use this template"),
            DRY_RUN,
            ("resume", "Resume a run that was stopped"),
        ],
        examples: &[
            "gguf-convert hf2gguf ./Llama-3.2-1B -o llama-f16.gguf --type f16",
            "gguf-convert hf2gguf ./Llama-3.2-1B --type iq3_m --imatrix im.gguf",
            "gguf-convert hf2gguf Qwen/Qwen3-0.6B --type q4_k_m",
        ],
    },
    Page {
        path: &["gguf-convert", "msmodelslim2gguf"],
        shown: &[("dir", "Directory of the checkpoint"), OUTPUT, TYPE, IMATRIX, DRY_RUN],
        examples: &[
            "gguf-convert msmodelslim2gguf ./Qwen3-8B-w8a8",
            "gguf-convert msmodelslim2gguf ./Qwen3-8B-w8a8 --type q8_0",
            "gguf-convert msmodelslim2gguf ./Qwen3-8B-w8a8 --dry-run",
        ],
    },
    Page {
        path: &["gguf-convert", "flm2gguf"],
        shown: &[("file", "FastLLM file"), OUTPUT, TYPE, IMATRIX, DRY_RUN],
        examples: &[
            "gguf-convert flm2gguf chatglm.flm",
            "gguf-convert flm2gguf chatglm.flm -o chatglm-f16.gguf --type f16",
            "gguf-convert flm2gguf chatglm.flm --dry-run",
        ],
    },
    Page {
        path: &["gguf-convert", "merge-lora"],
        shown: &[
            ("base", "Directory of the base model, or ORG/NAME"),
            ("adapter", "Directory of the adapter"),
            OUTPUT,
            TYPE,
            IMATRIX,
            DRY_RUN,
        ],
        examples: &[
            "gguf-convert merge-lora ./Llama-3.2-1B ./adapter --type q4_k_m",
            "gguf-convert merge-lora ./Llama-3.2-1B ./adapter -o merged.gguf",
            "gguf-convert merge-lora ./Llama-3.2-1B ./adapter --dry-run",
        ],
    },
    Page {
        path: &["gguf-convert", "lora2gguf"],
        shown: &[
            ("dir", "Directory of the adapter, or ORG/NAME"),
            ("base", "Directory of its base model"),
            OUTPUT,
            TYPE,
            DRY_RUN,
        ],
        examples: &[
            "gguf-convert lora2gguf ./adapter --base ./Llama-3.2-1B",
            "gguf-convert lora2gguf ./adapter --base ./Llama-3.2-1B -o a.gguf",
            "gguf-convert lora2gguf ./adapter --dry-run",
        ],
    },
    Page {
        path: &["gguf-quantize"],
        shown: &[
            ("arguments", "Input, output, and in llama-quantize's order TYPE, THREADS"),
            ("file_type", "Type: q8_0, q6_k, q4_k_m, ... (see --help)"),
            IMATRIX,
            CALIBRATE,
            TARGET,
            ("like", "Take each tensor's type from this file"),
            DRY_RUN,
        ],
        examples: &[
            "gguf-quantize model-f16.gguf model-q4_k_m.gguf --type q4_k_m",
            "gguf-quantize in.gguf out.gguf --type iq3_m --imatrix im.gguf",
            "gguf-quantize in.gguf out.gguf Q4_K_M 8       # as llama-quantize",
        ],
    },
    Page {
        path: &["gguf-quantize", "ladder"],
        shown: &[
            ("source", "GGUF file, checkpoint, or ORG/NAME"),
            ("output", "Folder for the files"),
            ("types", "Types: q8_0,q6_k,q4_k_m,..."),
            ("preset", "small, standard or full [default: standard]"),
            IMATRIX,
            ("calibration", "Measure the matrix on this text first"),
            CALIBRATE,
            ("verify", "Compare every file with the model on a text"),
            ("part", "Write the files of one of N machines: I/N"),
            ("resume", "Keep what a stopped run has written"),
            DRY_RUN,
        ],
        examples: &[
            "gguf-quantize ladder model-bf16.gguf -o out --preset full --imatrix imatrix.gguf",
            "gguf-quantize ladder ./Llama-3.2-1B -o out --calibration cal.txt --verify test.txt",
            "gguf-quantize ladder org/model -o out --types q8_0,q4_k_m --resume",
        ],
    },
    Page {
        path: &["gguf-quantize", "recipe"],
        shown: &[
            ("file", "Quantized GGUF file"),
            ("source", "Model that it was made of"),
            IMATRIX,
            ("output", "Recipe to write"),
        ],
        examples: &[
            "gguf-quantize recipe model-Q4_K_M.gguf --source model-bf16.gguf",
            "gguf-quantize recipe model-IQ3_M.gguf --source ./Llama-3.2-1B --imatrix imatrix.gguf",
            "gguf-quantize recipe model-Q4_K_M.gguf --source model-bf16.gguf -o q4_k_m.recipe.gguf",
        ],
    },
    Page {
        path: &["gguf-quantize", "rebuild"],
        shown: &[
            ("recipe", "Recipe of the file"),
            ("source", "Model that it was made of"),
            IMATRIX,
            ("output", "File to write"),
        ],
        examples: &[
            "gguf-quantize rebuild q4_k_m.recipe.gguf --source model-bf16.gguf -o model-Q4_K_M.gguf",
            "gguf-quantize rebuild iq3_m.recipe.gguf --source m.gguf --imatrix im.gguf -o m-IQ3_M.gguf",
            "gguf-quantize rebuild q8_0.recipe.gguf --source ./Llama-3.2-1B -o model-Q8_0.gguf --json",
        ],
    },
    Page {
        path: &["gguf-quantize", "pack"],
        shown: &[
            ("folder", "Folder with quantizations of one model"),
            ("source", "The model, as a GGUF file"),
            IMATRIX,
            ("output", "Folder for the pack"),
        ],
        examples: &[
            "gguf-quantize pack models --source models/model-bf16.gguf -o packed",
            "gguf-quantize pack models --source ../model-f16.gguf --imatrix im.gguf -o packed",
            "gguf-quantize unpack packed -o models-again",
        ],
    },
    Page {
        path: &["gguf-quantize", "unpack"],
        shown: &[("pack", "Folder that `pack` has written"), ("output", "Folder for the files")],
        examples: &[
            "gguf-quantize unpack packed -o models",
            "gguf-quantize unpack packed -o models --no-sync",
            "gguf-quantize unpack packed -o models --json",
        ],
    },
    Page {
        path: &["gguf-quantize", "stats"],
        shown: &[("model", "The model"), ("calibrate", "Text, or `self`"), ("output", "Folder to write")],
        examples: &[
            "gguf-quantize stats model-f16.gguf --calibrate text.txt -o stats",
            "gguf-quantize stats model-f16.gguf --calibrate self -o stats",
            "gguf-quantize in.gguf out.gguf --type q4_k_m --stats stats",
        ],
    },
    Page {
        path: &["gguf-verify"],
        shown: &[
            ("models", "GGUF files, or directories of checkpoints"),
            ("prompts", "Text or chats to score"),
            ("baseline", "Checkpoint or file to compare with"),
            ("report", "Write a report: .html, .md or .json"),
            ("min-quality", "near-lossless, very-good, good or fair"),
            ("max-kld", "Highest mean divergence that passes"),
            ("ctx", "Tokens of a chunk [default: 512]"),
            ("chunks", "Maximum number of chunks"),
            ("weights_only", "Compare the weights, run nothing"),
            ("structure_only", "Check the file, run nothing"),
        ],
        examples: &[
            "gguf-verify model-q4_k_m.gguf",
            "gguf-verify model-*.gguf --baseline ./Llama-3.2-1B --prompts a.txt",
            "gguf-verify model-q4_k_m.gguf --baseline model-f16.gguf",
        ],
    },
    Page {
        path: &["gguf-verify", "imatrix"],
        shown: &[
            ("model", "The model, in F16 or finer"),
            ("prompts", "Text to run"),
            ("output", "File to write"),
            ("ctx", "Tokens of a chunk [default: 512]"),
            ("chunks", "Maximum number of chunks"),
            ("legacy", "Write the older .dat format"),
        ],
        examples: &[
            "gguf-verify imatrix model-f16.gguf --prompts text.txt -o im.gguf",
            "gguf-verify imatrix -m model-f16.gguf -f text.txt -o im.gguf -c 512",
            "gguf-verify imatrix show im.gguf",
        ],
    },
    Page {
        path: &["gguf-verify", "logits"],
        shown: &[("model", "The model"), ("prompts", "Prompts"), ("output", "File to write")],
        examples: &[
            "gguf-verify logits model.gguf --prompts prompts.jsonl",
            "gguf-verify logits model.gguf --prompts prompts.jsonl -o out.jsonl",
            "gguf-verify logits ./Llama-3.2-1B --prompts prompts.jsonl",
        ],
    },
    Page {
        path: &["gguf-verify", "combine"],
        shown: &[
            ("parts", "Parts that `--part` wrote on all machines"),
            ("output", "Matrix or statistics to write"),
            ("accept_partial", "Exit with 0 if not everything could be judged"),
            ("min-quality", "near-lossless, very-good, good or fair"),
            ("max-kld", "Highest mean divergence that passes"),
        ],
        examples: &[
            "gguf-verify combine part-*.gguf",
            "gguf-verify combine imatrix-*.gguf -o imatrix.gguf",
            "gguf-verify combine stats-*/ -o stats",
        ],
    },
    Page {
        path: &["gguf-inspect"],
        shown: &[],
        examples: &[
            "gguf-inspect model.gguf",
            "gguf-inspect diff a.gguf b.gguf",
            "gguf-inspect set model.gguf general.name=Llama",
        ],
    },
];

/// Exit codes of programs that have no others.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.";

/// Adds the help texts to a program's parser.
#[must_use]
pub(crate) fn with_pages(command: Command) -> Command {
    let mut path = vec![command.get_name().to_owned()];
    shaped(command, &mut path)
}

fn shaped(command: Command, path: &mut Vec<String>) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut command = command;
    for name in names {
        path.push(name.clone());
        command = command.mut_subcommand(&name, |sub| {
            let about = ABOUT.iter().find(|(own, _)| *own == name).map(|(_, line)| *line);
            let sub = match (about, sub.get_long_about().or(sub.get_about()).cloned()) {
                (Some(line), Some(full)) => sub.about(line).long_about(full),
                _ => sub,
            };
            shaped(sub, path)
        });
        path.pop();
    }
    let page = PAGES.iter().find(|page| page.path.iter().eq(path.iter()));
    let shown: &[(&'static str, &'static str)] = page.map_or(&[], |page| page.shown);
    let n_options = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set()).count();
    let command = command.mut_args(|arg| shaped_arg(arg, shown, page.is_some()));
    let examples = page.map(|page| {
        let lines: Vec<String> = page.examples.iter().map(|line| format!("  {line}")).collect();
        format!("Examples:\n{}", lines.join("\n"))
    });
    let more = page.map(|_| format!("`--help` explains all {n_options} options."));
    let short = [examples.clone(), more].into_iter().flatten().collect::<Vec<_>>().join("\n\n");
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let codes =
        notes.as_ref().is_none_or(|notes| !notes.contains("Exit codes")).then(|| EXIT_CODES.to_owned());
    let long = [examples, notes, codes].into_iter().flatten().collect::<Vec<_>>().join("\n\n");
    command.after_help(short).after_long_help(long)
}

/// Shapes an option: one of the page gets a line in the short help, and comes before the others in the long help.
fn shaped_arg(arg: Arg, shown: &[(&'static str, &'static str)], has_page: bool) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    let is_common = arg.get_help_heading() == Some("Common options");
    let line = COMMON.iter().filter(|_| is_common).chain(shown).find(|(own, _)| *own == id);
    let full = arg.get_long_help().or(arg.get_help()).cloned();
    match line {
        Some((_, line)) => {
            let arg = full
                .map_or_else(|| arg.clone(), |full| arg.clone().long_help(full))
                .help(*line)
                .hide_short_help(false);
            if is_common { arg } else { arg.help_heading(None::<&str>) }
        }
        None if is_common || has_page => {
            let heading = arg.get_help_heading().map_or("More options", |_| "");
            let arg = arg.hide_short_help(true);
            if heading.is_empty() || arg.is_positional() { arg } else { arg.help_heading(heading) }
        }
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum number of lines of `-h`, and of columns of a line.
    const SCREEN: (usize, usize) = (40, 80);

    fn programs() -> Vec<Command> {
        use crate::cli::{convert, inspect, quantize, verify};
        let all = [convert::command(), quantize::command(), verify::command(), inspect::command()];
        all.into_iter().map(|command| with_pages(command).term_width(SCREEN.1)).collect()
    }

    fn all(command: &mut Command, path: &str, found: &mut Vec<(String, String, String)>) {
        let path = format!("{path} {}", command.get_name()).trim().to_owned();
        let mut own = command.clone().term_width(SCREEN.1).bin_name(path.clone());
        found.push((path.clone(), own.render_help().to_string(), own.render_long_help().to_string()));
        for sub in command.get_subcommands_mut() {
            all(sub, &path, found);
        }
    }

    fn texts() -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for mut command in programs() {
            command.build();
            all(&mut command, "", &mut found);
        }
        found.retain(|(path, ..)| !path.contains(" help"));
        found
    }

    #[test]
    fn the_short_help_of_every_command_fits_a_screen() {
        let mut n = 0;
        for (path, short, _) in texts() {
            assert!(short.lines().count() <= SCREEN.0, "{path}: {} lines\n{short}", short.lines().count());
            n += 1;
        }
        assert!(n >= 30, "{n} commands");
    }

    #[test]
    fn no_line_is_wider_than_a_screen_and_none_falls_back_to_its_edge() {
        for (path, short, long) in texts() {
            for text in [short, long] {
                for line in text.lines() {
                    assert!(line.chars().count() <= SCREEN.1, "{path}: {line}");
                }
            }
        }
    }

    #[test]
    fn pages_name_options_that_are_there_and_examples_that_parse() {
        let commands = programs();
        for page in PAGES {
            let [program, subs @ ..] = page.path else { panic!("a page without a program") };
            let mut command = commands.iter().find(|command| command.get_name() == *program).unwrap();
            for sub in subs {
                command = command.get_subcommands().find(|own| own.get_name() == *sub).unwrap();
            }
            for (id, _) in page.shown {
                assert!(
                    command.get_arguments().any(|arg| arg.get_id() == *id),
                    "{:?}: no option `{id}`",
                    page.path
                );
            }
            assert_eq!(page.examples.len(), 3, "{:?}", page.path);
            for example in page.examples {
                let line = example.split(" #").next().unwrap_or_default();
                let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
                let program = commands.iter().find(|command| command.get_name() == words[0]).unwrap();
                if words.get(1).is_some_and(|word| word.starts_with("./") && words[0] == "gguf-convert") {
                    words.insert(1, "hf2gguf");
                }
                let words = words.into_iter().map(std::ffi::OsString::from).collect();
                let words = crate::cli::verify::models_first(words);
                let parsed = program.clone().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }
}
