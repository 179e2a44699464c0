//! One key with its value, expiry and access byte: a run of bytes inside a segment's pages.
//!
//! ```text
//!  0      1       2       4      6      8
//!  ┌──────┬───────┬───────┬──────┬──────┬───────────┬────────────┬───────────┬─────────────┬──────────────┐
//!  │ form │access │ units │ klen │ vlen │ expire u64│ changed u64│ handle u64│ key (klen)  │ value (vlen) │
//!  └──────┴───────┴───────┴──────┴──────┴───────────┴────────────┴───────────┴─────────────┴──────────────┘
//!                                         if EXPIRE   if CHANGED   unless Text              only if Text
//! ```
//!
//! A 40-byte key with a 40-byte string and an expiry takes 96 bytes. Short strings stand in the entry; any
//! other value is an 8-byte handle of crate `value`. A long key is boxed: 16 bytes in the entry hold its
//! address and length.
//!
//! - E1: an entry owns `units` × 8 bytes. It may use fewer after an overwrite in place.
//! - E2: an entry moves only as a whole, as bytes, while no reference to it exists.
//! - E3: the entry owns its handle and its boxed key. Burying the entry takes or drops each exactly once.
//! - E4: all numbers are at their natural alignment, because entries start at multiples of 8.

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, size_of};
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use value::{Hash, Ints, Kind, List, Set, Str, StrRef, Stream, Value, ValueRef, ZSet};

const FORM: u8 = 0x0f;
const EXPIRE: u8 = 0x10;
const RAW: u8 = 0x20;
const BOXED_KEY: u8 = 0x40;
const CHANGED: u8 = 0x80;

const TEXT: u8 = 1;
const STR: u8 = 2;
const LIST: u8 = 3;
const HASH: u8 = 4;
const SET: u8 = 5;
const ZSET: u8 = 6;
const ROARING: u8 = 7;
const ROARING_64: u8 = 8;
const STREAM: u8 = 9;

/// The form of an entry that holds a handle.
#[inline]
const fn form_of(kind: Kind) -> u8 {
    match kind {
        Kind::Str => STR,
        Kind::List => LIST,
        Kind::Hash => HASH,
        Kind::Set => SET,
        Kind::ZSet => ZSET,
        Kind::Stream => STREAM,
        Kind::Roaring => ROARING,
        Kind::Roaring64 => ROARING_64,
    }
}

/// The longest key that stands in the entry.
const KEY_INLINE_MAX: usize = 192;
/// The largest entry that holds its string itself.
const TEXT_ENTRY_MAX: usize = 320;

const _: () = assert!(size_of::<Str>() == 8 && size_of::<List>() == 8 && size_of::<Hash>() == 8);
const _: () = assert!(size_of::<Set>() == 8 && size_of::<ZSet>() == 8 && size_of::<Ints>() == 8);
const _: () = assert!(size_of::<Stream>() == 8);
const _: () = assert!(size_of::<Header>() == 8);

#[repr(C)]
struct Header {
    form: u8,
    access: AtomicU8,
    units: u16,
    klen: u16,
    vlen: u16,
}

/// A value to be stored under a key.
pub enum Payload<'a> {
    /// A short string, stored in the entry. `raw`: OBJECT ENCODING must answer `raw`.
    Text { bytes: &'a [u8], raw: bool },
    /// Any other value.
    Handle(Value),
}

