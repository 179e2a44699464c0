//! All commands, found by name. The registry lists topics, not commands.

use crate::table::Command;
use std::collections::HashMap;
use std::sync::LazyLock;

static TOPICS: &[&[Command]] = &[
    crate::bitmap::bit::COMMANDS,
    crate::bitmap::combine::COMMANDS,
    crate::bitmap::field::COMMANDS,
    crate::connection::client::COMMANDS,
    crate::connection::session::COMMANDS,
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
    crate::list::search::COMMANDS,
    crate::pubsub::COMMANDS,
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

static BY_NAME: LazyLock<HashMap<&'static str, &'static Command>> = LazyLock::new(|| {
    let mut map = HashMap::new();
    for command in all() {
        assert!(map.insert(command.name, command).is_none(), "{} stands in the table twice", command.name);
    }
    map
});

/// Longest name that is looked up; longer ones are no commands.
const NAME_MAX: usize = 32;

/// Every command, in the order of the topics; subcommands stand in their containers.
pub fn all() -> impl Iterator<Item = &'static Command> {
    TOPICS.iter().flat_map(|topic| topic.iter())
}

/// Number of commands, without subcommands.
pub fn count() -> usize {
    BY_NAME.len()
}

/// Finds a command by name, in any case. Cost: one hash look-up.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0u8; NAME_MAX];
    let lower = lower.get_mut(..name.len())?;
    for (to, from) in lower.iter_mut().zip(name) {
        *to = from.to_ascii_lowercase();
    }
    BY_NAME.get(std::str::from_utf8(lower).ok()?).copied()
}

/// Finds a subcommand of a container by its own name, in any case.
pub fn find_sub(container: &'static Command, name: &[u8]) -> Option<&'static Command> {
    container.subs.iter().find(|sub| sub.sub_name().as_bytes().eq_ignore_ascii_case(name))
}
