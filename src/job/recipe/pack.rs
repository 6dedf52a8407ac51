//! A folder of files as a pack: the source, a recipe for each file that was made of it, and all other files. Unpacked,
//! every file has its bytes again.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::convert::ConvertOptions;
use crate::core::output::{FoundKind, NewDirectory, OutputFile, OutputKind, same_file};
use crate::core::progress::Progress;
use crate::core::text::{escape, hex, is_unsafe};
use crate::core::written::as_path;
use crate::gguf::{GgufFile, Imatrix, OpenOptions, WriteError};
use crate::job::input::must_be_model;
use crate::job::recipe::examine::examine;
use crate::job::recipe::file::RecipeFile;
use crate::job::recipe::pack_list::{LIST, PackEntry, PackList};
use crate::job::recipe::rebuild::Rebuild;
use crate::job::recipe::write::{Packed, name_of};
use crate::job::recipe::{RecipeError, RecipeOutput, RecipeSource, digest};
use crate::job::{Events, JobError, JobInput};

/// Levels of folders that are followed.
const MAX_LEVELS: usize = 8;
/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;
/// End of the names of recipes.
const SUFFIX: &str = ".recipe.gguf";

/// Folder to pack.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// Folder with the files.
    pub folder: PathBuf,
    /// GGUF file that they were made of; in the folder or elsewhere.
    pub source: PathBuf,
    /// Importance matrix; `None` to take one of the folder, if there is one.
    pub imatrix: Option<PathBuf>,
    /// Options of the source.
    pub convert: ConvertOptions,
    /// Options of writing.
    pub output: RecipeOutput,
}

/// Report of a pack.
#[derive(Clone, Debug, Serialize)]
pub struct PackReport {
    /// Path of the pack.
    #[serde(serialize_with = "as_path")]
    pub pack: PathBuf,
    /// Files that were packed, in the order of their names.
    pub files: Vec<PackedFile>,
    /// Size in bytes of the files of the source.
    pub source_bytes: u64,
    /// Size in bytes of the files of the folder.
    pub folder_bytes: u64,
    /// Size in bytes of the pack.
    pub pack_bytes: u64,
    /// Duration of the run in seconds.
    pub seconds: f64,
}

/// File of a pack.
#[derive(Clone, Debug, Serialize)]
pub struct PackedFile {
    /// Name in the folder.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Name of its recipe in the pack; null for a file that is there as it is.
    pub recipe: Option<String>,
    /// Size in bytes in the pack.
    pub packed_bytes: u64,
    /// Tensors that the source does not explain bit for bit; null without a recipe.
    #[serde(rename = "unexplained_tensors")]
    pub n_unexplained: Option<usize>,
}

/// Report of unpacking.
#[derive(Clone, Debug, Serialize)]
pub struct UnpackReport {
    /// Path of the folder.
    #[serde(serialize_with = "as_path")]
    pub folder: PathBuf,
    /// Number of files.
    #[serde(rename = "files")]
    pub n_files: usize,
    /// Number of files that were made of the source; the others were copied.
    #[serde(rename = "rebuilt")]
    pub n_rebuilt: usize,
    /// Size of all files in bytes.
    pub folder_bytes: u64,
    /// Duration of the run in seconds.
    pub seconds: f64,
}

