//! A user: a name, passwords, and selectors.

use crate::password::{self, Hash};
use crate::rules::RuleError;
use crate::selector::Selector;
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
    passwords: Vec<Hash>,
    pub(crate) root: Selector,
    pub(crate) more: Vec<Selector>,
    /// Some selector allows every call.
    powerful: bool,
}

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
            passwords: Vec::new(),
            root: Selector::new(all_channels),
            more: Vec::new(),
            powerful: false,
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
        self.powerful
    }

    /// Whether a password is right. It says nothing of whether the user may log in. O(passwords).
    pub(crate) fn knows(&self, hash: &Hash) -> bool {
        self.nopass | password::is_among(hash, &self.passwords)
    }

    /// Applies a rule. `all_channels`: as `acl-pubsub-default` says. Errors: it is no rule; nothing is changed
    /// then. O(rule), times the number of commands for a category.
    pub fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let result = self.take(rule, all_channels);
        let mut selectors = std::iter::once(&self.root).chain(&self.more);
        self.powerful = selectors.any(Selector::allows_everything);
        result
    }

    fn take(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let is = |word: &str| word.as_bytes().eq_ignore_ascii_case(rule);
        match rule {
            [] => {}
            _ if is("on") => self.on = true,
            _ if is("off") => self.on = false,
            _ if is("nopass") => (self.nopass, self.passwords) = (true, Vec::new()),
            _ if is("resetpass") => (self.nopass, self.passwords) = (false, Vec::new()),
            _ if is("sanitize-payload") => self.skips_sanitizing = false,
            _ if is("skip-sanitize-payload") => self.skips_sanitizing = true,
            _ if is("clearselectors") => self.more.clear(),
            _ if is("reset") => {
                let new = User::new(&self.name, all_channels);
                *self = User { born: self.born, ..new };
            }
            [b'>', password @ ..] => self.add(password::hash(password)),
            [b'#', text @ ..] => self.add(password::parse(text).ok_or(RuleError::BadHash)?),
            [b'<', password @ ..] => return self.forget(&password::hash(password)),
            [b'!', text @ ..] => return self.forget(&password::parse(text).ok_or(RuleError::BadHash)?),
            [b'(', rules @ .., b')'] => self.more.push(selector(rules, all_channels)?),
            rule => return self.root.apply(rule),
        }
        Ok(())
    }

    fn add(&mut self, hash: Hash) {
        self.nopass = false;
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
    }

    fn forget(&mut self, hash: &Hash) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|known| known == hash);
        self.passwords.remove(at.ok_or(RuleError::NoSuchPassword)?);
        Ok(())
    }

    /// Its flags, as ACL GETUSER shows them.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let nopass = self.nopass.then_some("nopass");
        let sanitize = if self.skips_sanitizing { "skip-sanitize-payload" } else { "sanitize-payload" };
        [Some(if self.on { "on" } else { "off" }), nopass, Some(sanitize)].into_iter().flatten().collect()
    }

    /// The hashes of its passwords, as hexadecimal digits.
    pub(crate) fn passwords(&self) -> Vec<String> {
        self.passwords.iter().map(|hash| password::shown(hash)).collect()
    }

    /// Commands, keys and channels of its root, and of each further selector, as ACL GETUSER shows them.
    pub(crate) fn parts(&self) -> ([Vec<u8>; 3], Vec<[Vec<u8>; 3]>) {
        let parts = |selector: &Selector| {
            [selector.shown_commands(), selector.shown_keys(), selector.shown_channels()]
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

    /// Whether a channel may be heard; a pattern must be allowed literally. O(patterns).
    fn may_hear(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.selectors().any(|selector| selector.allows_channel(channel, is_pattern))
    }

    /// Whether all of these may be heard. No more comparisons than `most` are made; beyond them the answer is no.
    pub fn may_hear_all<'a>(
        &self,
        channels: impl Iterator<Item = &'a Arc<[u8]>>,
        patterns: impl Iterator<Item = &'a Arc<[u8]>>,
        most: usize,
    ) -> bool {
        if self.hears_everything() {
            return true;
        }
        let most = most / self.channels().max(1);
        let names = channels.map(|name| (name, false)).chain(patterns.map(|name| (name, true)));
        let mut names = names.enumerate();
        names.all(|(at, (name, is_pattern))| at < most && self.may_hear(name, is_pattern))
    }

    /// Whether all channels may be heard.
    fn hears_everything(&self) -> bool {
        self.selectors().any(|selector| selector.all_channels)
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
