//! Hashes: fields with values, and optional expiry times per field.
//!
//! Small hashes are one flat block in the order of insertion, larger ones a hash trie. See [`crate::packed`]
//! and [`crate::trie`] for the forms and their costs. An entry is stored as `[F0 time]? [field cell][value
//! cell]`: a field without expiry pays nothing for the feature. Inner nodes keep the soonest expiry below
//! each child, so expired fields are found in O(expired · log n).
//!
//! - H1: `len`, `get`, `iter` and the like ignore the time: an expired field is there until
//!   [`Hash::remove_expired`] takes it. Readers that must not see it use the forms with `now` (`get_at`,
//!   `iter_at`, `live_len`). A field has expired when `expire_at <= now`.
//! - H2: the encoding's name follows Redis: listpack → listpackex (at the first expiry) → hashtable by the
//!   limits in [`crate::limits`], never back while the hash exists.

use crate::Enc;
use crate::cell::{self, EXPIRY, EXPIRY_LEN};
use crate::limits;
use crate::packed::Packed;
use crate::place;
use crate::trie::{EntryKind, Iter, NEVER, Sixteen};
use smallvec::SmallVec;
use std::ops::ControlFlow::{self, Continue};

/// The kind of a hash's entries.
pub struct Fields;

/// A field with its value and its time of expiry ([`NEVER`] for none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub field: &'a [u8],
    pub value: &'a [u8],
    pub expire_at: u64,
}

/// A hash. 8 bytes; `clone` is O(1).
#[derive(Clone, Default)]
pub struct Hash {
    fields: Packed<Fields>,
}

/// Expired fields counted between two pauses.
const PIECE: usize = 64;

const LISTPACK: u8 = 0;
const LISTPACK_EX: u8 = 1;
const HASHTABLE: u8 = 2;

impl Hash {
    /// The empty hash. Allocates nothing.
    #[inline]
    pub const fn new() -> Hash {
        Hash { fields: Packed::new() }
    }

    /// Number of fields, expired ones included (H1). O(1).
    #[inline]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// True without fields.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The root and memory that this handle keeps alive. O(height).
    pub fn held(&self) -> Option<crate::Held> {
        self.fields.held()
    }

    /// Bytes of all blocks, shared ones counted fully. O(1).
    pub fn mem_bytes(&self) -> usize {
        self.fields.mem_bytes()
    }

    /// Redis's name for the encoding (H2).
    pub fn encoding(&self) -> Enc {
        match self.fields.user() {
            LISTPACK => Enc::ListPack,
            LISTPACK_EX => Enc::ListPackEx,
            _ => Enc::HashTable,
        }
    }

