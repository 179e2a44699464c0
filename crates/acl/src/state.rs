//! The users of a server, and the user of a session.
//!
//! - A1: users change under one lock, held for a look-up or an exchange; the generation rises before it is
//!   given back. The user of an [`Identity`] is as of the generation that it saw, or newer.
//! - A2: [`Acl::update`] prepares a user outside the lock, and begins again if another one was faster.

use crate::log::Log;
use crate::password;
use crate::rules::RuleError;
use crate::setting::Setting;
use crate::user::{DEFAULT, User};
use command::Error;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The users of a server. See the module.
pub struct Acl {
    /// Rises with each change of users; never 0.
    generation: AtomicU64,
    /// A client may be `default` without a password.
    open: AtomicBool,
    table: Mutex<Table>,
    pub log: Mutex<Log>,
    /// Calls denied because of the command, a key, a channel, a database.
    pub denied: [AtomicU64; 4],
}

struct Table {
    by_name: BTreeMap<Box<[u8]>, Arc<User>>,
    born: u64,
}

impl Default for Acl {
    /// One user, `default`, who may do everything without a password.
    fn default() -> Acl {
        let user = Arc::new(User::everybody());
        Acl {
            generation: AtomicU64::new(1),
            open: AtomicBool::new(true),
            table: Mutex::new(Table { by_name: [(DEFAULT.into(), user)].into(), born: 0 }),
            log: Mutex::default(),
            denied: Default::default(),
        }
    }
}

