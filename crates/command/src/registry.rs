//! All commands, found by name. The registry lists topics, not commands.

use crate::table::Command;
use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, OnceLock};

static TOPICS: &[&[Command]] = &[
    crate::bitmap::bit::COMMANDS,
    crate::bitmap::combine::COMMANDS,
    crate::bitmap::field::COMMANDS,
    crate::connection::client::COMMANDS,
    crate::connection::session::COMMANDS,
    crate::generic::dump::COMMANDS,
    crate::generic::expiry::COMMANDS,
    crate::generic::iterate::COMMANDS,
    crate::generic::names::COMMANDS,
    crate::generic::object::COMMANDS,
    crate::generic::sort::COMMANDS,
    crate::geo::places::COMMANDS,
    crate::geo::search::COMMANDS,
    crate::hash::expiry::COMMANDS,
    crate::hash::fields::COMMANDS,
    crate::hash::number::COMMANDS,
    crate::hash::random::COMMANDS,
    crate::hash::walk::COMMANDS,
    crate::hyperloglog::commands::COMMANDS,
    crate::list::blocking::COMMANDS,
    crate::list::ends::COMMANDS,
    crate::list::range::COMMANDS,
    crate::list::scan::COMMANDS,
    crate::list::search::COMMANDS,
    crate::pubsub::COMMANDS,
    crate::roaring::arrays::COMMANDS,
    crate::roaring::arrays::COMMANDS_64,
    crate::roaring::bits::COMMANDS,
    crate::roaring::bits::COMMANDS_64,
    crate::roaring::combine::COMMANDS,
    crate::roaring::combine::COMMANDS_64,
    crate::roaring::form::COMMANDS,
    crate::roaring::form::COMMANDS_64,
    crate::scripting::eval::COMMANDS,
    crate::scripting::functions::COMMANDS,
    crate::server::databases::COMMANDS,
    crate::server::introspection::COMMANDS,
    crate::server::lifecycle::COMMANDS,
    crate::server::modules::COMMANDS,
    crate::set::algebra::COMMANDS,
    crate::set::members::COMMANDS,
    crate::set::random::COMMANDS,
    crate::stream::claim::COMMANDS,
    crate::stream::entries::COMMANDS,
    crate::stream::groups::COMMANDS,
    crate::stream::info::COMMANDS,
    crate::stream::pending::COMMANDS,
    crate::stream::range::COMMANDS,
    crate::stream::read::COMMANDS,
    crate::stream::refs::COMMANDS,
    crate::stream::trim::COMMANDS,
    crate::string::counter::COMMANDS,
    crate::string::edit::COMMANDS,
    crate::string::get::COMMANDS,
    crate::string::lcs::COMMANDS,
    crate::string::set::COMMANDS,
    crate::transaction::COMMANDS,
    crate::zset::algebra::COMMANDS,
    crate::zset::members::COMMANDS,
    crate::zset::pop::COMMANDS,
    crate::zset::random::COMMANDS,
    crate::zset::range::COMMANDS,
    crate::zset::remove::COMMANDS,
];

/// The names that clients use, set once before the first look-up. See [`rename`].
static NAMES: OnceLock<Names> = OnceLock::new();

/// Names up to this length are compared as one number.
const SHORT_MAX: usize = 16;

/// Commands of Redis that do not exist here yet. A `rename-command` of one does nothing.
const NOT_YET: &[&str] = &["clusterscan", "restore-asking"];

/// Names, in lower case, and their commands. A removed command has no name.
pub struct Names {
    by_name: HashMap<Box<[u8]>, &'static Command>,
    /// The short names again, for look-ups of clients' words: an open table, at most a quarter of it used.
    short: Vec<Option<Short>>,
}

/// A short name as a number, with its length and its command.
#[derive(Clone, Copy)]
struct Short {
    name: u128,
    len: usize,
    command: &'static Command,
}

/// A name of 1 to [`SHORT_MAX`] bytes as a number, in lower case. Cost: two loads and a few word operations.
#[inline]
fn number(name: &[u8]) -> u128 {
    let halves = |eight: [u8; 8]| u64::from_le_bytes(eight);
    let (low, high) = match name.len() {
        len @ 8.. => {
            // The last eight bytes, without those that are in the first eight already.
            let last = halves(name[len - 8..].try_into().unwrap_or_default());
            let first = halves(name[..8].try_into().unwrap_or_default());
            (first, if len == 8 { 0 } else { last >> (8 * (SHORT_MAX - len)) })
        }
        len @ 4.. => {
            let four = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap_or_default());
            (u64::from(four(0)) | u64::from(four(len - 4)) << (8 * (len - 4)), 0)
        }
        _ => (name.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0),
    };
    u128::from(lower(low)) | u128::from(lower(high)) << 64
}

/// Lowers the capital letters in eight bytes. Bit 7 of a byte marks a capital letter and moves to bit 5.
#[inline]
fn lower(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let ascii = word & (0x7f * EACH);
    let from_a = ascii + (0x80 - b'A' as u64) * EACH;
    let past_z = ascii + (0x80 - b'Z' as u64 - 1) * EACH;
    word | ((from_a ^ past_z) & !word & (0x80 * EACH)) >> 2
}

