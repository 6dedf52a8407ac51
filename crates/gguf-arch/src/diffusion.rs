//! Cards of image and video models (`converters/diffusion/*.toml`): recognition by tensor names, and the types of
//! tensors.
//!
//! Files of these models have no keys of their own and keep the names of the checkpoint, so a card is a list of names.
//! The rules that all models share, among them the types of each file type, are in `converters/diffusion/base.toml`.
//!
//! ```
//! use gguf_arch::diffusion::{DiffusionCards, Recognition};
//!
//! let cards = DiffusionCards::embedded()?;
//! let names = ["double_blocks.0.img_attn.proj.weight", "img_in.weight"];
//! let Recognition::Card(card) = cards.recognize(&names) else { unreachable!() };
//! assert_eq!(card.gguf, "flux");
//! # Ok::<(), gguf_arch::ArchError>(())
//! ```

mod alike;
mod card;
mod common;
mod layout;
mod modules;
mod registry;
mod rules;

pub use alike::Unlike;
pub use card::{DiffusionCard, ImageTask, RefusedLayout};
pub use common::{Class, ClassTypes, CommonRules, NamePrefix};
pub use layout::{Halves, Layout, LayoutProblem, LayoutTensor};
pub use registry::{DiffusionCards, Recognition};
pub use rules::{DiffusionMixture, DiffusionRules, first_names};
