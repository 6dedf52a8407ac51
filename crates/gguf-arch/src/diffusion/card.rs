//! Card of one architecture of image or video models.

use crate::Result;
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{ArchError, CardProblem};
use gguf_core::{GgmlType, Shape};
use gguf_format::FileType;

use super::alike::{Alike, Unequal, Unlike};
use super::common::{KIND, TypeName, wrong_kind};
use super::layout::{Layout, fewest};
use super::setting::Setting;

/// Architecture of image or video models.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffusionCard {
    schema: u32,
    kind: String,
    /// Value of `general.architecture`.
    pub gguf: String,
    /// Position among the cards: the first that recognizes a checkpoint is used.
    pub order: u32,
    /// Public repositories of such models.
    pub examples: Vec<String>,
    /// What most models of the architecture do.
    #[serde(default)]
    pub task: ImageTask,
    /// Sets of names: a checkpoint with all names of one set has this architecture.
    pub recognize: Vec<Vec<String>>,
    /// Sets of names of first and last layers: every model has all names of one set.
    #[serde(default)]
    pub needs: Vec<Vec<String>>,
    /// Modules of which all have the same tensors.
    #[serde(default)]
    pub(super) alike: Vec<Alike>,
    /// Layouts of the architecture without a certain way back to the names that runtimes read.
    #[serde(default)]
    pub refused: Vec<RefusedLayout>,
    /// Layouts of other programs that lead back to those names.
    #[serde(default)]
    pub layouts: Vec<Layout>,
    /// Parts of names of tensors that are left out.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// Parts of names of tensors that stay F32.
    #[serde(default)]
    pub f32: Vec<String>,
    /// Parts of names of layers whose weights ComfyUI-GGUF does not decode, in BF16 as in blocks.
    #[serde(default)]
    pub(crate) undecoded: Vec<String>,
    /// Parts of names of parameters, with their number of dimensions, some of which are 1.
    #[serde(default)]
    pub dims: BTreeMap<String, usize>,
    /// Parts of names of weights that are not quantized.
    #[serde(default)]
    pub keep: Vec<String>,
    /// Whole names of weights that are not quantized.
    #[serde(default)]
    pub keep_names: Vec<String>,
    /// True to write tensors with short rows in rows of 256 values, with a key for their shape.
    #[serde(default)]
    pub reshape: bool,
    /// Entries of the checkpoint's header that become keys.
    #[serde(default)]
    pub copied: Vec<String>,
    /// Names, each of which shows a model whose runtime reads its numbers from the copied entries.
    #[serde(default)]
    pub copied_for: Vec<String>,
    /// Settings of diffusers that runtimes take from a tensor without values.
    #[serde(default)]
    pub settings: Vec<Setting>,
    /// Types of the first and last blocks.
    ends: Option<EndBlocks>,
}

/// What an image or video model does, as a tag of the Hugging Face hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageTask {
    /// `text-to-image`.
    #[default]
    TextToImage,
    /// `image-to-image`.
    ImageToImage,
    /// `text-to-video`.
    TextToVideo,
    /// `image-to-video`.
    ImageToVideo,
}

impl ImageTask {
    /// All tasks.
    pub const ALL: [Self; 4] = [Self::TextToImage, Self::ImageToImage, Self::TextToVideo, Self::ImageToVideo];

    /// Tag of the hub.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::TextToImage => "text-to-image",
            Self::ImageToImage => "image-to-image",
            Self::TextToVideo => "text-to-video",
            Self::ImageToVideo => "image-to-video",
        }
    }
}

/// Layout of an architecture that runtimes do not read, without a certain way back.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedLayout {
    /// Program that the layout belongs to.
    pub layout: String,
    /// Names, each of which shows the layout.
    pub names: Vec<String>,
    /// What to convert instead.
    pub way_out: String,
}

/// Types of the first and last blocks, for all classes of weights.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndBlocks {
    /// Parts of the names of these blocks.
    parts: Vec<String>,
    /// Type by file type.
    types: BTreeMap<String, TypeName>,
}

impl DiffusionCard {
    /// Returns the names that are missing for a checkpoint to be recognized.
    pub fn unrecognized(&self, has: impl Fn(&str) -> bool) -> Vec<&str> {
        fewest(&self.recognize, has)
    }

    /// Returns the differences between modules that are alike in every such model.
    pub(super) fn unlike(&self, names: &[&str]) -> Unlike {
        let mut found = Unlike::default();
        self.alike.iter().for_each(|alike| alike.compare(names, &mut found));
        found.missing.sort();
        found.missing.dedup();
        found
    }

    /// Returns a tensor whose shape differs from that in other modules that are alike.
    pub fn unequal(&self, tensors: &[(&str, &Shape)]) -> Option<Unequal> {
        self.alike.iter().find_map(|alike| alike.unequal(tensors))
    }