    /// The whole entry of a field. O(log n).
    #[inline]
    pub fn entry(&self, field: &[u8]) -> Option<Entry<'_>> {
        self.fields.get_hashed(field, place::of_bytes(field))
    }

    /// True if the field is there (H1).
    pub fn contains(&self, field: &[u8]) -> bool {
        self.entry(field).is_some()
    }

    /// The value of a field (H1). O(log n).
    #[inline]
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.entry(field).map(|entry| entry.value)
    }

    /// The value of a field that has not expired.
    #[inline]
    pub fn get_at(&self, field: &[u8], now: u64) -> Option<&[u8]> {
        self.entry(field).filter(|entry| entry.expire_at > now).map(|entry| entry.value)
    }

    /// Sets a field's value and drops its expiry. True if the field is new. O(log n).
    pub fn insert(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.put(Entry { field, value, expire_at: NEVER })
    }

    /// Sets a field's value and keeps its expiry. True if the field is new. O(log n).
    pub fn insert_keep_ttl(&mut self, field: &[u8], value: &[u8]) -> bool {
        let expire_at = self.entry(field).map_or(NEVER, |entry| entry.expire_at);
        self.put(Entry { field, value, expire_at })
    }

    /// A hash of one field that is about to get more: `fields` in all, of `bytes` bytes. A small hash is then
    /// written into one block. The numbers are no promise. O(1).
    pub fn begun(first: Entry<'_>, fields: usize, bytes: usize) -> Hash {
        let mut hash = Hash { fields: Packed::begun(first, place::of_bytes(first.field), fields, bytes) };
        hash.note_form(first);
        hash
    }

    /// Sets a field's value and expiry. True if the field is new. O(log n).
    pub fn put(&mut self, entry: Entry<'_>) -> bool {
        let new = self.fields.insert_hashed(entry, place::of_bytes(entry.field));
        self.note_form(entry);
        new
    }

    /// Updates Redis's name for the encoding after an entry has come (H2).
    #[inline]
    fn note_form(&mut self, entry: Entry<'_>) {
        let old = self.fields.user();
        if old != HASHTABLE {
            let most = limits::HASH_MAX_LISTPACK_VALUE.get();
            let small = self.len() <= limits::HASH_MAX_LISTPACK_ENTRIES.get()
                && entry.field.len() <= most
                && entry.value.len() <= most;
            let encoding = match (small, entry.expire_at) {
                (false, _) => HASHTABLE,
                (true, NEVER) => old,
                (true, _) => LISTPACK_EX,
            };
            if encoding != old {
                self.fields.set_user(encoding);
            }
        }
    }

    /// Removes a field. False if there is none. O(log n).
    pub fn remove(&mut self, field: &[u8]) -> bool {
        self.fields.remove_hashed(field, place::of_bytes(field))
    }

    /// Removes a field and returns its value. O(log n + value).
    pub fn take(&mut self, field: &[u8]) -> Option<Vec<u8>> {
        let value = self.get(field)?.to_vec();
        self.remove(field);
        Some(value)
    }

    /// Removes everything; a large hash is freed elsewhere. O(1).
    pub fn clear(&mut self) {
        *self = Hash::new();
    }

    /// All fields and values (H1), in an order that stays while the hash is unchanged. Small hashes are in
    /// order of insertion, large ones by hash.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        self.iter_from(0)
    }

    /// The fields and values from a rank on (H1). O(log n) to begin.
    pub fn iter_from(&self, rank: usize) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
        self.fields.iter_from(rank).map(|entry| (entry.field, entry.value))
    }

    /// All entries from a rank on, with their expiry (H1).
    pub fn entries_from(&self, rank: usize) -> Iter<'_, Fields> {
        self.fields.iter_from(rank)
    }

    /// The fields and values that have not expired.
    pub fn iter_at(&self, now: u64) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        let live = self.fields.iter().filter(move |entry| entry.expire_at > now);
        live.map(|entry| (entry.field, entry.value))
    }

    /// The field and value of a rank (H1). O(log n).
    pub fn nth(&self, rank: usize) -> Option<(&[u8], &[u8])> {
        self.nth_entry(rank).map(|entry| (entry.field, entry.value))
    }

    /// The entry of a rank (H1). O(log n).
    pub fn nth_entry(&self, rank: usize) -> Option<Entry<'_>> {
        self.fields.nth(rank)
    }

    /// One step of HSCAN (H1): small hashes all at once, else about `count` fields from the cursor on.
    /// Returns the next cursor, 0 at the end. Every field present from the first step to the last is visited.
    pub fn scan(&self, cursor: u64, count: usize, f: &mut dyn FnMut(&[u8], &[u8])) -> u64 {
        self.scan_entries(cursor, count, &mut |entry| f(entry.field, entry.value))
    }

    /// As `scan`, with the expiry.
    pub fn scan_entries(&self, cursor: u64, count: usize, f: &mut dyn FnMut(Entry<'_>)) -> u64 {
        self.fields.scan(cursor, count, f)
    }

    /// The time of a field's expiry, absolute ms. None without such a field, Some(None) if it does not
    /// expire.
    pub fn expire_at(&self, field: &[u8]) -> Option<Option<u64>> {
        let entry = self.entry(field)?;
        Some((entry.expire_at != NEVER).then_some(entry.expire_at))
    }

    /// Sets or drops a field's expiry without copying its value. False without such a field. O(log n).
    pub fn set_expire(&mut self, field: &[u8], expire_at: Option<u64>) -> bool {
        let hash = place::of_bytes(field);
        let Some((i, was)) = self.fields.find_hashed(field, hash) else { return false };
        let time = expire_at.unwrap_or(NEVER);
        if was == time {
            return true;
        }
        self.fields.change(hash, i, |leaf| {
            let bytes = with_time(leaf.raw(i), time);
            leaf.rewrite(i, &bytes);
            0
        });
        if time != NEVER && self.fields.user() == LISTPACK {
            self.fields.set_user(LISTPACK_EX);
        }
        true
    }

    /// The soonest expiry of all fields. O(1); O(fields) for small hashes.
    pub fn next_expiry(&self) -> Option<u64> {
        Some(self.fields.soonest()).filter(|&time| time != NEVER)
    }

    /// True if any field has an expiry.
    pub fn has_ttls(&self) -> bool {
        self.next_expiry().is_some()
    }

    /// Number of fields that have not expired. O(1) if none has, else O(expired · log n).
    pub fn live_len(&self, now: u64) -> usize {
        self.count_live(now, &mut |_| Continue(())).unwrap_or_default()
    }

    /// As [`Hash::live_len`], with a `pause` after every [`PIECE`] expired fields. None if `pause` broke off.
    pub fn count_live(&self, now: u64, pause: &mut dyn FnMut(usize) -> ControlFlow<()>) -> Option<usize> {
        let (mut expired, mut broken) = (0, false);
        self.fields.expired(now, &mut |_| {
            expired += 1;
            broken = expired % PIECE == 0 && pause(PIECE).is_break();
            !broken
        });
        (!broken).then(|| self.len() - expired)
    }

    /// Removes up to `limit` expired fields, calls `f` with each first, and returns their number. O(expired ·
    /// log n).
    pub fn remove_expired(&mut self, now: u64, limit: usize, f: &mut dyn FnMut(&[u8])) -> usize {
        let mut expired: Vec<Vec<u8>> = Vec::new();
        if limit > 0 {
            self.fields.expired(now, &mut |entry| {
                expired.push(entry.field.to_vec());
                expired.len() < limit
            });
        }
        for field in &expired {
            f(field);
            let removed = self.remove(field);
            debug_assert!(removed);
        }
        expired.len()
    }

    /// True if both are clones of each other without later changes. O(1).
    pub fn ptr_eq(&self, other: &Hash) -> bool {
        self.fields.ptr_eq(&other.fields)
    }

    /// Asserts the invariants of all nodes. O(n).
    pub fn check_invariants(&self) {
        self.fields.check_invariants();
    }
}

