//! The list of names that a pickle of weights may mention, by full name, with their meanings.
//!
//! Nothing is allowed by prefix: `torch` also contains functions that load and run code.

use crate::pickle::error::Forbidden;
use gguf_core::ElementType;

/// A name from the list of allowed names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    /// A function that creates a tensor or parameter.
    Rebuild(Rebuild),
    /// A class of tensors.
    TensorClass,
    /// A dictionary class.
    Dict,
    /// `torch.Size` or `tuple`.
    Tuple,
    /// A class or function whose result does not affect tensors.
    Ignored,
    /// A storage class.
    Storage(StorageClass),
    /// An element type; `None` if it is not supported.
    Dtype(Option<ElementType>),
}

/// Functions that create tensors, with their arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// `_rebuild_tensor(storage, offset, size, stride)`
    Tensor,
    /// `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, [metadata])`
    TensorV2,
    /// `_rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype, [metadata])`
    TensorV3,
    /// `_rebuild_parameter(tensor, requires_grad, hooks)`, optionally with a state after it.
    Parameter,
    /// `_rebuild_from_type_v2(function, class, arguments, state)`
    FromType,
}

/// A storage class, which determines the element type of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageClass {
    /// Class name in `torch`.
    pub name: &'static str,
    /// Elements of the storage.
    pub elements: StorageElements,
}

/// The elements of a storage class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageElements {
    /// Elements of one type.
    Typed(ElementType),
    /// Bytes; the tensor declares the element type.
    Untyped,
    /// Complex or quantized elements, which are not supported.
    Unreadable,
}

use StorageElements::{Typed, Unreadable, Untyped};

static STORAGES: &[(&str, StorageElements)] = &[
    ("DoubleStorage", Typed(ElementType::F64)),
    ("FloatStorage", Typed(ElementType::F32)),
    ("HalfStorage", Typed(ElementType::F16)),
    ("BFloat16Storage", Typed(ElementType::Bf16)),
    ("LongStorage", Typed(ElementType::I64)),
    ("IntStorage", Typed(ElementType::I32)),
    ("ShortStorage", Typed(ElementType::I16)),
    ("CharStorage", Typed(ElementType::I8)),
    ("ByteStorage", Typed(ElementType::U8)),
    ("BoolStorage", Typed(ElementType::Bool)),
    ("UntypedStorage", Untyped),
    ("TypedStorage", Unreadable),
    ("ComplexFloatStorage", Unreadable),
    ("ComplexDoubleStorage", Unreadable),
    ("QInt8Storage", Unreadable),
    ("QUInt8Storage", Unreadable),
    ("QInt32Storage", Unreadable),
    ("QUInt4x2Storage", Unreadable),
    ("QUInt2x4Storage", Unreadable),
];

static DTYPES: &[(&str, Option<ElementType>)] = &[
    ("float64", Some(ElementType::F64)),
    ("double", Some(ElementType::F64)),
    ("float32", Some(ElementType::F32)),
    ("float", Some(ElementType::F32)),
    ("float16", Some(ElementType::F16)),
    ("half", Some(ElementType::F16)),
    ("bfloat16", Some(ElementType::Bf16)),
    ("int64", Some(ElementType::I64)),
    ("long", Some(ElementType::I64)),
    ("int32", Some(ElementType::I32)),
    ("int", Some(ElementType::I32)),
    ("int16", Some(ElementType::I16)),
    ("short", Some(ElementType::I16)),
    ("int8", Some(ElementType::I8)),
    ("uint64", Some(ElementType::U64)),
    ("uint32", Some(ElementType::U32)),
    ("uint16", Some(ElementType::U16)),
    ("uint8", Some(ElementType::U8)),
    ("bool", Some(ElementType::Bool)),
    ("float8_e4m3fn", Some(ElementType::F8E4M3)),
    ("float8_e5m2", Some(ElementType::F8E5M2)),
    ("float8_e8m0fnu", Some(ElementType::F8E8M0)),
    ("float8_e4m3fnuz", Some(ElementType::F8E4M3Fnuz)),
    ("float8_e5m2fnuz", Some(ElementType::F8E5M2Fnuz)),
    ("complex32", None),
    ("complex64", None),
    ("complex128", None),
    ("cfloat", None),
    ("cdouble", None),
    ("qint8", None),
    ("quint8", None),
    ("qint32", None),
    ("quint4x2", None),
    ("quint2x4", None),
];

