//! Redaction of a run for publishing: file names without directories, addresses without credentials.

use std::path::{Path, PathBuf};

/// Directories of a run's files, to be removed from sentences.
#[derive(Clone, Debug, Default)]
pub(super) struct Folders {
    /// Directories with a trailing separator, the longest first.
    folders: Vec<String>,
}

impl Folders {
    /// Collects the directories of these paths.
    pub(super) fn of<'p>(paths: impl Iterator<Item = &'p Path>) -> Self {
        let folder = |path: &Path| Some(format!("{}{}", path.parent()?.display(), std::path::MAIN_SEPARATOR));
        let mut folders: Vec<String> = paths.filter_map(folder).filter(|folder| folder.len() > 1).collect();
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        folders.dedup();
        Self { folders }
    }

    /// Returns the text with the directories removed.
    pub(super) fn without(&self, text: &str) -> String {
        self.folders.iter().fold(text.to_owned(), |text, folder| text.replace(folder.as_str(), ""))
    }
}

/// Redacts a path: only the file name is left, or the redacted address on a server.
pub(super) fn path(path: &Path) -> String {
    argument(&path.display().to_string())
}

/// Redacts an argument of a command line.
pub(super) fn argument(text: &str) -> String {
    if let Some((option, value)) = text.split_once('=').filter(|(option, _)| option.starts_with("--")) {
        return format!("{option}={}", argument(value));
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let host = rest.find('/').unwrap_or(rest.len());
        let (host, path) = rest.split_at(host);
        let host = host.rsplit('@').next().unwrap_or_default();
        return format!("{scheme}://{host}{path}");
    }
    if is_on_the_hub(text) || !text.contains(['/', '\\']) {
        return text.to_owned();
    }
    let name = PathBuf::from(text.replace('\\', "/"));
    name.file_name().map_or_else(|| ".".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns true for `ORG/NAME` if no such path exists.
fn is_on_the_hub(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let is_name = |part: &&str| !part.is_empty() && !part.starts_with(['.', '~']);
    parts.len() == 2
        && parts.iter().all(is_name)
        && Path::new(text).extension().is_none_or(|suffix| !suffix.eq_ignore_ascii_case("gguf"))
        && Path::new(text).symlink_metadata().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_secrets_stay_at_home() {
        for (given, expected) in [
            ("/home/me/models/a.gguf", "a.gguf"),
            ("models/x/a.gguf", "a.gguf"),
            ("../a.gguf", "a.gguf"),
            ("/home/me/models/", "models"),
            ("..", ".."),
            ("--baseline=/home/me/b", "--baseline=b"),
            ("--prompts", "--prompts"),
            ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
            ("https://me:secret@host.org/dir/model?token=abc#x", "https://host.org/dir/model"),
            (r"C:\models\a.gguf", "a.gguf"),
            ("0.5", "0.5"),
        ] {
            assert_eq!(argument(given), expected, "{given}");
        }
        let folders =
            Folders::of([Path::new("/home/me/a.gguf"), Path::new("b.gguf"), Path::new("/")].into_iter());
        assert_eq!(folders.without("/home/me/a.gguf: offset 3; b.gguf"), "a.gguf: offset 3; b.gguf");
    }
}
