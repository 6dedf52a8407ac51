//! A cursor over untrusted bytes: every read is bounds-checked and reports an absolute offset.

use serde::Serialize;

/// Error of a read past the end of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("offset {offset}: {wanted} bytes expected, {left} left")]
pub struct Truncated {
    /// Absolute offset of the read, in bytes.
    pub offset: u64,
    /// Bytes requested.
    pub wanted: u64,
    /// Bytes left.
    pub left: u64,
}

/// Byte order of numbers in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Endian {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

/// Reads numbers and byte strings from a slice, front to back.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    endian: Endian,
}

macro_rules! numbers {
    ($( $name:ident -> $ty:ty; )*) => {
        $(
            #[doc = concat!("Reads one `", stringify!($ty), "`.")]
            pub fn $name(&mut self) -> Result<$ty, Truncated> {
                let raw = self.array()?;
                Ok(match self.endian {
                    Endian::Little => <$ty>::from_le_bytes(raw),
                    Endian::Big => <$ty>::from_be_bytes(raw),
                })
            }
        )*
    };
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the first byte.
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, pos: 0, endian }
    }

    /// Byte order of the numbers that follow.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Changes the byte order of the numbers that follow.
    pub fn set_endian(&mut self, endian: Endian) {
        self.endian = endian;
    }

    /// Absolute offset of the next read.
    pub fn offset(&self) -> u64 {
        self.pos as u64
    }

    /// Bytes left.
    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// Takes the next `n` bytes.
    pub fn take(&mut self, n: u64) -> Result<&'a [u8], Truncated> {
        let truncated = Truncated { offset: self.offset(), wanted: n, left: self.left() };
        if n > self.left() {
            return Err(truncated);
        }
        let len = usize::try_from(n).map_err(|_| truncated)?;
        let taken = &self.bytes[self.pos..self.pos + len];
        self.pos += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let taken = self.take(N as u64)?;
        let mut raw = [0; N];
        raw.copy_from_slice(taken);
        Ok(raw)
    }

    numbers! {
        u8 -> u8;
        i8 -> i8;
        u16 -> u16;
        i16 -> i16;
        u32 -> u32;
        i32 -> i32;
        u64 -> u64;
        i64 -> i64;
        f32 -> f32;
        f64 -> f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_orders_and_stops_at_the_end() {
        let bytes = [1, 0, 0, 0, 0, 0, 0, 2];
        let mut cursor = Cursor::new(&bytes, Endian::Little);
        assert_eq!(cursor.u32(), Ok(1));
        cursor.set_endian(Endian::Big);
        assert_eq!(cursor.u32(), Ok(2));
        assert_eq!(cursor.u8(), Err(Truncated { offset: 8, wanted: 1, left: 0 }));
        assert_eq!(cursor.take(u64::MAX).map_err(|e| e.left), Err(0));
    }
}
