//! Messages of PostgreSQL's plugin `pgoutput`, version 1:
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
//!
//! ```text
//! Begin(xid) Relation? Insert | Update | Delete | Truncate … Commit  whole transactions, one after the other
//! ```
//!
//! No length is trusted: a message that does not fit it is an error.

/// Microseconds from 1970 to 2000, where the database's clock begins.
pub(super) const EPOCH_US: i64 = 946_684_800_000_000;

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Message<'a> {
    Begin {
        xid: u32,
        committed_ms: Option<u64>,
    },
    Commit {
        end: u64,
    },
    Relation(Relation),
    Insert {
        relation: u32,
        new: Tuple<'a>,
    },
    Update {
        relation: u32,
        old: Option<Tuple<'a>>,
        new: Tuple<'a>,
    },
    Delete {
        relation: u32,
        old: Tuple<'a>,
    },
    Truncate(Vec<u32>),
    /// Types, origins, messages.
    Other,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Relation {
    pub id: u32,
    /// Replica identity: d: primary key, i: an index, f: whole rows, n: nothing.
    pub identity: u8,
    pub columns: Vec<Column>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub name: String,
    /// Whether updates and deletes name it.
    pub is_key: bool,
    pub type_id: u32,
    pub modifier: u32,
}

/// Values by column; None: null, or not sent because it is stored apart and did not change.
pub(super) type Tuple<'a> = Vec<Option<&'a [u8]>>;

/// Reads one message; None: it is malformed.
pub(super) fn read(bytes: &[u8]) -> Option<Message<'_>> {
    let mut rest = Bytes(bytes);
    Some(match rest.u8()? {
        b'B' => {
            rest.u64()?;
            let committed_us = (rest.u64()? as i64).checked_add(EPOCH_US)?;
            let committed_ms = u64::try_from(committed_us / 1000).ok();
            Message::Begin { xid: rest.u32()?, committed_ms }
        }
        b'C' => {
            rest.take(9)?;
            Message::Commit { end: rest.u64()? }
        }
        b'R' => Message::Relation(rest.relation()?),
        b'I' => {
            let relation = rest.u32()?;
            rest.u8().filter(|kind| *kind == b'N')?;
            Message::Insert { relation, new: rest.tuple()? }
        }
        b'U' => {
            let relation = rest.u32()?;
            let mut kind = rest.u8()?;
            let mut old = None;
            if matches!(kind, b'K' | b'O') {
                old = Some(rest.tuple()?);
                kind = rest.u8()?;
            }
            let new = if kind == b'N' { rest.tuple()? } else { return None };
            Message::Update { relation, old, new }
        }
        b'D' => {
            let relation = rest.u32()?;
            rest.u8().filter(|kind| matches!(kind, b'K' | b'O'))?;
            Message::Delete { relation, old: rest.tuple()? }
        }
        b'T' => {
            let count = rest.u32()?;
            rest.u8()?;
            Message::Truncate((0..count).map(|_| rest.u32()).collect::<Option<_>>()?)
        }
        _ => Message::Other,
    })
}

/// Bytes that are read from the front.
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Reads text that ends with a zero byte.
    pub fn text(&mut self) -> Option<String> {
        let end = self.0.iter().position(|b| *b == 0)?;
        let text = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.take(1)?;
        Some(text)
    }

    fn relation(&mut self) -> Option<Relation> {
        let id = self.u32()?;
        let (_schema, _name, identity) = (self.text()?, self.text()?, self.u8()?);
        let column = |bytes: &mut Self| {
            let is_key = bytes.u8()? & 1 != 0;
            Some(Column { is_key, name: bytes.text()?, type_id: bytes.u32()?, modifier: bytes.u32()? })
        };
        let count = self.u16()?;
        let columns = (0..count).map(|_| column(self)).collect::<Option<_>>()?;
        Some(Relation { id, identity, columns })
    }

    fn tuple(&mut self) -> Option<Tuple<'a>> {
        let count = self.u16()?;
        let value = |bytes: &mut Self| match bytes.u8()? {
            b'n' | b'u' => Some(None),
            b't' | b'b' => {
                let length = bytes.u32()?;
                bytes.take(length as usize).map(Some)
            }
            _ => None,
        };
        (0..count).map(|_| value(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(values: &[Option<&str>]) -> Vec<u8> {
        let mut bytes = (values.len() as u16).to_be_bytes().to_vec();
        for value in values {
            match value {
                None => bytes.push(b'n'),
                Some(text) => {
                    bytes.push(b't');
                    bytes.extend((text.len() as u32).to_be_bytes());
                    bytes.extend(text.bytes());
                }
            }
        }
        bytes
    }

    #[test]
    fn messages_are_read_and_cut_ones_are_not() {
        let new = tuple(&[Some("42"), None]);
        let begin =
            [&b"B"[..], &7u64.to_be_bytes(), &1_000_000u64.to_be_bytes(), &9u32.to_be_bytes()].concat();
        assert_eq!(read(&begin), Some(Message::Begin { xid: 9, committed_ms: Some(946_684_801_000) }));
        let commit = [&b"C\0"[..], &7u64.to_be_bytes(), &8u64.to_be_bytes(), &9u64.to_be_bytes()].concat();
        assert_eq!(read(&commit), Some(Message::Commit { end: 8 }));
        let insert = [&b"I\0\0\0\x05N"[..], &new].concat();
        assert_eq!(read(&insert), Some(Message::Insert { relation: 5, new: vec![Some(b"42"), None] }));
        let update = [&b"U\0\0\0\x05K"[..], &tuple(&[Some("41"), None]), b"N", &new].concat();
        let old = Some(vec![Some(&b"41"[..]), None]);
        assert_eq!(read(&update), Some(Message::Update { relation: 5, old, new: vec![Some(b"42"), None] }));
        let delete = [&b"D\0\0\0\x05K"[..], &new].concat();
        assert_eq!(read(&delete), Some(Message::Delete { relation: 5, old: vec![Some(b"42"), None] }));
        let truncate = b"T\0\0\0\x02\0\0\0\0\x05\0\0\0\x06".to_vec();
        assert_eq!(read(&truncate), Some(Message::Truncate(vec![5, 6])));
        let relation = b"R\0\0\0\x05public\0items\0d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff".to_vec();
        let column = Column { name: "id".into(), is_key: true, type_id: 23, modifier: u32::MAX };
        assert_eq!(
            read(&relation),
            Some(Message::Relation(Relation { id: 5, identity: b'd', columns: vec![column] }))
        );
        for whole in [begin, commit[..18].to_vec(), insert, update, delete, truncate, relation] {
            for cut in 0..whole.len() {
                assert_eq!(read(&whole[..cut]), None);
            }
        }
        assert_eq!(read(b"T\xff\xff\xff\xff\0"), None);
        assert_eq!(read(b"I\0\0\0\x05N\xff\xfft\xff\xff\xff\xff"), None);
    }
}