/// The first slot to look in for a short name.
#[inline]
fn slot_of(name: u128, slots: usize) -> usize {
    let mixed = (name as u64 ^ (name >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize & (slots - 1)
}

impl Names {
    /// Every command under its usual name.
    pub fn usual() -> Names {
        let mut by_name = HashMap::new();
        for command in TOPICS.iter().flat_map(|topic| topic.iter()) {
            let twice = by_name.insert(command.name.as_bytes().into(), command).is_some();
            assert!(!twice, "{} is in the table twice", command.name);
        }
        let mut names = Names { by_name, short: Vec::new() };
        names.index();
        names
    }

    /// Rebuilds the table of short names.
    fn index(&mut self) {
        let mut short = vec![None; (self.by_name.len() * 4).next_power_of_two()];
        for (name, command) in self.by_name.iter().filter(|(name, _)| (1..=SHORT_MAX).contains(&name.len())) {
            let number = number(name);
            let mut slot = slot_of(number, short.len());
            while short[slot].is_some() {
                slot = (slot + 1) & (short.len() - 1);
            }
            short[slot] = Some(Short { name: number, len: name.len(), command });
        }
        self.short = short;
    }

    /// Renames the command now called `from` to `to`. An empty `to` removes it: it can no longer be called.
    ///
    /// # Errors
    /// The command does not exist, or the new name is taken. Nothing is changed then.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), &'static str> {
        let (from, to) = (from.to_ascii_lowercase(), to.to_ascii_lowercase());
        let Some(command) = self.by_name.remove(&from[..]) else {
            let later = NOT_YET.iter().any(|name| name.as_bytes() == from);
            return if later { Ok(()) } else { Err("No such command in rename-command") };
        };
        if self.by_name.contains_key(&to[..]) {
            self.by_name.insert(from.into(), command);
            return Err("Target command name already exists");
        }
        if !to.is_empty() {
            self.by_name.insert(to.into(), command);
        }
        self.index();
        Ok(())
    }

    /// Looks a name up, in upper or lower case. O(1).
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&'static Command> {
        if !(1..=SHORT_MAX).contains(&name.len()) {
            return self.find_long(name);
        }
        let number = number(name);
        let mut slot = slot_of(number, self.short.len());
        while let Some(short) = &self.short[slot] {
            if short.name == number && short.len == name.len() {
                return Some(short.command);
            }
            slot = (slot + 1) & (self.short.len() - 1);
        }
        None
    }

    /// Looks up a long name. Few commands have one, but a client may send any.
    #[cold]
    fn find_long(&self, name: &[u8]) -> Option<&'static Command> {
        let longest = self.by_name.keys().map(|known| known.len()).max().unwrap_or(0);
        let known = (name.len() <= longest).then(|| name.to_ascii_lowercase());
        known.and_then(|name| self.by_name.get(&name[..])).copied()
    }
}

fn names() -> &'static Names {
    NAMES.get_or_init(Names::usual)
}

/// Makes every later look-up use these names (`rename-command`). False if a look-up came first: the names of
/// a process do not change.
pub fn rename(names: Names) -> bool {
    NAMES.set(names).is_ok()
}

/// Every row, whatever clients call it, in the order of the topics. Subcommands are in their containers.
pub fn all() -> impl Iterator<Item = &'static Command> {
    TOPICS.iter().flat_map(|topic| topic.iter())
}

/// The commands that can be called, in the order of the topics.
pub fn callable() -> &'static [&'static Command] {
    static CALLABLE: LazyLock<Vec<&'static Command>> = LazyLock::new(|| {
        let named: HashSet<&str> = names().by_name.values().map(|command| command.name).collect();
        all().filter(|command| named.contains(command.name)).collect()
    });
    &CALLABLE
}

/// Number of commands that can be called, without subcommands.
pub fn count() -> usize {
    names().by_name.len()
}

/// Finds a command by its clients' name, in any case. Cost: O(1), one table look-up.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    names().find(name)
}

/// Finds a command by its own name, in any case and whatever clients call it. It is meant for words that no
/// client sent. Cost: as [`find`].
#[inline]
pub fn find_own(name: &[u8]) -> Option<&'static Command> {
    static OWN: LazyLock<Names> = LazyLock::new(Names::usual);
    OWN.find(name)
}

/// The row of this name, whatever clients call the command. O(commands).
pub fn row(name: &str) -> Option<&'static Command> {
    all().find(|command| command.name == name)
}