impl<'a> Payload<'a> {
    /// A string, in the entry if it fits there. O(n) if it does not fit.
    #[inline]
    pub fn text(key: &[u8], bytes: &'a [u8]) -> Payload<'a> {
        if fits(key, bytes.len()) {
            Payload::Text { bytes, raw: false }
        } else {
            Payload::Handle(Value::Str(Str::from_slice(bytes)))
        }
    }

    /// As `text`, for an edited string.
    #[inline]
    pub fn raw_text(key: &[u8], bytes: &'a [u8]) -> Payload<'a> {
        if fits(key, bytes.len()) {
            Payload::Text { bytes, raw: true }
        } else {
            Payload::Handle(Value::Str(Str::from_slice_raw(bytes)))
        }
    }

    /// A value. A short flat string moves into the entry.
    pub fn value(key: &[u8], value: &'a Value) -> Payload<'a> {
        if let Value::Str(s) = value
            && let StrRef::Flat(bytes) = s.as_ref()
            && fits(key, bytes.len())
        {
            return Payload::Text { bytes, raw: s.is_raw() };
        }
        Payload::Handle(value.clone())
    }
}

#[inline]
fn fits(key: &[u8], vlen: usize) -> bool {
    16 + key_room(key) + vlen <= TEXT_ENTRY_MAX
}

#[inline]
fn key_room(key: &[u8]) -> usize {
    if key.len() <= KEY_INLINE_MAX { key.len() } else { 16 }
}

/// The times of an entry, in milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    pub expire_ms: Option<u64>,
    /// When the value last changed, if known: rows of databases. Takes eight bytes only in entries that have
    /// it.
    pub changed_ms: Option<NonZeroU64>,
}

impl From<Option<u64>> for Times {
    #[inline]
    fn from(expire_ms: Option<u64>) -> Times {
        Times { expire_ms, changed_ms: None }
    }
}

impl Times {
    /// The flags of an entry with these times.
    #[inline]
    fn flags(self) -> u8 {
        let expire = if self.expire_ms.is_some() { EXPIRE } else { 0 };
        expire | if self.changed_ms.is_some() { CHANGED } else { 0 }
    }
}

/// Bytes an entry needs, a multiple of 8.
#[inline]
pub(crate) fn room(key: &[u8], payload: &Payload, times: Times) -> usize {
    let key = key_room(key);
    let value = match payload {
        Payload::Text { bytes, .. } => key + bytes.len(),
        Payload::Handle(_) => 8 + key,
    };
    (8 + times_room(times.flags()) + value).next_multiple_of(8)
}

/// Bytes that the times take in an entry with these flags.
#[inline]
fn times_room(flags: u8) -> usize {
    usize::from((flags & EXPIRE) >> 1) + usize::from((flags & CHANGED) >> 4)
}

const _: () = assert!(EXPIRE >> 1 == 8 && CHANGED >> 4 == 8);

/// A value and its expiry outside the keyspace. A clone is O(1).
#[derive(Clone, Debug)]
pub struct Owned {
    pub value: Value,
    /// Absolute, in milliseconds since 1970.
    pub expire_ms: Option<u64>,
}

/// An unchecked pointer to an entry. The caller, in `segment`, knows how long the entry lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Raw(NonNull<u8>);

impl Raw {
    /// # Safety
    /// `at` is 8-aligned and points to an entry that lives as long as this is used, or to room for one.
    #[inline]
    pub(crate) unsafe fn at(at: NonNull<u8>) -> Raw {
        Raw(at)
    }

    #[inline]
    pub(crate) fn address(self) -> NonNull<u8> {
        self.0
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: an entry starts with its header (E4).
        unsafe { self.0.cast().as_ref() }
    }

    #[inline]
    fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as above; `&mut self` is handed out by the segment's `&mut` only.
        unsafe { self.0.cast().as_mut() }
    }

    #[inline]
    fn form(&self) -> u8 {
        self.header().form
    }

    /// Bytes the entry owns (E1).
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.header().units as usize * 8
    }

    #[inline]
    fn offset(&self, bytes: usize) -> *mut u8 {
        // SAFETY: callers stay inside the entry's room.
        unsafe { self.0.as_ptr().add(bytes) }
    }

    #[inline]
    fn handle_at(&self) -> usize {
        8 + times_room(self.form())
    }

    #[inline]
    fn changed_at(&self) -> usize {
        8 + times_room(self.form() & EXPIRE)
    }

    #[inline]
    fn key_at(&self) -> usize {
        self.handle_at() + if self.form() & FORM == TEXT { 0 } else { 8 }
    }

    #[inline]
    pub(crate) fn key<'a>(self) -> &'a [u8] {
        let at = self.offset(self.key_at());
        // SAFETY: the layout puts the key (or its box) there; the segment bounds 'a by its own borrow.
        unsafe {
            if self.form() & BOXED_KEY == 0 {
                std::slice::from_raw_parts(at, self.header().klen as usize)
            } else {
                let (address, len) = at.cast::<(usize, usize)>().read_unaligned();
                std::slice::from_raw_parts(address as *const u8, len)
            }
        }
    }

