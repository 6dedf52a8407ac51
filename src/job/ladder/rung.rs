//! Names of the types of a ladder, and lists of them.

use std::fmt;
use std::str::FromStr;

use crate::arch::diffusion::DiffusionCards;
use crate::core::{GgmlType, Hint};
use crate::quantize::{FileType, OptionError, RungTypes, nominal, parse_file_type};

/// Mixtures with larger embeddings and output matrix, by the names that publishers give them.
const LARGER: [(&str, FileType); 5] = [
    ("Q6_K_L", FileType::Q6K),
    ("Q5_K_L", FileType::Q5KM),
    ("Q4_K_L", FileType::Q4KM),
    ("Q3_K_XL", FileType::Q3KL),
    ("Q2_K_L", FileType::Q2K),
];

/// Prefix of a limit of the divergence in place of a type: `kld:0.01`.
const KLD: &str = "kld:";

/// Types of one file of a ladder.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// Name, as in the name of the file: `Q4_K_M`, `Q4_K_L`, `KLD-0.01`.
    pub name: String,
    /// Mixture and types of single tensors.
    pub types: RungTypes,
    /// Limit of the measured divergence (nats) for which the types are chosen; `types` then gives the largest file.
    pub most_kld: Option<f64>,
}

/// A name that is no type.
#[derive(Debug, thiserror::Error)]
pub enum UnknownRung {
    /// There is no such type.
    #[error(transparent)]
    Type(#[from] OptionError),
    /// The limit is not a divergence.
    #[error("`{name}`: a divergence above 0 expected, as in `kld:0.01`")]
    Kld {
        /// Name as it was given.
        name: String,
    },
}

impl Hint for UnknownRung {
    fn hints(&self) -> Vec<String> {
        let Self::Type(error) = self else { return Vec::new() };
        let names: Vec<&str> = LARGER.iter().map(|(name, _)| *name).collect();
        let larger = format!("with larger embeddings and output: {}", names.join(", "));
        error.hints().into_iter().chain([larger]).collect()
    }
}

impl Rung {
    /// Returns true if its types need an importance matrix.
    pub fn needs_importance(&self) -> bool {
        nominal(self.types.file_type).is_some_and(|nominal| nominal.needs_imatrix)
    }

    /// Returns true if image and video models have these types. They have no embeddings and no output matrix.
    pub fn is_of_images(&self) -> bool {
        let types = &self.types;
        let is_plain = || types.file_type.base().is_none_or(|base| !base.is_quantized());
        // Embedded cards are valid.
        let is_written =
            || DiffusionCards::embedded().is_ok_and(|cards| cards.common().types(types.file_type).is_some());
        let is_named = self.most_kld.is_none();
        is_named && types.output.is_none() && types.embeddings.is_none() && (is_plain() || is_written())
    }

    /// Returns the bits per weight on a well-known model, by which files are ordered; infinite for types without.
    pub fn nominal_bits(&self) -> f64 {
        nominal(self.types.file_type).map_or(f64::INFINITY, |nominal| nominal.bits_per_weight)
    }

    /// Parses a list of names between commas. A name that is there twice counts once.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, UnknownRung> {
        let mut rungs: Vec<Self> = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let rung = name.parse()?;
            if !rungs.contains(&rung) {
                rungs.push(rung);
            }
        }
        Ok(rungs)
    }
}

/// Name of a file type in any case, its number, a mixture with larger embeddings, or a limit of the divergence.
impl FromStr for Rung {
    type Err = UnknownRung;