/// Finds a subcommand of a container by its own name, in any case. O(subcommands).
pub fn find_sub(container: &'static Command, name: &[u8]) -> Option<&'static Command> {
    container.subs.iter().find(|sub| sub.sub_name().as_bytes().eq_ignore_ascii_case(name))
}

/// Finds a command by its full name, `config|get` for subcommands, in any case. Cost: as [`find`] and
/// [`find_sub`].
pub fn find_full(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|b| *b == b'|') {
        None => find(name),
        Some(at) => find_sub(find(&name[..at])?, &name[at + 1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resp::OwnedArgs;

    #[test]
    fn renamed_commands_are_found_under_the_new_name_only() {
        let mut names = Names::usual();
        let name = |names: &Names, word: &str| names.find(word.as_bytes()).map(|command| command.name);
        names.rename(b"Config", b"Secret-0123456789-0123456789-0123456789").unwrap();
        assert_eq!(name(&names, "CONFIG"), None);
        assert_eq!(name(&names, "secret-0123456789-0123456789-0123456789"), Some("config"));
        names.rename(b"get", b"").unwrap();
        names.rename(b"del", b"GET").unwrap();
        assert_eq!((name(&names, "get"), name(&names, "DEL")), (Some("del"), None));
        assert_eq!(name(&names, &"x".repeat(1000)), None);
    }

    #[test]
    fn any_bytes_are_looked_up_as_their_lower_case_is() {
        let mut names = Names::usual();
        names.rename(b"get", b"\x80G\xc1[@`{zZ").unwrap();
        names.rename(b"set", b"0123456789abcdEF").unwrap();
        let mut random = 1u64;
        let mut word = |len: usize, of: &[u8]| -> Vec<u8> {
            let mut byte = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                of[(random >> 33) as usize % of.len()]
            };
            (0..len).map(|_| byte()).collect()
        };
        let all: Vec<u8> = (0..=255).collect();
        for len in 0..20 {
            for _ in 0..2000 {
                let strange = word(len, &all);
                let expect = names.by_name.get(&strange.to_ascii_lowercase()[..]).map(|c| c.name);
                assert_eq!(names.find(&strange).map(|c| c.name), expect, "{strange:?}");
            }
        }
        for (name, command) in &names.by_name {
            let cased: Vec<u8> = name
                .iter()
                .zip(word(name.len(), b"01"))
                .map(|(b, up)| if up == b'1' { b.to_ascii_uppercase() } else { *b })
                .collect();
            assert_eq!(names.find(&cased).map(|c| c.name), Some(command.name));
            assert!(names.find(&[&cased[..], b"\0"].concat()).is_none());
            assert!(names.find(&cased[..name.len() - 1]).is_none_or(|c| c.name != command.name));
        }
    }

    #[test]
    fn commands_are_found_by_their_full_names() {
        assert_eq!(find_full(b"CONFIG|Get").map(|c| c.name), Some("config|get"));
        assert_eq!(find_full(b"ping").map(|c| c.name), Some("ping"));
        assert!(find_full(b"config|").is_none() && find_full(b"|").is_none());
    }

    #[test]
    fn the_first_key_stands_where_the_table_says() {
        for (name, at) in [("linsert", 1), ("zunionstore", 1), ("bitop", 2), ("zmpop", 2), ("mset", 1)] {
            assert_eq!(find(name.as_bytes()).and_then(Command::first_key), Some(at), "{name}");
        }
        assert_eq!(find(b"ping").and_then(Command::first_key), None);
    }

    #[test]
    fn keys_are_the_same_in_slices() {
        let words = |second: &str| {
            let mut words = OwnedArgs::new();
            for i in 0..37 {
                let text = i.to_string();
                words.push(match i {
                    1 => second.as_bytes(),
                    2 => b"9",
                    20 => b"STREAMS",
                    _ => text.as_bytes(),
                });
            }
            words
        };
        let mut seen = 0;
        for (command, second) in all().flat_map(|command| [(command, "30"), (command, "8")]) {
            let owned = words(second);
            let args = owned.args();
            let mut whole = Vec::new();
            command.each_key(args, &mut |i, _| whole.push(i));
            for slice in [1, 2, 3, 5, 8, 36] {
                let mut parts = Vec::new();
                for from in (0..args.len()).step_by(slice) {
                    command.each_key_within(args, from..from + slice, &mut |i, _| parts.push(i));
                }
                // Keys of several specifications come in the order of their positions.
                parts.sort_unstable();
                let mut whole = whole.clone();
                whole.sort_unstable();
                assert_eq!(parts, whole, "{} in slices of {slice}", command.name);
            }
            seen += whole.len();
        }
        assert!(seen > 1000, "{seen}");
    }

    #[test]
    fn names_that_do_not_exist_or_are_taken_are_refused() {
        let mut names = Names::usual();
        assert_eq!(names.rename(b"nosuch", b""), Err("No such command in rename-command"));
        assert_eq!(names.rename(b"config|get", b""), Err("No such command in rename-command"));
        assert_eq!(names.rename(b"get", b"SET"), Err("Target command name already exists"));
        assert_eq!(names.rename(b"get", b"GET"), Ok(()));
        assert_eq!(names.rename(b"get", b""), Ok(()));
        assert_eq!(names.rename(b"get", b"x"), Err("No such command in rename-command"));
        assert_eq!(names.by_name.len(), all().count() - 1);
    }

    #[test]
    fn commands_to_come_may_be_renamed_already() {
        let mut names = Names::usual();
        let without = NOT_YET.iter().filter(|name| row(name).is_none());
        assert!(without.cloned().all(|name| names.rename(name.as_bytes(), b"").is_ok()));
    }
}
