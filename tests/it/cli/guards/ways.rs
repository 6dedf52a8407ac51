//! Command lines for every command that writes, with everything that it reads.

/// Command line with all inputs; outputs are appended.
pub(super) struct Way {
    pub(super) command: &'static str,
    pub(super) args: &'static str,
    /// Positional arguments that are read, by their names in the table.
    pub(super) positional: &'static [&'static str],
    pub(super) outputs: &'static [Out],
}

/// Option that names an output.
pub(super) struct Out {
    pub(super) name: &'static str,
    pub(super) option: &'static str,
    /// Required suffix of names.
    pub(super) suffix: &'static str,
    /// File of the kind that is written, if the workbench has one.
    pub(super) own: &'static [&'static str],
}

const MODELS: &[&str] = &["tiny.gguf", "base.gguf"];
const MODEL: &[Out] = &[Out { name: "output", option: "-o", suffix: "", own: MODELS }];
const INTO: &[Out] = &[Out { name: "into", option: "--into", suffix: "", own: MODELS }];
const IMATRIX: &[Out] = &[Out { name: "output", option: "-o", suffix: "", own: &["m.imatrix", "m.dat"] }];
const WRITE_TYPES: &[Out] = &[Out { name: "write_types", option: "--write-types", suffix: "", own: &[] }];
const WORK_DIR: &[Out] = &[Out { name: "work_dir", option: "--work-dir", suffix: "/", own: &[] }];
const DIR: &[Out] = &[Out { name: "output", option: "-o", suffix: "/", own: &[] }];
const FILE: &[Out] = &[Out { name: "output", option: "-o", suffix: "", own: &[] }];
const ARGUMENT: &[Out] = &[Out { name: "arguments", option: "", suffix: "", own: MODELS }];
const RECIPE: &[Out] = &[Out { name: "output", option: "-o", suffix: "", own: &["base.recipe"] }];

/// Arguments of a conversion, and those of a calibration with a text.
macro_rules! calibrated {
    ($arguments:literal) => {
        concat!($arguments, " --calibrate long.txt --no-self-text --calibrate-tokens 1024 -o out.gguf")
    };
}

const fn way(
    command: &'static str,
    args: &'static str,
    positional: &'static [&'static str],
    outputs: &'static [Out],
) -> Way {
    Way { command, args, positional, outputs }
}