impl Acl {
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether a client may be `default` without a password.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The user of this name. O(log users).
    pub fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        self.table.lock().by_name.get(name).cloned()
    }

    /// The user of connections that have not logged in.
    pub fn everybody(&self) -> Arc<User> {
        self.user(DEFAULT).expect("the default user is never removed")
    }

    /// The users behind this name, by name, at most so many. O(count).
    pub fn after(&self, name: Option<&[u8]>, count: usize) -> Vec<Arc<User>> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.table
            .lock()
            .by_name
            .range::<[u8], _>((from, Bound::Unbounded))
            .take(count)
            .map(|(_, user)| user.clone())
            .collect()
    }

    /// All users, by name, some at a time. O(users).
    pub fn all(&self) -> Vec<Arc<User>> {
        let mut all: Vec<Arc<User>> = Vec::new();
        loop {
            let some = self.after(all.last().map(|user| user.name()), 64);
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    /// Changes a user, or makes one. Gives the user before and after (A2). Errors: those of `change`; nothing
    /// is changed then.
    pub fn update<E>(
        &self,
        name: &[u8],
        all_channels: bool,
        change: impl Fn(&mut User) -> Result<(), E>,
    ) -> Result<(Option<Arc<User>>, Arc<User>), E> {
        loop {
            let old = self.user(name);
            let mut user = old.as_deref().cloned().unwrap_or_else(|| User::new(name, all_channels));
            change(&mut user)?;
            if let Some(user) = self.exchange(old.as_ref(), user) {
                return Ok((old, user));
            }
        }
    }

    /// ACL SETUSER: applies all rules to a user, new or known, or none. Gives whether it was known. O(rules).
    /// Errors: a rule is wrong, in Redis's words.
    pub fn set_user<'a>(
        &self,
        name: &[u8],
        rules: impl IntoIterator<Item = &'a [u8]>,
        all_channels: bool,
    ) -> Result<bool, Error> {
        let mut setting = Setting::new(self, name, rules, all_channels)?;
        loop {
            while setting.step(&mut { usize::MAX })? {}
            match setting.install(self) {
                Ok(was_there) => return Ok(was_there),
                Err(again) => setting = *again,
            }
        }
    }

    /// Puts a user in the place of another, or of none. `None`: that is no longer the one there. O(log users)
    pub(crate) fn exchange(&self, old: Option<&Arc<User>>, mut user: User) -> Option<Arc<User>> {
        let mut table = self.table.lock();
        let now = table.by_name.get(user.name());
        if now.map(Arc::as_ptr) != old.map(Arc::as_ptr) {
            return None;
        }
        if old.is_none() {
            table.born += 1;
            user.born = table.born;
        }
        let user = Arc::new(user);
        table.by_name.insert(user.name().into(), user.clone());
        self.changed(&table);
        Some(user)
    }

    /// Removes a user; false if there is none. `default` stays.
    pub fn remove(&self, name: &[u8]) -> bool {
        if name == DEFAULT {
            return false;
        }
        let mut table = self.table.lock();
        let was = table.by_name.remove(name);
        if was.is_some() {
            self.changed(&table);
        }
        was.is_some()
    }

    /// Has these users instead of all others. A user of a name that was there goes on as the same; `default`
    /// stays as it is if it is not among them. O(users), outside the lock.
    pub fn replace(&self, users: Vec<User>) {
        let mut by_name: BTreeMap<Box<[u8]>, Arc<User>> = BTreeMap::new();
        let mut born = 0;
        for mut user in users {
            match self.user(user.name()) {
                Some(old) => user.born = old.born,
                None => {
                    let mut table = self.table.lock();
                    table.born += 1;
                    user.born = table.born;
                }
            }
            born = user.born.max(born);
            by_name.insert(user.name().into(), Arc::new(user));
        }
        if !by_name.contains_key(DEFAULT) {
            by_name.insert(DEFAULT.into(), self.everybody());
        }
        let mut table = self.table.lock();
        let old = std::mem::replace(&mut table.by_name, by_name);
        self.changed(&table);
        drop(table);
        drop(old);
    }

    fn changed(&self, table: &Table) {
        let open = table.by_name.get(DEFAULT).is_some_and(|user| user.is_open());
        self.open.store(open, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The user of this name and password, if it may log in. Cost: one hash, whether or not there is such a
    /// user.
    pub fn admits(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let user = self.user(name);
        let hash = password::hash(password);
        user.filter(|user| user.knows(&hash) & user.is_on())
    }

    /// Sets the password of `default`, as `requirepass` does; an empty one is none.
    pub fn require(&self, password: &[u8]) {
        let rule = match password {
            [] => b"nopass".to_vec(),
            password => [b">", password].concat(),
        };
        let result: Result<_, RuleError> = self.update(DEFAULT, true, |user| {
            user.apply(b"resetpass", true)?;
            user.apply(&rule, true)
        });
        debug_assert!(result.is_ok());
    }
}

/// A generation that never comes.
const ALWAYS: u64 = u64::MAX;

/// The user of a session. See the module.
#[derive(Clone, Debug)]
pub struct Identity {
    user: Arc<User>,
    /// The generation that the user is of; 0: it has to be looked up.
    seen: u64,
    /// The generation in which the session may do everything; 0: in none.
    free: u64,
}

impl Identity {
    /// That of a client that has just connected.
    pub fn guest(acl: &Acl) -> Identity {
        Identity::of(acl.everybody())
    }

    pub fn of(user: Arc<User>) -> Identity {
        Identity { user, seen: 0, free: 0 }
    }

    /// A part of the server itself: it may do everything, whatever users there are.
    pub fn internal() -> Identity {
        Identity { user: Arc::new(User::everybody()), seen: ALWAYS, free: ALWAYS }
    }

    /// Whether its session may do everything, as far as that is known without a look-up: one comparison.
    #[inline]
    pub fn is_free(&self, acl: &Acl) -> bool {
        self.free == acl.generation() || self.free == ALWAYS
    }

    /// Looks the user up if users changed. `is_let_in`: the session has logged in, or need not. False: the user
    /// is no more.
    pub fn refresh(&mut self, acl: &Acl, is_let_in: bool) -> bool {
        if self.free == ALWAYS {
            return true;
        }
        let generation = acl.generation();
        if self.seen != generation {
            match acl.user(self.user.name()) {
                Some(user) if user.born == self.user.born => (self.user, self.seen) = (user, generation),
                _ => {
                    (self.seen, self.free) = (0, 0);
                    return false;
                }
            }
        }
        self.free = if is_let_in && self.user.is_powerful() { self.seen } else { 0 };
        true
    }

    /// The user as of the last look-up.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }
}