    /// Returns the layout of another program that names show.
    pub fn layout(&self, has: impl Fn(&String) -> bool) -> Option<&Layout> {
        self.layouts.iter().find(|layout| layout.matches(&has))
    }

    /// Parses a card; `stem` is the name of its file without the extension.
    ///
    /// # Errors
    /// [`ArchError::Card`]: no TOML, an unknown or missing key, a value of the wrong kind.
    pub fn parse(stem: &str, text: &str) -> Result<Self> {
        let wrong = |problem| ArchError::Card { card: stem.to_owned(), problem: Box::new(problem) };
        let card: Self =
            toml::from_str(text).map_err(|error| wrong(CardProblem::Toml(error.message().to_owned())))?;
        let other = |at: &str, expected, found| wrong(wrong_kind(at, expected, found));
        if card.schema != 1 {
            return Err(other("schema", "1", card.schema.to_string()));
        }
        if card.kind != KIND {
            return Err(other("kind", "`diffusion`", format!("`{}`", card.kind)));
        }
        if card.gguf != stem {
            return Err(wrong(CardProblem::Stem { gguf: card.gguf, stem: stem.to_owned() }));
        }
        if card.recognize.is_empty() || card.recognize.iter().any(Vec::is_empty) {
            return Err(other("recognize", "lists of names", "an empty list".to_owned()));
        }
        let types = card.ends.iter().flat_map(|ends| ends.types.keys());
        if let Some(name) = types.into_iter().find(|name| FileType::parse(name).is_none()) {
            return Err(other("ends.types", "file types", format!("`{name}`")));
        }
        card.layouts.iter().try_for_each(Layout::check).map_err(wrong)?;
        Ok(card)
    }

    /// Returns true if the text of a card is of this kind.
    pub fn is_one(text: &str) -> bool {
        let table = text.parse::<toml::Table>().ok();
        table.is_some_and(|table| table.get("kind").and_then(toml::Value::as_str) == Some(KIND))
    }

    /// Returns true if a tensor is left out.
    pub fn leaves_out(&self, name: &str) -> bool {
        self.left_out.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns true if a weight is not quantized.
    pub fn keeps(&self, name: &str) -> bool {
        self.keep_names.iter().any(|kept| kept == name)
            || self.keep.iter().any(|part| name.contains(part.as_str()))
    }

    /// Returns the type of a weight if it belongs to the first or last blocks, which have types of their own.
    pub(super) fn type_of_ends(&self, file_type: FileType, name: &str) -> Option<GgmlType> {
        let ends = self.ends.as_ref()?;
        let ty = ends.types.get(&file_type.name().to_ascii_lowercase())?;
        ends.parts.iter().any(|part| name.contains(part.as_str())).then_some(ty.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "schema = 1\nkind = \"diffusion\"\ngguf = \"x\"\norder = 1\nexamples = [\"a/b\"]\n\
                        recognize = [[\"a.weight\"]]\nkeep = [\"in.\"]\nkeep_names = [\"out.weight\"]\n";

    #[test]
    fn a_card_is_checked() {
        let card = DiffusionCard::parse("x", TEXT).unwrap();
        assert!(card.keeps("a.in.b") && card.keeps("out.weight") && !card.keeps("a.out.weight"));
        assert!(DiffusionCard::is_one(TEXT) && !DiffusionCard::is_one("schema = 1"));
        let error = |stem, text: &str| DiffusionCard::parse(stem, text).unwrap_err().to_string();
        assert!(error("x", &format!("{TEXT}kept = 1\n")).contains("unknown field `kept`"));
        assert!(error("y", TEXT).contains("`x`"));
        assert!(error("x", &TEXT.replace("\"diffusion\"", "\"text\"")).contains("found `text`"));
        assert!(error("x", &TEXT.replace("[[\"a.weight\"]]", "[]")).contains("an empty list"));
        assert_eq!(card.task, ImageTask::TextToImage);
        let task = |name: &str| format!("{TEXT}task = \"{name}\"\n");
        for known in ImageTask::ALL {
            assert_eq!(DiffusionCard::parse("x", &task(known.tag())).unwrap().task, known);
        }
        assert!(error("x", &task("text-to-sound")).contains("text-to-sound"));
        let ends = format!("{TEXT}[ends]\nparts = [\"b.\"]\ntypes = {{ q9 = \"q4_k\" }}\n");
        assert!(error("x", &ends).contains("`q9`"));
        let ends = format!("{TEXT}[ends]\nparts = [\"b.\"]\ntypes = {{ q2_k = \"q9_k\" }}\n");
        assert!(error("x", &ends).contains("q9_k"));
    }
}
