//! Serialization of floating-point numbers in JSON as their bits: they are read back exactly, including NaN.

pub(super) mod double {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(x.to_bits())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

/// Serialization of an `f64` that may be missing.
pub(super) mod double_if_any {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<S: Serializer>(x: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        x.map(f64::to_bits).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(f64::from_bits))
    }
}

pub(super) mod single {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<S: Serializer>(x: &f32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(x.to_bits())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
        u32::deserialize(from).map(f32::from_bits)
    }
}

/// Serialization of pairs of an index and an `f64`.
pub(super) mod numbered {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(list: &[(u64, f64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|(at, x)| (at, x.to_bits())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u64, f64)>, D::Error> {
        let list = Vec::<(u64, u64)>::deserialize(from)?;
        Ok(list.into_iter().map(|(at, bits)| (at, f64::from_bits(bits))).collect())
    }
}

/// Serialization of a type by its name.
pub(super) mod ggml_type {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use gguf_core::GgmlType;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(crate) fn serialize<S: Serializer>(ty: &GgmlType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(ty.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GgmlType, D::Error> {
        let name = String::deserialize(from)?;
        GgmlType::from_name(&name).ok_or_else(|| D::Error::custom(format!("no type is named `{name}`")))
    }
}

/// Serialization of a shape by its dimensions, outermost first.
pub(super) mod shape {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use gguf_core::Shape;

    pub(crate) fn serialize<S: Serializer>(shape: &Shape, to: S) -> Result<S::Ok, S::Error> {
        shape.dims().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Shape, D::Error> {
        let dims = Vec::<u64>::deserialize(from)?;
        Shape::new(dims).ok_or_else(|| D::Error::custom("dimensions that no tensor has"))
    }
}