/// An entry's bytes with another time. The cells are moved unchanged.
fn with_time(bytes: &[u8], time: u64) -> SmallVec<[u8; 128]> {
    let cells = match bytes.first() {
        Some(&EXPIRY) => &bytes[EXPIRY_LEN..],
        _ => bytes,
    };
    let mut new = SmallVec::new();
    if time != NEVER {
        new.push(EXPIRY);
        new.extend_from_slice(&time.to_le_bytes());
    }
    new.extend_from_slice(cells);
    new
}

impl<F: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(F, V)> for Hash {
    fn from_iter<I: IntoIterator<Item = (F, V)>>(pairs: I) -> Hash {
        let mut hash = Hash::new();
        for (field, value) in pairs {
            hash.insert(field.as_ref(), value.as_ref());
        }
        hash
    }
}

impl PartialEq for Hash {
    /// Same fields, values and expiries. O(n), O(1) for unchanged clones.
    fn eq(&self, other: &Hash) -> bool {
        self.ptr_eq(other)
            || self.len() == other.len()
                && self.fields.iter().all(|entry| other.entry(entry.field) == Some(entry))
    }
}

impl Eq for Hash {}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        f.debug_map().entries(self.iter().map(|(field, value)| (text(field), text(value)))).finish()
    }
}

