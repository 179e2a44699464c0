//! Whose request is it? Tokens, and the console's sessions, which a cookie names.
//!
//! ```text
//! POST login ── user and password ──► 128 random bits, the cookie ──► Login {user, last use, writes until}
//! ```
//!
//! - L1: a session ends 12 hours after its last use, and as soon as its user is another one than at its login:
//!   a changed password or right means a new login.
//! - L2: there are [`LOGINS_MAX`] sessions; a new one takes the place of the one that was used longest ago.
//! - L3: an address whose logins failed [`FAILURES_MAX`] times in a second is not asked for its password in it.
//!
//! Cost: one lock for O(1), O(sessions) for a login.

use acl::{Acl, DEFAULT, User};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most sessions at once.
pub const LOGINS_MAX: usize = 256;
/// A session that was not used for this long ends.
const IDLE_MS: u64 = 12 * 3_600_000;
/// Failed logins of an address in one second.
pub const FAILURES_MAX: u32 = 5;
/// Addresses whose failures are counted in one second. Beyond these nobody may try.
const ADDRESSES_MAX: usize = 4096;
/// Writes are allowed for this long.
pub const WRITES_MS: u64 = 15 * 60_000;

/// The name of a session: what its cookie holds.
pub type Key = [u8; 16];

struct Login {
    user: Arc<User>,
    used_ms: u64,
    writes_until_ms: u64,
}

#[derive(Default)]
struct Failures {
    second: u64,
    by_address: HashMap<Box<str>, u32>,
}

/// The sessions of the console. See the module.
#[derive(Default)]
pub struct Logins {
    by_key: Mutex<HashMap<Key, Login>>,
    failures: Mutex<Failures>,
}

/// A session that was found.
pub struct Found {
    pub user: Arc<User>,
    pub key: Key,
    /// Until when it may write (milliseconds since 1970); 0: it may not.
    pub writes_until_ms: u64,
}

impl Logins {
    /// Whether a client of this address may try to log in (L3).
    pub fn may_try(&self, address: &str, now_ms: u64) -> bool {
        let failures = self.failures.lock();
        failures.second != now_ms / 1000
            || failures.by_address.len() < ADDRESSES_MAX
                && failures.by_address.get(host(address)).is_none_or(|count| *count < FAILURES_MAX)
    }

    /// Notes a login that failed.
    pub fn failed(&self, address: &str, now_ms: u64) {
        let mut failures = self.failures.lock();
        if failures.second != now_ms / 1000 {
            *failures = Failures { second: now_ms / 1000, ..Failures::default() };
        }
        *failures.by_address.entry(host(address).into()).or_default() += 1;
    }

    /// Begins a session. Errors: the system has no random numbers.
    pub fn begin(&self, user: Arc<User>, now_ms: u64) -> Result<Key, getrandom::Error> {
        let mut key = Key::default();
        getrandom::fill(&mut key)?;
        let mut by_key = self.by_key.lock();
        by_key.retain(|_, login| login.used_ms + IDLE_MS > now_ms);
        let oldest = by_key.iter().min_by_key(|(_, login)| login.used_ms).map(|(key, _)| *key);
        if let Some(oldest) = oldest.filter(|_| by_key.len() >= LOGINS_MAX) {
            by_key.remove(&oldest); // L2
        }
        by_key.insert(key, Login { user, used_ms: now_ms, writes_until_ms: 0 });
        Ok(key)
    }

    /// The session of a cookie's value, and notes its use (L1).
    pub fn find(&self, cookie: &[u8], acl: &Acl, now_ms: u64) -> Option<Found> {
        let key = key_of(cookie)?;
        let mut by_key = self.by_key.lock();
        let login = by_key.get_mut(&key)?;
        let now = acl.user(login.user.name()).filter(|user| Arc::ptr_eq(user, &login.user));
        let is_good = login.used_ms + IDLE_MS > now_ms && now.is_some_and(|user| user.is_on());
        if !is_good {
            by_key.remove(&key);
            return None;
        }
        login.used_ms = now_ms;
        let writes_until_ms = if login.writes_until_ms > now_ms { login.writes_until_ms } else { 0 };
        Some(Found { user: login.user.clone(), key, writes_until_ms })
    }

    pub fn end(&self, key: &Key) {
        self.by_key.lock().remove(key);
    }

    /// Lets a session write for a while, or no longer. Gives until when.
    pub fn allow_writes(&self, key: &Key, allowed: bool, now_ms: u64) -> u64 {
        let until_ms = if allowed { now_ms + WRITES_MS } else { 0 };
        self.by_key.lock().get_mut(key).into_iter().for_each(|login| login.writes_until_ms = until_ms);
        until_ms
    }
}

/// An address without its port.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// A session's name as its cookie spells it.
pub fn spell(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key_of(cookie: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(cookie).ok().filter(|text| text.len() == 32)?;
    let n = text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u128::from_str_radix(text, 16).ok());
    Some(n??.to_be_bytes())
}

/// The user of a request: of a token `name:password`, or `default` by its password, or by none if it needs
/// none. Cost: two hashes at most.
pub fn user_of(acl: &Acl, authorization: Option<&[u8]>) -> Option<Arc<User>> {
    let Some(token) = token_of(authorization) else { return acl.is_open().then(|| acl.everybody()) };
    let colon = token.iter().position(|byte| *byte == b':');
    let named = colon.and_then(|at| acl.admits(&token[..at], &token[at + 1..]));
    named.or_else(|| acl.admits(DEFAULT, token))
}