/// Packs a folder.
///
/// # Errors
/// A source that is no GGUF file, files that cannot be read, a folder that cannot be written. Then there is no pack.
pub fn pack(options: &PackOptions, target: &Path, events: &dyn Events) -> Result<PackReport, JobError> {
    let start = Instant::now();
    let progress = events.progress();
    if options.source.is_dir() {
        return Err(RecipeError::NotGguf { path: options.source.clone() }.into());
    }
    let files = listing(&options.folder)?;
    if files.iter().any(|name| name == LIST) {
        let what = "this is a pack already";
        return Err(RecipeError::Folder { path: options.folder.clone(), what }.into());
    }
    let mut directory = NewDirectory::of(target)?;
    let imatrix = match &options.imatrix {
        Some(path) => Some(path.clone()),
        None => matrix_of(&options.folder, &files)?,
    };
    let input = JobInput::Gguf(options.source.clone());
    let source = RecipeSource::open(input, options.convert.clone(), imatrix.clone(), events)?;
    source.digest(progress)?;
    directory.expect(files.len() + 4, options.output.sync);
    directory.begin()?;
    let mut pack = Pack { directory, outputs: Vec::new(), names: HashSet::new(), bytes: 0 };
    pack.names.insert(LIST.to_owned());
    let mut source_names = Vec::new();
    let mut source_bytes = 0;
    let mut listed: Vec<(PackEntry, PackedFile)> = Vec::new();
    let own = source.paths();
    for path in &own {
        let name = name_of(path);
        let (n_bytes, sha256) = pack.copy(path, &name, progress)?;
        source_bytes += n_bytes;
        source_names.push(name.clone());
        for other in files.iter().filter(|other| same_file(path, &options.folder.join(other))) {
            // A name of the folder that is another one in the pack.
            if *other != name {
                pack.copy(path, other, progress)?;
            }
            listed.push(as_it_is(other, n_bytes, &sha256));
        }
    }
    let mut needs_matrix = false;
    for name in &files {
        let path = options.folder.join(name);
        if own.iter().any(|own| same_file(own, &path)) {
            continue;
        }
        let made = match model(&path)? {
            Some(file) => pack.recipe(&file, name, &source, progress)?,
            None => None,
        };
        if let Some((file, packed, is_with_importance)) = made {
            needs_matrix |= is_with_importance;
            listed.push((file, packed));
        } else {
            let (n_bytes, sha256) = pack.copy(&path, name, progress)?;
            listed.push(as_it_is(name, n_bytes, &sha256));
        }
    }
    let matrix_name = match imatrix.filter(|_| needs_matrix) {
        None => None,
        Some(path) => Some(match files.iter().find(|name| same_file(&path, &options.folder.join(name))) {
            Some(name) => name.clone(),
            None => {
                let name = name_of(&path);
                pack.copy(&path, &name, progress)?;
                name
            }
        }),
    };
    listed.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    let (list, files): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    let list = PackList::new(source_names, matrix_name, list);
    let mut text = serde_json::to_vec_pretty(&list).map_err(std::io::Error::from)?;
    text.push(b'\n');
    let pack_bytes = pack.finish(&text, options.output.sync)?;
    Ok(PackReport {
        pack: target.to_owned(),
        folder_bytes: files.iter().map(|file| file.bytes).sum(),
        files,
        source_bytes,
        pack_bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Makes every file of a pack again. Each is compared with its digest; only if all are right does the folder appear.
///
/// # Errors
/// A damaged pack, a folder that cannot be written.
pub fn unpack(
    folder: &Path,
    target: &Path,
    convert: &ConvertOptions,
    options: &RecipeOutput,
    events: &dyn Events,
) -> Result<UnpackReport, JobError> {
    let start = Instant::now();
    let progress = events.progress();
    let list = PackList::read(folder)?;
    let mut directory = NewDirectory::of(target)?;
    let first = list.source.first().map(|name| folder.join(name)).unwrap_or_default();
    let imatrix = list.imatrix.as_ref().map(|name| folder.join(name));
    let source = RecipeSource::open(JobInput::Gguf(first), convert.clone(), imatrix, events)?;
    directory.expect(list.files.len(), options.sync);
    directory.begin()?;
    let mut pack = Pack { directory, outputs: Vec::new(), names: HashSet::new(), bytes: 0 };
    let mut n_rebuilt = 0;
    for file in &list.files {
        let found = match &file.recipe {
            None => pack.copy(&folder.join(&file.name), &file.name, progress)?.1,
            Some(recipe) => {
                let recipe = RecipeFile::open(&folder.join(recipe))?;
                if recipe.file_bytes != file.bytes {
                    let what = format!(
                        "`{}`: {} bytes, its recipe has {}",
                        escape(&file.name),
                        file.bytes,
                        recipe.file_bytes
                    );
                    return Err(RecipeError::PackList { path: folder.join(LIST), what }.into());
                }
                let rebuild = Rebuild::new(&recipe, &source, progress)?;
                let output = pack.create(&file.name)?;
                rebuild.write(&output, options, progress)?;
                pack.bytes += file.bytes;
                pack.outputs.push(output);
                n_rebuilt += 1;
                recipe.sha256.clone()
            }
        };
        if found != file.sha256 {
            let (path, expected) = (target.join(&file.name), file.sha256.clone());
            return Err(RecipeError::Mismatch { path, expected, found }.into());
        }
    }
    let Pack { directory, outputs, bytes, .. } = pack;
    directory.commit(outputs, options.sync).map_err(WriteError::Io)?;
    Ok(UnpackReport {
        folder: target.to_owned(),
        n_files: list.files.len(),
        n_rebuilt,
        folder_bytes: bytes,
        seconds: start.elapsed().as_secs_f64(),
    })
}

fn as_it_is(name: &str, bytes: u64, sha256: &str) -> (PackEntry, PackedFile) {
    let listed = PackEntry { name: name.to_owned(), bytes, sha256: sha256.to_owned(), recipe: None };
    let packed = PackedFile {
        name: name.to_owned(),
        bytes,
        sha256: sha256.to_owned(),
        recipe: None,
        packed_bytes: bytes,
        n_unexplained: None,
    };
    (listed, packed)
}

/// Folder that is being written.
struct Pack {
    directory: NewDirectory,
    outputs: Vec<OutputFile>,
    names: HashSet<String>,
    bytes: u64,
}

impl Pack {
    /// Begins a file, with the folders that it is in.
    fn create(&mut self, name: &str) -> Result<OutputFile, JobError> {
        if !self.names.insert(name.to_owned()) {
            let path = PathBuf::from(name);
            return Err(RecipeError::NameTwice { path, name: name.to_owned() }.into());
        }
        for (at, _) in name.match_indices('/') {
            self.directory.create_folder(name.get(..at).unwrap_or_default())?;
        }
        Ok(self.directory.create(name)?)
    }

    /// Copies a file and returns its size and its digest.
    fn copy(&mut self, path: &Path, name: &str, progress: &dyn Progress) -> Result<(u64, String), JobError> {
        let mut file = crate::core::input::open(path)?;
        let output = self.create(name)?;
        progress.begin(&format!("copying {}", escape(name)), file.metadata()?.len());
        let (mut state, mut buffer, mut offset) = (Sha256::new(), vec![0; COPY_BYTES], 0);
        loop {
            if progress.is_cancelled() {
                return Err(WriteError::Cancelled.into());
            }
            let n_bytes = file.read(&mut buffer)?;
            let Some(part) = buffer.get(..n_bytes).filter(|part| !part.is_empty()) else { break };
            state.update(part);
            output.write_at(offset, part)?;
            offset += part.len() as u64;
            progress.advance(part.len() as u64);
        }
        progress.end();
        self.outputs.push(output);
        self.bytes += offset;
        Ok((offset, hex(&state.finalize())))
    }

    /// Writes the recipe of a file; `None` if the source explains nothing of it, or if the recipe is no smaller. The last
    /// value is true if it needs the importance matrix.
    fn recipe(
        &mut self,
        file: &GgufFile,
        name: &str,
        source: &RecipeSource,
        progress: &dyn Progress,
    ) -> Result<Option<(PackEntry, PackedFile, bool)>, JobError> {
        let examined = examine(file, source, progress)?;
        if !examined.is_of_source() {
            return Ok(None);
        }
        let sha256 = digest(file.path(), progress)?;
        let report = examined.report(file.path(), sha256.clone());
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        let recipe = format!("{stem}{SUFFIX}");
        // The unnamed file of the parts is beside the pack, where there is space for it.
        let beside = self.directory.path().to_owned();
        let packed = Packed::new(file, source, &examined, &report, &beside, progress)?;
        if packed.file_bytes() >= report.file_bytes {
            return Ok(None);
        }
        let output = self.create(&recipe)?;
        let target = output.target().to_owned();
        let written = packed.write(&output, &target)?;
        self.outputs.push(output);
        self.bytes += written.file_bytes;
        let listed = PackEntry {
            name: name.to_owned(),
            bytes: report.file_bytes,
            sha256: sha256.clone(),
            recipe: Some(recipe.clone()),
        };
        let packed = PackedFile {
            name: name.to_owned(),
            bytes: report.file_bytes,
            sha256,
            recipe: Some(recipe),
            packed_bytes: written.file_bytes,
            n_unexplained: Some(report.tensors.len() - report.n_reproduced),
        };
        Ok(Some((listed, packed, written.imatrix_sha256.is_some())))
    }

    /// Writes the list, gives everything its name, and returns the size of the pack.
    fn finish(mut self, list: &[u8], sync: bool) -> Result<u64, JobError> {
        let output = self.directory.create(LIST)?;
        output.write_at(0, list)?;
        self.outputs.push(output);
        self.directory.commit(self.outputs, sync).map_err(WriteError::Io)?;
        Ok(self.bytes + list.len() as u64)
    }
}

/// Opens a file that may have been made of the source; `None` for files of other kinds, which are kept as they are.
fn model(path: &Path) -> Result<Option<GgufFile>, JobError> {
    match kind(path)? {
        FoundKind::Output(OutputKind::Model) => {}
        FoundKind::Output(OutputKind::Recipe) => {
            return Err(JobError::NotAModel { path: path.to_owned(), kind: OutputKind::Recipe });
        }
        _ => return Ok(None),
    }
    let alone = OpenOptions { join_parts: false, ..OpenOptions::default() };
    // A file that cannot be read as a model is kept as it is.
    let file = match GgufFile::open_with(path, &alone) {
        Err(error) if !error.is_unread() => return Ok(None),
        opened => opened?,
    };
    must_be_model(&file)?;
    Ok(Some(file))
}

/// Detects the kind of a file by its first bytes.
fn kind(path: &Path) -> io::Result<FoundKind> {
    let file = crate::core::input::open(path)?;
    let n_bytes = file.metadata()?.len();
    let mut head = Vec::new();
    file.take(64 << 10).read_to_end(&mut head)?;
    Ok(FoundKind::of(&head, n_bytes))
}

/// Returns the importance matrix of a folder: `imatrix.gguf`, or the first one by name.
fn matrix_of(folder: &Path, files: &[String]) -> Result<Option<PathBuf>, JobError> {
    let mut names: Vec<&String> = files.iter().collect();
    names.sort_by_key(|name| *name != "imatrix.gguf");
    for path in names.into_iter().map(|name| folder.join(name)) {
        if kind(&path)? == FoundKind::Output(OutputKind::Imatrix) {
            match Imatrix::open(&path) {
                Ok(_) => return Ok(Some(path)),
                Err(error) if error.is_unread() => return Err(error.into()),
                // Kept as it is, like any file that nothing can be made of.
                Err(_) => {}
            }
        }
    }
    Ok(None)
}

/// Lists the files of a folder by name, with `/` between folders.
fn listing(folder: &Path) -> Result<Vec<String>, JobError> {
    let mut found = BTreeSet::new();
    list_into(folder, "", 0, &mut found)?;
    if found.is_empty() {
        return Err(RecipeError::Folder { path: folder.to_owned(), what: "no files to pack" }.into());
    }
    Ok(found.into_iter().collect())
}

fn list_into(
    folder: &Path,
    before: &str,
    level: usize,
    found: &mut BTreeSet<String>,
) -> Result<(), JobError> {
    let refused = |path: &Path, what| Err(RecipeError::Folder { path: path.to_owned(), what }.into());
    if level > MAX_LEVELS {
        return refused(folder, "too many levels of folders");
    }
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| !name.contains(|c| c == '\\' || is_unsafe(c)))
        else {
            return refused(
                &path,
                "a name that is not UTF-8, or contains a backslash, control character or mark of direction",
            );
        };
        let name = format!("{before}{name}");
        let metadata = fs_err::metadata(&path)?;
        if metadata.is_dir() {
            list_into(&path, &format!("{name}/"), level + 1, found)?;
        } else if metadata.is_file() {
            found.insert(name);
        } else {
            return refused(&path, "neither a file nor a folder");
        }
    }
    Ok(())
}
