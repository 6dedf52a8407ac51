//! Command lines that people type and that mean something else here: the offers after an error.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use regex::bytes::{Regex, RegexBuilder};

use crate::core::GgmlType;
use crate::core::similar::{did_you_mean, meant};
use crate::gguf::FileType;

/// Form of a command line, as an expression in which TYPE is any file type, QTYPE any but the floats; and the line that is
/// meant, or advice that begins with `:`. The first form that fits is used.
const FORMS: [(&str, &str); 20] = [
    (r" -(?: |$)", ":`-` is the name of a file here: nothing is read from standard input"),
    (r"^gguf-quantize (TYPE) (\S+)( \S+)?$", "gguf-quantize $2$3 $1"),
    (r"^gguf-convert (\S+\.gguf)(?: .*)? --(?:type|outtype)[ =](TYPE)( .*)?$", "gguf-quantize $1 --type $2"),
    (
        r"^gguf-convert gguf2hf (\S+\.gguf)(?: .*)? --(?:type|outtype)[ =](QTYPE)( .*)?$",
        "gguf-quantize $1 --type $2",
    ),
    (r"^(gguf-convert|gguf-quantize)( hf2gguf)? ([\w.-]+/[\w.-]+):(TYPE)( .*)?$", "$1$2 $3$5 --type $4"),
    (r"^gguf-(?:inspect|verify) (?:\w+ )?[\w.-]+/[\w.-]+:TYPE\b", ":name the file: ORG/NAME/FILE.gguf"),
    (
        r"^gguf-(?:quantize|convert)(?: hf2gguf)? ([^- ]\S*)(?: .*)? (?:--\w+=)?(TYPE(?:,TYPE)+)( .*)?$",
        "gguf-quantize ladder $1 -o DIR --types $2",
    ),
    (r"^(gguf-convert merge-lora.*) --base[ =](\S+)(.*) --(?:lora|adapter)[ =](\S+)(.*)$", "$1 $2 $4$3$5"),
    (r"^(gguf-convert merge-lora.*) --(?:lora|adapter)[ =](\S+)(.*) --base[ =](\S+)(.*)$", "$1 $4 $2$3$5"),
    (r"^(gguf-convert merge-lora.*) --(?:lora|adapter)[ =](\S+)(.*)$", "$1 $2$3"),
    (r"^(.* --tensor-type)[ =]([^ ,]+=[^ ,=]+),(.*)$", "$1 $2 --tensor-type $3"),
    (r"(?i)[ =](Q[2456]_K_L|Q3_K_XL)\b", ":`gguf-quantize ladder IN -o DIR --types $1` writes it"),
    (
        r"(?i)[ =,](Q4_0_[48]_[48]|IQ4_NL_[48]_[48])\b",
        ":llama.cpp makes $1 by itself when it loads Q4_0 or IQ4_NL: write `q4_0` or `iq4_nl`",
    ),
    (
        r"(?i)[ =,](IQ[1-6]_(?:KL|KS|KSS|KT|K|BN|TN)(?:_R[48])?|Q6_0|Q8_KV|Q\w+_R[48])(?:[ ,]|$)",
        ":$1 is a type of ik_llama.cpp, and only that program runs it",
    ),
    (
        r"(?i)[ =,](I2_S|I8_S|TL[12])\b",
        ":$1 is a type of BitNet's program; llama.cpp's ternary types are `tq2_0` and `tq1_0`",
    ),
    (r"(?i)[ =,](MXFP4)(?:[ ,]|$)", ":the file type with experts in $1 is `mxfp4_moe`"),
    (
        r"(?i)[ =,](?:(?:FP|FLOAT|BFLOAT)-?(?:16|32)|HALF)(?:[ ,]|$)",
        ":the floats are `f16`, `bf16` and `f32`",
    ),
    (r"(?i)[ =,](FP8|F8_E\w+|INT8|8-?BITS?|W8A8)(?:[ ,]|$)", ":llama.cpp has no $1: of 8 bits it has `q8_0`"),
    (
        r"(?i)[ =,](NF4|FP4|INT4|4-?BITS?|AWQ|GPTQ|EXL[23])(?:[ ,]|$)",
        ":llama.cpp has no $1: of 4 bits it has `q4_k_m` and `iq4_xs`",
    ),
    (
        r"(?i)[ =,](UD-\S+|I?Q\d_\w+_XL)",
        ":$1 is a choice of types that Unsloth makes for each model: `--like FILE` takes it from a file of theirs",
    ),
];

