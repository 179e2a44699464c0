//! Typed access to a view's values, to read and to change them, and expiry of hash fields.

use super::*;

impl View<'_> {
    #[inline]
    pub fn list(&self, key: &[u8]) -> Result<Option<&List>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::List(v)) => Ok(Some(v)),
            Some(_) => Err(WrongType),
        }
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> Result<Option<&Hash>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::Hash(v)) => Ok(Some(v)),
            Some(_) => Err(WrongType),
        }
    }

    #[inline]
    pub fn set(&self, key: &[u8]) -> Result<Option<&Set>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::Set(v)) => Ok(Some(v)),
            Some(_) => Err(WrongType),
        }
    }

    #[inline]
    pub fn zset(&self, key: &[u8]) -> Result<Option<&ZSet>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::ZSet(v)) => Ok(Some(v)),
            Some(_) => Err(WrongType),
        }
    }

    #[inline]
    pub fn stream(&self, key: &[u8]) -> Result<Option<&Stream>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::Stream(v)) => Ok(Some(v)),
            Some(_) => Err(WrongType),
        }
    }

    /// The bits of a compressed bitmap of this kind: [`Kind::Roaring`] or [`Kind::Roaring64`].
    #[inline]
    pub fn ints(&self, key: &[u8], kind: Kind) -> Result<Option<&Ints>, WrongType> {
        match self.value(key) {
            None => Ok(None),
            Some(ValueRef::Roaring(v)) if kind == Kind::Roaring => Ok(Some(v)),
            Some(ValueRef::Roaring64(v)) if kind == Kind::Roaring64 => Ok(Some(v)),
            Some(_) => Err(WrongType),
        }
    }

    pub fn list_mut(&mut self, key: &[u8]) -> Result<Option<&mut List>, WrongType> {
        if self.is_overlay() {
            let value = self.owned_mut(key, Kind::List)?;
            return Ok(value.and_then(|v| if let Value::List(v) = v { Some(v) } else { None }));
        }
        Ok(self.entry_mut(key, Kind::List)?.and_then(EntryMut::list))
    }

    pub fn hash_mut(&mut self, key: &[u8]) -> Result<Option<&mut Hash>, WrongType> {
        if self.is_overlay() {
            let value = self.owned_mut(key, Kind::Hash)?;
            return Ok(value.and_then(|v| if let Value::Hash(v) = v { Some(v) } else { None }));
        }
        Ok(self.entry_mut(key, Kind::Hash)?.and_then(EntryMut::hash))
    }

    pub fn set_mut(&mut self, key: &[u8]) -> Result<Option<&mut Set>, WrongType> {
        if self.is_overlay() {
            let value = self.owned_mut(key, Kind::Set)?;
            return Ok(value.and_then(|v| if let Value::Set(v) = v { Some(v) } else { None }));
        }
        Ok(self.entry_mut(key, Kind::Set)?.and_then(EntryMut::set))
    }

    pub fn zset_mut(&mut self, key: &[u8]) -> Result<Option<&mut ZSet>, WrongType> {
        if self.is_overlay() {
            let value = self.owned_mut(key, Kind::ZSet)?;
            return Ok(value.and_then(|v| if let Value::ZSet(v) = v { Some(v) } else { None }));
        }
        Ok(self.entry_mut(key, Kind::ZSet)?.and_then(EntryMut::zset))
    }

    pub fn stream_mut(&mut self, key: &[u8]) -> Result<Option<&mut Stream>, WrongType> {
        if self.is_overlay() {
            let value = self.owned_mut(key, Kind::Stream)?;
            return Ok(value.and_then(|v| if let Value::Stream(v) = v { Some(v) } else { None }));
        }
        Ok(self.entry_mut(key, Kind::Stream)?.and_then(EntryMut::stream))
    }

    /// The bits to be changed. See [`View::ints`].
    pub fn ints_mut(&mut self, key: &[u8], kind: Kind) -> Result<Option<&mut Ints>, WrongType> {
        if self.is_overlay() {
            let value = self.owned_mut(key, kind)?;
            return Ok(value.and_then(|value| match value {
                Value::Roaring(v) | Value::Roaring64(v) => Some(v),
                _ => None,
            }));
        }
        Ok(self.entry_mut(key, kind)?.and_then(EntryMut::ints))
    }

    /// The list of a key, created empty if there is none. The caller must add something, or call
    /// `remove_if_empty` (K4).
    pub fn list_or_new(&mut self, key: &[u8]) -> Result<&mut List, WrongType> {
        const EMPTY: fn() -> Value = || Value::List(List::new());
        if self.is_overlay() {
            self.make(key, Kind::List, EMPTY)?;
            return Ok(self.list_mut(key)?.expect("made above"));
        }
        Ok(self.entry_or_new(key, Kind::List, EMPTY)?.list().expect("of this kind"))
    }

    /// The hash of a key. See `list_or_new`.
    pub fn hash_or_new(&mut self, key: &[u8]) -> Result<&mut Hash, WrongType> {
        const EMPTY: fn() -> Value = || Value::Hash(Hash::new());
        if self.is_overlay() {
            self.make(key, Kind::Hash, EMPTY)?;
            return Ok(self.hash_mut(key)?.expect("made above"));
        }
        Ok(self.entry_or_new(key, Kind::Hash, EMPTY)?.hash().expect("of this kind"))
    }

    /// The set of a key. See `list_or_new`.
    pub fn set_or_new(&mut self, key: &[u8]) -> Result<&mut Set, WrongType> {
        const EMPTY: fn() -> Value = || Value::Set(Set::new());
        if self.is_overlay() {
            self.make(key, Kind::Set, EMPTY)?;
            return Ok(self.set_mut(key)?.expect("made above"));
        }
        Ok(self.entry_or_new(key, Kind::Set, EMPTY)?.set().expect("of this kind"))
    }

    /// The sorted set of a key. See `list_or_new`.
    pub fn zset_or_new(&mut self, key: &[u8]) -> Result<&mut ZSet, WrongType> {
        const EMPTY: fn() -> Value = || Value::ZSet(ZSet::new());
        if self.is_overlay() {
            self.make(key, Kind::ZSet, EMPTY)?;
            return Ok(self.zset_mut(key)?.expect("made above"));
        }
        Ok(self.entry_or_new(key, Kind::ZSet, EMPTY)?.zset().expect("of this kind"))
    }

    /// The stream of a key, created empty if there is none. It may stay so.
    pub fn stream_or_new(&mut self, key: &[u8]) -> Result<&mut Stream, WrongType> {
        const EMPTY: fn() -> Value = || Value::Stream(Stream::new());
        if self.is_overlay() {
            self.make(key, Kind::Stream, EMPTY)?;
            return Ok(self.stream_mut(key)?.expect("made above"));
        }
        Ok(self.entry_or_new(key, Kind::Stream, EMPTY)?.stream().expect("of this kind"))
    }

    /// The bits of a key, created without any if there is no such key. It may stay so.
    pub fn ints_or_new(&mut self, key: &[u8], kind: Kind) -> Result<&mut Ints, WrongType> {
        let empty: fn() -> Value = match kind {
            Kind::Roaring64 => || Value::Roaring64(Ints::new()),
            _ => || Value::Roaring(Ints::new()),
        };
        self.make(key, kind, empty)?;
        Ok(self.ints_mut(key, kind)?.expect("made above"))
    }

    /// Reports that a field of the key's hash expires at `at`, so that the sweep finds it. O(1).
    pub fn field_expires(&mut self, key: &[u8], at: u64) {
        let hash = self.hash_of(key);
        // An overlay reports it when it commits.
        let Store::Locked(guard) = &mut self.store else { return };
        guard.get_mut(shard_of(hash)).dbs[self.db].field_expires(hash, at);
        self.keyspace.note_fields(self.db);
    }

    /// Removes expired fields of a hash, all of `named` and up to `limit` others, and gives each to `f`. True
    /// if a field was due; then `hexpired` is notified. The caller must fill or remove a hash that is empty
    /// now. O(removed · log n).
    pub fn expire_fields<'f>(
        &mut self,
        key: &[u8],
        named: impl Iterator<Item = &'f [u8]>,
        limit: usize,
        f: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let now = self.due_ms;
        let due = |hash: &Hash| hash.next_expiry().is_some_and(|at| at <= now);
        if !matches!(self.hash(key), Ok(Some(hash)) if due(hash)) {
            return false;
        }
        let Ok(Some(hash)) = self.hash_mut(key) else { return false };
        let mut removed = hash.remove_expired(now, limit, f);
        if removed == limit {
            for field in named {
                if matches!(hash.expire_at(field), Some(Some(at)) if at <= now) && hash.remove(field) {
                    f(field);
                    removed += 1;
                }
            }
        }
        if let Some(at) = hash.next_expiry() {
            self.field_expires(key, at);
        }
        self.keyspace.stats.expired_fields.fetch_add(removed as u64, Ordering::Relaxed);
        self.changed(key, Class::Hash, "hexpired");
        true
    }
}
