//! Names of the files of a set: `model-00001-of-00003.safetensors`.

/// Parts of such a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardName<'n> {
    /// Text before the number.
    pub stem: &'n str,
    /// Number of the file, from 1.
    pub number: u32,
    /// Number of files.
    pub count: u32,
    /// Text after the last point.
    pub suffix: &'n str,
}

impl<'n> ShardName<'n> {
    /// Reads the name of a file; `None` for a file that is of no set.
    pub fn of(name: &'n str) -> Option<Self> {
        let (rest, suffix) = name.rsplit_once('.')?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let value = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        Some(Self { stem, number: value(number)?, count: value(count)?, suffix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_set() {
        let of = |name| ShardName::of(name).map(|own| (own.stem, own.number, own.count, own.suffix));
        assert_eq!(of("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3, "gguf")));
        assert_eq!(of("art-of-war-00001-of-00001.safetensors"), Some(("art-of-war", 1, 1, "safetensors")));
        for name in [
            "a.gguf",
            "a-of-3.gguf",
            "a-1-of-2.gguf",
            "a-00001-of-2.gguf",
            "-of-",
            "a-+0001-of-00002.gguf",
            "",
        ] {
            assert_eq!(of(name), None, "{name}");
        }
    }
}
