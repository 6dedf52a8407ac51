//! Encoder stack of encoder-decoder models.

use crate::Result;
use crate::exec::weights::Norm;
use crate::layers::layer::LayerPlan;
use crate::resolve::resolver::Resolver;
use gguf_arch::graph::{GraphKind, MaskKind};

/// Stack of layers whose final states another stack attends to.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderPlan {
    /// Layers.
    pub layers: Vec<LayerPlan>,
    /// Norm of the last layer's output.
    pub final_norm: Option<Norm>,
    /// Token at the start of every answer of the decoder.
    pub start: Option<u32>,
}

impl EncoderPlan {
    /// Resolves the encoder of an encoder-decoder model; tensors resolved afterwards are the decoder's.
    pub(crate) fn resolve(b: &mut Resolver<'_>) -> Result<Option<EncoderPlan>> {
        if b.features.kind != GraphKind::Encdec {
            // A file may have the encoder alone, under the names of an encoder-decoder model.
            if b.tensors.has("enc.blk.0.attn_norm.weight") {
                b.tensors.enter("enc.");
            }
            return Ok(None);
        }
        b.tensors.enter("enc.");
        b.built.sight = MaskKind::Full;
        let layers = (0..b.n_layers).map(|layer| LayerPlan::resolve(b, layer)).collect::<Result<_, _>>()?;
        let final_norm = Some(b.need_norm("output_norm")?);
        b.tensors.enter("dec.");
        b.built.sight = MaskKind::Causal;
        if let Some(n_layers) = b.keys.count("decoder_block_count")?.filter(|&n| n > 0) {
            b.n_layers = n_layers;
        }
        let start = b.keys.count("decoder_start_token_id")?.and_then(|id| u32::try_from(id).ok());
        Ok(Some(EncoderPlan { layers, final_norm, start }))
    }
}
