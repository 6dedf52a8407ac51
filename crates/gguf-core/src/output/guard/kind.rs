//! Kinds of files, detected by their first bytes as far as needed to decide what may replace them.

use std::fmt;

use memchr::memmem;

/// Kind of a file that the programs write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// A GGUF file that is not an importance matrix.
    Model,
    /// An importance matrix of either format.
    Imatrix,
    /// A recipe of a quantized file.
    Recipe,
    /// Log-probabilities in the format of llama-perplexity.
    LogitFile,
    /// One part of a verification.
    VerificationPart,
    /// Logits as JSON, one line for each prompt.
    Logits,
    /// Figures as JSON, one line for each prompt.
    PerToken,
    /// A verdict as an HTML page.
    HtmlReport,
    /// A verdict for a model card.
    MarkdownReport,
    /// A verdict as JSON.
    Json,
    /// Figures of verdicts as CSV.
    FigureTable,
    /// Verdicts as test cases of JUnit.
    TestCases,
    /// An architecture card that was drafted and not edited since.
    CardDraft,
    /// Tensor types as rules, one per line, each with a whole tensor name.
    TypeRules,
    /// The page of a folder of quantizations.
    LadderPage,
    /// The files of a folder of quantizations, as JSON.
    LadderJson,
    /// SHA-256 checksums, as `sha256sum` writes them.
    Checksums,
    /// A chart as SVG.
    Chart,
    /// A description of a model for Ollama.
    Modelfile,
}

impl OutputKind {
    /// Returns true if a file of that kind may be replaced. A report does not replace another kind of report: only a
    /// file made by the same option is known to be made again.
    pub fn replaces(self, found: FoundKind) -> bool {
        found == FoundKind::Empty || found == FoundKind::Output(self)
    }
}

impl fmt::Display for OutputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "a GGUF model",
            Self::Imatrix => "an importance matrix",
            Self::Recipe => "a recipe of a file",
            Self::LogitFile => "a logit file",
            Self::VerificationPart => "a part of a verification",
            Self::Logits => "a table of logits",
            Self::PerToken => "a table of tokens",
            Self::HtmlReport => "an HTML report",
            Self::MarkdownReport => "a Markdown report",
            Self::Json => "a JSON report",
            Self::FigureTable => "a table of figures",
            Self::TestCases => "a report of test cases",
            Self::CardDraft => "a drafted card",
            Self::TypeRules => "a list of types",
            Self::LadderPage => "a page of `gguf-quantize ladder`",
            Self::LadderJson => "a list of `gguf-quantize ladder`",
            Self::Checksums => "a list of checksums",
            Self::Chart => "a chart of gguf-foundry",
            Self::Modelfile => "a Modelfile of gguf-foundry",
        })
    }
}

/// Kind of an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundKind {
    /// An empty file.
    Empty,
    /// A file that the programs write.
    Output(OutputKind),
    /// A safetensors file.
    Safetensors,
    /// A ZIP archive, which PyTorch files are.
    Zip,
    /// JSON, or lines of it.
    Json,
    /// An HTML page.
    Html,
    /// Any other text.
    Text,
    /// Anything else.
    Other,
}

impl fmt::Display for FoundKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "an empty file",
            Self::Output(kind) => return kind.fmt(f),
            Self::Safetensors => "a safetensors file",
            Self::Zip => "a ZIP archive (a PyTorch file is one)",
            Self::Json => "a JSON file",
            Self::Html => "an HTML page",
            Self::Text => "a text file",
            Self::Other => "a file of another kind",
        })
    }
}

