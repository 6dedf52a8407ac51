//! Model directories and files that users name: on this machine, or on a server.

use std::path::{Path, PathBuf};

use clap::Args;

#[cfg(feature = "remote")]
use crate::cli::inspect::is_first;
use crate::cli::{Session, UsageError};
use crate::gguf::{GgufFile, OpenOptions};

#[cfg(feature = "remote")]
use anyhow::Context;

#[cfg(feature = "remote")]
use crate::remote::{Address, FileAddress, RemoteCheckpoint, RemoteError, RemoteFile, RemoteOptions};

/// Minimum budget for pieces of weights that are being fetched.
#[cfg(feature = "remote")]
const MIN_BUDGET: u64 = 64 << 20;

/// How models on servers are read.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RemoteArgs {
    /// Fetch the complete files of a model on a server, check them, and keep them in this directory, laid out as the
    /// hub's own cache [default: read weights by ranges and keep nothing]
    #[cfg(feature = "remote")]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

/// Directory of a model, or a file in one. Temporary files that represent a remote model are removed with this value.
#[derive(Debug)]
pub(crate) struct ModelDirectory {
    path: PathBuf,
    #[cfg(feature = "remote")]
    remote: Option<RemoteCheckpoint>,
}

impl ModelDirectory {
    /// Returns the local path of its files.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the default directory for outputs: the model's; the current one if the model is on a server.
    pub(crate) fn output(&self) -> &Path {
        let here = Path::new(".");
        match self.path.parent() {
            _ if self.is_remote() => here,
            Some(parent) if self.path.is_file() && parent.as_os_str().is_empty() => here,
            Some(parent) if self.path.is_file() => parent,
            _ => &self.path,
        }
    }

    #[cfg(feature = "remote")]
    fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    #[cfg(not(feature = "remote"))]
    #[expect(clippy::unused_self, reason = "nothing is, without a network")]
    fn is_remote(&self) -> bool {
        false
    }
}

/// Opens a GGUF file to read its header: a local file, or one on a server, of which no more is fetched. An existing
/// local path takes precedence.
#[cfg(feature = "remote")]
pub(crate) fn open_header(session: &Session, path: &Path, options: &OpenOptions) -> anyhow::Result<GgufFile> {
    let text = path.to_str().filter(|_| path.symlink_metadata().is_err());
    let Some(text) = text else { return Ok(GgufFile::open_with(path, options)?) };
    let remote = remote_options(session, None);
    if let Some(address) = FileAddress::parse(text)? {
        let opened = RemoteFile::open(&address, &remote);
        let opened = if text.contains("://") {
            opened?
        } else {
            opened.with_context(|| format!("{}: no such file here, and on the hub", path.display()))?
        };
        return Ok(GgufFile::open_with(opened.path(), options)?);
    }
    if let Some(address @ Address::Hub { .. }) = Address::parse(text)? {
        return Err(nor_here(path, RemoteFile::names(&address, &remote)));
    }
    Ok(GgufFile::open_with(path, options)?)
}

/// Returns the names of the GGUF files of a repository of the hub, as [`open_header`] takes them, without later parts of
/// split models. `None` if the path is no repository or the repository has none.
#[cfg(feature = "remote")]
pub(crate) fn gguf_names(session: &Session, path: &Path) -> anyhow::Result<Option<Vec<PathBuf>>> {
    let text = path.to_str().filter(|_| path.symlink_metadata().is_err());
    let address = match text {
        Some(text) if FileAddress::parse(text)?.is_none() => Address::parse(text)?,
        Some(_) => return Ok(Some(vec![path.to_owned()])),
        None => None,
    };
    let Some(address @ Address::Hub { .. }) = address else { return Ok(None) };
    let names = RemoteFile::list(&address, &remote_options(session, None));
    let names = names.map_err(|error| nor_here(path, error))?;
    // A repository of a checkpoint may also have a file of it.
    if names.iter().any(|name| name == "config.json") {
        return Ok(None);
    }
    let files = names.iter().map(|name| path.join(name)).filter(|file| is_first(file));
    let files: Vec<PathBuf> = files.collect();
    Ok(if files.is_empty() { None } else { Some(files) })
}

