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
    /// Name in the table.
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
const SAVE_STATS: &[Out] = &[Out { name: "save_stats", option: "--save-stats", suffix: "/", own: &[] }];

pub(super) const WAYS: &[Way] = &[
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type q4_0 --card card.toml --metadata meta.json --chat-template chat.jinja \
               --imatrix tiny.imatrix --tensor-type-file rules.txt",
        positional: &["dir"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type f16 --card card.toml --metadata meta.json --chat-template chat.jinja",
        positional: &["dir"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert msmodelslim2gguf",
        args: "msmodelslim2gguf ms --type q4_0 --card card.toml --metadata meta.json --chat-template chat.jinja \
               --imatrix tiny.imatrix --tensor-type-file rules.txt",
        positional: &["dir"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type f16 --card card.toml --metadata meta.json --chat-template chat.jinja",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type q4_0 --tensor-type-file rules.txt --imatrix m.imatrix",
        positional: &["file"],
        outputs: MODEL,
    },
    // A part of one file that several runs write: the only part, so that the file exists in the end.
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type f16 --part 1/1",
        positional: &["dir"],
        outputs: INTO,
    },
    Way {
        command: "gguf-convert msmodelslim2gguf",
        args: "msmodelslim2gguf ms --type q4_0 --part 1/1",
        positional: &["dir"],
        outputs: INTO,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type f16 --part 1/1",
        positional: &["file"],
        outputs: INTO,
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --part 1/1 tiny.gguf",
        positional: &["arguments"],
        outputs: INTO,
    },
    // Calibrated, directly from each kind of checkpoint.
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type q4_0 --solver reference --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["dir"],
        outputs: WORK_DIR,
    },
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type q4_0 --solver gptq --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["dir"],
        outputs: SAVE_STATS,
    },
    Way {
        command: "gguf-convert msmodelslim2gguf",
        args: "msmodelslim2gguf ms --type q4_0 --solver reference --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["dir"],
        outputs: WORK_DIR,
    },
    Way {
        command: "gguf-convert msmodelslim2gguf",
        args: "msmodelslim2gguf ms --type q4_0 --solver gptq --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["dir"],
        outputs: SAVE_STATS,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type q4_0 --solver reference --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["file"],
        outputs: WORK_DIR,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type q4_0 --solver gptq --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["file"],
        outputs: SAVE_STATS,
    },
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type q4_0 --solver reference --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 --check-text check.txt",
        positional: &["dir"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert msmodelslim2gguf",
        args: "msmodelslim2gguf ms --type q4_0 --solver reference --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 --check-text check.txt",
        positional: &["dir"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type q4_0 --calibrate long.txt --calibrate-tokens 1024 \
               --check-text check.txt",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert hf2gguf",
        args: "hf2gguf model --type q4_k_m --dry-run",
        positional: &["dir"],
        outputs: WRITE_TYPES,
    },
    Way {
        command: "gguf-convert msmodelslim2gguf",
        args: "msmodelslim2gguf ms --type q4_k_m --dry-run",
        positional: &["dir"],
        outputs: WRITE_TYPES,
    },
    Way {
        command: "gguf-convert flm2gguf",
        args: "flm2gguf flm/model.flm --type q4_k_m --dry-run",
        positional: &["file"],
        outputs: WRITE_TYPES,
    },
    Way {
        command: "gguf-convert lora2gguf",
        args: "lora2gguf adapter --base model --card card.toml",
        positional: &["dir"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert merge-lora",
        args: "merge-lora model adapter --type q4_0 --card card.toml --metadata meta.json --chat-template chat.jinja \
               --imatrix tiny.imatrix --tensor-type-file rules.txt",
        positional: &["base", "adapter"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert merge-lora",
        args: "merge-lora model adapter --type q4_0 --solver reference --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 --check-text check.txt -o out.gguf",
        positional: &["base", "adapter"],
        outputs: WORK_DIR,
    },
    Way {
        command: "gguf-convert merge-lora",
        args: "merge-lora model adapter --type q4_0 --solver gptq --calibrate long.txt --no-self-text \
               --calibrate-tokens 1024 -o out.gguf",
        positional: &["base", "adapter"],
        outputs: SAVE_STATS,
    },
    Way {
        command: "gguf-convert merge-lora",
        args: "merge-lora model adapter --type f16 --part 1/1",
        positional: &["base", "adapter"],
        outputs: INTO,
    },
    Way {
        command: "gguf-convert merge-lora",
        args: "merge-lora model adapter --type q4_k_m --dry-run",
        positional: &["base", "adapter"],
        outputs: WRITE_TYPES,
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --tensor-type-file rules.txt model",
        positional: &["arguments"],
        outputs: &[Out { name: "arguments", option: "", suffix: "", own: MODELS }],
    },
    Way {
        command: "gguf-convert gguf2hf",
        args: "gguf2hf tiny.gguf --card card.toml",
        positional: &["file"],
        outputs: &[Out { name: "output", option: "-o", suffix: "/", own: &[] }],
    },
    Way {
        command: "gguf-convert draft",
        args: "draft model",
        positional: &["dir"],
        outputs: &[Out { name: "output", option: "-o", suffix: "", own: &[] }],
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --imatrix tiny.imatrix --tensor-type-file rules.txt s-00001-of-00002.gguf",
        positional: &["arguments"],
        outputs: &[Out { name: "arguments", option: "", suffix: "", own: MODELS }],
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --imatrix tiny.imatrix --tensor-type-file rules.txt s-00001-of-00002.gguf",
        positional: &["arguments"],
        outputs: WRITE_TYPES,
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt \
               tiny.gguf",
        positional: &["arguments"],
        outputs: &[Out { name: "arguments", option: "", suffix: "", own: MODELS }],
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt \
               tiny.gguf",
        positional: &["arguments"],
        outputs: WORK_DIR,
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt \
               --solver gptq tiny.gguf",
        positional: &["arguments"],
        outputs: SAVE_STATS,
    },
    Way {
        command: "gguf-quantize stats",
        args: "stats --calibrate long.txt --no-self-text --calibrate-tokens 1024 --check-text check.txt tiny.gguf",
        positional: &["model"],
        outputs: &[Out { name: "output", option: "-o", suffix: "/", own: &[] }],
    },
    Way {
        command: "gguf-quantize",
        args: "--type q4_0 --stats stats --solver gptq tiny.gguf",
        positional: &["arguments"],
        outputs: &[Out { name: "arguments", option: "", suffix: "", own: MODELS }],
    },
    Way {
        command: "gguf-verify",
        args: "base.gguf a.gguf --baseline base.gguf --prompts p.jsonl --ctx 8 --source model --tasks 1 \
               --hellaswag hellaswag.txt --winogrande winogrande.csv --multiple-choice multiple-choice.bin",
        positional: &["models"],
        outputs: &[
            Out { name: "per_token", option: "--per-token", suffix: "", own: &[] },
            Out { name: "save_baseline", option: "--save-baseline", suffix: "", own: &["base.logits"] },
            Out { name: "report", option: "--report", suffix: ".html", own: &[] },
            Out { name: "report", option: "--report", suffix: ".md", own: &[] },
            Out { name: "report", option: "--report", suffix: ".json", own: &[] },
        ],
    },
    // A checkpoint as a model, parts of a split one, and a file of logits as the baseline.
    Way {
        command: "gguf-verify",
        args: "model s-00001-of-00002.gguf --baseline base.logits --ctx 8",
        positional: &["models"],
        outputs: &[
            Out { name: "per_token", option: "--per-token", suffix: "", own: &[] },
            Out { name: "report", option: "--report", suffix: ".json", own: &[] },
        ],
    },
    Way {
        command: "gguf-verify",
        args: "base.gguf --baseline a.gguf --prompts p.jsonl --ctx 8 --source model --part 1/1",
        positional: &["models"],
        outputs: &[Out { name: "output", option: "-o", suffix: "", own: &["whole.part"] }],
    },
    Way {
        command: "gguf-verify combine",
        args: "combine m-1.part m-2.part",
        positional: &["parts"],
        outputs: IMATRIX,
    },
    Way {
        command: "gguf-verify combine",
        args: "combine m.imatrix m.dat --ctx 8",
        positional: &["parts"],
        outputs: IMATRIX,
    },
    Way {
        command: "gguf-verify imatrix",
        args: "imatrix base.gguf --prompts p.jsonl --ctx 4 --part 1/2",
        positional: &["model"],
        outputs: IMATRIX,
    },
    Way {
        command: "gguf-verify logits",
        args: "logits base.gguf --prompts p.jsonl",
        positional: &["model"],
        outputs: &[Out { name: "output", option: "-o", suffix: "", own: &[] }],
    },
    Way {
        command: "gguf-verify imatrix",
        args: "imatrix base.gguf --prompts p.jsonl --ctx 8 --in-file m.imatrix",
        positional: &["model"],
        outputs: IMATRIX,
    },
    Way {
        command: "gguf-verify imatrix",
        args: "imatrix base.gguf --prompts p.jsonl --ctx 8 --in-file m.imatrix --legacy",
        positional: &["model"],
        outputs: IMATRIX,
    },
    Way {
        command: "gguf-verify imatrix merge",
        args: "imatrix merge m.imatrix m.dat",
        positional: &["files"],
        outputs: IMATRIX,
    },
    Way {
        command: "gguf-inspect set",
        args: "set s-00001-of-00002.gguf general.name=@value.txt",
        positional: &["file", "assignments"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-inspect remove",
        args: "remove s-00001-of-00002.gguf general.name",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-inspect rename",
        args: "rename base.gguf token_embd.weight=x --force",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-inspect drop",
        args: "drop base.gguf ^token_embd --force",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-inspect template",
        args: "template s-00001-of-00002.gguf --set chat.jinja",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-convert endian",
        args: "endian s-00001-of-00002.gguf",
        positional: &["file"],
        outputs: MODEL,
    },
    Way {
        command: "gguf-inspect merge",
        args: "merge s-00001-of-00002.gguf",
        positional: &["files"],
        outputs: MODEL,
    },
];
