//! Contents of the short help texts: a page for every program and command.

/// Short help of a command.
pub(super) struct Page {
    /// Names of the program and its commands.
    pub(super) path: &'static [&'static str],
    /// What a program is for, and the command line of each task.
    pub(super) tasks: &'static [(&'static str, &'static str)],
    /// Ids of options and arguments, with a line each; if there are none, the page shows all with their own texts.
    pub(super) shown: &'static [(&'static str, &'static str)],
    pub(super) examples: &'static [&'static str],
}

/// One-line descriptions of subcommands whose own sentence is longer.
pub(super) const ABOUT: [(&str, &str); 19] = [
    ("msmodelslim2gguf", "Convert a checkpoint of Ascend's msModelSlim to GGUF"),
    ("merge-lora", "Merge a LoRA adapter into its base model, as GGUF"),
    ("archs", "List the architectures that can be converted"),
    ("draft", "Write a first card for a new architecture"),
    ("completions", "Print a script for completion in a shell"),
    ("ladder", "Write many types of a model from one reading"),
    ("recipe", "Find out how a quantized file was made"),
    ("rebuild", "Make a file again from its recipe"),
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

pub(super) const PAGES: &[Page] = &[
    Page {
        path: &["gguf-convert"],
        tasks: &[
            ("a checkpoint to GGUF", "hf2gguf DIR, or only DIR"),
            ("one of msModelSlim", "msmodelslim2gguf DIR"),
            ("a FastLLM file", "flm2gguf FILE"),
            ("a LoRA adapter", "lora2gguf DIR, merge-lora BASE DIR"),
            ("GGUF to Hugging Face", "gguf2hf FILE"),
            ("another byte order", "endian FILE"),
            ("what can be converted", "archs"),
            ("a new architecture", "draft DIR"),
            ("completion in a shell", "completions SHELL"),
        ],
        shown: &[],
        examples: &[
            "gguf-convert hf2gguf ./Llama-3.2-1B -o llama-f16.gguf --type f16",
            "gguf-convert ./Llama-3.2-1B --type q4_k_m     # same as hf2gguf",
            "gguf-convert lora2gguf ./adapter --base ./Llama-3.2-1B",
        ],
    },
    Page {
        path: &["gguf-convert", "hf2gguf"],
        tasks: &[],
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
        tasks: &[],
        shown: &[("dir", "Directory of the checkpoint"), OUTPUT, TYPE, IMATRIX, DRY_RUN],
        examples: &[
            "gguf-convert msmodelslim2gguf ./Qwen3-8B-w8a8",
            "gguf-convert msmodelslim2gguf ./Qwen3-8B-w8a8 --type q8_0",
            "gguf-convert msmodelslim2gguf ./Qwen3-8B-w8a8 --dry-run",
        ],
    },
    Page {
        path: &["gguf-convert", "flm2gguf"],
        tasks: &[],
        shown: &[("file", "FastLLM file"), OUTPUT, TYPE, IMATRIX, DRY_RUN],
        examples: &[
            "gguf-convert flm2gguf chatglm.flm",
            "gguf-convert flm2gguf chatglm.flm -o chatglm-f16.gguf --type f16",
            "gguf-convert flm2gguf chatglm.flm --dry-run",
        ],
    },
    Page {
        path: &["gguf-convert", "merge-lora"],
        tasks: &[],
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
        tasks: &[],
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
        tasks: &[
            ("one file", "IN [OUT] TYPE"),
            ("many types of a model", "ladder IN -o DIR"),
            ("how a file was made", "recipe FILE --source IN, rebuild RECIPE"),
            ("completion in a shell", "completions SHELL"),
        ],
        shown: &[
            ("file_type", "Type: q8_0, q6_k, q4_k_m, ... (see --help)"),
            IMATRIX,
            CALIBRATE,
            TARGET,
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
        tasks: &[],
        shown: &[
            ("source", "GGUF file, checkpoint, or ORG/NAME"),
            ("output", "Folder for the files"),
            ("types", "Types: q8_0,q6_k,q4_k_m,..."),
            ("preset", "small, standard or full"),
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
        tasks: &[],
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
        tasks: &[],
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
        path: &["gguf-verify"],
        tasks: &[
            ("is a file intact?", "MODEL, with --baseline for its quality"),
            ("an importance matrix", "imatrix MODEL --prompts TEXT -o FILE"),
            ("scores of next tokens", "logits MODEL --prompts TEXT"),
            ("results of --part", "combine PARTS"),
            ("completion in a shell", "completions SHELL"),
        ],
        shown: &[
            ("prompts", "Text or chats to score"),
            ("baseline", "Checkpoint or file to compare with"),
            ("report", "Write a report: .html, .md, .json or .csv"),
            ("min-quality", "near-lossless, very-good, good or fair"),
            ("max-kld", "Highest mean divergence that passes"),
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
        tasks: &[],
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
        tasks: &[],
        shown: &[("model", "The model"), ("prompts", "Prompts"), ("output", "File to write")],
        examples: &[
            "gguf-verify logits model.gguf --prompts prompts.jsonl",
            "gguf-verify logits model.gguf --prompts prompts.jsonl -o out.jsonl",
            "gguf-verify logits ./Llama-3.2-1B --prompts prompts.jsonl",
        ],
    },
    Page {
        path: &["gguf-verify", "combine"],
        tasks: &[],
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
            "gguf-verify combine part-* --max-kld 0.01",
        ],
    },
    Page {
        path: &["gguf-inspect"],
        tasks: &[
            ("describe a file", "FILE"),
            ("describe a checkpoint", "checkpoint DIR"),
            ("keys", "get, set, remove"),
            ("tensors", "rename, drop"),
            ("chat template", "template"),
            ("compare two files", "diff A B"),
            ("checksums", "hash"),
            ("memory of a context", "memory"),
            ("Markdown or JSON", "dump"),
            ("parts of a model", "split, merge"),
            ("completion in a shell", "completions SHELL"),
        ],
        shown: &[],
        examples: &[
            "gguf-inspect model.gguf",
            "gguf-inspect diff a.gguf b.gguf",
            "gguf-inspect set model.gguf general.name=Llama",
        ],
    },
    Page {
        path: &["gguf-convert", "gguf2hf"],
        tasks: &[],
        shown: &[],
        examples: &[
            "gguf-convert gguf2hf model-f16.gguf -o model-hf",
            "gguf-convert gguf2hf model-f16.gguf -o model-hf --type bf16",
        ],
    },
    Page {
        path: &["gguf-convert", "archs"],
        tasks: &[],
        shown: &[],
        examples: &[
            "gguf-convert archs",
            "gguf-convert archs qwen3moe",
            "gguf-convert archs LlamaForCausalLM",
        ],
    },
    Page {
        path: &["gguf-convert", "draft"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-convert draft ./NewModel-7B -o newmodel.toml"],
    },
    Page {
        path: &["gguf-convert", "endian"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-convert endian model.gguf -o model-be.gguf --to big"],
    },
    Page {
        path: &["gguf-convert", "completions"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-convert completions bash > ~/.gguf-convert.bash"],
    },
    Page {
        path: &["gguf-quantize", "completions"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-quantize completions bash > ~/.gguf-quantize.bash"],
    },
    Page {
        path: &["gguf-verify", "completions"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-verify completions bash > ~/.gguf-verify.bash"],
    },
    Page {
        path: &["gguf-inspect", "completions"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect completions bash > ~/.gguf-inspect.bash"],
    },
    Page {
        path: &["gguf-verify", "imatrix", "merge"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-verify imatrix merge a.gguf b.gguf -o both.gguf"],
    },
    Page {
        path: &["gguf-verify", "imatrix", "show"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-verify imatrix show im.gguf"],
    },
    Page {
        path: &["gguf-inspect", "get"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect get model.gguf general.name"],
    },
    Page {
        path: &["gguf-inspect", "set"],
        tasks: &[],
        shown: &[],
        examples: &[
            "gguf-inspect set model.gguf general.name=Llama",
            "gguf-inspect set model.gguf tokenizer.ggml.eos_token_id=2",
            "gguf-inspect set model.gguf --special eos='<|im_end|>' -o new.gguf",
        ],
    },
    Page {
        path: &["gguf-inspect", "remove"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect remove model.gguf general.url"],
    },
    Page {
        path: &["gguf-inspect", "rename"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect rename model.gguf blk.0.a.weight=blk.0.b.weight"],
    },
    Page {
        path: &["gguf-inspect", "drop"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect drop model.gguf '^v' -o text.gguf"],
    },
    Page {
        path: &["gguf-inspect", "template"],
        tasks: &[],
        shown: &[
            ("file", "File, or any part of a split model"),
            ("set", "Replace all templates by this Jinja or .json file"),
            ("render", "Print a chat as the template writes it: user, turns, tools, or a JSON file"),
            ("name", "Print the template of this name"),
            ("output", "Write another file instead"),
            ("dry_run", "Show what would change and write nothing"),
        ],
        examples: &[
            "gguf-inspect template model.gguf > chat.jinja",
            "gguf-inspect template model.gguf --set chat.jinja",
            "gguf-inspect template model.gguf --render turns",
        ],
    },
    Page {
        path: &["gguf-inspect", "diff"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect diff a.gguf b.gguf", "gguf-inspect diff a.gguf b.gguf --no-data"],
    },
    Page {
        path: &["gguf-inspect", "dump"],
        tasks: &[],
        shown: &[],
        examples: &[
            "gguf-inspect dump model.gguf --markdown > model.md",
            "gguf-inspect dump model.gguf --json",
        ],
    },
    Page {
        path: &["gguf-inspect", "hash"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect hash model.gguf"],
    },
    Page {
        path: &["gguf-inspect", "memory"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect memory model.gguf --ctx 8192,32768 --kv q8_0"],
    },
    Page {
        path: &["gguf-inspect", "split"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect split model.gguf -o part --split-max-size 2G"],
    },
    Page {
        path: &["gguf-inspect", "merge"],
        tasks: &[],
        shown: &[],
        examples: &["gguf-inspect merge part-00001-of-00003.gguf -o model.gguf"],
    },
    Page {
        path: &["gguf-inspect", "checkpoint"],
        tasks: &[],
        shown: &[
            ("path", "Directory, file, or a model on a server: ORG/NAME"),
            ("tensors", "List every tensor as it is stored"),
            ("account", "Print what becomes of each file, key and tensor, and why"),
            ("card", "Use an architecture card from a file"),
        ],
        examples: &[
            "gguf-inspect checkpoint ./Llama-3.2-1B",
            "gguf-inspect checkpoint Qwen/Qwen3-0.6B --account",
        ],
    },
];