/// Whether a token is that of a user who has a password. Any text is one of a user without: such a token proves
/// nothing, as a page of another origin may send it. Cost: two hashes at most.
pub fn proves(acl: &Acl, authorization: Option<&[u8]>) -> bool {
    token_of(authorization).is_some()
        && user_of(acl, authorization).is_some_and(|user| !user.needs_no_password())
}

/// The token of an Authorization header.
pub fn token_of(authorization: Option<&[u8]>) -> Option<&[u8]> {
    let (scheme, token) = authorization?.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(acl: &Acl, name: &str, rules: &str) -> Arc<User> {
        acl.set_user(name.as_bytes(), rules.split(' ').map(str::as_bytes), true).unwrap();
        acl.user(name.as_bytes()).unwrap()
    }

    /// A page whose name leads to this machine sends any token that it likes.
    #[test]
    fn a_token_of_a_user_without_a_password_proves_nothing() {
        let acl = Acl::default();
        set(&acl, "free", "on nopass +@all ~*");
        set(&acl, "ann", "on >x +@all ~*");
        for token in [
            "Bearer x",
            "Bearer ",
            "Bearer :",
            "Bearer nobody:",
            "Bearer free:y",
            "Bearer ann:y",
            "Basic eA==",
        ] {
            assert!(!proves(&acl, Some(token.as_bytes())), "{token}");
        }
        assert!(!proves(&acl, None) && proves(&acl, Some(b"Bearer ann:x")));
        set(&acl, "default", "resetpass >y");
        assert!(proves(&acl, Some(b"bearer y")) && !proves(&acl, Some(b"Bearer free:y")));
    }

    #[test]
    fn a_session_ends_with_its_user_and_when_it_is_idle() {
        let (acl, logins) = (Acl::default(), Logins::default());
        let user = set(&acl, "ann", "on >x +@all");
        let key = logins.begin(user.clone(), 1000).unwrap();
        let cookie = spell(&key);
        let found = |now_ms| logins.find(cookie.as_bytes(), &acl, now_ms).is_some();
        assert!(found(1000 + IDLE_MS - 1) && found(IDLE_MS + 2000));
        assert!(!found(3 * IDLE_MS) && !found(2000), "it is gone for good");
        for (rules, why) in [("+get", "its rights"), (">y", "its password"), ("off", "it is off")] {
            let cookie = spell(&logins.begin(acl.user(b"ann").unwrap(), 1000).unwrap());
            assert!(logins.find(cookie.as_bytes(), &acl, 1001).is_some());
            set(&acl, "ann", rules);
            assert!(logins.find(cookie.as_bytes(), &acl, 1002).is_none(), "{why}");
        }
        // A change of another user ends nothing.
        let cookie = spell(&logins.begin(set(&acl, "ann", "on"), 1000).unwrap());
        set(&acl, "bob", "on");
        let found = logins.find(cookie.as_bytes(), &acl, 1001).unwrap();
        logins.end(&found.key);
        assert!(logins.find(cookie.as_bytes(), &acl, 1001).is_none());
    }

    #[test]
    fn the_session_that_was_used_longest_ago_makes_room() {
        let (acl, logins) = (Acl::default(), Logins::default());
        let keys: Vec<Key> =
            (0..LOGINS_MAX as u64).map(|at| logins.begin(acl.everybody(), 1000 + at).unwrap()).collect();
        let is_there = |key: &Key| logins.find(spell(key).as_bytes(), &acl, 5000).is_some();
        assert!(is_there(&keys[0]));
        logins.begin(acl.everybody(), 5000).unwrap();
        assert!(is_there(&keys[0]) && !is_there(&keys[1]) && is_there(&keys[2]));
        assert!(logins.find(b"", &acl, 0).is_none() && logins.find(&[b'+'; 32], &acl, 0).is_none());
    }

    #[test]
    fn writes_are_allowed_for_a_while() {
        let (acl, logins) = (Acl::default(), Logins::default());
        let key = logins.begin(acl.everybody(), 1000).unwrap();
        let until = |now_ms| logins.find(spell(&key).as_bytes(), &acl, now_ms).unwrap().writes_until_ms;
        assert_eq!(until(1000), 0);
        assert_eq!(logins.allow_writes(&key, true, 2000), 2000 + WRITES_MS);
        assert_eq!((until(1999 + WRITES_MS), until(2000 + WRITES_MS)), (2000 + WRITES_MS, 0));
        logins.allow_writes(&key, true, 2000);
        logins.allow_writes(&key, false, 2000);
        assert_eq!(until(2001), 0);
    }

    #[test]
    fn five_failures_are_enough_for_a_second() {
        let logins = Logins::default();
        for port in 0..FAILURES_MAX {
            assert!(logins.may_try("10.0.0.1:9", 7_000));
            logins.failed(&format!("10.0.0.1:{port}"), 7_000);
        }
        assert!(!logins.may_try("10.0.0.1:9", 7_999) && logins.may_try("10.0.0.2:9", 7_999));
        assert!(logins.may_try("10.0.0.1:9", 8_000));
    }
}
