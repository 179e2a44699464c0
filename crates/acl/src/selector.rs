//! A set of rights: commands, keys, channels, databases.
//!
//! - S1: the rules about commands stay in the order they were given, without those that a later one covers
//!   by name. Applied in this order to an empty selector they give the same commands.
//! - S2: a selector with all keys has no patterns for keys; one with all channels has none for channels.
//! - S3: numbers of databases ascend, each once. A new selector has all databases, as Valkey 9.1 has it.

use crate::listed::Listed;
use crate::rules::RuleError;
use command::{Command, acl, places, registry};
use std::collections::{BTreeMap, BTreeSet};
use stdx::glob::Match;

/// The rights to the keys that match a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub read: bool,
    pub write: bool,
}

/// Longest first argument that is looked up in lower case.
const FOLDED_MAX: usize = 1024;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    /// Whether the rules begin with all commands.
    everything: bool,
    /// A bit per command, by number (`places`).
    commands: Vec<u64>,
    /// Commands that are allowed with some first arguments only, in lower case.
    first_args: BTreeMap<usize, BTreeSet<Box<[u8]>>>,
    /// Rules about commands, in lower case; true: they allow.
    rules: Listed<bool>,
    pub all_keys: bool,
    pub keys: Listed<Rights>,
    pub all_channels: bool,
    pub channels: Listed<()>,
    /// The databases that may be used (S3). None: all.
    pub databases: Option<Vec<u32>>,
}

/// Finds a command by its own full name, `config|get` for subcommands, whatever clients call it.
pub fn by_full_name(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|byte| *byte == b'|') {
        None => registry::find_own(name),
        Some(at) => registry::find_sub(registry::find_own(&name[..at])?, &name[at + 1..]),
    }
}

/// The bit of a category.
fn category(name: &[u8]) -> Option<u32> {
    let is = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
    acl::NAMES.iter().find(|(_, known)| is(known)).map(|(bit, _)| *bit)
}

/// The numbers of `db=number,number`, in order. Errors: a word is no number, or none of a database.
fn databases(list: &[u8]) -> Result<Vec<u32>, RuleError> {
    let mut numbers = list.split(|byte| *byte == b',').map(database).collect::<Result<Vec<u32>, _>>()?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// A number, which may have a sign and zeros before it. There need not be such a database.
fn database(word: &[u8]) -> Result<u32, RuleError> {
    let (is_negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(RuleError::Syntax);
    }
    let step = |sum: u32, digit: &u8| sum.checked_mul(10)?.checked_add(u32::from(digit - b'0'));
    let number = digits.iter().try_fold(0, step).filter(|number| i32::try_from(*number).is_ok());
    number.filter(|number| !is_negative || *number == 0).ok_or(RuleError::Database)
}

fn has_spaces(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, 0 | b' ' | 9..=13))
}

/// How far a word was compared with the patterns of a selector.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The place of the pattern that is next.
    place: u64,
    matching: Match,
}

/// Looks for a pattern besides its matching.
pub(crate) const PATTERN_LOOKS: usize = 32;

impl Search {
    /// Goes on with the patterns, each with whether it counts. None: the looks are used up.
    fn go_on<'a>(
        &mut self,
        patterns: impl Iterator<Item = (u64, &'a [u8], bool)>,
        word: &[u8],
        looks: &mut usize,
    ) -> Option<bool> {
        for (place, pattern, counts) in patterns {
            if place != self.place {
                *self = Search { place, matching: Match::default() };
            }
            if *looks == 0 {
                return None;
            }
            let matches = counts && self.matching.go_on(pattern, word, false, looks)?;
            if matches {
                return Some(true);
            }
            self.place += 1;
            self.matching = Match::default();
            *looks = looks.saturating_sub(PATTERN_LOOKS);
        }
        Some(false)
    }
}

impl Selector {
    /// No commands and no keys.
    pub fn new(all_channels: bool) -> Selector {
        let words = places::all().len().div_ceil(64);
        Selector { commands: vec![0; words], all_channels, ..Selector::default() }
    }

    /// Whether it allows every call.
    pub fn allows_everything(&self) -> bool {
        let unlimited = self.all_keys && self.all_channels && self.databases.is_none();
        unlimited && (0..places::all().len()).all(|place| self.has(place))
    }

    fn has(&self, place: usize) -> bool {
        self.commands[place / 64] >> (place % 64) & 1 == 1
    }

    /// Bytes of its rules, about. O(1)
    pub fn bytes(&self) -> usize {
        let each = 64 * (self.rules.len() + self.keys.len() + self.channels.len());
        let databases = self.databases.as_ref().map_or(0, |numbers| 4 * numbers.len());
        each + self.rules.bytes() + self.keys.bytes() + self.channels.bytes() + databases
    }

    /// Whether a command may be called with this first argument. `first`: the word behind its name.
    pub fn allows(&self, command: &'static Command, first: Option<&[u8]>) -> bool {
        let place = places::of(command);
        let is_listed = |word: &[u8]| {
            let known = self.first_args.get(&place);
            known.is_some_and(|known| match word.len() {
                0..=FOLDED_MAX => known.contains(&*word.to_ascii_lowercase()),
                _ => known.iter().any(|one| one.eq_ignore_ascii_case(word)),
            })
        };
        self.has(place) || first.is_some_and(is_listed)
    }

