//! All commands, found by name. The registry lists topics, not commands.

use crate::table::Command;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
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
    crate::hash::expiry::COMMANDS,
    crate::hash::fields::COMMANDS,
    crate::hash::number::COMMANDS,
    crate::hash::random::COMMANDS,
    crate::hash::walk::COMMANDS,
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

/// What clients call the commands, set once before anybody asks; see [`rename`].
static NAMES: OnceLock<Names> = OnceLock::new();

/// Longest name that is looked up without allocating.
const NAME_MAX: usize = 32;

/// Commands of Redis that do not exist here yet: a `rename-command` of one has nothing to do.
const NOT_YET: &[&str] = &[
    "clusterscan",
    "commandlog",
    "failover",
    "geoadd",
    "geodist",
    "geohash",
    "geopos",
    "georadius",
    "georadius_ro",
    "georadiusbymember",
    "georadiusbymember_ro",
    "geosearch",
    "geosearchstore",
    "monitor",
    "pfadd",
    "pfcount",
    "pfdebug",
    "pfmerge",
    "pfselftest",
    "psync",
    "replconf",
    "restore-asking",
    "sync",
    "xack",
    "xadd",
    "xautoclaim",
    "xclaim",
    "xdel",
    "xgroup",
    "xinfo",
    "xlen",
    "xpending",
    "xrange",
    "xread",
    "xreadgroup",
    "xrevrange",
    "xsetid",
    "xtrim",
];

/// Names, in lower case, and the commands they stand for. A command that was removed has none.
pub struct Names {
    by_name: HashMap<Box<[u8]>, &'static Command, BuildHasherDefault<NameHasher>>,
}

/// A hash for the few names of the table, which no client chooses: a multiplication for eight bytes.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let word = part.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.0 ^= n as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Names {
    /// Every command under its usual name.
    pub fn usual() -> Names {
        let mut by_name = HashMap::default();
        for command in TOPICS.iter().flat_map(|topic| topic.iter()) {
            let twice = by_name.insert(command.name.as_bytes().into(), command).is_some();
            assert!(!twice, "{} stands in the table twice", command.name);
        }
        Names { by_name }
    }

    /// Gives the command that is now called `from` the name `to`; with an empty one it can no longer be called.
    ///
    /// # Errors
    /// There is no such command, or the new name is taken. Nothing is changed then.
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
        Ok(())
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<&'static Command> {
        let mut lower = [0u8; NAME_MAX];
        let Some(lower) = lower.get_mut(..name.len()) else { return self.find_long(name) };
        for (to, from) in lower.iter_mut().zip(name) {
            *to = from.to_ascii_lowercase();
        }
        self.by_name.get(&*lower).copied()
    }

    /// Only a renamed command has a long name; a client may send any.
    #[cold]
    fn find_long(&self, name: &[u8]) -> Option<&'static Command> {
        self.by_name.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, command)| *command)
    }
}

fn names() -> &'static Names {
    NAMES.get_or_init(Names::usual)
}

/// Has every look-up from now on go by these names (`rename-command`). False if somebody looked something up before: the
/// names of a process do not change.
pub fn rename(names: Names) -> bool {
    NAMES.set(names).is_ok()
}

/// Every row there is, whatever clients call it, in the order of the topics; subcommands stand in their containers.
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

/// Finds a command by what clients call it, in any case. Cost: one hash look-up.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    names().find(name)
}

/// The row of this name, whatever clients call the command.
pub fn row(name: &str) -> Option<&'static Command> {
    all().find(|command| command.name == name)
}

/// Finds a subcommand of a container by its own name, in any case.
pub fn find_sub(container: &'static Command, name: &[u8]) -> Option<&'static Command> {
    container.subs.iter().find(|sub| sub.sub_name().as_bytes().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

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
