#!/usr/bin/env python3
"""Prototype of a solver with gradients: starts from a file of `--solver sequential`, and moves its codes, scales and norms.

    tuned.py --model F32.gguf --start SEQUENTIAL.gguf --calibrate TEXT --judge TEXT --tokenizer CHECKPOINT -o OUT.gguf
             [--stages all,ends] [--steps 200] [--end-steps 100] [--self-windows N] [--seed 1] [--ctx 512]

For files of the Llama architecture with a tied head, in K types. Each code has a real place, at first the code itself; products
see its rounding, the gradient moves the place (straight-through). Stages, each of which keeps the step with the least divergence
on the held-out part of the text of --calibrate (one window of seven, which no step reads):

all    codes, d, dmin and norms of all layers at once, by the divergence of the model from the original
kl     the codes alone
block  the codes of one layer after another, by the error of its output in the metric of the final divergence
refit  d and dmin of every matrix, least squares on the outputs of the original
ends   d, dmin and norms alone

--judge is only for the figures that are printed; scored as gguf-verify does. Needs torch, gguf and transformers. Minutes for 3 M
parameters on one core.
"""

import argparse
import os
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from kquants import Blocks, read, write

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
EMBEDDING = "token_embd.weight"


class Rounded(torch.autograd.Function):
    """Rounds; the gradient passes as if it did not."""

    @staticmethod
    def forward(_, value):
        return value.round()

    @staticmethod
    def backward(_, gradient):
        return gradient


class Tuned:
    """Blocks whose codes (`place`, real) and floats (`d`, `dmin`) are parameters."""

    def __init__(self, blocks, reach):
        self.blocks = blocks
        self.scales = torch.from_numpy(blocks.scales)
        self.minima = None if blocks.minima is None else torch.from_numpy(blocks.minima)
        self.d = torch.from_numpy(blocks.d.copy())
        self.dmin = None if blocks.dmin is None else torch.from_numpy(blocks.dmin.copy())
        codes = torch.from_numpy(blocks.codes.astype(np.float32))
        self.place = codes.clone()
        self.low, self.high = (codes - reach).clamp(min=blocks.low), (codes + reach).clamp(max=blocks.high)

    def steps(self):
        group = self.blocks.group
        step = (self.d[:, None] * self.scales).repeat_interleave(group, 1)
        if self.minima is None:
            return step, torch.zeros(())
        return step, (self.dmin[:, None] * self.minima).repeat_interleave(group, 1)

    def weights(self):
        step, least = self.steps()
        return (step * Rounded.apply(self.place) - least).reshape(self.blocks.rows, -1)

    def clamp(self):
        self.place.data = torch.minimum(torch.maximum(self.place.data, self.low), self.high)

    def floats(self):
        return [self.d] if self.dmin is None else [self.d, self.dmin]

    def round_floats(self):
        for value in self.floats():
            value.data = value.data.half().float()

    def state(self):
        return [value.detach().clone() for value in [self.place, *self.floats()]]

    def restore(self, state):
        for value, kept in zip([self.place, *self.floats()], state):
            value.data = kept.clone()

    def store(self):
        self.blocks.codes = self.place.round().numpy().astype(np.int16)
        self.blocks.d = self.d.numpy()
        if self.dmin is not None:
            self.blocks.dmin = self.dmin.numpy()
        return self.blocks


