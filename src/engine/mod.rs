//! The reference inference engine.