    #[inline]
    pub(crate) fn expire_ms(&self) -> Option<u64> {
        // SAFETY: the flag says that the number is there (E4).
        (self.form() & EXPIRE != 0).then(|| unsafe { self.offset(8).cast::<u64>().read() })
    }

    #[inline]
    pub(crate) fn changed_ms(&self) -> Option<NonZeroU64> {
        let at = self.changed_at();
        // SAFETY: the flag says that the number is there (E4).
        let ms = (self.form() & CHANGED != 0).then(|| unsafe { self.offset(at).cast::<u64>().read() });
        ms.and_then(NonZeroU64::new)
    }

    /// Clears the time of the last change. Its room stays.
    pub(crate) fn forget_changed(&mut self) {
        if self.form() & CHANGED != 0 {
            // SAFETY: the flag says that the number is there; `&mut self` is handed out by the segment's
            // `&mut` only.
            unsafe { self.offset(self.changed_at()).cast::<u64>().write(0) };
        }
    }

    #[inline]
    pub(crate) fn times(&self) -> Times {
        Times { expire_ms: self.expire_ms(), changed_ms: self.changed_ms() }
    }

    /// # Safety
    /// The entry has room for exactly these, as its form says, and nobody else uses it.
    #[inline]
    unsafe fn write_times(&mut self, times: Times) {
        // SAFETY: the caller says that each number has its place.
        unsafe {
            if let Some(at) = times.expire_ms {
                self.offset(8).cast::<u64>().write(at);
            }
            if let Some(at) = times.changed_ms {
                self.offset(self.changed_at()).cast::<u64>().write(at.get());
            }
        }
    }

    #[inline]
    fn text<'a>(self) -> &'a [u8] {
        let header = self.header();
        let at = self.key_at() + header.klen as usize;
        // SAFETY: a Text entry has `vlen` bytes behind its key.
        unsafe { std::slice::from_raw_parts(self.offset(at), header.vlen as usize) }
    }

    #[inline]
    fn handle<'a, T>(self) -> &'a T {
        // SAFETY: the form says that a T stands there, 8-aligned (E4).
        unsafe { &*self.offset(self.handle_at()).cast::<T>() }
    }

    #[inline]
    fn handle_mut<'a, T>(self) -> &'a mut T {
        // SAFETY: as above; callers hold the segment's `&mut`.
        unsafe { &mut *self.offset(self.handle_at()).cast::<T>() }
    }

    #[inline]
    pub(crate) fn value<'a>(self) -> ValueRef<'a> {
        match self.form() & FORM {
            TEXT => ValueRef::Str(StrRef::Flat(self.text())),
            STR => ValueRef::Str(self.handle::<Str>().as_ref()),
            LIST => ValueRef::List(self.handle()),
            HASH => ValueRef::Hash(self.handle()),
            SET => ValueRef::Set(self.handle()),
            ZSET => ValueRef::ZSet(self.handle()),
            STREAM => ValueRef::Stream(self.handle()),
            ROARING => ValueRef::Roaring(self.handle()),
            ROARING_64 => ValueRef::Roaring64(self.handle()),
            form => unreachable!("entry of form {form}"),
        }
    }

    /// Bytes that the entry owns outside of its segment. O(1).
    #[inline]
    pub(crate) fn outside_bytes(self) -> usize {
        let key = if self.form() & BOXED_KEY != 0 { self.key().len() } else { 0 };
        let value = match self.form() & FORM {
            TEXT => return key,
            STR => self.handle::<Str>().mem_bytes(),
            LIST => self.handle::<List>().mem_bytes(),
            HASH => self.handle::<Hash>().mem_bytes(),
            SET => self.handle::<Set>().mem_bytes(),
            ZSET => self.handle::<ZSet>().mem_bytes(),
            STREAM => self.handle::<Stream>().mem_bytes(),
            _ => self.handle::<Ints>().mem_bytes(),
        };
        key + value
    }

    /// Whether a change in place of its value can change the entry's outside bytes.
    #[inline]
    pub(crate) fn has_handle(self) -> bool {
        self.form() & FORM != TEXT
    }