class Llama:
    def __init__(self, path):
        keys = gguf.GGUFReader(path).fields

        def key(name):
            return keys["llama." + name].contents()

        self.n_layers, self.n_heads = key("block_count"), key("attention.head_count")
        self.n_kv, self.eps = key("attention.head_count_kv"), key("attention.layer_norm_rms_epsilon")
        self.head = key("rope.dimension_count")
        self.base = key("rope.freq_base")

    def rope(self, x):
        angles = torch.outer(torch.arange(x.shape[-2]), self.base ** (-torch.arange(0, self.head, 2) / self.head))
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def norm(self, x, weight):
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def layer(self, x, w, seen=None):
        """`w` gives a tensor of the layer by its short name; `seen` gets the inputs of each matrix."""

        def product(name, x):
            if seen is not None:
                seen(name, x)
            return x @ w(name).T

        h = self.norm(x, w("attn_norm"))
        q, k, v = (product(name, h).unflatten(-1, (-1, self.head)).transpose(1, 2) for name in ("attn_q", "attn_k", "attn_v"))
        k, v = (part.repeat_interleave(self.n_heads // self.n_kv, 1) for part in (self.rope(k), v))
        mixed = F.scaled_dot_product_attention(self.rope(q), k, v, is_causal=True)
        x = x + product("attn_output", mixed.transpose(1, 2).flatten(2))
        h = self.norm(x, w("ffn_norm"))
        return x + product("ffn_down", F.silu(product("ffn_gate", h)) * product("ffn_up", h))

    def run(self, tokens, tensors, upto=None, start=0, x=None):
        """Hidden states before layer `upto`, or logits."""
        x = F.embedding(tokens, tensors(EMBEDDING)) if x is None else x
        for at in range(start, self.n_layers if upto is None else upto):
            x = self.layer(x, lambda name, at=at: tensors(f"blk.{at}.{name}.weight"))
        if upto is not None:
            return x
        return self.norm(x, tensors("output_norm.weight")) @ tensors(EMBEDDING).T


def divergence(exact, logits):
    """KL of each position; `exact` are log-probabilities."""
    return (exact.exp() * (exact - logits.log_softmax(-1))).sum(-1)


class Run:
    def __init__(self, options):
        torch.manual_seed(options.seed)
        self.options, self.model = options, Llama(options.model)
        self.exact = {name: torch.from_numpy(value.copy()) for name, value in read(options.model).items()}
        self.file = read(options.start)
        self.tuned, self.vectors = {}, {}
        for name, value in self.file.items():
            if isinstance(value, Blocks):
                self.tuned[name] = Tuned(value, options.reach)
            elif value.ndim == 1 and "rope" not in name:
                self.vectors[name] = torch.from_numpy(value.copy())
        self.fixed = {}
        self.train, self.held = self.windows(options.calibrate, True)
        self.order = torch.arange(len(self.train)).repeat(options.repeat)
        self.judge = self.windows(options.judge, False)[0]
        if options.self_windows:
            self.order = torch.cat([self.order, len(self.train) + torch.arange(options.self_windows)])
            self.train = torch.cat([self.train, self.sample(options.self_windows)])
        with torch.no_grad():
            self.goal, self.held_goal, self.judge_goal = (
                torch.cat([self.model.run(part[None], self.exact.__getitem__).log_softmax(-1) for part in text])
                for text in (self.train, self.held, self.judge))
        self.began = time.perf_counter()

    def windows(self, path, is_split):
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(self.options.tokenizer)
        with open(path, encoding="utf-8") as file:
            ids = tokenizer(file.read(), add_special_tokens=False)["input_ids"]
        bos = tokenizer.bos_token_id
        if bos is not None:
            ids = [bos, *ids]
        cut = torch.tensor(ids[:len(ids) // self.options.ctx * self.options.ctx]).view(-1, self.options.ctx).clone()
        if bos is not None:
            cut[:, 0] = bos
        if not is_split:
            return cut, None
        is_held = torch.arange(len(cut)) % 7 == 3
        return cut[~is_held], cut[is_held]

    def sample(self, count):
        """Text of the model itself, from the start token, every other one from an ordinary token after it."""
        kept = self.options.self_text
        if kept and os.path.exists(kept):
            return torch.load(kept)[:count]
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(self.options.tokenizer, dtype=torch.float32)
        start = torch.full((count, 2), model.config.bos_token_id)
        start[:, 1] = torch.randint(2, model.config.vocab_size, (count,))
        found = []
        with torch.no_grad():
            for prompt in (start[::2, :1], start[1::2]):
                if len(prompt):
                    new = self.options.ctx - prompt.shape[1]
                    found.append(model.generate(prompt, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=1,
                                                eos_token_id=-1, min_new_tokens=new, max_new_tokens=new))
        found = torch.cat(found)[torch.randperm(count)]
        if kept:
            torch.save(found, kept)
        return found

    def tensors(self, name):
        if name in self.fixed:
            return self.fixed[name]
        return self.tuned[name].weights() if name in self.tuned else self.vectors[name]

    def mean(self, text, goal, half=False):
        with torch.no_grad():
            self.freeze(list(self.tuned))
            each = torch.cat([divergence(goal[at], self.model.run(part[None], self.tensors)[0])[None]
                              for at, part in enumerate(text)])
            self.fixed = {}
            return (each[:, self.options.ctx // 2:-1] if half else each).mean().item()

    def held_out(self):
        return self.mean(self.held, self.held_goal)

    def freeze(self, names):
        with torch.no_grad():
            self.fixed.update({name: self.tuned[name].weights() for name in names if name in self.tuned})

    def say(self, stage):
        train = self.mean(self.train[:4], self.goal[:4])
        print(f"| {stage} | {train:.6f} | {self.held_out():.6f} | {self.mean(self.judge, self.judge_goal, True):.6f} "
              f"| {time.perf_counter() - self.began:.0f} |", flush=True)

    def state(self):
        return ({name: value.state() for name, value in self.tuned.items()},
                {name: value.detach().clone() for name, value in self.vectors.items()})

    def restore(self, state):
        for name, kept in state[0].items():
            self.tuned[name].restore(kept)
        for name, kept in state[1].items():
            self.vectors[name].data = kept.clone()

    def batches(self, size):
        """Windows in random order, without end."""
        while True:
            order = self.order[torch.randperm(len(self.order))]
            for at in range(0, len(order) - size + 1, size):
                yield order[at:at + size]

    # Stages.

    def kl(self, with_codes, with_floats, steps, rate, float_rate):
        """Codes by signs (or Adam), floats by Adam, by the final divergence. The best by the held-out part is kept."""
        options = self.options
        codes = [value.place for value in self.tuned.values()] if with_codes else []
        floats = [part for value in self.tuned.values() for part in value.floats()] + list(self.vectors.values())
        floats = floats if with_floats else []
        for value in codes + floats:
            value.requires_grad_()
        # d differs by orders of magnitude between tensors: its steps are relative.
        sizes = [value.detach().abs().mean() for value in floats]
        adam = torch.optim.Adam([{"params": [value], "scale": float(size)} for value, size in zip(floats, sizes)] or
                                [torch.zeros(1, requires_grad=True)], betas=(0.9, 0.99))
        code_adam = torch.optim.Adam(codes, lr=rate, betas=(0.9, 0.95)) if codes and options.optimizer == "adam" else None
        best, best_state = self.held_out(), self.state()
        batches = self.batches(options.batch)
        for step in range(steps):
            left = 1 - step / steps
            chosen = next(batches)
            loss = divergence(self.goal[chosen], self.model.run(self.train[chosen], self.tensors)).mean()
            for value in codes + floats:
                value.grad = None
            loss.backward()
            with torch.no_grad():
                if code_adam:
                    code_adam.param_groups[0]["lr"] = rate * left
                    code_adam.step()
                else:
                    for value in codes:
                        value -= rate * left * value.grad.sign()
                for value in self.tuned.values():
                    value.clamp()
                for group in adam.param_groups:
                    group["lr"] = float_rate * left * group.get("scale", 1)
                if floats:
                    adam.step()
            if step % options.every == options.every - 1:
                exact = [value.data for value in floats]
                for value in self.tuned.values():
                    value.round_floats()
                now = self.held_out()
                if options.verbose:
                    print(f"  step {step + 1}: batch {loss:.6f}, held out {now:.6f}", flush=True)
                if now < best:
                    best, best_state = now, self.state()
                for value, kept in zip(floats, exact):
                    value.data = kept
        for value in codes + floats:
            value.requires_grad_(False)
            value.grad = None
        self.restore(best_state)

    def metrics(self):
        """Second moments of the gradient of log p(y) after each layer, y drawn by the unquantized model: M, and each token's share."""
        model, n = self.model, self.model.n_layers
        moments, shares = [0.0] * n, [[] for _ in range(n)]
        for tokens in self.text:
            with torch.no_grad():
                states = [model.run(tokens[None], self.exact.__getitem__, upto=1)]
            states[0].requires_grad_()
            for at in range(1, n):
                states.append(model.layer(states[-1], lambda name, at=at: self.exact[f"blk.{at}.{name}.weight"]))
            logits = model.norm(states[-1], self.exact["output_norm.weight"]) @ self.exact[EMBEDDING].T
            for _ in range(2):
                drawn = torch.multinomial(logits[0].detach().softmax(-1), 1)[:, 0]
                gradients = torch.autograd.grad(F.cross_entropy(logits[0], drawn, reduction="sum"), states, retain_graph=True)
                for at, gradient in enumerate(gradients):
                    moments[at] += gradient[0].T @ gradient[0]
                    shares[at].append(gradient[0].square().sum(-1))
        shares = [torch.stack(rows).view(-1, 2, self.options.ctx).mean(1) for rows in shares]
        return [moment / moment.trace() for moment in moments], [share / share.mean() for share in shares]

    def block(self):
        """Codes of a layer by the error of its output; its d, dmin and norms after them."""
        options, model = self.options, self.model
        is_held = torch.cat([torch.zeros(len(self.train)), torch.ones(len(self.held))]).bool()
        self.text = torch.cat([self.train, self.held])
        moments, shares = self.metrics()
        with torch.no_grad():
            goal = F.embedding(self.text, self.exact[EMBEDDING])
            inputs = F.embedding(self.text, self.tensors(EMBEDDING))
        train, held = (~is_held).nonzero()[:, 0], is_held.nonzero()[:, 0]
        for at in range(model.n_layers):
            names = {short: f"blk.{at}.{short}.weight" for short in (*MATRICES, "attn_norm", "ffn_norm")}
            factor = torch.linalg.cholesky(moments[at] + options.damp * torch.eye(len(moments[at])) / len(moments[at]))
            share = shares[at] ** options.share

            def loss(chosen):
                out = model.layer(inputs[chosen], lambda name: self.tensors(names[name]))
                return ((((out - goal[chosen]) @ factor).square().sum(-1)) * share[chosen]).mean()

            def held_loss():
                with torch.no_grad():
                    return sum(loss(one[None]) for one in held).item() / len(held)

            with torch.no_grad():
                goal = torch.cat([model.layer(one[None], lambda name: self.exact[names[name]]) for one in goal])
            before, own = (self.held_out(), self.state()), [self.tuned[names[short]] for short in MATRICES]
            parts = [value.place for value in own], [part for value in own for part in value.floats()] + [
                self.vectors[names[short]] for short in ("attn_norm", "ffn_norm")]
            for is_floats, values in enumerate(parts):
                if is_floats and not options.floats:
                    continue
                best, kept = held_loss(), self.state()
                first = best
                steps = options.steps // 2 if is_floats else options.steps
                sizes = [float(value.abs().mean()) for value in values]
                adam = torch.optim.Adam([{"params": [value]} for value in values], betas=(0.9, 0.95))
                for value in values:
                    value.requires_grad_()
                batches = self.batches(options.batch)
                for step in range(steps):
                    now = loss(train[next(batches)])
                    for value in values:
                        value.grad = None
                    now.backward()
                    with torch.no_grad():
                        left = 1 - step / steps
                        if is_floats or options.optimizer == "adam":
                            for group, size in zip(adam.param_groups, sizes):
                                group["lr"] = left * (options.float_rate * size if is_floats else options.rate)
                            adam.step()
                        else:
                            for value in values:
                                value -= options.rate * left * value.grad.sign()
                        for value in own:
                            value.clamp()
                    if step % options.every == options.every - 1:
                        exact = [value.data for value in values]
                        if is_floats:
                            for value in own:
                                value.round_floats()
                        now = held_loss()
                        if now < best:
                            best, kept = now, self.state()
                        for value, data in zip(values, exact):
                            value.data = data
                for value in values:
                    value.requires_grad_(False)
                    value.grad = None
                self.restore(kept)
                if options.verbose:
                    print(f"  layer {at}, {'floats' if is_floats else 'codes'}: {first:.4g} to {best:.4g}; held out "
                          f"{before[0]:.6f} to {self.held_out():.6f}", flush=True)
            if self.held_out() > before[0]:
                self.restore(before[1])
            with torch.no_grad():
                inputs = torch.cat([model.layer(one[None], lambda name: self.tensors(names[name])) for one in inputs])

    def refit(self):
        """d and dmin of each row by least squares on the outputs of the unquantized model, layer by layer."""
        model, text = self.model, torch.cat([self.train, self.held])
        with torch.no_grad():
            exact, inputs = F.embedding(text, self.exact[EMBEDDING]), F.embedding(text, self.tensors(EMBEDDING))
            for at in range(model.n_layers):
                def named(short, at=at):
                    return f"blk.{at}.{short}.weight"
                for names in (MATRICES[:3], MATRICES[3:4], MATRICES[4:6], MATRICES[6:]):
                    goals, own = {}, {}
                    model.layer(exact, lambda name: self.exact[named(name)],
                                lambda name, x: goals.__setitem__(name, x.flatten(0, 1)))
                    model.layer(inputs, lambda name: self.tensors(named(name)),
                                lambda name, x: own.__setitem__(name, x.flatten(0, 1)))
                    before, state = self.held_out(), self.state()
                    for short in names:
                        self.fit(self.tuned[named(short)], goals[short] @ self.exact[named(short)].T, own[short])
                    if self.held_out() > before:
                        self.restore(state)
                exact = model.layer(exact, lambda name: self.exact[named(name)])
                inputs = model.layer(inputs, lambda name: self.tensors(named(name)))

    def fit(self, tuned, goal, inputs):
        blocks = tuned.blocks
        parts = [tuned.scales.repeat_interleave(blocks.group, 1) * tuned.place.round()]
        if tuned.minima is not None:
            parts.append(-tuned.minima.repeat_interleave(blocks.group, 1))
        # Weight = sum of a factor times a part: [row, block, 256] each.
        parts = torch.stack([part.view(blocks.rows, -1, 256) for part in parts], 2)
        per_row = parts.shape[1]
        now = torch.stack(tuned.floats(), 1).view(blocks.rows, -1)
        moment = (inputs.T @ inputs).view(per_row, 256, per_row, 256)
        gram = torch.einsum("rbpk,bkcl,rcql->rbpcq", parts, moment, parts).reshape(blocks.rows, now.shape[1], -1)
        wish = torch.einsum("rbpk,bkr->rbp", parts, (inputs.T @ goal).view(per_row, 256, -1)).reshape(blocks.rows, -1)
        ridge = self.options.ridge * torch.diag_embed(gram.diagonal(dim1=1, dim2=2) + 1e-12)
        change = torch.linalg.solve(gram + ridge, wish - (gram @ now[:, :, None])[:, :, 0])
        new = (now + change).view(-1, len(tuned.floats()))
        for at, value in enumerate(tuned.floats()):
            value.data = new[:, at].half().float().contiguous()

    def stage(self, name):
        options = self.options
        if name == "kl":
            self.kl(True, False, options.steps, options.rate, options.float_rate)
        elif name == "all":
            self.kl(True, True, options.steps, options.rate, options.float_rate)
        elif name == "ends":
            self.kl(False, True, options.end_steps, 0, options.float_rate)
        elif name == "block":
            self.block()
        elif name == "refit":
            self.refit()
        else:
            raise SystemExit(f"no stage {name}")
        self.say(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "start", "calibrate", "judge", "tokenizer"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--stages", default="all,ends")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--end-steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.015, help="of codes, in steps of the type")
    parser.add_argument("--float-rate", type=float, default=0.001, help="of d, dmin and norms, as a share of their mean")
    parser.add_argument("--optimizer", choices=("adam", "sign"), default="adam")
    parser.add_argument("--reach", type=float, default=1, help="largest change of a code")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--self-windows", type=int, default=0, help="windows of the model's own text to learn from beside the rest")
    parser.add_argument("--repeat", type=int, default=1, help="how often the text of --calibrate counts beside it")
    parser.add_argument("--self-text", help="keeps them, or has them")
    parser.add_argument("--damp", type=float, default=0.3, help="share of a plain square in the metric of a layer's output")
    parser.add_argument("--share", type=float, default=0.5, help="power of a token's weight")
    parser.add_argument("--ridge", type=float, default=0.1)
    parser.add_argument("--floats", action="store_true", help="block: also d, dmin and norms")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = Run(options)
    print(f"{len(run.train)} windows of {options.ctx} to learn, {len(run.held)} held out, {len(run.judge)} to judge; "
          f"seed {options.seed}\n\n| stage | learned | held out | judged | seconds |\n|---|---:|---:|---:|---:|")
    run.say("start")
    for stage in options.stages.split(","):
        run.stage(stage)
    tensors = dict(run.file) | {name: value.numpy() for name, value in run.vectors.items()}
    tensors |= {name: value.store() for name, value in run.tuned.items()}
    write(options.output, options.start, tensors)


if __name__ == "__main__":
    main()
