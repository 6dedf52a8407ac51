//! Files that Ollama's own converter writes: its architectures, and towers in the file of the language model.

use gguf_core::text::escape;

/// Architectures of files that only Ollama writes and loads, with llama.cpp's for the same models.
const ARCHITECTURES: [(&str, &str); 4] =
    [("gptoss", "gpt-oss"), ("qwen25vl", "qwen2vl"), ("deepseekocr", "deepseek2-ocr"), ("olmo3", "olmo2")];

/// Beginnings of the names of a tower's tensors.
const TOWERS: [&str; 4] = ["v.", "a.", "mm.", "s."];

/// Says that an architecture is none of llama.cpp's, and whose it is instead.
pub fn unknown_architecture(arch: &str) -> String {
    let own = ARCHITECTURES.iter().find(|row| row.0 == arch).map_or_else(String::new, |(_, name)| {
        format!(" (Ollama's own converter writes it; llama.cpp's files of this model are `{name}`)")
    });
    format!("architecture `{}` is none of llama.cpp's{own}", escape(arch))
}

/// Returns true for an architecture of Ollama's own.
pub fn has_architecture(arch: &str) -> bool {
    ARCHITECTURES.iter().any(|row| row.0 == arch)
}

/// Returns how a language model gets rid of tensors, if all of them belong to towers.
pub fn without_towers(names: &[String]) -> Option<String> {
    let tower = |name: &String| TOWERS.into_iter().find(|tower| name.starts_with(tower));
    let found: Vec<&str> = names.iter().map(tower).collect::<Option<_>>()?;
    let found = TOWERS.into_iter().filter(|tower| found.contains(tower));
    let words: Vec<&str> = found.map(|tower| tower.trim_end_matches('.')).collect();
    let words = words.join("|");
    (!words.is_empty()).then(|| {
        format!(r"`gguf-inspect drop FILE '^({words})\.' -o TEXT.gguf` leaves out the tower, which other runtimes keep in a file of its own")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tower_is_left_out_by_its_names() {
        let way =
            |names: &[&str]| without_towers(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        let both = way(&["mm.mm_input_projection.weight", "v.blk.0.ln1.bias"]).unwrap();
        assert!(both.starts_with(r"`gguf-inspect drop FILE '^(v|mm)\.' -o TEXT.gguf`"), "{both}");
        assert_eq!((way(&["v.a", "blk.0.x"]), way(&[]), way(&["vx"])), (None, None, None));
    }

    #[test]
    fn the_architectures_of_ollama_are_named_with_those_of_llama_cpp() {
        assert!(unknown_architecture("qwen25vl").contains("`qwen2vl`"));
        assert_eq!(unknown_architecture("x"), "architecture `x` is none of llama.cpp's");
        assert!(has_architecture("olmo3") && !has_architecture("olmo2"));
    }
}
