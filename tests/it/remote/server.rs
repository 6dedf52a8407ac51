//! Local server that follows the rules of the hub and of a web server, and breaks them on request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::support::{files, sha256};

/// Commit of the repository on the server.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Token that a gated server requires.
pub const TOKEN: &str = "hf_secretsecretsecret";

/// Behaviour of a server.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// Serves large files from another address, to which it redirects with a signature.
    pub redirects: bool,
    /// Requires the token.
    pub is_gated: bool,
    /// Breaks off every n-th answer with content in the middle.
    pub cut_each: usize,
    /// Answers every n-th request with `refusal`, before anything else.
    pub refuse_each: usize,
    /// Status of a refusal, and its `Retry-After`.
    pub refusal: (u16, Option<&'static str>),
    /// Pause between two pieces of 16 KiB.
    pub throttle: Option<Duration>,
    /// Changes the tag of weight files after this many answers.
    pub tag_changes_after: usize,
    /// Sends no tag of weight files after this many answers.
    pub tag_vanishes_after: usize,
    /// `Content-Encoding` of weight files.
    pub encoding: Option<&'static str>,
    /// Answers with the range behind the one that was asked for.
    pub shifts_ranges: bool,
    /// Ignores ranges.
    pub ignores_ranges: bool,
    /// Number of requests for which a signature is valid.
    pub signature_lasts: usize,
    /// Changes the bytes of weight files in transit.
    pub damages: bool,
    /// Additional file in its list.
    pub lists: Option<&'static str>,
    /// Shows no index of a directory.
    pub hides_index: bool,
    /// Answers without tags.
    pub hides_tags: bool,
    /// Answers with modification dates.
    pub has_dates: bool,
    /// Sends no answer.
    pub silent_head: bool,
    /// Sends a list at one byte per second.
    pub drips: bool,
    /// Redirects in circles, or to an unencrypted address.
    pub location: Option<&'static str>,
}

/// Received request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub range: Option<(u64, u64)>,
    pub authorization: Option<String>,
    /// True if it came by the address to which large files are redirected.
    pub is_elsewhere: bool,
    /// Number of bytes of content that were sent.
    pub sent: u64,
}

struct Shared {
    dir: PathBuf,
    manners: Mutex<Manners>,
    log: Mutex<Vec<Asked>>,
    n_requests: AtomicUsize,
    n_contents: AtomicUsize,
    signatures: Mutex<Vec<usize>>,
    is_over: AtomicBool,
    elsewhere: Mutex<String>,
}

/// Server that runs until it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    pub address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let elsewhere = self.shared.elsewhere.lock().unwrap().clone();
        for address in [self.address.as_str(), elsewhere.as_str()] {
            let _ = TcpStream::connect(address.trim_start_matches("http://"));
        }
    }
}

impl Server {
    /// Serves the files of a directory: as repository `org/NAME` and below `/files/`.
    pub fn start(dir: &Path, manners: Manners) -> Self {
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            manners: Mutex::new(manners),
            log: Mutex::default(),
            n_requests: AtomicUsize::new(0),
            n_contents: AtomicUsize::new(0),
            signatures: Mutex::default(),
            is_over: AtomicBool::new(false),
            elsewhere: Mutex::default(),
        });
        let address = listen(&shared, false);
        *shared.elsewhere.lock().unwrap() = listen(&shared, true);
        Self { shared, address }
    }

    /// Requests so far.
    pub fn log(&self) -> Vec<Asked> {
        self.shared.log.lock().unwrap().clone()
    }

    /// Number of bytes of content of weight files that were sent.
    pub fn weight_bytes(&self) -> u64 {
        self.log().iter().filter(|asked| is_large(&asked.path)).map(|asked| asked.sent).sum()
    }

    /// Changes its behaviour.
    pub fn now(&self, manners: Manners) {
        *self.shared.manners.lock().unwrap() = manners;
    }
}

fn is_large(path: &str) -> bool {
    [".safetensors", ".bin", ".gguf"].iter().any(|end| path.ends_with(end))
}

fn listen(shared: &Arc<Shared>, is_elsewhere: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if shared.is_over.load(Ordering::Relaxed) {
                return;
            }
            let shared = Arc::clone(&shared);
            // A client may disconnect at any time.
            std::thread::spawn(move || drop(converse(&shared, stream, is_elsewhere)));
        }
    });
    address
}