/// Expression of a form for this command line: only the file types that occur in it are read as one, and letters are those
/// of ASCII, since expressions of all types and of all of Unicode take longer than all the rest of a refusal.
fn expression(form: &str, line: &str) -> Option<Regex> {
    let line = line.to_lowercase();
    let is_meant = |ty: &FileType| !form.contains("QTYPE") || ty.base().is_none_or(GgmlType::is_quantized);
    let names = FileType::all()
        .filter(is_meant)
        .flat_map(|file_type| [Some(file_type.name()), file_type.alias()])
        .flatten();
    let names: Vec<String> =
        names.filter(|name| line.contains(&name.to_lowercase())).map(regex::escape).collect();
    if names.is_empty() && form.contains("TYPE") {
        return None;
    }
    let form = form.replace("QTYPE", "TYPE").replace("TYPE", &format!("(?i:{})", names.join("|")));
    RegexBuilder::new(&form).unicode(false).build().ok()
}

/// Returns what a refused command line probably means, as a hint. `arguments` begins with the name of the program.
pub(super) fn offer(program: &Command, arguments: &[OsString]) -> Option<String> {
    let words: Option<Vec<&str>> = arguments.iter().skip(1).map(|word| word.to_str()).collect();
    let words = [vec![program.get_name()], words?].concat();
    let quoted = |line: &str| did_you_mean([line]);
    if let Some(line) = other_command(program, &words) {
        return quoted(&line);
    }
    // Several types to choose from are meant.
    if words.iter().any(|word| ["--target-size", "--target-bpw", "--target-kld"].contains(word)) {
        return None;
    }
    let line = words.join(" ");
    // A command takes its own list of types.
    let is_list = |offer: &str| offer.contains("--types $");
    let has_command = words.get(1).is_some_and(|word| *word != "hf2gguf" && is_command(program, word));
    let (form, offer) = FORMS.iter().find_map(|(form, offer)| {
        let form = expression(form, &line)?;
        let found = form.captures(line.as_bytes())?;
        // The name of a type is no mistake.
        let is_type = offer.starts_with(':')
            && found
                .get(1)
                .and_then(|name| std::str::from_utf8(name.as_bytes()).ok())
                .is_some_and(is_file_type);
        (!(is_type || has_command && is_list(offer))).then_some((form, *offer))
    })?;
    if let Some(advice) = offer.strip_prefix(':') {
        let mut text = Vec::new();
        form.captures(line.as_bytes())?.expand(advice.as_bytes(), &mut text);
        return String::from_utf8(text).ok();
    }
    let replaced = |line: &[u8]| form.replace(line, offer.as_bytes()).into_owned();
    let mut meant = replaced(line.as_bytes());
    // A form that keeps the beginning of the line may occur again in its rest.
    while offer.starts_with('$') && form.is_match(&meant) {
        meant = replaced(&meant);
    }
    quoted(std::str::from_utf8(&meant).ok()?)
}

fn is_file_type(name: &str) -> bool {
    FileType::parse(name).is_some()
}

fn is_command(program: &Command, word: &str) -> bool {
    program.get_subcommands().any(|sub| sub.get_name() == word)
}