impl FoundKind {
    /// Detects the kind from the first bytes (64 KiB are enough) and the length of the whole file.
    pub fn of(head: &[u8], file_bytes: u64) -> Self {
        if head.is_empty() {
            return Self::Empty;
        }
        if head.starts_with(b"GGUF") {
            let kind = match () {
                () if has_general_type(head, b"imatrix") => OutputKind::Imatrix,
                () if has_general_type(head, b"recipe") => OutputKind::Recipe,
                () => OutputKind::Model,
            };
            return Self::Output(kind);
        }
        if head.starts_with(b"_logits_") {
            return Self::Output(OutputKind::LogitFile);
        }
        if head.starts_with(b"ggufpart") {
            return Self::Output(OutputKind::VerificationPart);
        }
        if head.starts_with(b"PK\x03\x04") {
            return Self::Zip;
        }
        if is_safetensors(head) {
            return Self::Safetensors;
        }
        if is_old_imatrix(head, file_bytes) {
            return Self::Output(OutputKind::Imatrix);
        }
        Self::of_text(head)
    }

    fn of_text(head: &[u8]) -> Self {
        let is_control = |byte: &u8| *byte < 0x20 && !b"\t\n\r\x0c\x1b".contains(byte);
        let cut = match std::str::from_utf8(head) {
            Ok(_) => head.len(),
            // A character may be cut off at the end of the head.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return Self::Other,
        };
        let Some(Ok(text)) = head.get(..cut).map(std::str::from_utf8) else { return Self::Other };
        if text.as_bytes().iter().any(is_control) {
            return Self::Other;
        }
        let start = text.trim_start_matches('\u{feff}').trim_start();
        if let Some(kind) = report(text) {
            Self::Output(kind)
        } else if start.starts_with(['{', '[']) {
            Self::Json
        } else if start.get(..14).is_some_and(|start| start.eq_ignore_ascii_case("<!doctype html")) {
            Self::Html
        } else {
            Self::Text
        }
    }
}

/// Returns true if the key `general.type` has this value, in either byte order. It is the first key of importance
/// matrices and recipes.
fn has_general_type(head: &[u8], value: &[u8]) -> bool {
    let (n, key) = (value.len() as u64, &b"general.type"[..]);
    let little = [key, &8u32.to_le_bytes(), &n.to_le_bytes(), value].concat();
    let big = [key, &8u32.to_be_bytes(), &n.to_be_bytes(), value].concat();
    [little, big].iter().any(|needle| memmem::find(head, needle).is_some())
}

/// Returns true for the length of a header followed by the header.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else { return false };
    u64::from_le_bytes(*length) <= 100 << 20 && rest.starts_with(b"{\"")
}

/// Returns true for the format before GGUF: a number of entries, each with its name before its numbers. Without entries
/// only the number of chunks and the name of the text follow.
fn is_old_imatrix(head: &[u8], file_bytes: u64) -> bool {
    let number = |at: usize| {
        let bytes = head.get(at..)?.first_chunk::<4>()?;
        u32::try_from(i32::from_le_bytes(*bytes)).ok()
    };
    match (number(0), number(4)) {
        (Some(0), Some(_)) => number(8).is_some_and(|length| file_bytes == 12 + u64::from(length)),
        (Some(1..0x10_0000), Some(length @ 1..=1024)) => {
            let name = head.get(8..8 + length as usize);
            name.is_some_and(|name| name.iter().all(u8::is_ascii_graphic))
        }
        _ => false,
    }
}

/// Beginning of a drafted card.
pub const CARD_DRAFT: &str =
    "# TODO: one line on what these models are.\n#\n# A draft of `gguf-convert draft`.";

/// Line of the page of a folder of quantizations. Who edits the page removes it.
pub const LADDER_PAGE: &str = "# Written by gguf-quantize ladder. Remove this line to keep changes.";

/// First line of a Modelfile. Who edits the file removes it.
pub const MODELFILE: &str = "# Written by gguf-foundry. Remove this line to keep changes.";

/// Mark of a chart in a file of its own.
pub const CHART: &str = "data-generator=\"gguf-foundry\"";

