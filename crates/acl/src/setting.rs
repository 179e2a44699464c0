//! ACL SETUSER in steps: a copy of the user takes the rules, and then its place.

use crate::rules::{RuleError, merged};
use crate::state::Acl;
use crate::user::{User, is_name};
use command::Error;
use std::sync::Arc;

/// A change of a user under way. Nothing is changed before it is installed.
pub struct Setting {
    name: Vec<u8>,
    rules: Vec<Vec<u8>>,
    all_channels: bool,
    /// The user as it was, and as it is to be; none: it was not copied yet.
    old: Option<Arc<User>>,
    new: Option<User>,
    next: usize,
}

impl Setting {
    /// Takes the rules over. `all_channels`: as `acl-pubsub-default` says. O(bytes). Errors: the name; a
    /// selector that is not closed.
    pub fn new<'a>(
        acl: &Acl,
        name: &[u8],
        rules: impl IntoIterator<Item = &'a [u8]>,
        all_channels: bool,
    ) -> Result<Setting, Error> {
        if !is_name(name) {
            return Err(Error::new("ERR Usernames can't contain spaces or null characters"));
        }
        let rules = merged(rules).map_err(|word| {
            let word = String::from_utf8_lossy(word);
            Error::from(format!("ERR Unmatched parenthesis in acl selector starting at '{word}'."))
        })?;
        Ok(Setting { name: name.into(), rules, all_channels, old: acl.user(name), new: None, next: 0 })
    }

    /// The user's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Copies the user, or applies rules of about so many bytes. False: nothing is left. Takes no lock.
    /// Errors: a rule is wrong, in Redis's words.
    pub fn step(&mut self, looks: &mut usize) -> Result<bool, Error> {
        let copy = || match &self.old {
            Some(old) => User::clone(old),
            None => User::new(&self.name, self.all_channels),
        };
        let user = self.new.get_or_insert_with(copy);
        while let Some(rule) = self.rules.get(self.next) {
            if *looks == 0 {
                return Ok(true);
            }
            user.apply(rule, self.all_channels).map_err(|error| refused(rule, error))?;
            self.next += 1;
            *looks = looks.saturating_sub(rule.len() + RULE);
        }
        Ok(false)
    }

    /// Puts the user into its place; whether one was there. If that changed meanwhile, the change begins anew.
    pub fn install(mut self, acl: &Acl) -> Result<bool, Box<Setting>> {
        let Some(new) = self.new.take() else { return Err(Box::new(self)) };
        if acl.exchange(self.old.as_ref(), new).is_some() {
            return Ok(self.old.is_some());
        }
        (self.old, self.next) = (acl.user(&self.name), 0);
        Err(Box::new(self))
    }
}

/// Bytes that a rule counts besides its own.
const RULE: usize = 64;

fn refused(rule: &[u8], error: RuleError) -> Error {
    // As in C, the text ends at a zero byte.
    let shown = String::from_utf8_lossy(rule.split(|byte| *byte == 0).next().unwrap_or_default());
    Error::from(format!("ERR Error in ACL SETUSER modifier '{shown}': {}", error.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing takes the square of the number of rules: that would be some 10^11 comparisons here.
    #[test]
    fn very_many_rules_of_each_kind_are_applied_one_by_one() {
        let acl = Acl::default();
        let mut rules: Vec<Vec<u8>> = Vec::new();
        for i in 0..60_000 {
            rules.push(format!("~key{i}").into_bytes());
            rules.push(format!("&channel{i}").into_bytes());
            rules.push(format!("+get|word{i}").into_bytes());
        }
        let inside: Vec<Vec<u8>> = rules[..30_000].to_vec();
        rules.push(b"(~x".to_vec());
        rules.extend(inside);
        rules.push(b"+set)".to_vec());
        rules.extend((0..5000).map(|i| format!("({}~key{i})", "+@all ".repeat(i % 2)).into_bytes()));
        let words = || rules.iter().map(Vec::as_slice);
        let mut setting = Setting::new(&acl, b"u", words(), false).unwrap();
        let mut steps = 0;
        while setting.step(&mut { 10_000 }).unwrap() {
            steps += 1;
        }
        assert!(steps > 100, "{steps}");
        // Somebody else was faster: the change begins anew.
        acl.set_user(b"u", [&b"on"[..]], false).unwrap();
        let Err(mut setting) = setting.install(&acl) else { panic!("it took the place of a later one") };
        while setting.step(&mut { 1_000_000 }).unwrap() {}
        assert!(setting.install(&acl).is_ok());
        let user = acl.user(b"u").unwrap();
        assert!(user.is_on() && user.is_large() && user.patterns() > 120_000);
        assert!(acl.set_user(b"u", [&b"reset"[..]], false).unwrap());
        assert!(!acl.user(b"u").unwrap().is_large());
    }

    #[test]
    fn a_wrong_rule_changes_nothing() {
        let acl = Acl::default();
        let words = [&b"on"[..], b"+nosuch"];
        let mut setting = Setting::new(&acl, b"u", words, false).unwrap();
        assert!(setting.step(&mut { 1 }).unwrap());
        let said = setting.step(&mut { 1 }).unwrap_err().text().to_string();
        assert_eq!(
            said,
            "ERR Error in ACL SETUSER modifier '+nosuch': Unknown command or category name in ACL"
        );
        assert!(acl.user(b"u").is_none());
    }
}