/// Names that training programs save beside the weights; the first is that of bytes.
static IGNORED: &[(&str, &str)] = &[
    ("_codecs", "encode"),
    ("argparse", "Namespace"),
    ("lightning.pytorch.callbacks.model_checkpoint", "ModelCheckpoint"),
    ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.dtypes", "Float32DType"),
    ("numpy.dtypes", "Float64DType"),
];

/// Looks up a name.
pub(crate) fn find(module: &str, name: &str) -> Result<Global, Forbidden> {
    match module {
        "torch._utils" => rebuild(name),
        "torch._tensor" if name == "_rebuild_from_type_v2" => Ok(Global::Rebuild(Rebuild::FromType)),
        "torch" | "torch.cuda" | "torch.storage" => of_torch(module, name),
        "torch._tensor" if name == "Tensor" => Ok(Global::TensorClass),
        "torch.nn.parameter" if matches!(name, "Parameter" | "Buffer") => Ok(Global::TensorClass),
        "torch.nn.parameter" => Err(Forbidden::Other),
        "collections" => match name {
            "OrderedDict" | "defaultdict" => Ok(Global::Dict),
            "Counter" => Ok(Global::Ignored),
            _ => Err(Forbidden::Other),
        },
        "builtins" | "__builtin__" => match name {
            "dict" => Ok(Global::Dict),
            "tuple" => Ok(Global::Tuple),
            "set" | "frozenset" | "list" | "bytearray" => Ok(Global::Ignored),
            _ => Err(Forbidden::Other),
        },
        _ if IGNORED.contains(&(module, name)) => Ok(Global::Ignored),
        _ if module == "torch.nn" || module.starts_with("torch.nn.") => Err(Forbidden::Module),
        _ => Err(Forbidden::Other),
    }
}

fn rebuild(name: &str) -> Result<Global, Forbidden> {
    Ok(Global::Rebuild(match name {
        "_rebuild_tensor" => Rebuild::Tensor,
        "_rebuild_tensor_v2" => Rebuild::TensorV2,
        "_rebuild_tensor_v3" => Rebuild::TensorV3,
        "_rebuild_parameter" | "_rebuild_parameter_with_state" => Rebuild::Parameter,
        "_rebuild_qtensor" => return Err(Forbidden::Quantized),
        "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor" => return Err(Forbidden::Sparse),
        "_rebuild_meta_tensor_no_storage" => return Err(Forbidden::Meta),
        "_rebuild_wrapper_subclass" => return Err(Forbidden::Subclass),
        "_rebuild_nested_tensor" => return Err(Forbidden::Nested),
        _ => return Err(Forbidden::Other),
    }))
}

fn of_torch(module: &str, name: &str) -> Result<Global, Forbidden> {
    // Some class names have a leading underscore in `torch.storage`.
    let plain = if module == "torch.storage" { name.strip_prefix('_').unwrap_or(name) } else { name };
    if let Some(&(name, elements)) = STORAGES.iter().find(|row| row.0 == plain) {
        return Ok(Global::Storage(StorageClass { name, elements }));
    }
    if module != "torch" {
        return Err(Forbidden::Other);
    }
    match name {
        "Size" => Ok(Global::Tuple),
        "device" => Ok(Global::Ignored),
        "Tensor" => Ok(Global::TensorClass),
        _ => {
            let dtype = DTYPES.iter().find(|row| row.0 == name);
            dtype.map(|row| Global::Dtype(row.1)).ok_or(Forbidden::Other)
        }
    }
}
