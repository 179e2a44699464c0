//! The facts that stand before the keys of a file, without using up its bytes.

use rdb::file::{FileReader, Input, Part};
use std::io::{self, Chain, Cursor, ErrorKind, Read};

/// Bytes that are looked at. The facts of servers take some 200.
const LOOKED_AT: usize = 16 * 1024;

/// Facts about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of memory that its server used (`used-mem`).
    pub used_bytes: Option<u64>,
}

/// Reads the facts that a file begins with. The reader it gives begins at the first byte again. It waits until
/// what follows the facts has come. Faults of the file are left to whoever loads it. O(1)
pub fn facts<R: Read>(mut reader: R) -> (Facts, Chain<Cursor<Vec<u8>>, R>) {
    let (mut bytes, mut facts) = (Vec::new(), Facts::default());
    let beginning = Beginning { reader: &mut reader, bytes: &mut bytes };
    if let Ok(mut file) = FileReader::new(beginning, false) {
        while let Ok(Part::Aux { name, value }) = file.next_part() {
            if name == b"used-mem" {
                facts.used_bytes = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            }
        }
    }
    (facts, Cursor::new(bytes).chain(reader))
}

/// The first bytes of a reader, which are kept.
struct Beginning<'r, R> {
    reader: &'r mut R,
    bytes: &'r mut Vec<u8>,
}

impl<R: Read> Input for Beginning<'_, R> {
    type Error = io::Error;

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len().min(LOOKED_AT - self.bytes.len());
        if room == 0 {
            return Ok(0);
        }
        loop {
            match self.reader.read(&mut buffer[..room]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(read) => {
                    self.bytes.extend_from_slice(&buffer[..read]);
                    return Ok(read);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdb::file::{Format, put_aux, put_header, put_resize, put_select};

    /// A reader that gives a byte at a time.
    struct Drops<'a>(&'a [u8]);

    impl Read for Drops<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(out.len()).min(1);
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn facts_are_read_and_no_byte_is_used_up() {
        let mut file = Vec::new();
        put_header(&mut file, Format::REDIS);
        put_aux(&mut file, b"redis-ver", b"7.0.0");
        put_aux(&mut file, b"used-mem", b"123456");
        put_select(&mut file, 3);
        put_resize(&mut file, 1, 0);
        file.extend_from_slice(&[7; 100_000]);
        for (file, used_bytes) in [
            (&file[..], Some(123_456)),
            (&file[..30], None),
            (&file[..5], None),
            (&[b'x'; 40_000], None),
            (&[], None),
        ] {
            let (facts, mut again) = facts(Drops(file));
            assert_eq!(facts, Facts { used_bytes });
            let mut all = Vec::new();
            again.read_to_end(&mut all).unwrap();
            assert!(all == file);
        }
    }
}