/// Returns the line with a command that is spelled right, or that comes before its options.
fn other_command(program: &Command, words: &[&str]) -> Option<String> {
    let is_command = |word: &str| is_command(program, word);
    let first = *words.get(1)?;
    let mut words = words.to_vec();
    if first == "-" {
        return None;
    }
    if first.starts_with('-') {
        let at = words.iter().position(|word| is_command(word));
        let command = match at {
            Some(at) => words.remove(at),
            None if is_command("hf2gguf") => "hf2gguf",
            None => return None,
        };
        words.insert(1, command);
    } else {
        let is_path = first.contains(['/', '.']) || Path::new(first).exists() || is_file_type(first);
        let known = program.get_subcommands().map(Command::get_name);
        let near = if is_path || is_command(first) { Vec::new() } else { meant(first, known) };
        words[1] = near.first()?;
    }
    Some(words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{convert, inspect, quantize, verify};
    use crate::job::ladder::Rung;

    fn offered(line: &str) -> Option<String> {
        let programs = [convert::command(), quantize::command(), verify::command(), inspect::command()];
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let program = programs.iter().find(|program| words[0] == program.get_name()).unwrap();
        offer(program, &words)
    }

    #[test]
    fn what_people_type_is_offered_as_it_is_meant() {
        assert!(
            FORMS.iter().all(|(form, _)| expression(form, "q4_0").is_some()),
            "an expression is not valid"
        );
        let cases = [
            ("gguf-quantize q4_k_m in.gguf out.gguf", "gguf-quantize in.gguf out.gguf q4_k_m"),
            ("gguf-quantize Q8_0 in.gguf", "gguf-quantize in.gguf Q8_0"),
            ("gguf-convert f.gguf --type q4_0", "gguf-quantize f.gguf --type q4_0"),
            ("gguf-convert f.gguf -o x --type bf16", "gguf-quantize f.gguf --type bf16"),
            ("gguf-convert gguf2hf f.gguf --type q8_0", "gguf-quantize f.gguf --type q8_0"),
            ("gguf-convert f.gguf -o x --outtype=iq3_xxs", "gguf-quantize f.gguf --type iq3_xxs"),
            ("gguf-convert org/name:Q4_K_M", "gguf-convert org/name --type Q4_K_M"),
            ("gguf-quantize org/name:q5_k out.gguf", "gguf-quantize org/name out.gguf --type q5_k"),
            ("gguf-quantize a b --type q4_0,q8_0", "gguf-quantize ladder a -o DIR --types q4_0,q8_0"),
            ("gguf-quantize a q4_0,q8_0,q6_k", "gguf-quantize ladder a -o DIR --types q4_0,q8_0,q6_k"),
            (
                "gguf-quantize a b q4_0 --tensor-type a=q6_k,b=q5_k,c=f16",
                "gguf-quantize a b q4_0 --tensor-type a=q6_k --tensor-type b=q5_k --tensor-type c=f16",
            ),
            ("gguf-convert merge-lora --base b --lora a -o x", "gguf-convert merge-lora b a -o x"),
            ("gguf-convert merge-lora --lora=a --base b", "gguf-convert merge-lora b a"),
            ("gguf-convert merge-lora b --adapter a", "gguf-convert merge-lora b a"),
            ("gguf-inspect dif a b", "gguf-inspect diff a b"),
            ("gguf-verify imatrx m", "gguf-verify imatrix m"),
            ("gguf-quantize ladr m -o x", "gguf-quantize ladder m -o x"),
            ("gguf-convert --type q4_0 hf2gguf d", "gguf-convert hf2gguf --type q4_0 d"),
            ("gguf-convert -o x.gguf d", "gguf-convert hf2gguf -o x.gguf d"),
            ("gguf-verify --legacy imatrix m", "gguf-verify imatrix --legacy m"),
        ];
        for (line, meant) in cases {
            assert_eq!(offered(line), Some(format!("did you mean `{meant}`?")), "{line}");
        }
        for line in ["gguf-quantize a b --type q3_k_l --bogus", "gguf-quantize a b q4_k_m --bogus"] {
            assert_eq!(offered(line), None, "{line}");
        }
        for (line, advice) in [
            ("gguf-quantize a b --type q3_k_xl --bogus", "--types q3_k_xl`"),
            ("gguf-quantize a b UD-Q4_K_XL", "`--like FILE`"),
            ("gguf-quantize a b Q4_K_XL", "`--like FILE`"),
            ("gguf-quantize a b Q4_K_L", "--types Q4_K_L`"),
            ("gguf-quantize a b --type Q4_0_4_8", "write `q4_0`"),
            ("gguf-quantize a b IQ4_KSS 4", "ik_llama.cpp"),
            ("gguf-quantize a b i2_s", "`tq2_0`"),
            ("gguf-quantize a b mxfp4", "`mxfp4_moe`"),
            ("gguf-quantize a b fp16", "`f16`"),
            ("gguf-convert hf2gguf d --outtype=float16", "`f16`"),
            ("gguf-quantize a b FP8", "`q8_0`"),
            ("gguf-quantize a b nf4", "`q4_k_m`"),
            ("gguf-quantize a b awq", "`q4_k_m`"),
            ("gguf-inspect org/name:Q4_K_M", "ORG/NAME/FILE.gguf"),
            ("gguf-quantize - out.gguf q4_0", "standard input"),
            ("gguf-convert -", "standard input"),
            ("gguf-verify m.gguf -f -", "standard input"),
        ] {
            assert!(offered(line).is_some_and(|text| text.contains(advice)), "{line}");
        }
        for name in (2..=8).flat_map(|bits| [format!("Q{bits}_K_L"), format!("Q{bits}_K_XL")]) {
            let told = offered(&format!("gguf-quantize a b {name}"));
            let is_rung = name.parse::<Rung>().is_ok() && FileType::parse(&name).is_none();
            assert_eq!(told.is_some_and(|text| text.contains("ladder")), is_rung, "{name}");
        }
        for line in [
            "gguf-quantize a b --target-kld 0.1 --types q4_0,q8_0",
            "gguf-quantize a b q4_0",
            "gguf-quantize ladder m -o out --types q8_0,q4_k_m",
            "gguf-convert gguf2hf m.gguf -o q8_0,q4_0",
            "gguf-convert gguf2hf m.gguf --type bf16",
            "gguf-inspect zzz",
            "gguf-verify --structure-only m.gguf",
        ] {
            assert_eq!(offered(line), None, "{line}");
        }
    }
}
