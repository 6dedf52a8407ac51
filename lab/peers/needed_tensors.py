#!/usr/bin/env python3
"""Writes crates/gguf-arch/src/judge/needs.json: tensors without which llama.cpp loads no file, and those that it takes.

Usage (needs llama-cpp-python and gguf): needed_tensors.py GGUF_CONVERT CORPUS OUTPUT
       (needs llama.cpp's source only):  needed_tensors.py --taken LLAMA_CPP OUTPUT
Converts every checkpoint of CORPUS/arch, hides one kind of tensor after the other by another name and has llama.cpp load
the file: it says that the tensor is missing, or that there is one more than it knows.

{"blk.N.attn_q_norm.weight": {"attn_q.weight": "qwen3 ..."}}: files of qwen3 have `attn_q_norm` in the blocks that have
`attn_q`. An empty name beside it: in every block; for a tensor outside of blocks: in every file. Where the checkpoints of
an architecture show no tensor that comes with it, there is no row; nor where a file of fixtures/cards, which is whole, has
the one without the other.

`--taken` adds to each row, beside "?", the architectures whose loader (`load_arch_tensors`) takes the tensor without a row
above; "*" stands for all that take the weight of the same name. It adds beside "=" those that take what is as wide as all
heads only with the embedding's width: the matrix behind them, norms of queries and keys.
"""
import collections
import ctypes
import json
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^(.*?)blk\.(\d+)\.(.*)$")
# Beside what a tensor of a block is looked for, by the beginning of its name: the first that comes in the same blocks.
PARTNERS = [
    (r"exp_probs_b|ffn_gate_inp\.|.*_exps\.|ffn_routed|p\w+_ffw_norm_[12]", "ffn_down_exps ffn_up_exps ffn_gate_inp"),
    (r".*_chexps\.", "ffn_down_chexps ffn_up_chexps"),
    (r".*shexp", "ffn_down_shexp ffn_up_shexp"),
    (r"ffn_(gate|up|sub_norm)\.", "ffn_down ffn_up"),
    (r"ffn_down\.", "ffn_up"),
    (r"indexer", "indexer.proj indexer.attn_q_b indexer.q_proj indexer_compressor_kv indexer.k_norm"),
    (r"nextn", "nextn.eh_proj nextn.hnorm nextn.enorm"),
    (r"attn_compressor", "attn_compressor_kv attn_compressor_gate"),
    (r"attn_q_a|attn_q_b", "attn_q_a attn_q_b"),
    (r"attn_kv_", "attn_kv_a_mqa attn_kv_b attn_k_b attn_kv"),
    (r"attn_[kv]_b\.", "attn_k_b attn_v_b attn_kv_a_mqa"),
    (r"attn_q_norm", "attn_q attn_qkv attn_q_b"),
    (r"attn_k_norm", "attn_k attn_qkv attn_kv_a_mqa"),
    # Not attn_qkv, which layers without a state have, too, where a converter joined their queries, keys and values.
    (r"attn_gate\.", "attn_norm_2 ssm_out"),
    (r"cross_attn", "cross_attn_o cross_attn_q"),
    (r"ssm", "ssm_out ssm_in ssm_a ssm_conv1d ssm_conv1d_q"),
    (r"time_mix", "time_mix_output time_mix_key"),
    (r"channel_mix", "channel_mix_value channel_mix_key"),
    (r"shortconv", "shortconv.out_proj shortconv.in_proj"),
    (r"attn_k\.", "attn_output attn_q attn_qkv attn_k_norm attn_v"),
    (r"attn_(?!norm)|post_attention_norm", "attn_output attn_q attn_qkv attn_k"),
    (r"post_ffw_norm|ffn_norm|layer_output_norm", "ffn_down ffn_down_exps"),
    (r"inp_gate|post_norm|proj\.", "proj inp_gate"),
    (r"attn_kv\.|attn_output_[ab]\.|attn_sinks|hc_", "attn_kv_a_norm attn_kv"),
]
# What the loader requires as a whole, or by a key, read from its source: kinds, condition, architectures.
SHARED = [f"blk.N.ffn_{part}_shexp.weight" for part in ("gate", "up", "down")]
ROUTED = [f"blk.N.ffn_routed_{part}.weight" for part in ("up", "down")]
EXPERTS = "ffn_down_exps.weight"
LOADER = [
    (SHARED, EXPERTS, "bailingmoe bailingmoe2 bailingmoe3 deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dots1 dots3note exaone-moe"),
    (SHARED, EXPERTS, "glm-dsa glm5-next hunyuan-moe hy_v4 laguna llama4 minimax-m3 nemotron_h_moe qwen2moe qwen35moe qwen3next qwen4exp"),
    (SHARED, f"{EXPERTS} & expert_shared_count", "afmoe cohere2moe glm4moe"),
    (SHARED, f"{EXPERTS} & expert_shared_feed_forward_length", "ernie4_5-moe granite_swa granitehybrid granitemoe"),
    (["blk.N.ffn_gate_inp_shexp.weight"], EXPERTS, "qwen2moe qwen35moe qwen3next qwen4exp"),
    (ROUTED, f"{EXPERTS} & expert_latent_length", "kimi-k3"),
]
# Required by the loader, although a file of fixtures/cards, as llama.cpp's converter writes it, lacks them.
UNWRITTEN = {
    "blk.N.attn_qkv.bias": ("attn_qkv.weight", "gptneox"),
    "blk.N.attn_output.bias": ("attn_output.weight", "gptneox"),
    # Not by the loader, but the graph adds it in any case.
    "blk.N.ssm_conv1d.bias": ("ssm_conv1d.weight", "falcon-h1 granitehybrid nemotron_h nemotron_h_moe"),
}
# What is as wide as all heads, and its shape where the loader takes their width for that of the embedding.
OF_ALL_HEADS = {"ATTN_OUT": "n_embd, n_embd", "ATTN_Q_NORM": "n_embd", "ATTN_K_NORM": "n_embd"}
# Rows that a configuration decides in a way that no file shows.
LEFT_OUT = {"rope_freqs.weight"}
# A name that llama.cpp's converter writes for a checkpoint that its convert_pt_to_hf.py has not prepared.
UNPREPARED = ("convnext.N.gamma", "wavtokenizer-dec")
CARDS = Path(__file__).parents[2] / "fixtures" / "cards"


