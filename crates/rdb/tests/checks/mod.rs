//! Reads arbitrary bytes as payloads, into a sink that counts and compares. `tests/hostile.rs` and `fuzz/`
//! call this.

#![allow(dead_code, reason = "every user takes its part")]

use rdb::{Dialect, Failure, HashPayload, Item, ListPayload, SetPayload, Sink, StreamPart, ZSetPayload};
use std::collections::BTreeMap;

type Bytes = Vec<u8>;

/// A value in the simplest form.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Model {
    #[default]
    Nothing,
    Str(Bytes),
    List(Vec<Bytes>),
    Set(BTreeMap<Bytes, ()>),
    /// Scores as bits, so that all compare.
    ZSet(BTreeMap<Bytes, u64>),
    Hash(BTreeMap<Bytes, (Bytes, Option<u64>)>),
    /// The texts of entries, and their IDs.
    Stream(Vec<(Vec<Bytes>, (u64, u64))>),
}

/// Collects a [`Model`].
#[derive(Default)]
pub struct Collect {
    pub model: Model,
    /// Elements since the last call of `work`, and the most there ever were.
    pub untold: usize,
    pub most_untold: usize,
    /// Bytes received in all.
    pub bytes: usize,
    /// Stops at this call of `work`.
    pub stop_at: Option<usize>,
    pub works: usize,
}

impl Collect {
    fn came(&mut self, item: Item<'_>) -> Bytes {
        let bytes = item.with(<[u8]>::to_vec);
        self.bytes += bytes.len();
        bytes
    }

    fn count(&mut self) {
        self.untold += 1;
        self.most_untold = self.most_untold.max(self.untold);
    }
}

impl Sink for Collect {
    type Stop = ();

    fn work(&mut self, _: usize, _: usize) -> Result<(), ()> {
        self.untold = 0;
        self.works += 1;
        if self.stop_at == Some(self.works) { Err(()) } else { Ok(()) }
    }

    fn string(&mut self, text: Item<'_>) {
        assert_eq!(self.model, Model::Nothing);
        self.model = Model::Str(self.came(text));
    }

    fn element(&mut self, element: Item<'_>) {
        let element = self.came(element);
        self.count();
        match &mut self.model {
            Model::List(list) => list.push(element),
            model => *model = Model::List(vec![element]),
        }
    }

    fn member(&mut self, member: Item<'_>) -> bool {
        let member = self.came(member);
        self.count();
        match &mut self.model {
            Model::Set(set) => set.insert(member, ()).is_none(),
            model => {
                *model = Model::Set([(member, ())].into());
                true
            }
        }
    }

    fn scored(&mut self, member: Item<'_>, score: f64) -> bool {
        assert!(!score.is_nan());
        let member = self.came(member);
        self.count();
        match &mut self.model {
            Model::ZSet(set) => set.insert(member, score.to_bits()).is_none(),
            model => {
                *model = Model::ZSet([(member, score.to_bits())].into());
                true
            }
        }
    }

    fn field(&mut self, field: Item<'_>, value: Item<'_>, expire_ms: Option<u64>) -> bool {
        let (field, value) = (self.came(field), self.came(value));
        self.count();
        match &mut self.model {
            Model::Hash(hash) => hash.insert(field, (value, expire_ms)).is_none(),
            model => {
                *model = Model::Hash([(field, (value, expire_ms))].into());
                true
            }
        }
    }

    fn entry<'f>(&mut self, id: (u64, u64), fields: &mut dyn Iterator<Item = (&'f [u8], &'f [u8])>) -> bool {
        let texts: Vec<Bytes> = fields.flat_map(|(name, value)| [name.to_vec(), value.to_vec()]).collect();
        self.bytes += texts.iter().map(Vec::len).sum::<usize>();
        self.count();
        match &mut self.model {
            Model::Stream(entries) => entries.push((texts, id)),
            model => *model = Model::Stream(vec![(texts, id)]),
        }
        true
    }

    fn stream(&mut self, part: StreamPart<'_>) -> bool {
        if matches!(part, StreamPart::Facts(_)) && self.model == Model::Nothing {
            self.model = Model::Stream(Vec::new());
        }
        true
    }
}