    fn to_value(self) -> Value {
        match self.form() & FORM {
            TEXT => {
                let raw = self.form() & RAW != 0;
                Value::Str(if raw { Str::from_slice_raw(self.text()) } else { Str::from_slice(self.text()) })
            }
            STR => Value::Str(self.handle::<Str>().clone()),
            LIST => Value::List(self.handle::<List>().clone()),
            HASH => Value::Hash(self.handle::<Hash>().clone()),
            SET => Value::Set(self.handle::<Set>().clone()),
            ZSET => Value::ZSet(self.handle::<ZSet>().clone()),
            STREAM => Value::Stream(self.handle::<Stream>().clone()),
            ROARING => Value::Roaring(self.handle::<Ints>().clone()),
            ROARING_64 => Value::Roaring64(self.handle::<Ints>().clone()),
            form => unreachable!("entry of form {form}"),
        }
    }

    /// Takes the value out; its room now belongs to the segment (E3). The entry must not be used afterwards.
    pub(crate) fn bury(self) -> Value {
        let at = self.offset(self.handle_at());
        // SAFETY: reads the handle once; by contract the entry is not used again (E3).
        let value = unsafe {
            match self.form() & FORM {
                TEXT => self.to_value(),
                STR => Value::Str(at.cast::<Str>().read()),
                LIST => Value::List(at.cast::<List>().read()),
                HASH => Value::Hash(at.cast::<Hash>().read()),
                SET => Value::Set(at.cast::<Set>().read()),
                ZSET => Value::ZSet(at.cast::<ZSet>().read()),
                STREAM => Value::Stream(at.cast::<Stream>().read()),
                ROARING => Value::Roaring(at.cast::<Ints>().read()),
                ROARING_64 => Value::Roaring64(at.cast::<Ints>().read()),
                form => unreachable!("entry of form {form}"),
            }
        };
        self.free_key_box();
        value
    }

    /// Like `bury`, without building the value.
    pub(crate) fn discard(self) {
        if self.form() & FORM == TEXT { self.free_key_box() } else { drop(self.bury()) }
    }

    fn free_key_box(self) {
        if self.form() & BOXED_KEY != 0 {
            let key = self.key();
            // SAFETY: `write` made this box and the entry owned it (E3).
            drop(unsafe { Box::from_raw(std::ptr::from_ref(key).cast_mut()) });
        }
    }

