//! The stack machine, which reads each opcode once, front to back.

use std::collections::HashMap;

use crate::pickle::error::PickleError;
use crate::pickle::globals::{self, Global, Rebuild};
use crate::pickle::literal;
use crate::pickle::value::{Id, Pickle, Value, ValueArena};
use gguf_core::bytes::{Cursor, Endian, Truncated};

const PROTOCOL: u8 = 5;

/// Reads the pickle at the start of `bytes`, up to its STOP; later bytes are ignored.
///
/// `offset` is the position of `bytes` in the file, for messages.
///
/// # Errors
/// [`PickleError`]: the pickle is broken, or names something that is not on the list.
pub fn read(bytes: &[u8], offset: u64) -> Result<Pickle, PickleError> {
    let mut machine = Machine {
        bytes,
        cursor: Cursor::new(bytes, Endian::Little),
        base: offset,
        opcode_offset: offset,
        values: ValueArena::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        n_copied: 0,
    };
    let root = machine.run()?;
    let end = bytes.len() - machine.cursor.left() as usize;
    Ok(Pickle::new(machine.values, root, end))
}

struct Machine<'a> {
    bytes: &'a [u8],
    cursor: Cursor<'a>,
    base: u64,
    opcode_offset: u64,
    values: ValueArena,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Number of handles that calls copied from one container to another.
    n_copied: usize,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Id, PickleError> {
        loop {
            self.opcode_offset = self.base + self.cursor.offset();
            let opcode = self.cursor.u8().map_err(|_| PickleError::NoStop { offset: self.opcode_offset })?;
            match opcode {
                b'.' => return self.pop(),
                0x80 => self.protocol()?,
                // FRAME declares a buffer size; the bytes are the same without it.
                0x95 => {
                    let wanted = self.u64()?;
                    if wanted > self.cursor.left() {
                        return Err(self.truncated(wanted));
                    }
                }
                b'(' | b'0' | b'1' | b'2' => self.stack_opcode(opcode)?,
                b'q' | b'r' | b'p' | 0x94 | b'h' | b'j' | b'g' => self.memo_opcode(opcode)?,
                b'N' | 0x88 | 0x89 | b'J' | b'K' | b'M' | 0x8a | 0x8b | b'I' | b'L' | b'F' | b'G' => {
                    self.number(opcode)?;
                }
                b'X' | 0x8c | 0x8d | b'V' | b'S' | b'T' | b'U' => self.text(opcode)?,
                b'B' | b'C' | 0x8e | 0x96 => {
                    let n = match opcode {
                        b'B' => u64::from(self.u32()?),
                        b'C' => u64::from(self.u8()?),
                        _ => self.u64()?,
                    };
                    self.take(n)?;
                    self.stack.push(ValueArena::opaque());
                }
                b')' | b't' | 0x85 | 0x86 | 0x87 | b']' | b'l' | b'}' | b'd' | 0x8f | 0x91 => {
                    self.container(opcode)?;
                }
                b'a' | b'e' | b's' | b'u' | 0x90 => self.fill(opcode)?,
                b'c' | 0x93 => self.global(opcode)?,
                b'R' | 0x81 | 0x92 => self.call(opcode)?,
                b'b' => self.build()?,
                b'Q' | b'P' => self.persistent(opcode)?,
                _ => return Err(PickleError::Opcode { offset: self.opcode_offset, opcode }),
            }
        }
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        let found = self.u8()?;
        if found > PROTOCOL {
            return Err(PickleError::Protocol { offset: self.opcode_offset, found });
        }
        Ok(())
    }

    /// Executes MARK, POP, POP_MARK, DUP.
    fn stack_opcode(&mut self, opcode: u8) -> Result<(), PickleError> {
        match opcode {
            b'(' => self.marks.push(self.stack.len()),
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_to_mark()?),
            _ => {
                let top = self.top()?;
                self.stack.push(top);
            }
        }
        Ok(())
    }

    /// Executes PUT and GET in all lengths, and MEMOIZE.
    ///
    /// Slots may be any number, so the memo is a map.
    fn memo_opcode(&mut self, opcode: u8) -> Result<(), PickleError> {
        let slot = match opcode {
            b'q' | b'h' => u64::from(self.u8()?),
            b'r' | b'j' => u64::from(self.u32()?),
            0x94 => self.memo.len() as u64,
            _ => {
                let line = self.line()?;
                let slot = literal::integer(line).and_then(|slot| u64::try_from(slot).ok());
                slot.ok_or_else(|| self.literal("the number of a memo slot"))?
            }
        };
        if matches!(opcode, b'h' | b'j' | b'g') {
            let id = self.memo.get(&slot).copied();
            let offset = self.opcode_offset;
            self.stack.push(id.ok_or(PickleError::MemoMissing { offset, slot })?);
        } else {
            let top = self.top()?;
            self.memo.insert(slot, top);
        }
        Ok(())
    }

    fn number(&mut self, opcode: u8) -> Result<(), PickleError> {
        let id = match opcode {
            b'N' => ValueArena::none(),
            0x88 => ValueArena::bool(true),
            0x89 => ValueArena::bool(false),
            b'J' => {
                let n = self.u32()? as i32;
                self.add(Value::Int(i64::from(n)))?
            }
            b'K' => {
                let n = self.u8()?;
                self.add(Value::Int(i64::from(n)))?
            }
            b'M' => {
                let n = self.cursor.u16().map_err(|error| self.cut(error))?;
                self.add(Value::Int(i64::from(n)))?
            }
            0x8a | 0x8b => {
                let n = if opcode == 0x8a { u64::from(self.u8()?) } else { u64::from(self.u32()?) };
                let bytes = self.take(n)?;
                self.add(long(bytes))?
            }
            b'I' => match self.line()? {
                b"00" => ValueArena::bool(false),
                b"01" => ValueArena::bool(true),
                line => self.decimal(line)?,
            },
            b'L' => {
                let line = self.line()?;
                self.decimal(line)?
            }
            // Floats do not affect tensors.
            b'F' => {
                self.line()?;
                ValueArena::opaque()
            }
            _ => {
                self.take(8)?;
                ValueArena::opaque()
            }
        };
        self.stack.push(id);
        Ok(())
    }

    fn decimal(&mut self, line: &[u8]) -> Result<Id, PickleError> {
        let n = literal::integer(line).ok_or_else(|| self.literal("an integer of 64 bits"))?;
        self.add(Value::Int(n))
    }

    fn text(&mut self, opcode: u8) -> Result<(), PickleError> {
        let text = match opcode {
            b'V' => {
                let line = self.line()?;
                literal::raw_unicode(line).ok_or_else(|| self.literal("a line of Unicode"))?
            }
            b'S' => {
                let line = self.line()?;
                literal::quoted(line).ok_or_else(|| self.literal("a quoted string"))?
            }
            _ => {
                let n = match opcode {
                    0x8c | b'U' => u64::from(self.u8()?),
                    0x8d => self.u64()?,
                    _ => u64::from(self.u32()?),
                };
                let bytes = self.take(n)?;
                if matches!(opcode, b'T' | b'U') {
                    literal::latin1(bytes)
                } else {
                    let text = std::str::from_utf8(bytes).map_err(|_| self.literal("valid UTF-8"))?;
                    text.to_owned()
                }
            }
        };
        self.push(Value::Text(text.into_boxed_str()))
    }

    fn container(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b')' => Value::Tuple(Box::default()),
            b't' => Value::Tuple(self.pop_to_mark()?.into_boxed_slice()),
            0x85..=0x87 => {
                let mut items = vec![ValueArena::none(); usize::from(opcode - 0x84)];
                for item in items.iter_mut().rev() {
                    *item = self.pop()?;
                }
                Value::Tuple(items.into_boxed_slice())
            }
            b']' => Value::List(Vec::new()),
            b'l' => Value::List(self.pop_to_mark()?),
            b'}' => Value::Map(Vec::new()),
            b'd' => {
                let items = self.pop_to_mark()?;
                Value::Map(self.pairs(&items)?)
            }
            0x8f => Value::Opaque,
            _ => {
                self.pop_to_mark()?;
                Value::Opaque
            }
        };
        self.push(value)
    }

    /// Executes APPEND, APPENDS, SETITEM, SETITEMS, ADDITEMS.
    fn fill(&mut self, opcode: u8) -> Result<(), PickleError> {
        let items = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_to_mark()?,
        };
        let target = self.top()?;
        let offset = self.opcode_offset;
        let kind = |expected, found: &Value| PickleError::Kind { offset, expected, found: found.kind() };
        match opcode {
            b'a' | b'e' => match self.values.get_mut(target) {
                Value::List(list) => list.extend(items),
                Value::Opaque => {}
                other => return Err(kind("a list", other)),
            },
            b's' | b'u' => {
                let pairs = self.pairs(&items)?;
                match self.values.get_mut(target) {
                    Value::Map(map) => map.extend(pairs),
                    Value::Opaque => {}
                    other => return Err(kind("a dictionary", other)),
                }
            }
            _ if *self.values.get(target) == Value::Opaque => {}
            _ => return Err(kind("a set", self.values.get(target))),
        }
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<(), PickleError> {
        let (module, name) = if opcode == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            let offset = self.opcode_offset;
            let text = |id| match self.values.get(id) {
                Value::Text(text) => Ok(text.as_bytes()),
                other => Err(PickleError::Kind { offset, expected: "text", found: other.kind() }),
            };
            (text(module)?, text(name)?)
        };
        let utf8 = |bytes| std::str::from_utf8(bytes).map_err(|_| self.literal("valid UTF-8"));
        let (module, name) = (utf8(module)?, utf8(name)?);
        let global = globals::find(module, name).map_err(|why| PickleError::Name {
            offset: self.opcode_offset,
            module: module.to_owned(),
            name: name.to_owned(),
            why,
        })?;
        self.push(Value::Global(global))
    }

    /// Executes REDUCE, NEWOBJ, NEWOBJ_EX: pushes a description of the result.
    ///
    /// Nothing is called.
    fn call(&mut self, opcode: u8) -> Result<(), PickleError> {
        if opcode == 0x92 {
            let keywords = self.pop()?;
            if !matches!(self.values.get(keywords), Value::Map(map) if map.is_empty()) {
                return Err(self.misfit("a class with keyword arguments"));
            }
        }
        let args = self.pop()?;
        let callee = self.pop()?;
        let global = match self.values.get(callee) {
            Value::Global(global) => *global,
            other => return Err(self.misfit(other.kind())),
        };
        let Value::Tuple(args) = self.values.get(args) else {
            return Err(self.misfit("a name without a tuple of arguments"));
        };
        let id = match (global, &args[..]) {
            (Global::Ignored, _) => self.add(Value::Opaque)?,
            (Global::Rebuild(Rebuild::Parameter), &[tensor, ..]) => tensor,
            (Global::Rebuild(Rebuild::FromType), &[function, class, args, _]) => {
                self.rebuilt_from_type(function, class, args)?
            }
            (Global::Rebuild(by @ (Rebuild::Tensor | Rebuild::TensorV2 | Rebuild::TensorV3)), args) => {
                let args: Box<[Id]> = args.into();
                self.copied(args.len())?;
                self.add(Value::Rebuilt { by, args })?
            }
            (Global::Tuple, []) => self.add(Value::Tuple(Box::default()))?,
            (Global::Tuple, &[items]) => self.tuple_of(items)?,
            (Global::Dict, &[]) => self.add(Value::Map(Vec::new()))?,
            (Global::Dict, &[source]) => self.map_of(source)?,
            _ => return Err(self.misfit("a name with other arguments")),
        };
        self.stack.push(id);
        Ok(())
    }

    fn rebuilt_from_type(&mut self, function: Id, class: Id, args: Id) -> Result<Id, PickleError> {
        let values = (self.values.get(function), self.values.get(class), self.values.get(args));
        match values {
            (
                Value::Global(Global::Rebuild(by @ (Rebuild::TensorV2 | Rebuild::TensorV3))),
                Value::Global(Global::TensorClass),
                Value::Tuple(args),
            ) => {
                let (by, args) = (*by, args.clone());
                self.copied(args.len())?;
                self.add(Value::Rebuilt { by, args })
            }
            _ => Err(self.misfit("a tensor class with other arguments")),
        }
    }

    fn tuple_of(&mut self, items: Id) -> Result<Id, PickleError> {
        match self.values.get(items) {
            Value::Tuple(_) => Ok(items),
            Value::List(list) => {
                let n = list.len();
                self.copied(n)?;
                let Value::List(list) = self.values.get(items) else { return Ok(items) };
                let tuple = Value::Tuple(list.clone().into_boxed_slice());
                self.add(tuple)
            }
            _ => Err(self.misfit("a tuple of something else than items")),
        }
    }

    /// Creates a dictionary from another one, from pairs, or (a default dictionary) from the class of its values.
    fn map_of(&mut self, source: Id) -> Result<Id, PickleError> {
        let pairs = match self.values.get(source) {
            Value::None | Value::Global(Global::Dict | Global::Tuple | Global::Ignored) => Vec::new(),
            Value::Map(pairs) => pairs.clone(),
            Value::List(items) => {
                let pair = |&item: &Id| match self.values.get(item) {
                    Value::Tuple(pair) => pair_of(pair),
                    Value::List(pair) => pair_of(pair),
                    _ => None,
                };
                let pairs: Option<Vec<_>> = items.iter().map(pair).collect();
                pairs.ok_or_else(|| self.misfit("a dictionary of something else than pairs"))?
            }
            _ => return Err(self.misfit("a dictionary of something else than pairs")),
        };
        self.copied(pairs.len())?;
        self.add(Value::Map(pairs))
    }

    /// Executes BUILD, which sets attributes.
    ///
    /// Attributes of dictionaries and of ignored values are dropped. For any other value they could contain data, so
    /// they are an error.
    fn build(&mut self) -> Result<(), PickleError> {
        self.pop()?;
        let target = self.top()?;
        match self.values.get(target) {
            Value::Map(_) | Value::Opaque => Ok(()),
            other => {
                let (offset, found) = (self.opcode_offset, other.kind());
                Err(PickleError::Kind { offset, expected: "a dictionary", found })
            }
        }
    }

    fn persistent(&mut self, opcode: u8) -> Result<(), PickleError> {
        let id = if opcode == b'Q' {
            self.pop()?
        } else {
            let line = self.line()?;
            let text = literal::latin1(line).into_boxed_str();
            self.add(Value::Text(text))?
        };
        self.push(Value::Persistent(id))
    }

    /// Groups alternating keys and values into pairs.
    fn pairs(&self, items: &[Id]) -> Result<Vec<(Id, Id)>, PickleError> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(PickleError::StackEmpty { offset: self.opcode_offset });
        }
        Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
    }

    fn add(&mut self, value: Value) -> Result<Id, PickleError> {
        let limit = self.bytes.len() as u64;
        let offset = self.opcode_offset;
        self.values.add(value).ok_or(PickleError::TooManyValues { offset, limit })
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        let id = self.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    /// Counts copied (not moved) handles against a limit: a short call could otherwise copy a long list many times.
    fn copied(&mut self, n: usize) -> Result<(), PickleError> {
        self.n_copied = self.n_copied.saturating_add(n);
        if self.n_copied > self.bytes.len().saturating_mul(8) {
            let (offset, limit) = (self.opcode_offset, self.bytes.len() as u64);
            return Err(PickleError::TooManyValues { offset, limit });
        }
        Ok(())
    }

    fn top(&self) -> Result<Id, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.last().filter(|_| self.stack.len() > floor);
        top.copied().ok_or(PickleError::StackEmpty { offset: self.opcode_offset })
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or(PickleError::NoMark { offset: self.opcode_offset })?;
        Ok(self.stack.split_off(mark))
    }

    fn misfit(&self, what: &'static str) -> PickleError {
        PickleError::Call { offset: self.opcode_offset, what }
    }

    fn literal(&self, expected: &'static str) -> PickleError {
        PickleError::Literal { offset: self.opcode_offset, expected }
    }

    fn cut(&self, error: Truncated) -> PickleError {
        PickleError::Truncated(Truncated { offset: self.base + error.offset, ..error })
    }

    fn truncated(&self, wanted: u64) -> PickleError {
        let (offset, left) = (self.cursor.offset(), self.cursor.left());
        self.cut(Truncated { offset, wanted, left })
    }

    fn u8(&mut self) -> Result<u8, PickleError> {
        self.cursor.u8().map_err(|error| self.cut(error))
    }

    fn u32(&mut self) -> Result<u32, PickleError> {
        self.cursor.u32().map_err(|error| self.cut(error))
    }

    fn u64(&mut self) -> Result<u64, PickleError> {
        self.cursor.u64().map_err(|error| self.cut(error))
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], PickleError> {
        self.cursor.take(n).map_err(|error| self.cut(error))
    }

    /// Reads a line, without its newline.
    fn line(&mut self) -> Result<&'a [u8], PickleError> {
        let rest = &self.bytes[self.cursor.offset() as usize..];
        let end = rest.iter().position(|&byte| byte == b'\n');
        let offset = self.base + self.cursor.offset();
        let end = end.ok_or(PickleError::NoNewline { offset })?;
        let line = self.take(end as u64)?;
        self.take(1)?;
        Ok(line)
    }
}

/// Decodes an integer in little-endian two's complement.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Long(bytes.into());
    }
    let fill = if bytes.last().is_some_and(|&last| last >= 0x80) { 0xff } else { 0 };
    let mut raw = [fill; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(raw))
}

fn pair_of(items: &[Id]) -> Option<(Id, Id)> {
    match items {
        &[key, value] => Some((key, value)),
        _ => None,
    }
}
