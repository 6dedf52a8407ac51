//! Selection of vector instructions. The level is detected once and passed on as a value; `--simd` and tests can
//! request any level the machine has.

#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// A level of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SimdLevel {
    /// Portable reference code; runs everywhere.
    Scalar,
    /// 128-bit vectors on AArch64.
    Neon,
    /// 256-bit vectors with FMA and F16C on x86-64.
    Avx2,
    /// 512-bit vectors (F, BW, DQ, VL) on x86-64.
    Avx512,
}

impl SimdLevel {
    /// All levels, narrowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Returns the widest level of this machine.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|level| level.is_available()).unwrap_or(Self::Scalar)
    }

    /// Returns the levels of this machine, narrowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// Returns true if this machine can run the level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            _ => false,
        }
    }

    /// Name of the level, as `--simd` accepts it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Code that is compiled for each level and run by [`SimdLevel::vectorize`] or by a level's token.
///
/// `run` and everything it calls must be `#[inline(always)]`, else it is compiled for the baseline only (correct, but
/// slow). It must not use fused multiply-add, so that every level gives the same bits.
pub trait VectorLoop {
    /// Return type of the loop.
    type Output;

    /// Runs the loop.
    fn run(self) -> Self::Output;
}

impl SimdLevel {
    /// Runs a loop with the instructions of this level, or with the baseline's if the machine lacks it.
    pub fn vectorize<W: VectorLoop>(self, work: W) -> W::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                if let Some(token) = Avx512::new() {
                    return token.run(work);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                if let Some(token) = Avx2::new() {
                    return token.run(work);
                }
            }
            _ => {}
        }
        work.run()
    }
}

/// Defines the token of a level: a value proves that the machine has the instructions, and runs code compiled for them.
#[cfg(target_arch = "x86_64")]
macro_rules! tokens {
    ($( $(#[$doc:meta])* $name:ident = $features:literal; )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name(());

            impl $name {
                /// Returns the token if the machine has the instructions.
                pub fn new() -> Option<Self> {
                    SimdLevel::$name.is_available().then_some(Self(()))
                }

                /// Runs code in a function that is compiled with these instructions.
                #[inline(always)]
                pub fn run<W: VectorLoop>(self, work: W) -> W::Output {
                    #[target_feature(enable = $features)]
                    fn entry<W: VectorLoop>(work: W) -> W::Output {
                        work.run()
                    }
                    // SAFETY: the token exists, so the machine has the instructions.
                    unsafe { entry(work) }
                }
            }
        )*
    };
}

#[cfg(target_arch = "x86_64")]
tokens! {
    /// Proof that the machine has AVX2, FMA and F16C.
    Avx2 = "avx2,fma,f16c";
    /// Proof that the machine has AVX-512 F, BW, DQ and VL, and all of [`Avx2`].
    Avx512 = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl";
}

/// Reason why a `--simd` argument was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum SimdError {
    #[error("unknown SIMD level `{0}`: expected auto, scalar, neon, avx2 or avx512")]
    Unknown(String),
    #[error("this machine cannot run SIMD level `{0}`")]
    Unavailable(SimdLevel),
}

impl FromStr for SimdLevel {
    type Err = SimdError;

    fn from_str(text: &str) -> Result<Self, SimdError> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::detect());
        }
        let level = Self::ALL
            .into_iter()
            .find(|level| level.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| SimdError::Unknown(text.to_owned()))?;
        if level.is_available() { Ok(level) } else { Err(SimdError::Unavailable(level)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_available_and_names_round_trip() {
        let auto: SimdLevel = "auto".parse().unwrap();
        assert!(auto.is_available());
        for level in SimdLevel::available() {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert!(matches!("mmx".parse::<SimdLevel>(), Err(SimdError::Unknown(_))));
    }
}
