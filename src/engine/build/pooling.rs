//! Builds what makes one vector of a text's states, or scores it.

use crate::arch::graph::HeadAct;
use crate::core::Shape;
use crate::engine::EngineError;
use crate::engine::build::builder::Builder;
use crate::engine::build::features::Sight;
use crate::engine::plan::{
    Classifier, HeadActivation, MaskedHead, ModelKind, NormFormula, PooledRow, Pooling,
};

const POOLING: &str = "pooling_type";
/// The value of [`POOLING`] that says that texts are scored.
const RANK: usize = 4;

impl Builder<'_> {
    /// What the outputs are: a decoder whose file says that texts are scored predicts none.
    pub(super) fn outputs(&self, has_encoder: bool) -> Result<ModelKind, EngineError> {
        let is_scoring = !has_encoder && self.keys.count(POOLING)? == Some(RANK);
        Ok(match self.built.kind {
            ModelKind::Decoder if is_scoring => ModelKind::Encoder,
            kind => kind,
        })
    }

    /// How the states of a text become one, and what follows; and what predicts masked tokens.
    pub(super) fn pooling(&mut self) -> Result<(Pooling, Option<MaskedHead>), EngineError> {
        let sees_all = self.built.sight == Sight::Full;
        let ends = if sees_all { PooledRow::First } else { PooledRow::Last };
        let (row, is_score) = match self.keys.count(POOLING)? {
            None | Some(0) => (PooledRow::Unsaid, false),
            Some(1) => (PooledRow::Mean, false),
            Some(2) => (PooledRow::First, false),
            Some(3) => (PooledRow::Last, false),
            Some(RANK) => (ends, true),
            Some(other) => return Err(self.keys.unknown(POOLING, "0 to 4", &other.to_string())),
        };
        let row = match self.keys.count("classifier.pooling_type")? {
            Some(1) if is_score => PooledRow::Mean,
            _ => row,
        };
        let is_masked = self.features.masked_head && !is_score && !self.tensors.has("cls.output.weight");
        let classifier = if is_masked { self.masked_transform()? } else { self.classifier()? };
        if is_score && classifier.is_none() {
            // Decoders have no first layer of a head.
            let tensor = if sees_all { "cls.weight" } else { "cls.output.weight" };
            return Err(EngineError::MissingTensor { tensor: tensor.to_owned() });
        }
        let mut width = self.n_embd;
        let mut dense = Vec::new();
        for name in ["dense_2", "dense_3"] {
            let rows = self.tensors.shape(&format!("{name}.weight")).map(Shape::n_rows);
            let Some(n_rows) = rows.and_then(|n| usize::try_from(n).ok()) else { continue };
            dense.push(self.tensors.need_matrix(name, n_rows, width)?);
            width = n_rows;
        }
        let masked = classifier.clone().filter(|_| is_masked);
        let masked = masked.map(|transform| MaskedHead { transform: Some(transform) });
        Ok((Pooling { row, dense, classifier: classifier.filter(|_| is_score) }, masked))
    }

    /// What a masked token's state passes through before the vocabulary is scored: all of it, or nothing.
    fn masked_transform(&mut self) -> Result<Option<Classifier>, EngineError> {
        if !self.tensors.has("cls.weight") && !self.tensors.has("cls.norm.weight") {
            return Ok(None);
        }
        let dense = self.tensors.need_matrix("cls", self.n_embd, self.n_embd)?;
        let norm = self.tensors.norm("cls.norm", self.n_embd, NormFormula::Layer, self.eps)?;
        let Some(norm) = norm else {
            return Err(EngineError::MissingTensor { tensor: "cls.norm.weight".to_owned() });
        };
        let (dense, norm) = (Some(dense), Some(norm));
        Ok(Some(Classifier { dense, act: self.head_act(), norm, out: None, softmax: false }))
    }

    fn head_act(&self) -> HeadActivation {
        match self.features.head_act {
            HeadAct::Tanh => HeadActivation::Tanh,
            HeadAct::GeluErf => HeadActivation::GeluErf,
        }
    }

    /// The head that scores a text. Claimed in any case: a file may have one and be meant for embeddings.
    fn classifier(&mut self) -> Result<Option<Classifier>, EngineError> {
        let n_rows = |name: &str| {
            let shape = self.tensors.shape(&format!("{name}.weight"))?;
            usize::try_from(shape.n_rows()).ok()
        };
        let (dense_rows, out_rows) = (n_rows("cls"), n_rows("cls.output"));
        let dense = match dense_rows {
            Some(n_rows) => Some(self.tensors.need_matrix("cls", n_rows, self.n_embd)?),
            None => None,
        };
        let width = dense_rows.unwrap_or(self.n_embd);
        let norm = self.tensors.norm("cls.norm", width, NormFormula::Layer, self.eps)?;
        let out = match out_rows {
            // A row for each label, where the file names them.
            Some(n_rows) => {
                let n_rows = self.keys.n_texts("classifier.output_labels")?.unwrap_or(n_rows);
                Some(self.tensors.need_matrix("cls.output", n_rows, width)?)
            }
            None => None,
        };
        if dense.is_none() && out.is_none() {
            return Ok(None);
        }
        let softmax = self.features.score_softmax;
        Ok(Some(Classifier { dense, act: self.head_act(), norm, out, softmax }))
    }
}