fn converse(shared: &Shared, stream: std::io::Result<TcpStream>, is_elsewhere: bool) -> std::io::Result<()> {
    let mut stream = stream?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
        let mut asked = Asked { path, range: None, authorization: None, is_elsewhere, sent: 0 };
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim();
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(": ").unwrap_or((header, ""));
            match name.to_ascii_lowercase().as_str() {
                "authorization" => asked.authorization = Some(value.to_owned()),
                "range" => {
                    let (first, last) = value.trim_start_matches("bytes=").split_once('-').unwrap();
                    asked.range = Some((first.parse().unwrap(), last.parse().unwrap()));
                }
                _ => {}
            }
        }
        let goes_on = answer(shared, &mut stream, &mut asked)?;
        shared.log.lock().unwrap().push(asked);
        if !goes_on {
            return Ok(());
        }
    }
}

fn head(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    n_bytes: u64,
) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} x\r\ncontent-length: {n_bytes}\r\n");
    for (name, value) in headers {
        text = text + name + ": " + value + "\r\n";
    }
    stream.write_all(format!("{text}\r\n").as_bytes())
}

/// Answers one request; returns false if the connection ends with it.
fn answer(shared: &Shared, stream: &mut TcpStream, asked: &mut Asked) -> std::io::Result<bool> {
    let manners = shared.manners.lock().unwrap().clone();
    let n = shared.n_requests.fetch_add(1, Ordering::Relaxed) + 1;
    if manners.refuse_each > 0 && n.is_multiple_of(manners.refuse_each) {
        let (status, wait) = manners.refusal;
        let wait: Vec<_> = wait.iter().map(|wait| ("retry-after", (*wait).to_owned())).collect();
        head(stream, status, &wait, 0)?;
        return Ok(true);
    }
    if manners.silent_head {
        std::thread::sleep(Duration::from_secs(30));
        return Ok(false);
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    asked.path.clone_from(&path);
    if let Some(location) = manners.location {
        head(stream, 302, &[("location", location.to_owned())], 0)?;
        return Ok(true);
    }
    let is_allowed = asked.authorization.as_deref() == Some(&format!("Bearer {TOKEN}"));
    if manners.is_gated && !asked.is_elsewhere && !is_allowed {
        let code = if asked.authorization.is_some() { "GatedRepo" } else { "RepoNotFound" };
        let status = if asked.authorization.is_some() { 403 } else { 401 };
        head(stream, status, &[("x-error-code", code.to_owned())], 0)?;
        return Ok(true);
    }
    if path.starts_with("/api/") || path == "/files/" {
        let page = if path.starts_with("/api/") {
            (["main", COMMIT]
                .iter()
                .any(|revision| path == format!("/api/models/org/{}/revision/{revision}", name(shared))))
            .then(|| (list_of_hub(shared, &manners), "application/json"))
        } else {
            (!manners.hides_index).then(|| (index(shared), "text/html; charset=utf-8"))
        };
        let Some((page, kind)) = page else {
            head(stream, 404, &[], 0)?;
            return Ok(true);
        };
        head(stream, 200, &[("content-type", kind.to_owned())], page.len() as u64)?;
        for byte in page.as_bytes().chunks(1).filter(|_| manners.drips) {
            stream.write_all(byte)?;
            std::thread::sleep(Duration::from_secs(1));
        }
        stream.write_all(page.as_bytes())?;
        return Ok(true);
    }
    let of_hub = |revision: &str| format!("/org/{}/resolve/{revision}/", name(shared));
    let prefixes = [of_hub(COMMIT), of_hub("main"), "/files/".to_owned()];
    let Some(file) = prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.as_str())) else {
        head(stream, 404, &[], 0)?;
        return Ok(true);
    };
    if manners.redirects && is_large(&path) && !asked.is_elsewhere {
        let mut signatures = shared.signatures.lock().unwrap();
        let location =
            format!("{}{path}?Signature=verysecret{}", shared.elsewhere.lock().unwrap(), signatures.len());
        signatures.push(0);
        drop(signatures);
        head(stream, 302, &[("location", location)], 0)?;
        return Ok(true);
    }
    if asked.is_elsewhere {
        let number =
            query.strip_prefix("Signature=verysecret").and_then(|number| number.parse::<usize>().ok());
        let mut signatures = shared.signatures.lock().unwrap();
        let used = number
            .and_then(|number| signatures.get_mut(number))
            .map(|used| std::mem::replace(used, *used + 1));
        drop(signatures);
        if used.is_none_or(|used| manners.signature_lasts > 0 && used >= manners.signature_lasts) {
            head(stream, 403, &[], 0)?;
            return Ok(true);
        }
    }
    send(shared, stream, asked, &manners, &shared.dir.join(file))
}

