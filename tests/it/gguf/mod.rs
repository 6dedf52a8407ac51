//! Sets of parts, shares and byte order, as the programs write them.

mod endian;
mod many_parts;
mod sets;
mod shares;