/// Returns true for a line of `sha256sum`; the last line of a head may be cut off.
fn is_checksum(line: &str) -> bool {
    let (digits, rest) = line.split_at_checked(64.min(line.len())).unwrap_or((line, ""));
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()) && (rest.is_empty() || rest.starts_with("  "))
}

/// Returns the kind of a report or table that the programs write.
fn report(text: &str) -> Option<OutputKind> {
    let digits = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
    if text.starts_with("<!DOCTYPE html>") && text.contains("name=\"generator\" content=\"gguf-foundry ") {
        return Some(OutputKind::HtmlReport);
    }
    if text.starts_with("## ") && text.contains("\n**Verdict: ") {
        return Some(OutputKind::MarkdownReport);
    }
    let is_one = text.starts_with("{\n  \"file\": ") && text.contains("\n  \"size_bytes\": ");
    if is_one || (text.starts_with("{\n  \"verdict\": ") && text.contains("\n  \"models\": [")) {
        return Some(OutputKind::Json);
    }
    if text.starts_with("file,type,size_bytes,bits_per_weight,") {
        return Some(OutputKind::FigureTable);
    }
    if text.starts_with("<?xml ") && text.contains("\n<testsuites name=\"gguf-verify\">") {
        return Some(OutputKind::TestCases);
    }
    if text.starts_with("{\"file\":\"") && text.contains("\",\"prompt\":") && text.contains(",\"tokens\":[") {
        return Some(OutputKind::PerToken);
    }
    if text.starts_with("---\n") && text.contains(LADDER_PAGE) {
        return Some(OutputKind::LadderPage);
    }
    if text.starts_with("{\n  \"made_by\": \"gguf-quantize ladder ") {
        return Some(OutputKind::LadderJson);
    }
    if text.starts_with(MODELFILE) {
        return Some(OutputKind::Modelfile);
    }
    if text.starts_with("<svg ") && text.contains(CHART) {
        return Some(OutputKind::Chart);
    }
    if !text.is_empty() && text.lines().all(is_checksum) {
        return Some(OutputKind::Checksums);
    }
    // Once its first line describes the models, a person has worked on it.
    if text.starts_with(CARD_DRAFT) {
        return Some(OutputKind::CardDraft);
    }
    if is_type_rule(text.lines().next().unwrap_or_default())
        && text.lines().skip(1).all(|line| line.starts_with('^'))
    {
        return Some(OutputKind::TypeRules);
    }
    let prompt = text.strip_prefix("{\"prompt\":").map(digits);
    prompt.is_some_and(|rest| rest.starts_with(",\"logits\":[")).then_some(OutputKind::Logits)
}