def llama_cpp():
    """Loads each file of standard input; one line of answer for each."""
    import llama_cpp

    log = []

    @llama_cpp.llama_log_callback
    def listen(_level, text, _user):
        log.append(text.decode(errors="replace"))

    llama_cpp.llama_log_set(listen, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    for line in sys.stdin:
        log.clear()
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = False
        model = llama_cpp.llama_model_load_from_file(line.strip().encode(), params)
        if model:
            llama_cpp.llama_model_free(model)
        why = next((text for text in log if "error loading model" in text), "?")
        print("ok" if model else why.strip().replace("\n", " "), flush=True)


class Loader:
    def __init__(self):
        self.process = None

    def answer(self, path):
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--load"], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
            )
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().strip()
        if line != "ok" and "error loading model" not in line:  # it aborted
            self.process.kill()
            self.process = None
            return "?"
        return line


def convert(program, folder, out):
    """The file with what llama.cpp would have from a vocabulary."""
    from gguf import GGUFReader

    command = [program, "hf2gguf", folder, "--no-tokenizer", "--type", "f32", "-o", out]
    for step in range(2):
        if subprocess.run(command, capture_output=True).returncode:
            return None
        reader = GGUFReader(out)
        arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
        rows = {tensor.name: int(tensor.shape[-1]) if len(tensor.shape) > 1 else 1 for tensor in reader.tensors}
        if step == 1:
            break
        tokens = next((rows[name] for name in ("token_embd.weight", "output.weight", "markov_w1.weight") if name in rows), None)
        if tokens and f"{arch}.vocab_size" not in reader.fields:
            command += ["--set", f"{arch}.vocab_size=u32:{tokens}"]
        if "token_types.weight" in rows:
            command += ["--set", f"tokenizer.ggml.token_type_count=u32:{rows['token_types.weight']}"]
        out.unlink()
    return arch, list(rows)