    /// Writes a whole entry into `units` × 8 bytes of room.
    ///
    /// # Safety
    /// The room is at least `room(key, payload, times)` bytes, exclusively ours, and holds no living entry.
    pub(crate) unsafe fn write(mut self, units: u16, key: &[u8], payload: Payload, times: Times, access: u8) {
        let boxed = key.len() > KEY_INLINE_MAX;
        let mut form = times.flags() | if boxed { BOXED_KEY } else { 0 };
        let mut vlen = 0;
        form |= match &payload {
            Payload::Text { bytes, raw } => {
                vlen = bytes.len() as u16;
                TEXT | if *raw { RAW } else { 0 }
            }
            Payload::Handle(value) => form_of(value.kind()),
        };
        let klen = key_room(key) as u16;
        *self.header_mut() = Header { form, access: AtomicU8::new(access), units, klen, vlen };
        // SAFETY: every write stays inside the room promised by the caller.
        unsafe {
            self.write_times(times);
            let key_at = self.offset(self.key_at());
            if boxed {
                let boxed = ManuallyDrop::new(Box::<[u8]>::from(key));
                key_at.cast::<(usize, usize)>().write_unaligned((boxed.as_ptr() as usize, boxed.len()));
            } else {
                key_at.copy_from_nonoverlapping(key.as_ptr(), key.len());
            }
            match payload {
                Payload::Text { bytes, .. } => {
                    key_at.add(klen as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
                Payload::Handle(value) => self.write_handle(value),
            }
        }
    }

    /// # Safety
    /// The form is set, is not Text, and the handle's place holds nothing that needs dropping.
    unsafe fn write_handle(self, value: Value) {
        let at = self.offset(self.handle_at());
        // SAFETY: eight aligned bytes of the entry (E4); the caller says they are free.
        unsafe {
            match value {
                Value::Str(v) => at.cast::<Str>().write(v),
                Value::List(v) => at.cast::<List>().write(v),
                Value::Hash(v) => at.cast::<Hash>().write(v),
                Value::Set(v) => at.cast::<Set>().write(v),
                Value::ZSet(v) => at.cast::<ZSet>().write(v),
                Value::Stream(v) => at.cast::<Stream>().write(v),
                Value::Roaring(v) | Value::Roaring64(v) => at.cast::<Ints>().write(v),
            }
        }
    }

    /// Overwrites in place if the new content has the same outline and fits well; else gives the payload
    /// back. O(bytes written).
    #[inline]
    pub(crate) fn overwrite<'p>(&mut self, payload: Payload<'p>, times: Times) -> Option<Payload<'p>> {
        let form = self.form();
        let same_outline = form & (EXPIRE | CHANGED) == times.flags();
        match payload {
            Payload::Text { bytes, raw } if same_outline && form & FORM == TEXT => {
                let need = (self.key_at() + self.header().klen as usize + bytes.len()).next_multiple_of(8);
                // A value that shrank a lot moves instead, to give its room back.
                if need > self.room() || need + 64 < self.room() {
                    return Some(payload);
                }
                let at = self.key_at() + self.header().klen as usize;
                self.header_mut().vlen = bytes.len() as u16;
                self.header_mut().form = (form & !RAW) | if raw { RAW } else { 0 };
                // SAFETY: `need` bytes are inside the room; the source is outside the keyspace.
                unsafe { self.offset(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
            Payload::Handle(value) if same_outline && form & FORM != TEXT => {
                let kind_form = form_of(value.kind());
                let old = {
                    // The key box stays with the entry; only the handle leaves.
                    let unboxed = form & !BOXED_KEY;
                    self.header_mut().form = unboxed;
                    let old = self.bury();
                    self.header_mut().form = (form & !FORM) | kind_form;
                    old
                };
                // SAFETY: the old handle was taken just now.
                unsafe { self.write_handle(value) };
                drop(old);
            }
            other => return Some(other),
        }
        // SAFETY: same outline, so the numbers have their places.
        unsafe { self.write_times(times) };
        None
    }

    /// Changes the expiry in place; false if the outline would change.
    pub(crate) fn overwrite_expire(&mut self, expire: Option<u64>) -> bool {
        match (self.form() & EXPIRE != 0, expire) {
            (true, Some(at)) => {
                // SAFETY: the flag says that the number is there.
                unsafe { self.offset(8).cast::<u64>().write(at) };
                true
            }
            (false, None) => true,
            _ => false,
        }
    }

    /// Takes the content out, for an entry written elsewhere. Afterwards this one is dead room.
    pub(crate) fn payload_to_move<'a>(self) -> Payload<'a> {
        match self.form() & FORM {
            TEXT => Payload::Text { bytes: self.text(), raw: self.form() & RAW != 0 },
            _ => {
                let mut bare = self;
                let form = self.form();
                bare.header_mut().form = form & !BOXED_KEY;
                let value = bare.bury();
                bare.header_mut().form = form;
                Payload::Handle(value)
            }
        }
    }

    /// Frees the key box of an entry whose payload was moved out.
    pub(crate) fn discard_moved(self) {
        self.free_key_box();
    }

    #[inline]
    pub(crate) fn access(&self) -> &AtomicU8 {
        &self.header().access
    }
}

/// A borrowed live entry.
#[derive(Clone, Copy)]
pub struct EntryRef<'a>(Raw, PhantomData<&'a ()>);

impl<'a> EntryRef<'a> {
    #[inline]
    pub(crate) fn new(raw: Raw) -> EntryRef<'a> {
        EntryRef(raw, PhantomData)
    }

    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.0.key()
    }

    #[inline]
    pub fn expire_ms(&self) -> Option<u64> {
        self.0.expire_ms()
    }

    #[inline]
    pub fn times(&self) -> Times {
        self.0.times()
    }

