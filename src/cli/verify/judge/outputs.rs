//! Outputs of a verification in addition to the report.

use std::path::Path;

use super::VerifyArgs;
use crate::cli::Session;
use crate::cli::verify::per_token::PerTokenFile;
use crate::core::progress::Progress;
use crate::core::text::escape;
use crate::tokenizer::Encoder;
use crate::verify::{LogitFileSize, Position, Prompt};

/// Outputs in addition to the report.
pub(super) struct Outputs<'a> {
    per_token: Option<PerTokenFile>,
    /// Logit file that no model has written yet.
    pub(super) save: Option<&'a Path>,
}

impl<'a> Outputs<'a> {
    pub(super) fn begin(args: &'a VerifyArgs) -> anyhow::Result<Self> {
        let per_token = args.per_token.as_deref().map(PerTokenFile::create).transpose()?;
        Ok(Self { per_token, save: args.save_baseline.as_deref() })
    }

    pub(super) fn announce(&self, size: &LogitFileSize, session: &Session) {
        let name = self.save.map(|path| path.display().to_string()).unwrap_or_default();
        session.note(&format!("{} will have {size}", escape(&name)));
    }

    pub(super) fn take(
        &mut self,
        model: &Path,
        encoder: Option<&Encoder>,
        prompts: &[Prompt],
        positions: &[Position],
    ) -> anyhow::Result<()> {
        match &mut self.per_token {
            Some(file) => Ok(file.write(model, encoder, prompts, positions)?),
            None => Ok(()),
        }
    }

    pub(super) fn commit(self, session: &Session) -> anyhow::Result<()> {
        if let Some(path) = self.save {
            let name = path.display().to_string();
            session.progress.warn(&format!("{} is not written: nothing was run", escape(&name)));
        }
        self.per_token.map_or(Ok(()), |file| Ok(file.commit(!session.common.no_sync)?))
    }
}