/// Returns nothing: this program was built without network support.
#[cfg(not(feature = "remote"))]
#[expect(clippy::unnecessary_wraps, reason = "with the network it may fail")]
pub(crate) fn gguf_names(_: &Session, _: &Path) -> anyhow::Result<Option<Vec<PathBuf>>> {
    Ok(None)
}

/// Opens a GGUF file to read its header. This program was built without network support.
#[cfg(not(feature = "remote"))]
pub(crate) fn open_header(_: &Session, path: &Path, options: &OpenOptions) -> anyhow::Result<GgufFile> {
    refuse_address(path)?;
    Ok(GgufFile::open_with(path, options)?)
}

/// Adds that a name is not one of this machine either, if the hub did not answer.
#[cfg(feature = "remote")]
fn nor_here(path: &Path, error: RemoteError) -> anyhow::Error {
    use RemoteError::{Connection, Offline, Status};
    let is_name = !path.to_string_lossy().contains("://");
    let is_unanswered = matches!(error, Connection { .. } | Offline { .. } | Status { .. });
    let error = anyhow::Error::new(error);
    if is_name && is_unanswered {
        return error.context(format!("{}: nothing of this name is here, and on the hub", path.display()));
    }
    error
}

/// Returns the options for reading from servers.
#[cfg(feature = "remote")]
fn remote_options(session: &Session, cache: Option<PathBuf>) -> RemoteOptions {
    RemoteOptions {
        cache,
        budget: session.common.memory_bytes().max(MIN_BUDGET),
        is_cancelled: std::sync::Arc::new(crate::cli::is_interrupted),
        ..RemoteOptions::default()
    }
}

#[cfg(not(feature = "remote"))]
fn refuse_address(path: &Path) -> Result<(), UsageError> {
    if path.to_str().is_some_and(|text| text.contains("://")) {
        let text = format!("{}: this program was built without a network (feature `remote`)", path.display());
        return Err(UsageError(text));
    }
    Ok(())
}

impl RemoteArgs {
    /// Creates the arguments with a directory that files of remote models are kept in, if any.
    #[cfg(feature = "remote")]
    pub(crate) fn of_cache(cache: Option<PathBuf>) -> Self {
        Self { cache }
    }

    /// Creates the arguments. Without network support nothing is kept.
    #[cfg(not(feature = "remote"))]
    pub(crate) fn of_cache(_: Option<PathBuf>) -> Self {
        Self {}
    }

