//! Storage formats of codes, and tables of their values.

use gguf_core::small_float::{E2M1, E4M3, FloatTable};

/// Storage format of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeFormat {
    /// One signed byte per code.
    Int8,
    /// Four-bit codes, one signed byte each.
    Int4,
    /// Rows `2i` and `2i + 1` share a row of bytes, the even one in the low four bits.
    Int4Rows,
    /// Columns `2j` and `2j + 1` share a byte, the even one in the low four bits.
    Int4Columns,
    /// E4M3 without infinity.
    E4m3,
    /// E2M1, columns in pairs as above.
    E2m1,
}

impl CodeFormat {
    pub(super) fn is_four_bit(self) -> bool {
        matches!(self, Self::Int4 | Self::Int4Rows | Self::Int4Columns)
    }

    pub(super) fn is_integer(self) -> bool {
        self == Self::Int8 || self.is_four_bit()
    }

    pub(super) fn table(self) -> &'static FloatTable {
        match self {
            Self::Int8 | Self::Int4 | Self::Int4Rows | Self::Int4Columns => &INTEGERS,
            Self::E4m3 => &E4M3,
            Self::E2m1 => &NIBBLES,
        }
    }
}

static INTEGERS: FloatTable = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = (code as u8).cast_signed() as f32;
        code += 1;
    }
    table
};

/// Values of E2M1 in the low four bits.
static NIBBLES: FloatTable = {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = E2M1[code & 15];
        code += 1;
    }
    table
};
