//! Cards of image and video models (`converters/diffusion/*.toml`): recognition by tensor names, and the types of
//! tensors.
//!
//! Files of these models have no keys of their own and keep the names of the checkpoint, so a card is a list of names.
//! The rules that all models share, among them the types of each file type, are in `converters/diffusion/base.toml`.

mod alike;
mod card;
mod common;
mod layout;
mod modules;
mod registry;
mod rules;
mod setting;

pub use alike::{Unequal, Unlike};
pub use card::{DiffusionCard, ImageTask, RefusedLayout};
pub use common::{Class, ClassTypes, CommonRules, NamePrefix};
pub use layout::{Halves, Layout, LayoutProblem, LayoutTensor};
pub use registry::{DiffusionCards, Recognition};
pub use rules::{DiffusionMixture, DiffusionRules, first_names, header_flaws};
pub use setting::Setting;
