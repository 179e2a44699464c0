//! A user: a name, passwords, and selectors.

use crate::listed::Listed;
use crate::password::{self, Hash};
use crate::rules::RuleError;
use crate::selector::{PATTERN_LOOKS, Search, Selector};
use std::sync::Arc;

/// The user of a connection that has not logged in.
pub const DEFAULT: &[u8] = b"default";

/// A user. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: Box<[u8]>,
    /// Tells a user from a later one of the same name.
    pub(crate) born: u64,
    on: bool,
    /// Any password is right.
    nopass: bool,
    skips_sanitizing: bool,
    passwords: Listed<()>,
    root: Selector,
    more: Vec<Selector>,
    /// Whether the root allows every call, and how many of the further selectors do.
    free: (bool, usize),
    /// Bytes of the rules of the further selectors, about.
    more_bytes: usize,
}

/// Bytes of rules up to which a user is copied, shown and freed by a loop.
const SMALL: usize = 4096;

/// The rules of a large user are freed elsewhere: a session may be its last owner.
impl Drop for User {
    fn drop(&mut self) {
        let bytes = self.bytes();
        if bytes > SMALL {
            let parts = (
                std::mem::take(&mut self.passwords),
                std::mem::take(&mut self.root),
                std::mem::take(&mut self.more),
            );
            stdx::reclaim::defer(bytes, move || drop(parts));
        }
    }
}

/// Passwords that are all compared for each login, so that its duration does not tell which is right. Of
/// more, a hash is looked up.
const COMPARED_MAX: usize = 256;

/// Whether a user may be called so: the name has no spaces and no zero bytes.
pub fn is_name(name: &[u8]) -> bool {
    !name.iter().any(|byte| matches!(byte, 0 | b' ' | 9..=13))
}

impl User {
    /// A user who cannot log in and may do nothing. `all_channels`: as `acl-pubsub-default` says.
    pub fn new(name: &[u8], all_channels: bool) -> User {
        User {
            name: name.into(),
            born: 0,
            on: false,
            nopass: false,
            skips_sanitizing: false,
            passwords: Listed::default(),
            root: Selector::new(all_channels),
            more: Vec::new(),
            free: (false, 0),
            more_bytes: 0,
        }
    }

    /// The user `default` of a new server: any password is right, and everything is allowed.
    pub fn everybody() -> User {
        let mut user = User::new(DEFAULT, true);
        for rule in ["on", "nopass", "~*", "&*", "+@all"] {
            // These rules are known.
            let _ = user.apply(rule.as_bytes(), true);
        }
        user
    }

    pub fn name(&self) -> &[u8] {
        &self.name
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether a client may be this user without a password.
    pub fn is_open(&self) -> bool {
        self.on && self.nopass
    }

    /// Whether every password is right.
    pub fn needs_no_password(&self) -> bool {
        self.nopass
    }

    /// Whether every call is allowed.
    pub fn is_powerful(&self) -> bool {
        self.free.0 || self.free.1 > 0
    }

    /// Whether every key may be read. O(selectors + patterns)
    pub(crate) fn reads_all_keys(&self) -> bool {
        self.root.reads_all_keys() || self.more.iter().any(Selector::reads_all_keys)
    }

    /// Bytes of its rules, about. O(1)
    fn bytes(&self) -> usize {
        96 * self.passwords.len() + self.root.bytes() + self.more_bytes
    }

    /// Whether an event loop should not copy or show it. O(1)
    pub fn is_large(&self) -> bool {
        self.bytes() > SMALL
    }

    /// Whether a password is right. It says nothing of whether the user may log in. O(passwords), and O(log) if
    /// they are very many.
    pub(crate) fn knows(&self, hash: &Hash) -> bool {
        let among = match self.passwords.len() {
            0..=COMPARED_MAX => password::is_among(hash, self.passwords.iter().map(|(known, ())| known)),
            _ => self.passwords.contains(hash),
        };
        self.nopass | among
    }

    /// Applies a rule. `all_channels`: as `acl-pubsub-default` says. Errors: it is no rule; nothing is changed
    /// then. O(rule · log rules), times the number of commands for a category.
    pub fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let result = self.take(rule, all_channels);
        self.free.0 = self.root.allows_everything();
        result
    }

    fn add_selector(&mut self, selector: Selector) {
        self.free.1 += usize::from(selector.allows_everything());
        self.more_bytes += 512 + selector.bytes();
        self.more.push(selector);
    }

    fn clear_selectors(&mut self) {
        (self.free.1, self.more_bytes) = (0, 0);
        self.more.clear();
    }

    fn take(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let is = |word: &str| word.as_bytes().eq_ignore_ascii_case(rule);
        match rule {
            [] => {}
            _ if is("on") => self.on = true,
            _ if is("off") => self.on = false,
            _ if is("nopass") => (self.nopass, self.passwords) = (true, Listed::default()),
            _ if is("resetpass") => (self.nopass, self.passwords) = (false, Listed::default()),
            _ if is("sanitize-payload") => self.skips_sanitizing = false,
            _ if is("skip-sanitize-payload") => self.skips_sanitizing = true,
            _ if is("clearselectors") => self.clear_selectors(),
            _ if is("reset") => {
                let born = self.born;
                *self = User::new(&self.name, all_channels);
                self.born = born;
            }
            [b'>', password @ ..] => self.add(password::hash(password)),
            [b'#', text @ ..] => self.add(password::parse(text).ok_or(RuleError::BadHash)?),
            [b'<', password @ ..] => return self.forget(&password::hash(password)),
            [b'!', text @ ..] => return self.forget(&password::parse(text).ok_or(RuleError::BadHash)?),
            [b'(', rules @ .., b')'] => self.add_selector(selector(rules, all_channels)?),
            rule => return self.root.apply(rule),
        }
        Ok(())
    }