    #[inline]
    pub fn value(&self) -> ValueRef<'a> {
        self.0.value()
    }

    /// A short string that stands in the entry.
    #[inline]
    pub(crate) fn text(&self) -> Option<&'a [u8]> {
        (self.0.form() & FORM == TEXT).then(|| self.0.text())
    }

    /// When the first field expires, if this is a hash with fields that do.
    #[inline]
    pub fn field_expiry(&self) -> Option<u64> {
        match self.0.form() & FORM {
            HASH => self.0.handle::<Hash>().next_expiry(),
            _ => None,
        }
    }

    /// When the key or its first field expires, whichever comes first.
    pub fn next_expiry(&self) -> Option<u64> {
        match (self.expire_ms(), self.field_expiry()) {
            (Some(key), Some(field)) => Some(key.min(field)),
            (key, field) => key.or(field),
        }
    }

    #[inline]
    pub fn is_raw(&self) -> bool {
        self.0.form() & RAW != 0
    }

    pub fn kind(&self) -> Kind {
        match self.0.form() & FORM {
            LIST => Kind::List,
            HASH => Kind::Hash,
            SET => Kind::Set,
            ZSET => Kind::ZSet,
            STREAM => Kind::Stream,
            ROARING => Kind::Roaring,
            ROARING_64 => Kind::Roaring64,
            _ => Kind::Str,
        }
    }

    /// The value and expiry, shared with the entry. O(1); a short string is copied.
    pub fn to_owned(&self) -> Owned {
        Owned { value: self.0.to_value(), expire_ms: self.expire_ms() }
    }

    /// The access byte; the eviction policy knows its meaning. Racy on purpose.
    pub fn access(&self) -> u8 {
        self.0.access().load(Ordering::Relaxed)
    }

    pub fn set_access(&self, value: u8) {
        self.0.access().store(value, Ordering::Relaxed)
    }

    /// All bytes of the entry, in the segment and outside.
    pub(crate) fn all_bytes(&self) -> usize {
        self.0.room() + self.0.outside_bytes()
    }

    /// Bytes in the segment's pages and of a boxed key, without those behind a handle.
    pub fn entry_bytes(&self) -> usize {
        self.0.room() + if self.0.form() & BOXED_KEY != 0 { self.key().len() } else { 0 }
    }
}

/// A live entry, to be changed in place.
pub struct EntryMut<'a>(Raw, PhantomData<&'a mut ()>);

/// A string to be changed in place: its bytes, at the same length, or its handle.
pub enum StrMut<'a> {
    Inline(&'a mut [u8]),
    Big(&'a mut Str),
}

impl<'a> EntryMut<'a> {
    #[inline]
    pub(crate) fn new(raw: Raw) -> EntryMut<'a> {
        EntryMut(raw, PhantomData)
    }

    pub fn string(self) -> Option<StrMut<'a>> {
        match self.0.form() & FORM {
            TEXT => {
                let at = self.0.key_at() + self.0.header().klen as usize;
                // SAFETY: the value's bytes, exclusively borrowed through the segment.
                Some(StrMut::Inline(unsafe {
                    std::slice::from_raw_parts_mut(self.0.offset(at), self.0.header().vlen as usize)
                }))
            }
            STR => Some(StrMut::Big(self.0.handle_mut())),
            _ => None,
        }
    }

    /// Marks an inline string so that OBJECT ENCODING answers `raw`.
    pub fn mark_raw(&mut self) {
        self.0.header_mut().form |= RAW;
    }

    #[inline]
    pub fn list(self) -> Option<&'a mut List> {
        (self.0.form() & FORM == LIST).then(|| self.0.handle_mut())
    }

    #[inline]
    pub fn hash(self) -> Option<&'a mut Hash> {
        (self.0.form() & FORM == HASH).then(|| self.0.handle_mut())
    }

    #[inline]
    pub fn set(self) -> Option<&'a mut Set> {
        (self.0.form() & FORM == SET).then(|| self.0.handle_mut())
    }

    #[inline]
    pub fn zset(self) -> Option<&'a mut ZSet> {
        (self.0.form() & FORM == ZSET).then(|| self.0.handle_mut())
    }

    #[inline]
    pub fn stream(self) -> Option<&'a mut Stream> {
        (self.0.form() & FORM == STREAM).then(|| self.0.handle_mut())
    }

    /// The bits of a compressed bitmap, 32 or 64 bits wide.
    #[inline]
    pub fn ints(self) -> Option<&'a mut Ints> {
        matches!(self.0.form() & FORM, ROARING | ROARING_64).then(|| self.0.handle_mut())
    }
}
