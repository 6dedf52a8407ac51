//! Record of a run, so that others can repeat it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::public;
use crate::cli::verify::engine_options;
use crate::cli::{Session, is_interrupted, version};
use crate::core::progress::Progress;
use crate::core::sha256::sha256_of_file;
use crate::core::text::{date_time, escape, shell_word};

/// Program, options, machine and input files of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RunInfo {
    /// Name of the program.
    pub(super) program: String,
    /// Version of the program.
    pub(super) version: String,
    /// Command line as a shell reads it, with file names without their directories.
    pub(super) command: String,
    /// Time of the run in UTC, or of `SOURCE_DATE_EPOCH` if it is set.
    pub(super) date: String,
    /// Operating system and architecture.
    pub(super) system: String,
    /// Vector instructions that were used.
    pub(super) simd: String,
    /// Number of threads.
    pub(super) threads: usize,
    /// Inputs that were read, each once per role.
    pub(super) inputs: Vec<InputFile>,
}

/// Input that was read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct InputFile {
    /// Role: `model`, `baseline`, `source`, `prompts` or `tasks`.
    pub(super) role: &'static str,
    /// Path, as it was given.
    pub(super) path: String,
    /// Size in bytes; `None` for anything but a regular file.
    pub(super) bytes: Option<u64>,
    /// SHA-256 in lower-case hexadecimal; `None` for anything but a regular file, which can be read only once.
    pub(super) sha256: Option<String>,
}

impl RunInfo {
    /// Describes this run. Reads all files again to hash them.
    pub(super) fn of(session: &Session, inputs: &[(&'static str, PathBuf)]) -> anyhow::Result<Self> {
        Ok(Self {
            program: "gguf-verify".to_owned(),
            version: version().to_owned(),
            command: command_line(std::env::args_os()),
            date: date(SystemTime::now(), std::env::var("SOURCE_DATE_EPOCH").ok().as_deref()),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            simd: session.common.simd.name().to_owned(),
            threads: engine_options(&session.common).n_threads,
            inputs: hash_all(inputs, &session.progress)?,
        })
    }
}

fn hash_all(inputs: &[(&'static str, PathBuf)], progress: &dyn Progress) -> anyhow::Result<Vec<InputFile>> {
    let mut found: Vec<(InputFile, &Path)> = Vec::new();
    for (role, path) in inputs {
        // A pipe cannot be read again: it gets neither size nor hash.
        let bytes = fs_err::metadata(path)?;
        let bytes = bytes.is_file().then_some(bytes.len());
        let shown = escape(&public::path(path)).into_owned();
        if !found.iter().any(|(known, other)| known.role == *role && *other == path.as_path()) {
            found.push((InputFile { role, path: shown, bytes, sha256: None }, path));
        }
    }
    progress.begin("hashing the files", found.iter().filter_map(|(input, _)| input.bytes).sum());
    // A file with several roles is hashed once.
    let mut known: Vec<(&Path, String)> = Vec::new();
    for (input, path) in &mut found {
        if let Some((_, hash)) = known.iter().find(|(other, _)| other == path) {
            input.sha256 = Some(hash.clone());
            progress.advance(input.bytes.unwrap_or(0));
        } else if input.bytes.is_some() && !is_interrupted() {
            let hash = match digest(path, progress) {
                // A report of what was done before an interrupt goes without hashes.
                Err(_) if is_interrupted() => continue,
                hash => hash?,
            };
            known.push((path, hash.clone()));
            input.sha256 = Some(hash);
        }
    }
    progress.end();
    Ok(found.into_iter().map(|(input, _)| input).collect())
}

/// Returns the SHA-256 digest of a file, in lower-case hexadecimal.
pub(in crate::cli) fn digest(path: &Path, progress: &dyn Progress) -> anyhow::Result<String> {
    Ok(sha256_of_file(path, progress)?)
}

/// Quotes a command line so that a shell reads these arguments. The program and files are named without directories.
pub(in crate::cli) fn command_line(args: impl Iterator<Item = OsString>) -> String {
    let quoted = |(at, arg): (usize, OsString)| {
        let mut text = public::argument(&arg.to_string_lossy());
        if at == 0 {
            text = Path::new(&arg).file_name().map_or(text, |name| name.to_string_lossy().into_owned());
        }
        shell_word(&text)
    };
    args.enumerate().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Formats date and time in UTC, to the second. `epoch` is `SOURCE_DATE_EPOCH`, which takes precedence if it is a
/// number.
fn date(now: SystemTime, epoch: Option<&str>) -> String {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    // Years have at most four digits.
    let seconds = epoch.and_then(|text| text.trim().parse().ok()).unwrap_or(now).min(253_402_300_799);
    let [year, month, day, hour, minute, second] = date_time(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::progress::Silent;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: u64| date(UNIX_EPOCH + Duration::from_secs(seconds), None);
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 UTC");
        let now = UNIX_EPOCH + Duration::from_secs(5);
        assert_eq!(date(now, Some("86400")), "1970-01-02 00:00:00 UTC");
        assert_eq!(date(now, Some("soon")), "1970-01-01 00:00:05 UTC");
        assert!(date(now, Some("18446744073709551615")).starts_with("9999-"));
    }

    #[test]
    fn a_shell_reads_the_command_as_it_was() {
        let args = ["/usr/bin/gguf-verify", "a.gguf", "it's", "", "$(x)", "a\u{1b}b"].map(OsString::from);
        assert_eq!(command_line(args.into_iter()), r"gguf-verify a.gguf 'it'\''s' '' '$(x)' 'a\u{1b}b'");
    }

    #[test]
    fn files_are_hashed_once_for_each_part_they_play() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        fs_err::write(&path, "abc").unwrap();
        let inputs = [("model", path.clone()), ("model", path.clone()), ("baseline", path)];
        let found = hash_all(&inputs, &Silent).unwrap();
        assert_eq!(found.iter().map(|input| input.role).collect::<Vec<_>>(), ["model", "baseline"]);
        let hash = found[1].sha256.as_deref().unwrap();
        assert!(hash.starts_with("ba7816bf") && hash.len() == 64, "{hash}");
        assert!(hash_all(&[("model", dir.path().join("absent"))], &Silent).is_err());
        let pipe = hash_all(&[("prompts", dir.path().to_owned())], &Silent).unwrap();
        assert_eq!((pipe[0].bytes, pipe[0].sha256.clone()), (None, None));
    }
}