pub(super) const WAYS: &[Way] = &[
    way(
        "gguf-convert hf2gguf",
        "hf2gguf model --type q4_0 --card card.toml --metadata meta.json --chat-template chat.jinja \
         --imatrix tiny.imatrix --tensor-type-file rules.txt",
        &["dir"],
        MODEL,
    ),
    way(
        "gguf-convert hf2gguf",
        "hf2gguf model --type f16 --card card.toml --metadata meta.json --chat-template chat.jinja",
        &["dir"],
        MODEL,
    ),
    way(
        "gguf-convert msmodelslim2gguf",
        "msmodelslim2gguf ms --type q4_0 --card card.toml --metadata meta.json --chat-template chat.jinja \
         --imatrix tiny.imatrix --tensor-type-file rules.txt",
        &["dir"],
        MODEL,
    ),
    way(
        "gguf-convert flm2gguf",
        "flm2gguf flm/model.flm --type f16 --config meta.json --card card.toml --metadata meta.json --chat-template chat.jinja",
        &["file"],
        MODEL,
    ),
    way(
        "gguf-convert flm2gguf",
        "flm2gguf flm/model.flm --type q4_0 --tensor-type-file rules.txt --imatrix m.imatrix",
        &["file"],
        MODEL,
    ),
    // A part of one file that several runs write: the only part, so that the file exists in the end.
    way("gguf-convert hf2gguf", "hf2gguf model --type f16 --part 1/1", &["dir"], INTO),
    way("gguf-convert msmodelslim2gguf", "msmodelslim2gguf ms --type q4_0 --part 1/1", &["dir"], INTO),
    way("gguf-convert flm2gguf", "flm2gguf flm/model.flm --type f16 --part 1/1", &["file"], INTO),
    way("gguf-quantize", "--type q4_0 --part 1/1 tiny.gguf", &["arguments"], INTO),
    // Types of another file.
    way("gguf-quantize", "--like s-00001-of-00002.gguf tiny.gguf", &["arguments"], ARGUMENT),
    way("gguf-convert hf2gguf", "hf2gguf model --like s-00001-of-00002.gguf", &["dir"], MODEL),
    way("gguf-convert msmodelslim2gguf", "msmodelslim2gguf ms --like tiny.gguf", &["dir"], MODEL),
    way("gguf-convert flm2gguf", "flm2gguf flm/model.flm --like tiny.gguf", &["file"], MODEL),
    way("gguf-convert merge-lora", "merge-lora model adapter --like tiny.gguf", &["base", "adapter"], MODEL),
    // Calibrated, directly from each kind of checkpoint.
    way(
        "gguf-convert hf2gguf",
        calibrated!("hf2gguf model --type q4_0 --solver reference"),
        &["dir"],
        WORK_DIR,
    ),
    way(
        "gguf-convert msmodelslim2gguf",
        calibrated!("msmodelslim2gguf ms --type q4_0 --solver reference"),
        &["dir"],
        WORK_DIR,
    ),
    way(
        "gguf-convert flm2gguf",
        calibrated!("flm2gguf flm/model.flm --type q4_0 --solver reference"),
        &["file"],
        WORK_DIR,
    ),
    way(
        "gguf-convert hf2gguf",
        "hf2gguf model --type q4_0 --solver reference --calibrate long.txt --no-self-text \
         --calibrate-tokens 1024 --check-text check.txt",
        &["dir"],
        MODEL,
    ),
    way(
        "gguf-convert msmodelslim2gguf",
        "msmodelslim2gguf ms --type q4_0 --solver reference --calibrate long.txt --no-self-text \
         --calibrate-tokens 1024 --check-text check.txt",
        &["dir"],
        MODEL,
    ),
    way(
        "gguf-convert flm2gguf",
        "flm2gguf flm/model.flm --type q4_0 --calibrate long.txt --calibrate-tokens 1024 \
         --check-text check.txt",
        &["file"],
        MODEL,
    ),
    way("gguf-convert hf2gguf", "hf2gguf model --type q4_k_m --dry-run", &["dir"], WRITE_TYPES),
    way(
        "gguf-convert msmodelslim2gguf",
        "msmodelslim2gguf ms --type q4_k_m --dry-run",
        &["dir"],
        WRITE_TYPES,
    ),
    way("gguf-convert flm2gguf", "flm2gguf flm/model.flm --type q4_k_m --dry-run", &["file"], WRITE_TYPES),
    way(
        "gguf-convert lora2gguf",
        "lora2gguf adapter --base model --card card.toml --metadata meta.json",
        &["dir"],
        MODEL,
    ),
    way(
        "gguf-convert merge-lora",
        "merge-lora model adapter --type q4_0 --card card.toml --metadata meta.json --chat-template chat.jinja \
         --imatrix tiny.imatrix --tensor-type-file rules.txt",
        &["base", "adapter"],
        MODEL,
    ),
    way(
        "gguf-convert merge-lora",
        "merge-lora model adapter --type q4_0 --solver reference --calibrate long.txt --no-self-text \
         --calibrate-tokens 1024 --check-text check.txt -o out.gguf",
        &["base", "adapter"],
        WORK_DIR,
    ),
    way(
        "gguf-convert merge-lora",
        "merge-lora model adapter --type f16 --part 1/1",
        &["base", "adapter"],
        INTO,
    ),
    way(
        "gguf-convert merge-lora",
        "merge-lora model adapter --type q4_k_m --dry-run",
        &["base", "adapter"],
        WRITE_TYPES,
    ),
    way("gguf-quantize", "--type q4_0 --tensor-type-file rules.txt model", &["arguments"], ARGUMENT),
    way("gguf-convert gguf2hf", "gguf2hf tiny.gguf --card card.toml", &["file"], DIR),
    way("gguf-convert draft", "draft model", &["dir"], FILE),
    way(
        "gguf-quantize",
        "--type q4_0 --imatrix tiny.imatrix --tensor-type-file rules.txt s-00001-of-00002.gguf",
        &["arguments"],
        ARGUMENT,
    ),
    way(
        "gguf-quantize",
        "--type q4_0 --imatrix tiny.imatrix --tensor-type-file rules.txt s-00001-of-00002.gguf",
        &["arguments"],
        WRITE_TYPES,
    ),
    way(
        "gguf-quantize",
        "--type q4_0 --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt \
         tiny.gguf",
        &["arguments"],
        ARGUMENT,
    ),
    way(
        "gguf-quantize",
        "--type q4_0 --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt \
         tiny.gguf",
        &["arguments"],
        WORK_DIR,
    ),
    way(
        "gguf-quantize ladder",
        "ladder --types q4_0 --calibration long.txt --verify p.jsonl --template chat.jinja base.gguf",
        &["source"],
        DIR,
    ),
    way(
        "gguf-quantize ladder",
        "ladder --types q4_0 --imatrix m.imatrix --tensor-type-file rules.txt base.gguf",
        &["source"],
        DIR,
    ),
    way(
        "gguf-quantize ladder",
        "ladder --types q4_0 --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt \
         tiny.gguf -o out",
        &["source"],
        WORK_DIR,
    ),
    way("gguf-quantize recipe", "recipe base.gguf --source base.gguf --imatrix m.imatrix", &["file"], RECIPE),
    way(
        "gguf-quantize rebuild",
        "rebuild base.recipe --source base.gguf --imatrix m.imatrix",
        &["recipe"],
        MODEL,
    ),
    way(
        "gguf-verify",
        "base.gguf a.gguf --baseline base.gguf --imatrix m.imatrix --prompts p.jsonl --ctx 8 --source model --tasks 1 \
         --against old.json --hellaswag hellaswag.txt --winogrande winogrande.csv --multiple-choice multiple-choice.bin",
        &["models"],
        &[
            Out { name: "per_token", option: "--per-token", suffix: "", own: &[] },
            Out { name: "save_baseline", option: "--save-baseline", suffix: "", own: &["base.logits"] },
            Out { name: "report", option: "--report", suffix: ".html", own: &[] },
            Out { name: "report", option: "--report", suffix: ".md", own: &[] },
            Out { name: "report", option: "--report", suffix: ".json", own: &[] },
            Out { name: "report", option: "--report", suffix: ".csv", own: &[] },
            Out { name: "junit", option: "--junit", suffix: "", own: &[] },
        ],
    ),
    // A checkpoint as a model, parts of a split one, and a file of logits as the baseline.
    way(
        "gguf-verify",
        "model s-00001-of-00002.gguf --baseline base.logits --ctx 8",
        &["models"],
        &[
            Out { name: "per_token", option: "--per-token", suffix: "", own: &[] },
            Out { name: "report", option: "--report", suffix: ".json", own: &[] },
        ],
    ),
    way(
        "gguf-verify",
        "base.gguf --baseline model --adapter adapter --card card.toml --prompts p.jsonl --ctx 8",
        &["models"],
        &[Out { name: "per_token", option: "--per-token", suffix: "", own: &[] }],
    ),
    way(
        "gguf-verify",
        "base.gguf --baseline a.gguf --prompts p.jsonl --ctx 8 --source model --part 1/1",
        &["models"],
        &[Out { name: "output", option: "-o", suffix: "", own: &["whole.part"] }],
    ),
    way("gguf-verify combine", "combine m-1.part m-2.part", &["parts"], IMATRIX),
    way("gguf-verify combine", "combine m.imatrix m.dat --ctx 8", &["parts"], IMATRIX),
    way("gguf-verify imatrix", "imatrix base.gguf --prompts p.jsonl --ctx 4 --part 1/2", &["model"], IMATRIX),
    way("gguf-verify logits", "logits base.gguf --prompts p.jsonl", &["model"], FILE),
    way(
        "gguf-verify imatrix",
        "imatrix base.gguf --prompts p.jsonl --ctx 8 --in-file m.imatrix",
        &["model"],
        IMATRIX,
    ),
    way(
        "gguf-verify imatrix",
        "imatrix base.gguf --prompts p.jsonl --ctx 8 --in-file m.imatrix --legacy",
        &["model"],
        IMATRIX,
    ),
    way("gguf-verify imatrix merge", "imatrix merge m.imatrix m.dat", &["files"], IMATRIX),
    way(
        "gguf-inspect set",
        "set s-00001-of-00002.gguf general.name=@value.txt",
        &["file", "assignments"],
        MODEL,
    ),
    way("gguf-inspect remove", "remove s-00001-of-00002.gguf general.name", &["file"], MODEL),
    way("gguf-inspect rename", "rename base.gguf token_embd.weight=x --force", &["file"], MODEL),
    way("gguf-inspect drop", "drop base.gguf ^token_embd --force", &["file"], MODEL),
    way("gguf-inspect template", "template s-00001-of-00002.gguf --set chat.jinja", &["file"], MODEL),
    way("gguf-convert endian", "endian s-00001-of-00002.gguf", &["file"], MODEL),
    way("gguf-inspect merge", "merge s-00001-of-00002.gguf", &["files"], MODEL),
];