    fn add(&mut self, hash: Hash) {
        self.nopass = false;
        self.passwords.add(&hash, ());
    }

    fn forget(&mut self, hash: &Hash) -> Result<(), RuleError> {
        if self.passwords.remove(hash) { Ok(()) } else { Err(RuleError::NoSuchPassword) }
    }

    /// Its flags, as ACL GETUSER shows them.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let nopass = self.nopass.then_some("nopass");
        let sanitize = if self.skips_sanitizing { "skip-sanitize-payload" } else { "sanitize-payload" };
        [Some(if self.on { "on" } else { "off" }), nopass, Some(sanitize)].into_iter().flatten().collect()
    }

    /// The hashes of its passwords, as hexadecimal digits.
    pub(crate) fn passwords(&self) -> Vec<String> {
        self.passwords.iter().map(|(hash, ())| password::shown(hash)).collect()
    }

    /// Commands, keys, channels and databases of its root, and of each further selector, as ACL GETUSER shows
    /// them.
    pub(crate) fn parts(&self) -> ([Vec<u8>; 4], Vec<[Vec<u8>; 4]>) {
        let parts = |selector: &Selector| {
            let (keys, channels) = (selector.shown_keys(), selector.shown_channels());
            [selector.shown_commands(), keys, channels, selector.shown_databases()]
        };
        (parts(&self.root), self.more.iter().map(parts).collect())
    }

    /// Its rules in the order in which they make the same user (U2). O(rules).
    fn rules(&self) -> Vec<Vec<u8>> {
        let mut rules: Vec<Vec<u8>> = self.flags().iter().map(|flag| flag.as_bytes().to_vec()).collect();
        rules.extend(self.passwords().iter().map(|hash| format!("#{hash}").into_bytes()));
        rules.push(self.root.shown());
        rules.extend(self.more.iter().map(|one| [b"(", &one.shown()[..], b")"].concat()));
        rules
    }

    /// The user's line of ACL LIST, of an aclfile and of a configuration file: `user name rule ...`. O(rules).
    pub fn line(&self) -> Vec<u8> {
        [&b"user "[..], &self.name, b" ", &self.rules().join(&b' ')].concat()
    }

    /// Whether the names of all keys, or of all that a pattern fits, are those of keys that it may read.
    /// O(patterns).
    pub fn may_list(&self, pattern: Option<&[u8]>) -> bool {
        self.selectors().any(|selector| match pattern {
            Some(pattern) => selector.reads_all_of(pattern),
            None => selector.reads_all_keys(),
        })
    }

    /// The same, of one database.
    pub fn may_list_in(&self, db: usize, pattern: &[u8]) -> bool {
        self.selectors().any(|selector| selector.allows_database(db) && selector.reads_all_of(pattern))
    }

    /// Whether the names of all keys of so many databases are those of keys that it may read. O(patterns)
    pub fn may_list_all(&self, databases: usize) -> bool {
        self.selectors().any(|selector| selector.allows_databases(databases) && selector.reads_all_keys())
    }

    /// Whether a channel may be heard; a pattern must be allowed literally. Without `looks` left it may not.
    fn may_hear(&self, channel: &[u8], is_pattern: bool, looks: &mut usize) -> bool {
        self.selectors().any(|selector| {
            selector.allows_channel(channel, is_pattern, &mut Search::default(), looks).unwrap_or(false)
        })
    }

    /// Whether all of these may be heard. No more comparisons than `most` are made, fewer of long names;
    /// beyond them the answer is no.
    pub fn may_hear_all<'a>(
        &self,
        channels: impl Iterator<Item = &'a Arc<[u8]>>,
        patterns: impl Iterator<Item = &'a Arc<[u8]>>,
        most: usize,
    ) -> bool {
        if self.hears_everything() {
            return true;
        }
        let (most, mut looks) = (most / self.channels().max(1), most * PATTERN_LOOKS);
        let names = channels.map(|name| (name, false)).chain(patterns.map(|name| (name, true)));
        let mut names = names.enumerate();
        names.all(|(at, (name, is_pattern))| at < most && self.may_hear(name, is_pattern, &mut looks))
    }

    /// Whether all channels may be heard.
    fn hears_everything(&self) -> bool {
        self.selectors().any(|selector| selector.all_channels)
    }

    /// Whether some selector does not allow all databases.
    pub(crate) fn is_bound_to_databases(&self) -> bool {
        self.selectors().any(|selector| selector.databases.is_some())
    }

    /// Number of all patterns.
    pub fn patterns(&self) -> usize {
        self.selectors().map(|selector| selector.keys.len() + selector.channels.len()).sum()
    }

    /// Number of patterns for channels.
    fn channels(&self) -> usize {
        self.selectors().map(|selector| selector.channels.len()).sum()
    }

    pub(crate) fn selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.more)
    }
}

/// A selector made of the rules between two parentheses. A rule may not end in `)`: the text of the selector
/// would be read as another one.
fn selector(rules: &[u8], all_channels: bool) -> Result<Selector, RuleError> {
    let mut selector = Selector::new(all_channels);
    for rule in rules.split(|byte| *byte == b' ').filter(|rule| !rule.is_empty()) {
        if rule.ends_with(b")") {
            return Err(RuleError::Syntax);
        }
        selector.apply(rule)?;
    }
    Ok(selector)
}