def needed_of(loader, data, names, path):
    """The kinds of a file's tensors that llama.cpp needs, and those that it does not."""
    kinds = collections.defaultdict(list)
    for name in names:
        kinds[BLOCK.sub(r"\1blk.N.\3", name)].append(name)
    needed, optional = set(), set()
    for kind, members in kinds.items():
        hidden = bytearray(data)
        for name in members:
            hidden[hidden.find(struct.pack("<Q", len(name)) + name.encode()) + 8] = ord("~")
        path.write_bytes(hidden)
        answer = loader.answer(path)
        if "wrong number of tensors" in answer:
            optional.add(kind)
        elif "tensor" in answer:
            needed.add(kind)
    return needed, optional


def blocks_of(names, start):
    """Blocks by part of a name, and all of them, behind one beginning."""
    blocks = collections.defaultdict(set)
    for name in names:
        if (found := BLOCK.match(name)) and found[1] == start:
            blocks[found[3]].add(int(found[2]))
    return blocks, set().union(*blocks.values())


def partner_in_blocks(part, files):
    wanted = [part.removesuffix(".bias") + ".weight"] if part.endswith(".bias") else []
    for pattern, names in PARTNERS:
        if re.match(pattern, part):
            wanted += [name + ".weight" for name in names.split()]
    for other in wanted:
        same = all(blocks.get(other, set()) == blocks.get(part, set()) for blocks, _ in files)
        covers = all(blocks.get(other, set()) <= blocks.get(part, set()) for blocks, _ in files if blocks.get(part))
        lone = any(blocks.get(other) and not blocks.get(part) for blocks, _ in files)
        if other != part and (same or covers and not lone) and any(blocks.get(other) for blocks, _ in files):
            return other
    return "" if all(every <= blocks.get(part, set()) for blocks, every in files) else None


def partner(kind, files):
    if "blk.N." in kind:
        start, part = kind.split("blk.N.", 1)
        return partner_in_blocks(part, [blocks_of(names, start) for names in files])
    if all(kind in names for names in files):
        return ""
    own = kind.removesuffix(".bias") + ".weight"
    return own if own != kind and all((own in names) == (kind in names) for names in files) else None


def pairs_of(body):
    """The tensors that a loader's source names, with their suffixes."""
    pairs = set(re.findall(r'tn\(\s*(LLM_TENSOR_\w+)\s*(?:,\s*"(\w+)")?', body))
    # A loader with a function of its own for one kind of tensor.
    for suffix in re.findall(r'tn\(tid, "(\w+)"', body):
        pairs |= {(tensor, suffix) for tensor in set(re.findall(r"LLM_TENSOR_\w+", body)) - {tensor for tensor, _ in pairs}}
    if "create_tensor_qkv(" in body:
        pairs |= {(f"LLM_TENSOR_ATTN_{part}", end) for part in ("QKV", "Q", "K", "V") for end in ("weight", "bias")}
    if "create_tensor_gate_up_exps(" in body:
        pairs |= {(f"LLM_TENSOR_FFN_{part}_EXPS", "weight") for part in ("GATE_UP", "GATE", "UP")}
    return pairs