/// Decodes a payload.
pub fn read(payload: &[u8]) -> Option<Model> {
    let (body, version) = rdb::open(payload)?;
    let mut sink = Collect::default();
    rdb::decode(body, version, &mut sink).ok()?;
    Some(sink.model)
}

/// The payload of a model.
pub fn write(model: &Model, dialect: Dialect) -> Option<Bytes> {
    match model {
        Model::Nothing | Model::Stream(_) => None,
        Model::Str(text) => Some(rdb::string_payload(text)),
        Model::List(list) => list.iter().collect::<ListPayload>().finish(),
        Model::Set(set) => set.keys().collect::<SetPayload>().finish(),
        Model::ZSet(set) => {
            let members = set.iter().map(|(member, score)| (member, f64::from_bits(*score)));
            members.collect::<ZSetPayload>().finish()
        }
        Model::Hash(hash) => {
            let mut payload = HashPayload::new();
            for (field, (value, time)) in hash {
                match time {
                    None => payload.insert(field, value),
                    Some(time) => payload.insert_expiring(field, value, *time),
                };
            }
            payload.finish(dialect)
        }
    }
}

/// Any bytes as a body: they are refused or decoded, in memory proportional to them, and the value survives
/// writing and reading again. The first byte chooses the version.
pub fn body(data: &[u8]) {
    let Some((which, body)) = data.split_first() else { return };
    let version = [12, 80, 15, 81][usize::from(which & 3)];
    let _ = rdb::estimate(body);
    let mut sink = Collect::default();
    let outcome = rdb::decode(body, version, &mut sink);
    // LZF makes at most 264 bytes of three, and an element of a pack has at most 20 digits for two bytes.
    assert!(sink.bytes <= (body.len() + 1) * 88 * 11, "{} bytes of {}", sink.bytes, body.len());
    assert!(sink.most_untold <= 64);
    assert_ne!(outcome, Err(Failure::Stopped(())));
    if let Err(Failure::Unsupported(what)) = outcome {
        assert!(what.to_string().bytes().all(|byte| matches!(byte, b' '..=b'~')));
    }
    if outcome.is_ok() {
        assert_ne!(sink.model, Model::Nothing);
        for dialect in [Dialect::Redis, Dialect::Valkey] {
            let again = write(&sink.model, dialect).expect("not empty");
            assert_eq!(read(&again).as_ref(), Some(&sink.model));
            translated(&again, &sink.model);
        }
    }
    let mut stopped = Collect { stop_at: Some(1), ..Collect::default() };
    let _ = rdb::decode(body, version, &mut stopped);
}

/// A translated payload has the same value, and is not translated again.
fn translated(payload: &[u8], model: &Model) {
    for to in [Dialect::Redis, Dialect::Valkey] {
        if let Some(other) = rdb::translate(payload, to) {
            assert_eq!(read(&other).as_ref(), Some(model));
            assert_eq!(rdb::translate(&other, to), None);
        }
    }
}

/// Any bytes as a payload.
pub fn payload(data: &[u8]) {
    let _ = rdb::translate(data, Dialect::Redis);
    let _ = rdb::translate(data, Dialect::Valkey);
    if let Some((opened, version)) = rdb::open(data) {
        body(&[&[u8::from(version >= 80)], opened].concat());
    }
}

/// Any bytes behind a header, as a file: its parts are read or refused, in memory for what is there, and
/// objects decode or not.
pub fn file(data: &[u8]) {
    use rdb::file::{FileReader, Part, Summed};
    for header in [&b"REDIS0012"[..], b"VALKEY080", b"REDIS0003"] {
        let file = [header, data].concat();
        let mut reader = FileReader::new(Summed::new(&file[..]), true).expect("a header");
        let mut from = header.len() as u64;
        loop {
            let version = reader.format().version;
            match reader.next_part() {
                Ok(Part::End { .. }) => break,
                Ok(Part::Entry(head)) => {
                    assert!(head.from == from && head.object.len() < file.len());
                    let _ = rdb::decode(head.object, version, &mut Collect::default());
                }
                Ok(_) => {}
                Err(damage) => {
                    assert!(damage.from == from && damage.from <= damage.offset);
                    assert!(damage.offset <= file.len() as u64);
                    break;
                }
            }
            from = reader.offset();
        }
    }
}