/// The start of the cells: after the time, if there is one.
///
/// # Safety
/// An entry lies at `at`.
#[inline]
unsafe fn cells(at: *const u8) -> *const u8 {
    // SAFETY: the caller's.
    unsafe { if *at == EXPIRY { at.add(EXPIRY_LEN) } else { at } }
}

/// The value's cell.
///
/// # Safety
/// An entry lies at `at`.
#[inline]
unsafe fn value_cell(at: *const u8) -> *const u8 {
    // SAFETY: the caller's.
    unsafe {
        let field = cells(at);
        field.add(cell::extent(field))
    }
}

impl EntryKind for Fields {
    type Key<'a> = &'a [u8];
    type Entry<'a> = Entry<'a>;
    type Times = Sixteen;
    type Beside = ();

    #[inline]
    fn key<'a>(entry: Self::Entry<'a>) -> Self::Key<'a> {
        entry.field
    }

    #[inline]
    fn hash(field: &[u8]) -> u64 {
        place::of_bytes(field)
    }

    #[inline]
    fn size(entry: Entry<'_>, _width: u8) -> usize {
        let time = if entry.expire_at == NEVER { 0 } else { EXPIRY_LEN };
        time + cell::bytes_size(entry.field.len()) + cell::bytes_size(entry.value.len())
    }

    #[inline]
    fn heap_size(entry: Entry<'_>) -> usize {
        cell::heap_size(entry.field.len()) + cell::heap_size(entry.value.len())
    }

    #[inline]
    unsafe fn write(entry: Entry<'_>, _width: u8, at: *mut u8) {
        let mut at = at;
        // SAFETY: the caller's.
        unsafe {
            if entry.expire_at != NEVER {
                *at = EXPIRY;
                at.add(1).cast::<u64>().write_unaligned(entry.expire_at.to_le());
                at = at.add(EXPIRY_LEN);
            }
            at = at.add(cell::write_bytes(entry.field, at));
            cell::write_bytes(entry.value, at);
        }
    }

    #[inline]
    unsafe fn read<'a>(at: *const u8, _width: u8) -> Entry<'a> {
        // SAFETY: the caller's.
        unsafe {
            let cells = cells(at);
            let (field, size) = cell::read_bytes(cells);
            let (value, _) = cell::read_bytes(cells.add(size));
            Entry { field, value, expire_at: Self::expiry(at) }
        }
    }

    #[inline]
    unsafe fn matches(at: *const u8, _width: u8, field: &[u8]) -> bool {
        // SAFETY: the caller's.
        unsafe { cell::is_bytes(cells(at), field) }
    }

    #[inline]
    unsafe fn extent(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe {
            let value = value_cell(at);
            value.offset_from_unsigned(at) + cell::extent(value)
        }
    }

    #[inline]
    unsafe fn heap(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { cell::heap(cells(at)) + cell::heap(value_cell(at)) }
    }

    #[inline]
    unsafe fn retain(at: *const u8) {
        // SAFETY: the caller's.
        unsafe {
            cell::retain(cells(at));
            cell::retain(value_cell(at));
        }
    }

    #[inline]
    unsafe fn release(at: *const u8) {
        // SAFETY: the caller's.
        unsafe {
            let value = value_cell(at);
            cell::release(cells(at));
            cell::release(value);
        }
    }

    #[inline]
    unsafe fn expiry(at: *const u8) -> u64 {
        // SAFETY: the caller's.
        unsafe {
            match *at {
                EXPIRY => u64::from_le(at.add(1).cast::<u64>().read_unaligned()),
                _ => NEVER,
            }
        }
    }
}

#[cfg(test)]
mod tests;
