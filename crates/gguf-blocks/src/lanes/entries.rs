//! Table for the levels without an instruction that looks up floats.

use std::ops::{Mul, Sub};

/// Eight floats as a plain array.
#[derive(Clone, Copy)]
pub(crate) struct Entries([f32; 8]);

macro_rules! entries_operators {
    ($( $operator:ident $method:ident; )*) => {
        $( impl $operator for Entries {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                let mut out = self.0;
                for i in 0..8 {
                    out[i] = self.0[i].$method(other.0[i]);
                }
                Self(out)
            }
        } )*
    };
}

entries_operators! { Sub sub; Mul mul; }

impl Entries {
    #[inline(always)]
    pub(crate) fn new(entries: [f32; 8]) -> Self {
        Self(entries)
    }

    /// Returns the entry with the index in the lowest three bits.
    #[inline(always)]
    pub(crate) fn get(self, index: i32) -> f32 {
        self.0[(index & 7) as usize]
    }
}
