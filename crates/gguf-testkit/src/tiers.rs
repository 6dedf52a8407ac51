//! Two tiers of tests. Every day: each behaviour once. Deep: all types, all damages, long properties.

/// How much a test covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// `cargo test`: a choice.
    Everyday,
    /// `cargo test -- --ignored ::deep`: all.
    Deep,
}

impl Tier {
    /// Returns true for the tier that covers everything.
    pub fn is_deep(self) -> bool {
        self == Self::Deep
    }

    /// Returns the first value every day and the second one in the deep tier.
    pub fn of<T>(self, everyday: T, deep: T) -> T {
        if self.is_deep() { deep } else { everyday }
    }

    /// Returns every `n`-th element of a list every day, and all of it in the deep tier.
    pub fn some<T>(self, n: usize, all: impl IntoIterator<Item = T>) -> Vec<T> {
        let all: Vec<T> = all.into_iter().collect();
        let step = self.of(n, 1);
        all.into_iter().step_by(step).collect()
    }
}

/// Makes two tests of a function of a [`Tier`]: `everyday`, and `deep`, which is ignored by default.
#[macro_export]
macro_rules! two_tiers {
    ($name:ident) => {
        mod $name {
            #[test]
            fn everyday() {
                super::$name($crate::tiers::Tier::Everyday);
            }

            #[test]
            #[ignore = "of the deep tier"]
            fn deep() {
                super::$name($crate::tiers::Tier::Deep);
            }
        }
    };
}

/// Makes a test of the deep tier alone.
#[macro_export]
macro_rules! deep_test {
    ($name:ident) => {
        mod $name {
            #[test]
            #[ignore = "of the deep tier"]
            fn deep() {
                super::$name();
            }
        }
    };
}

pub use crate::{deep_test, two_tiers};
