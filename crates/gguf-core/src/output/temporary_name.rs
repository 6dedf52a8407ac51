//! Temporary names: each tells the target of its file. A dot, the target's name, shortened if necessary, random
//! characters and a suffix.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};

use tempfile::Builder;

use super::checksum::checksum;

/// Number of random characters in a temporary name.
const N_RANDOM: usize = 6;
const SUFFIX: &str = ".tmp";
/// Maximum bytes of a target's name in its temporary name; file names are limited to 255 bytes.
const MAX_STEM_BYTES: usize = 200;
/// Suffix of the name of a large set's directory, after the name of its first file.
const PARTS: &str = ".parts";

/// Returns the part of a target's name that its temporary names contain.
pub(super) fn stem(name: &OsStr) -> OsString {
    if name.len() <= MAX_STEM_BYTES {
        return name.to_owned();
    }
    // The ends of long names distinguish the parts of one set.
    let text = name.to_string_lossy();
    let mut cut = MAX_STEM_BYTES - 17;
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}~{:016x}", &text[..cut], checksum(name.as_encoded_bytes())).into()
}

/// Returns the stem of the target that a temporary name belongs to; `None` for any other name.
pub(super) fn stem_of(name: &OsStr) -> Option<&[u8]> {
    let rest = name.as_encoded_bytes().strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    let (stem, random) = rest.split_at_checked(rest.len().checked_sub(N_RANDOM + 1)?)?;
    let random = random.strip_prefix(b".")?;
    (!stem.is_empty() && random.iter().all(u8::is_ascii_alphanumeric)).then_some(stem)
}

/// Returns the target name of the directory for the files of a large set that begins with `first`.
pub(super) fn parts_name(first: &Path) -> OsString {
    let mut name = stem(first.file_name().unwrap_or_default());
    name.push(PARTS);
    name
}

/// Returns the name of the directory of a set that begins with `first`, without the random part.
pub(super) fn staging_stem(first: &OsStr) -> OsString {
    stem(&parts_name(Path::new(first)))
}

/// Splits the temporary name of a staged file into its directory and its file name.
pub(super) fn staged(temporary: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let mut parts = Path::new(temporary).components();
    let (dir, file) = (parts.next()?, parts.next()?);
    match (dir, file, parts.next()) {
        (Component::Normal(dir), Component::Normal(file), None)
            if Path::new(dir).join(file).as_os_str() == temporary && stem_of(dir).is_some() =>
        {
            Some((dir, file))
        }
        _ => None,
    }
}

/// Passes a builder of the target's temporary names to `use_it`.
pub(super) fn builder<T>(path: &Path, use_it: impl FnOnce(&Builder<'_, '_>) -> T) -> T {
    let mut prefix = OsString::from(".");
    prefix.push(stem(path.file_name().unwrap_or_default()));
    prefix.push(".");
    use_it(Builder::new().prefix(&prefix).suffix(SUFFIX).rand_bytes(N_RANDOM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_target() {
        for name in ["m.gguf", "a", "x.tmp", ".m.gguf.abcdef.tmp"] {
            let temporary = format!(".{name}.aB3xYz.tmp");
            assert_eq!(stem_of(OsStr::new(&temporary)), Some(name.as_bytes()));
        }
        for name in
            ["", ".", ".tmp", ".abcdef.tmp", "..abcdef.tmp", "m.abcdef.tmp", ".m.abc/ef.tmp", ".m.abcdef.tm"]
        {
            assert_eq!(stem_of(OsStr::new(name)), None, "{name}");
        }
        let long = |end: char| format!("{}{end}", "ä".repeat(126));
        let stems = ['1', '2'].map(|end| stem(OsStr::new(&long(end))));
        assert!(stems[0] != stems[1] && stems[0].len() <= MAX_STEM_BYTES);
    }
}
