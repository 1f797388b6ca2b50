//! The protobuf wire format: a sequence of numbered fields.

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a field number that is none")]
    FieldNumber,
    #[error("a length that is none")]
    Length,
    #[error("the wire type {0} is not used")]
    WireType(u64),
    #[error("a number that is too long")]
    LongNumber,
    #[error("the message ends too early")]
    Cut,
    /// A field has a type other than in its schema: the actual one.
    #[error("bytes are expected, not {0}")]
    NotBytes(String),
    #[error("a number is expected, not bytes")]
    NotANumber,
    #[error("a text that is not UTF-8")]
    NotUtf8,
}

/// The rest of a message.
pub struct Reader<'a>(pub &'a [u8]);

/// One field's value, as far as its wire type is known.
#[derive(Clone, Copy, Debug)]
pub enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Reader<'a> {
    /// The next field's number and value; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| WireError::FieldNumber)?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| WireError::Length)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            other => return Err(WireError::WireType(other)),
        };
        Ok(Some((number, value)))
    }

    pub fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::LongNumber)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        self.take(N)?.try_into().map_err(|_| WireError::Cut)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        if length > self.0.len() {
            return Err(WireError::Cut);
        }
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Wire<'a> {
    pub fn bytes(self) -> Result<&'a [u8], WireError> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            other => Err(WireError::NotBytes(format!("{other:?}"))),
        }
    }
    pub fn text(self) -> Result<String, WireError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| WireError::NotUtf8)
    }
    /// A signed number: negative ones are encoded in two's complement.
    pub fn number(self) -> Result<i64, WireError> {
        match self {
            Wire::Varint(n) | Wire::Fixed64(n) => Ok(n as i64),
            Wire::Fixed32(n) => Ok(n.into()),
            Wire::Bytes(_) => Err(WireError::NotANumber),
        }
    }
}