/// Returns true for a rule that matches exactly one name. Rules written by hand are usually shorter.
fn is_type_rule(line: &str) -> bool {
    let parts = line.strip_prefix('^').and_then(|line| line.split_once("$="));
    parts.is_some_and(|(name, ty)| {
        !name.is_empty()
            && !ty.is_empty()
            && ty.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(head: &[u8]) -> FoundKind {
        FoundKind::of(head, head.len() as u64)
    }

    #[test]
    fn files_are_told_by_their_first_bytes() {
        use FoundKind::{Empty, Html, Json, Other, Output, Safetensors, Text, Zip};
        let mut imatrix = b"GGUF\x03\0\0\0".to_vec();
        imatrix.extend([0; 16]);
        imatrix.extend(b"\x0c\0\0\0\0\0\0\0general.type\x08\0\0\0\x07\0\0\0\0\0\0\0imatrix");
        let model = [&imatrix[..imatrix.len() - 15], b"\x05\0\0\0\0\0\0\0model"].concat();
        let recipe = [&imatrix[..imatrix.len() - 15], b"\x06\0\0\0\0\0\0\0recipe"].concat();
        let old = b"\x02\0\0\0\x03\0\0\0a.w\x01\0\0\0";
        for (head, expected) in [
            (&b""[..], Empty),
            (b"GGUF", Output(OutputKind::Model)),
            (&model, Output(OutputKind::Model)),
            (&imatrix, Output(OutputKind::Imatrix)),
            (&recipe, Output(OutputKind::Recipe)),
            (old, Output(OutputKind::Imatrix)),
            (b"\0\0\0\0\x02\0\0\0\x01\0\0\0t", Output(OutputKind::Imatrix)),
            (b"\0\0\0\0\x02\0\0\0\x02\0\0\0t", Other),
            (b"_logits_\x08", Output(OutputKind::LogitFile)),
            (b"ggufpart\x01\0", Output(OutputKind::VerificationPart)),
            (b"PK\x03\x04\0", Zip),
            (b"\x10\0\0\0\0\0\0\0{\"a\":{}}", Safetensors),
            (b"{\"prompt\":12,\"logits\":[0.5]}\n", Output(OutputKind::Logits)),
            (b"{\"prompt\":\"Hi\",\"completion\":\"logits\"}\n", Json),
            (b"{\"file\":\"a\\\"b\",\"prompt\":0,\"tokens\":[1]}\n", Output(OutputKind::PerToken)),
            (b"{\n  \"file\": \"a\",\n  \"size_bytes\": 1\n}\n", Output(OutputKind::Json)),
            (b"{\n  \"verdict\": \"pass\",\n  \"models\": []\n}\n", Output(OutputKind::Json)),
            (b"{\n  \"file\": \"a\"\n}\n", Json),
            (b"file,type,size_bytes,bits_per_weight,perplexity\n", Output(OutputKind::FigureTable)),
            (b"file,type\n", Text),
            (b"<?xml version=\"1.0\"?>\n<testsuites name=\"gguf-verify\">", Output(OutputKind::TestCases)),
            (b"{\n  \"made_by\": \"gguf-quantize ladder 0.1.0\"\n}\n", Output(OutputKind::LadderJson)),
            (
                b"---\n# Written by gguf-quantize ladder. Remove this line to keep changes.\n---\n",
                Output(OutputKind::LadderPage),
            ),
            (b"---\nlicense: mit\n---\n# Mine\n", Text),
            (b"<svg xmlns=\"x\" data-generator=\"gguf-foundry\">", Output(OutputKind::Chart)),
            (b"<svg xmlns=\"x\">", Text),
            (MODELFILE.as_bytes(), Output(OutputKind::Modelfile)),
            (b"FROM ./a.gguf\n", Text),
            (
                b"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a.gguf\ne3b0",
                Output(OutputKind::Checksums),
            ),
            (b"e3b0c44298fc1c149afbf4c8996fb924  a.gguf\n", Text),
            (b"\xef\xbb\xbf [1]", Json),
            (
                b"<!DOCTYPE html>\n<meta name=\"generator\" content=\"gguf-foundry 1\">",
                Output(OutputKind::HtmlReport),
            ),
            (b"<!doctype HTML>", Html),
            (b"## a: verification\n\n**Verdict: pass.**", Output(OutputKind::MarkdownReport)),
            (b"## a model\n", Text),
            (b"^output\\.weight$=q6_k\n^blk\\.0\\.attn", Output(OutputKind::TypeRules)),
            (b"^output\\.weight$=q6_k\nattn_v=q8_0", Text),
            (b"attn_v=q8_0\n", Text),
            (b"^attn_v", Text),
            (b"general = 1\n\xc3", Text),
            (b"\xff\xfe", Other),
            (b"a\0", Other),
        ] {
            assert_eq!(kind(head), expected, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn a_kind_replaces_itself_and_nothing_else() {
        for kind in [OutputKind::Model, OutputKind::Imatrix, OutputKind::Json, OutputKind::Logits] {
            assert!(kind.replaces(FoundKind::Empty) && kind.replaces(FoundKind::Output(kind)));
            assert!(
                !kind.replaces(FoundKind::Text) && !kind.replaces(FoundKind::Output(OutputKind::LogitFile))
            );
        }
    }
}