def taken(source):
    """The kinds of tensors that each loader takes by architecture, the architectures whose heads are together as wide as the
    embedding by kind, and the kinds of all."""
    arch, model = (Path(source, name).read_text() for name in ("llama-arch.cpp", "llama-model.cpp"))
    archs = dict(re.findall(r'\{ *(LLM_ARCH_\w+), *"([^"]+)"', arch))
    table = arch.split("LLM_TENSOR_NAMES = {")[1].split("\n};")[0]
    names = {key: name.replace("%d", "N") for key, name in re.findall(r'\{ *(LLM_TENSOR_\w+), *"([^"]+)"', table)}
    bases = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", Path(source, "models/models.h").read_text()))
    bodies = {}
    for path in Path(source, "models").glob("*.cpp"):
        for own, body in re.findall(r"void (llama_model_\w+)::load_arch_tensors\(.*?\) \{(.*?)\n\}", path.read_text(), re.S):
            body = re.sub(r"//[^\n]*", "", body)
            shapes = {tensor: set(re.findall(rf'LLM_TENSOR_{tensor}, *"weight"[^{{]*\{{ *([^}}]*?) *\}}', body)) for tensor in OF_ALL_HEADS}
            bodies[own] = pairs_of(body), [tensor for tensor, shape in OF_ALL_HEADS.items() if shapes[tensor] == {shape}]
    loaders, squares, waiting = {}, collections.defaultdict(list), []
    for line in model.split("llama_model_mapping(llm_arch arch")[1].split("\n}\n")[0].splitlines():
        waiting += [archs[case] for case in re.findall(r"case (LLM_ARCH_\w+):", line)]
        for own in re.findall(r"new (llama_model_\w+)", line):
            while own not in bodies:
                own = bases[own]
            pairs, square = bodies[own]
            kinds = {names[tensor] + (end and f".{end}") for tensor, end in pairs}
            for tensor in square:
                squares[names[f"LLM_TENSOR_{tensor}"] + ".weight"] += waiting
            loaders.update({name: kinds for name in waiting if name != "clip"})
            waiting = []
    every = model.split("// generic pass")[1].split("done_getting_tensors")[0]
    of_all = {f"{names[tensor]}.{end}" for tensor, end in re.findall(r'tn\((LLM_TENSOR_\w+), *"(\w+)"', every)}
    return loaders, squares, of_all


def add_taken(source, output):
    loaders, squares, of_all = taken(source)
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for kind, row in json.loads(Path(output).read_text()).items():
        rows[kind].update({beside: names.split() for beside, names in row.items() if beside not in ("?", "=")})
    for arch, kinds in sorted(loaders.items()):
        for kind in kinds:
            if not any(arch in names for names in rows[kind].values()):
                rows[kind]["?"].append(arch)
    for kind, archs in squares.items():
        rows[kind]["="] = sorted(archs)
    rows[UNPREPARED[0]]["?"] = [UNPREPARED[1]]
    for kind in of_all:
        rows[kind]["?"] = ["*"]
    write(rows, output)


def write(rows, output):
    lines = [
        f" {json.dumps(kind)}: {json.dumps({beside: ' '.join(archs) for beside, archs in sorted(row.items()) if archs})}"
        for kind, row in sorted(rows.items())
    ]
    Path(output).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    program, corpus, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    loader, by_arch = Loader(), collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        plain, hidden = Path(folder, "plain.gguf"), Path(folder, "hidden.gguf")
        for case in sorted((corpus / "arch").iterdir()):
            plain.unlink(missing_ok=True)
            if not (converted := convert(program, case / "hf", plain)):
                continue
            if (answer := loader.answer(plain)) != "ok":
                print(f"{case.name}: {answer}")
                continue
            arch, names = converted
            by_arch[arch].append((names, *needed_of(loader, plain.read_bytes(), names, hidden)))
    whole = collections.defaultdict(list)
    for path in sorted(CARDS.glob("*/*.json")):
        for file in json.loads(path.read_text())["expect"].values():
            if names := [tensor[0] for tensor in file.get("tensors", [])]:
                whole[path.parent.name].append(names)
                break
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for arch, files in sorted(by_arch.items()):
        optional = set().union(*(file[2] for file in files)) | LEFT_OUT
        for kind in sorted(set().union(*(file[1] for file in files)) - optional):
            if (beside := partner(kind, [file[0] for file in files] + whole[arch])) is None:
                print(f"{arch}: no row for {kind}")
            else:
                rows[kind][beside].append(arch)
    for kinds, condition, archs in LOADER:
        for kind, arch in ((kind, arch) for kind in kinds for arch in archs.split() if arch in sum(rows[kind].values(), [])):
            if "&" in condition and arch in rows[kind].get(EXPERTS, []):
                rows[kind][EXPERTS].remove(arch)
            rows[kind][condition].append(arch)
    for kind, (beside, arch) in UNWRITTEN.items():
        rows[kind][beside] = sorted({*rows[kind][beside], *arch.split(" ")})
    write(rows, output)


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        llama_cpp()
    elif sys.argv[1] == "--taken":
        add_taken(*sys.argv[2:])
    else:
        main()
