//! Writes the protobuf wire format.

/// A message being written. Fields with the default value are omitted, as in protobuf 3.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, mut value: u64) {
        while value > 0x7f {
            // The low seven bits fit into a byte.
            self.0.push(((value & 0x7f) as u8) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn varint(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.number(u64::from(field) << 3);
            self.number(value);
        }
    }

    /// Strings and bytes; empty ones are written too, as they may be list items.
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        self.number((u64::from(field) << 3) | 2);
        self.number(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    pub fn message(&mut self, field: u32, message: &Writer) {
        self.bytes(field, &message.0);
    }

    /// A packed list of numbers.
    pub fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut packed = Writer::default();
        values.into_iter().for_each(|value| packed.number(value));
        self.message(field, &packed);
    }

    /// Appends the fields of another message.
    pub fn append(&mut self, other: Writer) {
        self.0.extend(other.0);
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Reader;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let (mut inner, mut out) = (Writer::default(), Writer::default());
        inner.packed(1, [0, 127, 128, u64::MAX]);
        out.varint(3, 0);
        out.varint(4, 300);
        out.bytes(5, b"");
        out.message(6, &inner);
        let bytes = out.finish();
        let mut reader = Reader(&bytes);
        let (field, value) = reader.next().unwrap().unwrap();
        assert_eq!((field, value.number()), (4, Ok(300)));
        let (field, value) = reader.next().unwrap().unwrap();
        assert_eq!((field, value.bytes()), (5, Ok(&b""[..])));
        let (field, value) = reader.next().unwrap().unwrap();
        let (of, packed) = Reader(value.bytes().unwrap()).next().unwrap().unwrap();
        let mut numbers = Reader(packed.bytes().unwrap());
        let read: Vec<u64> = (0..4).map(|_| numbers.varint().unwrap()).collect();
        assert_eq!((field, of, read), (6, 1, vec![0, 127, 128, u64::MAX]));
        assert!(reader.next().unwrap().is_none());
    }
}
