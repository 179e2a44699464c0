//! Objects written element by element into a buffer that the caller may empty on the way.
//!
//! ```text
//! type ─► key, in files ─► what precedes ─► count ─► elements …
//! ```
//!
//! The count comes first, so the caller must know it. The encodings are those of [`crate::ListPayload`] and
//! its kin.
//!
//! Memory: the caller's buffer, and some 100 KB if elements are compressed.

use crate::compressed::Shortener;
use crate::string::put_text;
use crate::{
    Dialect, Item, VERSION_ACTIVE_CONSUMERS, VERSION_METADATA, VERSION_STREAMS, VERSION_VALUES, put_int,
    put_len, put_string, types,
};

/// The form of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    String,
    List,
    Set,
    ZSet,
    Hash,
    /// A hash with fields that expire, none of them before `soonest_ms`.
    Expiring {
        dialect: Dialect,
        soonest_ms: u64,
    },
    /// A stream. `active`: consumers tell when they were active, apart from when they were seen.
    Stream {
        active: bool,
    },
    /// A stream with idempotent producers. Its consumers tell when they were active.
    Produced,
    /// A value of a module.
    Module,
}

impl Form {
    fn kind(self) -> u8 {
        match self {
            Form::String => types::STRING,
            Form::List => types::LIST,
            Form::Set => types::SET,
            Form::ZSet => types::ZSET_2,
            Form::Hash => types::HASH,
            Form::Expiring { dialect, .. } => dialect.hash_type(),
            Form::Stream { active: false } => types::STREAM_2,
            Form::Stream { active: true } => types::STREAM_3,
            Form::Produced => types::STREAM_4,
            Form::Module => types::MODULE_2,
        }
    }

    /// The first version of the format that has it.
    pub fn version(self) -> u16 {
        match self {
            Form::Expiring { dialect, .. } => dialect.version(),
            Form::Stream { active: false } => VERSION_STREAMS,
            Form::Stream { active: true } => VERSION_ACTIVE_CONSUMERS,
            Form::Produced => VERSION_METADATA,
            _ => VERSION_VALUES,
        }
    }
}

/// Writes one object. See the module.
pub struct Writer {
    form: Form,
    /// If elements are compressed that get shorter by it.
    shortener: Option<Box<Shortener>>,
}

impl Writer {
    /// Begins an object: appends its type, the key in files, and what precedes the elements.
    pub fn begin(out: &mut Vec<u8>, form: Form, key: Option<&[u8]>) -> Writer {
        out.push(form.kind());
        if let Some(key) = key {
            put_string(out, key);
        }
        if let Form::Expiring { dialect: Dialect::Redis, soonest_ms } = form {
            out.extend_from_slice(&soonest_ms.to_le_bytes());
        }
        Writer { form, shortener: None }
    }

    /// Appends the number of elements that will come.
    pub fn count(&self, out: &mut Vec<u8>, count: usize) {
        put_len(out, count as u64);
    }

    /// From now on elements are compressed that get shorter by it ([`crate::is_compressed`]).
    pub fn compress(&mut self) {
        self.shortener = Some(Box::default());
    }

    /// Appends an element, a member, a field or a value. Cost: O(length).
    pub fn item(&mut self, out: &mut Vec<u8>, item: Item<'_>) {
        match item {
            Item::Int(number) => put_int(out, number),
            Item::Bytes(text) => {
                let shortener = self.shortener.as_mut();
                if !shortener.is_some_and(|shortener| shortener.put(text, out)) {
                    put_text(out, text);
                }
            }
        }
    }

    /// Appends the score of the member before.
    pub fn score(&self, out: &mut Vec<u8>, score: f64) {
        out.extend_from_slice(&score.to_le_bytes());
    }

    /// Appends what stands before a field and its value: when it expires, if it does.
    pub fn before_field(&self, out: &mut Vec<u8>, expire_ms: Option<u64>) {
        if let Form::Expiring { dialect, soonest_ms } = self.form {
            dialect.put_before(out, expire_ms, soonest_ms);
        }
    }

    /// Appends what stands behind them.
    pub fn behind_field(&self, out: &mut Vec<u8>, expire_ms: Option<u64>) {
        if let Form::Expiring { dialect, .. } = self.form {
            dialect.put_behind(out, expire_ms);
        }
    }
}