/// Sends a file or a range of it.
fn send(
    shared: &Shared,
    stream: &mut TcpStream,
    asked: &mut Asked,
    manners: &Manners,
    file: &Path,
) -> std::io::Result<bool> {
    let Ok(mut file) = fs_err::File::open(file) else {
        head(stream, 404, &[], 0)?;
        return Ok(true);
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let total = bytes.len() as u64;
    let n = shared.n_contents.fetch_add(1, Ordering::Relaxed) + 1;
    let is_large = is_large(&asked.path);
    if manners.damages && is_large {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    }
    let is_changed = is_large && manners.tag_changes_after > 0 && n > manners.tag_changes_after;
    let mut headers = vec![("etag", format!("\"tag{}\"", u8::from(is_changed)))];
    let vanishes = is_large && manners.tag_vanishes_after > 0 && n > manners.tag_vanishes_after;
    if manners.hides_tags || vanishes {
        headers.clear();
    }
    headers.extend(manners.encoding.filter(|_| is_large).map(|name| ("content-encoding", name.to_owned())));
    if manners.has_dates {
        headers.push(("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT".to_owned()));
    }
    let range = asked.range.filter(|_| !manners.ignores_ranges);
    let (status, content) = match range {
        Some((first, _)) if first >= total => {
            headers.push(("content-range", format!("bytes */{total}")));
            head(stream, 416, &headers, 0)?;
            return Ok(true);
        }
        Some((first, last)) => {
            let last = last.min(total - 1);
            let first = if manners.shifts_ranges { last.min(first + 1) } else { first };
            headers.push(("content-range", format!("bytes {first}-{last}/{total}")));
            (206, &bytes[first as usize..=last as usize])
        }
        None => (200, &bytes[..]),
    };
    head(stream, status, &headers, content.len() as u64)?;
    let is_cut = manners.cut_each > 0 && n.is_multiple_of(manners.cut_each);
    let content = if is_cut { &content[..content.len().div_ceil(2)] } else { content };
    for piece in content.chunks(16 << 10) {
        stream.write_all(piece)?;
        asked.sent += piece.len() as u64;
        if let Some(pause) = manners.throttle {
            std::thread::sleep(pause);
        }
    }
    Ok(!is_cut)
}

fn name(shared: &Shared) -> String {
    shared.dir.file_name().unwrap().to_str().unwrap().to_owned()
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut dirs = vec![(String::new(), dir.to_owned())];
    while let Some((prefix, dir)) = dirs.pop() {
        for path in files::entries(dir) {
            let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
            if path.is_dir() {
                dirs.push((format!("{name}/"), path));
            } else {
                files.push((name, fs_err::read(path).unwrap()));
            }
        }
    }
    files
}

fn list_of_hub(shared: &Shared, manners: &Manners) -> String {
    let mut siblings: Vec<_> = files(&shared.dir)
        .iter()
        .map(|(name, bytes)| {
            let mut file = json!({ "rfilename": name, "size": bytes.len(), "blobId": git_blob(bytes) });
            if is_large(name) {
                file["blobId"] = json!(COMMIT);
                file["lfs"] = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 130 });
            }
            file
        })
        .collect();
    if let Some(name) = manners.lists {
        siblings.push(json!({ "rfilename": name, "size": 3, "blobId": COMMIT }));
    }
    json!({ "id": "org/name", "sha": COMMIT, "siblings": siblings }).to_string()
}

/// Git's name for the content of a file.
pub fn git_blob(bytes: &[u8]) -> String {
    use sha1::Digest;
    let mut hash = sha1::Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hash.finalize().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

fn index(shared: &Shared) -> String {
    let row = |(name, _): &(String, Vec<u8>)| format!("<a href=\"{name}\">{name}</a>\n");
    format!("<html><a href=\"../\">..</a>\n{}</html>", files(&shared.dir).iter().map(row).collect::<String>())
}