    fn from_str(name: &str) -> Result<Self, UnknownRung> {
        if name.get(..KLD.len()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(KLD)) {
            let kld = name[KLD.len()..].trim().parse().ok().filter(|kld: &f64| *kld > 0.0 && kld.is_finite());
            let kld = kld.ok_or_else(|| UnknownRung::Kld { name: name.to_owned() })?;
            let types = RungTypes { file_type: FileType::Q8_0, output: None, embeddings: None };
            return Ok(Self { name: format!("KLD-{kld}"), types, most_kld: Some(kld) });
        }
        if let Some((name, file_type)) = LARGER.iter().find(|(larger, _)| larger.eq_ignore_ascii_case(name)) {
            let q8_0 = Some(GgmlType::Q8_0);
            let types = RungTypes { file_type: *file_type, output: q8_0, embeddings: q8_0 };
            return Ok(Self { name: (*name).to_owned(), types, most_kld: None });
        }
        let file_type = parse_file_type(name)?;
        let types = RungTypes { file_type, output: None, embeddings: None };
        Ok(Self { name: file_type.name().to_owned(), types, most_kld: None })
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// Named list of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Few types that fit most machines.
    Small,
    /// Types that most publishers offer, from 8 to 2.7 bits.
    Standard,
    /// All types that somebody may look for.
    Full,
}

impl Preset {
    /// Names of all presets.
    pub const ALL: [(&str, Self); 3] =
        [("small", Self::Small), ("standard", Self::Standard), ("full", Self::Full)];

    /// Finds a preset by its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, preset)| *preset)
    }

    /// Names of its types between commas, the largest first.
    pub fn types(self) -> &'static str {
        match self {
            Self::Small => "Q8_0,Q6_K,Q5_K_M,Q4_K_M,IQ4_XS,Q3_K_M",
            Self::Standard => {
                "Q8_0,Q6_K,Q5_K_M,Q5_K_S,Q4_K_M,Q4_K_S,IQ4_XS,Q3_K_L,Q3_K_M,IQ3_M,IQ3_XXS,Q2_K,IQ2_M"
            }
            Self::Full => {
                "Q8_0,Q6_K_L,Q6_K,Q5_K_L,Q5_K_M,Q5_K_S,Q4_1,Q4_K_L,Q4_K_M,IQ4_NL,Q4_K_S,Q4_0,IQ4_XS,Q3_K_XL,\
                 Q3_K_L,Q3_K_M,IQ3_M,Q3_K_S,IQ3_XXS,Q2_K,IQ2_M,IQ2_XS"
            }
        }
    }

    /// Returns its types.
    pub fn rungs(self) -> Vec<Rung> {
        // Every name is a type: a test parses them all.
        Rung::parse_list(self.types()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_go_from_large_to_small() {
        for ((name, preset), n_types) in Preset::ALL.into_iter().zip([6, 13, 22]) {
            let rungs = preset.rungs();
            assert_eq!(rungs.len(), n_types, "{name}");
            assert_eq!(preset.types().split(',').count(), n_types, "{name}: a name is no type");
            let bits: Vec<f64> =
                rungs.iter().filter(|rung| rung.types.embeddings.is_none()).map(Rung::nominal_bits).collect();
            assert!(bits.is_sorted_by(|a, b| a >= b), "{name}: {bits:?}");
        }
    }

    #[test]
    fn names_of_types() {
        let rung = |name: &str| name.parse::<Rung>();
        assert_eq!(rung("q4_k_m").unwrap().name, "Q4_K_M");
        assert_eq!(rung("15").unwrap().name, "Q4_K_M");
        let larger = rung("q4_k_l").unwrap();
        assert_eq!((larger.name.as_str(), larger.types.file_type), ("Q4_K_L", FileType::Q4KM));
        assert_eq!(larger.types.embeddings, Some(GgmlType::Q8_0));
        assert!(rung("q9").unwrap_err().hints().last().unwrap().contains("Q4_K_L"));
        let names: Vec<String> =
            Rung::parse_list("q8_0, Q8_0,iq2_m,").unwrap().into_iter().map(|rung| rung.name).collect();
        assert_eq!(names, ["Q8_0", "IQ2_M"]);
        let promise = rung("KLD:0.010").unwrap();
        assert_eq!((promise.name.as_str(), promise.most_kld), ("KLD-0.01", Some(0.01)));
        for bad in ["kld:", "kld:0", "kld:-1", "kld:inf", "kld:nan", "kld:q4_k"] {
            assert!(rung(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
        assert!("IQ2_M".parse::<Rung>().unwrap().needs_importance());
        assert!(!"Q2_K".parse::<Rung>().unwrap().needs_importance());
        for (name, is_of_images) in
            [("q4_k_s", true), ("f16", true), ("copy", true), ("q4_k_l", false), ("iq2_xs", false)]
        {
            assert_eq!(rung(name).unwrap().is_of_images(), is_of_images, "{name}");
        }
    }
}