    /// Whether a key may be used so. None: `looks` are used up, and `search` knows how far it came.
    /// O(looks) at most, some 32 for each pattern besides its matching.
    pub fn allows_key(
        &self,
        key: &[u8],
        needs: (bool, bool),
        search: &mut Search,
        looks: &mut usize,
    ) -> Option<bool> {
        let (read, write) = needs;
        let fits = |rights: &Rights| (rights.read || !read) && (rights.write || !write);
        if self.all_keys {
            return Some(true);
        }
        let fitting =
            self.keys.iter_from(search.place).map(|(place, pattern, rights)| (place, pattern, fits(rights)));
        search.go_on(fitting, key, looks)
    }

    /// Whether every key may be read.
    pub fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|(pattern, rights)| rights.read && pattern == b"*")
    }

    /// Whether every key that this pattern fits may be read, where the plain begin of the pattern tells.
    /// O(patterns).
    pub fn reads_all_of(&self, pattern: &[u8]) -> bool {
        let special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        let plain = &pattern[..pattern.iter().position(special).unwrap_or(pattern.len())];
        let covers = |own: &[u8]| {
            own.strip_suffix(b"*").is_some_and(|own| !own.iter().any(special) && plain.starts_with(own))
        };
        self.reads_all_keys() || self.keys.iter().any(|(own, rights)| rights.read && covers(own))
    }

    /// Whether a channel may be used; a pattern must be allowed literally. None: as in
    /// [`Selector::allows_key`].
    pub fn allows_channel(
        &self,
        channel: &[u8],
        is_pattern: bool,
        search: &mut Search,
        looks: &mut usize,
    ) -> Option<bool> {
        if self.all_channels || is_pattern {
            return Some(self.all_channels || self.channels.contains(channel));
        }
        let known = self.channels.iter_from(search.place).map(|(place, known, ())| (place, known, true));
        search.go_on(known, channel, looks)
    }

    /// Whether a database may be used. O(log databases).
    pub fn allows_database(&self, number: usize) -> bool {
        let is_listed =
            |known: &Vec<u32>| u32::try_from(number).is_ok_and(|number| known.binary_search(&number).is_ok());
        self.databases.as_ref().is_none_or(is_listed)
    }

    /// Whether each of so many databases may be used. O(count).
    pub fn allows_databases(&self, count: usize) -> bool {
        self.databases.is_none() || (0..count).all(|number| self.allows_database(number))
    }

    /// Applies a rule about commands, keys, channels or databases. Errors: it is no such rule; nothing is
    /// changed then.
    pub fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |words: &[&str]| words.iter().any(|word| word.as_bytes().eq_ignore_ascii_case(rule));
        match rule {
            _ if is(&["allkeys", "~*"]) => self.set_keys(true),
            _ if is(&["resetkeys"]) => self.set_keys(false),
            _ if is(&["allchannels", "&*"]) => self.set_channels(true),
            _ if is(&["resetchannels"]) => self.set_channels(false),
            _ if is(&["allcommands", "+@all"]) => self.set_commands(true),
            _ if is(&["nocommands", "-@all"]) => self.set_commands(false),
            _ if is(&["alldbs"]) => self.databases = None,
            _ if is(&["resetdbs"]) => self.databases = Some(Vec::new()),
            [b'd' | b'D', b'b' | b'B', b'=', list @ ..] => self.databases = Some(databases(list)?),
            [b'~' | b'%', ..] => return self.add_key(rule),
            [b'&', pattern @ ..] => return self.add_channel(pattern),
            [b'+', b'@', name @ ..] => return self.set_category(name, true),
            [b'-', b'@', name @ ..] => return self.set_category(name, false),
            [b'+', name @ ..] => return self.allow(name),
            [b'-', name @ ..] => return self.deny(name),
            _ => return Err(RuleError::Syntax),
        }
        Ok(())
    }

    fn set_keys(&mut self, all: bool) {
        (self.all_keys, self.keys) = (all, Listed::default());
    }

    fn set_channels(&mut self, all: bool) {
        (self.all_channels, self.channels) = (all, Listed::default());
    }

    fn set_commands(&mut self, all: bool) {
        self.everything = all;
        self.commands.fill(if all { u64::MAX } else { 0 });
        self.first_args.clear();
        self.rules = Listed::default();
    }

    /// `~pattern`, `%R~pattern`, `%W~pattern`, `%RW~pattern`. Redis takes `%R` as `%R~`.
    fn add_key(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::AfterAllKeys);
        }
        let (mut read, mut write) = (true, true);
        let mut text = &rule[1..];
        if rule[0] == b'%' {
            (read, write) = (false, false);
            loop {
                match text {
                    [b'r' | b'R', rest @ ..] if !read => (read, text) = (true, rest),
                    [b'w' | b'W', rest @ ..] if !write => (write, text) = (true, rest),
                    [b'~', rest @ ..] if read || write => {
                        text = rest;
                        break;
                    }
                    [] if read || write => break,
                    _ => return Err(RuleError::Syntax),
                }
            }
        }
        if has_spaces(text) {
            return Err(RuleError::Syntax);
        }
        match self.keys.get_mut(text) {
            Some(known) => (known.read, known.write) = (known.read || read, known.write || write),
            None => self.keys.add(text, Rights { read, write }),
        }
        Ok(())
    }

    fn add_channel(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::AfterAllChannels);
        }
        if has_spaces(pattern) {
            return Err(RuleError::Syntax);
        }
        self.channels.add(pattern, ());
        Ok(())
    }

    fn set_category(&mut self, name: &[u8], allow: bool) -> Result<(), RuleError> {
        let bit = category(name).ok_or(RuleError::Unknown)?;
        for command in registry::all() {
            if command.acl_categories() & bit != 0 {
                self.set(command, allow);
            }
            let subs = command.subs.iter().filter(|sub| sub.acl_categories() & bit != 0);
            subs.for_each(|sub| self.set(sub, allow));
        }
        self.note(&[b"@", name].concat(), allow);
        Ok(())
    }

    /// `+command`, `+command|subcommand`, `+command|first-argument`.
    fn allow(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(at) = name.iter().rposition(|byte| *byte == b'|') else {
            let command = by_full_name(name).ok_or(RuleError::Unknown)?;
            self.set(command, true);
            self.note(name, true);
            return Ok(());
        };
        let (container, sub) = (&name[..at], &name[at + 1..]);
        let command = by_full_name(container).ok_or(RuleError::Unknown)?;
        if container.contains(&b'|') {
            return Err(RuleError::FirstArgOfSub);
        }
        if sub.is_empty() || has_spaces(sub) {
            return Err(RuleError::Syntax);
        }
        if command.subs.is_empty() {
            let (place, sub) = (places::of(command), sub.to_ascii_lowercase().into());
            self.first_args.entry(place).or_default().insert(sub);
        } else {
            self.set(registry::find_sub(command, sub).ok_or(RuleError::Unknown)?, true);
        }
        self.note(name, true);
        Ok(())
    }

    fn deny(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let command = by_full_name(name).ok_or(RuleError::Unknown)?;
        self.set(command, false);
        self.note(name, false);
        Ok(())
    }

    /// Allows or denies a command and all its subcommands.
    fn set(&mut self, command: &'static Command, allow: bool) {
        for command in std::iter::once(command).chain(command.subs) {
            let place = places::of(command);
            let bit = 1 << (place % 64);
            match allow {
                true => self.commands[place / 64] |= bit,
                false => self.commands[place / 64] &= !bit,
            }
            self.first_args.remove(&place);
        }
    }

    /// Adds a rule in place of those that it covers (S1).
    fn note(&mut self, rule: &[u8], allow: bool) {
        let rule = rule.to_ascii_lowercase();
        self.rules.remove(&rule);
        self.rules.remove_beginning(&[&rule[..], b"|"].concat());
        self.rules.add(&rule, allow);
    }

    /// The rules about commands, as ACL GETUSER shows them.
    pub fn shown_commands(&self) -> Vec<u8> {
        let mut out = if self.everything { b"+@all".to_vec() } else { b"-@all".to_vec() };
        for (rule, allow) in self.rules.iter() {
            out.extend_from_slice(if *allow { b" +" } else { b" -" });
            out.extend_from_slice(rule);
        }
        out
    }

    /// The patterns for keys, as ACL GETUSER shows them.
    pub fn shown_keys(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let shown = |(pattern, rights): (&[u8], &Rights)| {
            let marks: &[u8] = match (rights.read, rights.write) {
                // Read again, `~*` would be all keys.
                (true, true) if pattern == b"*" => b"%RW~",
                (true, true) => b"~",
                (true, _) => b"%R~",
                _ => b"%W~",
            };
            [marks, pattern].concat()
        };
        self.keys.iter().map(shown).collect::<Vec<_>>().join(&b' ')
    }

    /// The patterns for channels, as ACL GETUSER shows them.
    pub fn shown_channels(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|(pattern, ())| [b"&", pattern].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// The databases, as ACL GETUSER shows them.
    pub fn shown_databases(&self) -> Vec<u8> {
        match self.databases.as_deref() {
            None => b"alldbs".to_vec(),
            Some([]) => Vec::new(),
            Some(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                format!("db={}", numbers.join(",")).into_bytes()
            }
        }
    }

    /// All rules, as ACL LIST shows them.
    pub fn shown(&self) -> Vec<u8> {
        let (keys, channels) = (self.shown_keys(), self.shown_channels());
        let reset: &[u8] = if self.all_channels { b"" } else { b"resetchannels" };
        let databases = match self.databases.as_deref() {
            None => Vec::new(),
            Some([]) => b"resetdbs".to_vec(),
            Some(_) => self.shown_databases(),
        };
        let parts = [&keys[..], reset, &channels[..], &databases, &self.shown_commands()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b' ')
    }
}