    /// Opens a directory or file that `option` names and that is read more than once. Files of a remote model are kept
    /// in the cache; without one it is refused.
    ///
    /// # Errors
    /// An address without a cache; a model on a server that cannot be fetched.
    #[cfg(feature = "remote")]
    pub(crate) fn kept(
        &self,
        session: &Session,
        option: &'static str,
        path: Option<&Path>,
    ) -> anyhow::Result<Option<ModelDirectory>> {
        let Some(path) = path else { return Ok(None) };
        // A GGUF file is not taken for a model on a server.
        let is_file = path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("gguf"));
        let is_weights = |text: &str| matches!(FileAddress::parse_weights(text), Ok(Some(_)));
        let is_address =
            |text: &str| !is_file && (is_weights(text) || matches!(Address::parse(text), Ok(Some(_))));
        let is_elsewhere = path.symlink_metadata().is_err() && path.to_str().is_some_and(is_address);
        if is_elsewhere && self.cache.is_none() {
            return Err(UsageError(format!(
                "`{option} {}`: nothing is there, and of a model on a server, which is read more than once, files have to be \
                 kept: give `--cache DIR`",
                path.display()
            ))
            .into());
        }
        if is_elsewhere {
            return self.directory(session, path).map(Some);
        }
        Ok(Some(ModelDirectory { path: path.to_owned(), remote: None }))
    }

    /// Opens a directory or file that is read more than once. This program was built without network support.
    #[cfg(not(feature = "remote"))]
    pub(crate) fn kept(
        &self,
        session: &Session,
        _: &'static str,
        path: Option<&Path>,
    ) -> anyhow::Result<Option<ModelDirectory>> {
        self.optional(session, path)
    }

    /// Opens the directory that a command names. An existing local path takes precedence; otherwise `org/name` and
    /// anything with a scheme is on a server.
    #[cfg(feature = "remote")]
    pub(crate) fn directory(&self, session: &Session, path: &Path) -> anyhow::Result<ModelDirectory> {
        let text = path.to_str().filter(|_| path.symlink_metadata().is_err());
        if let Some(address) = text.map(FileAddress::parse_weights).transpose()?.flatten() {
            return self.file(session, path, &address);
        }
        let address = text.map(Address::parse).transpose()?.flatten();
        let Some(address) = address else {
            return Ok(ModelDirectory { path: path.to_owned(), remote: None });
        };
        let options = remote_options(session, self.cache.clone());
        let remote = RemoteCheckpoint::open(&address, &options, &session.progress);
        let remote = remote.map_err(|error| nor_here(path, error))?;
        Ok(ModelDirectory { path: remote.path().to_owned(), remote: Some(remote) })
    }

    /// Opens the weights that an address names by themselves.
    #[cfg(feature = "remote")]
    fn file(&self, session: &Session, path: &Path, address: &FileAddress) -> anyhow::Result<ModelDirectory> {
        if self.cache.is_some() {
            let text = format!(
                "`--cache` keeps whole models, and `{}` is one file: leave `--cache` out, or name the model",
                path.display()
            );
            return Err(UsageError(text).into());
        }
        let options = remote_options(session, None);
        let opened = RemoteCheckpoint::open_file(address, &options, &session.progress);
        let opened = match path.to_str() {
            Some(text) if text.contains("://") => opened?,
            _ => opened.with_context(|| format!("{}: no such file here, and on the hub", path.display()))?,
        };
        let (remote, path) = opened;
        Ok(ModelDirectory { path, remote: Some(remote) })
    }

    /// Opens the directory that a command names. This program was built without network support.
    #[cfg(not(feature = "remote"))]
    #[expect(clippy::unused_self, reason = "there is nothing to set without a network")]
    pub(crate) fn directory(&self, _: &Session, path: &Path) -> anyhow::Result<ModelDirectory> {
        refuse_address(path)?;
        Ok(ModelDirectory { path: path.to_owned() })
    }

    /// Opens an optional directory, if it is given.
    pub(crate) fn optional(
        &self,
        session: &Session,
        path: Option<&Path>,
    ) -> anyhow::Result<Option<ModelDirectory>> {
        path.map(|path| self.directory(session, path)).transpose()
    }

    /// Refuses `--cache` if none of the directories is on a server.
    #[cfg(feature = "remote")]
    pub(crate) fn check_use<'a>(
        &self,
        directories: impl IntoIterator<Item = &'a ModelDirectory>,
    ) -> Result<(), UsageError> {
        if self.cache.is_some() && !directories.into_iter().any(ModelDirectory::is_remote) {
            let text =
                "`--cache` keeps files of a model on a server (`ORG/NAME`, `https://`); this one is local";
            return Err(UsageError(text.to_owned()));
        }
        Ok(())
    }

    /// Accepts anything: without network support there is no cache.
    #[cfg(not(feature = "remote"))]
    #[expect(clippy::unused_self, reason = "there is nothing to set without a network")]
    #[expect(clippy::unnecessary_wraps, reason = "with the network it may refuse")]
    pub(crate) fn check_use<'a>(
        &self,
        _: impl IntoIterator<Item = &'a ModelDirectory>,
    ) -> Result<(), UsageError> {
        Ok(())
    }
}
