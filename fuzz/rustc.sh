#!/usr/bin/env bash
# RUSTC_WRAPPER of scripts/fuzz.sh: counts the branches of our crates and of the readers that they hand bytes to. Those
# of all crates would be 340,000 counters to clear and to look through for each input. With FUZZ_COVERAGE (of
# scripts/coverage.py) it counts the lines of our crates instead.
rustc=$1
shift
name=
previous=
for word in "$@"; do
    [[ $previous == --crate-name ]] && name=$word
    previous=$word
done
case ${FUZZ_COVERAGE:+lines of }$name in
"lines of replay" | "lines of gguf_"*)
    set -- "$@" -Cinstrument-coverage
    ;;
any | gguf_* | minijinja | prost | saphyr_parser | serde_json | toml_parser | zip)
    # Not what runs while it builds: that is compiled without a target.
    [[ " $* " != *" --target "* ]] ||
        set -- "$@" --cfg fuzzing -Cpasses=sancov-module \
            -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares
    ;;
esac
exec "$rustc" "$@"
