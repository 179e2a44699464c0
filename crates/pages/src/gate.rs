//! Commands that the console's API does not run, whatever their user may do.
//!
//! - G1: a request has no connection of its own, so nothing that changes one, or goes on behind its reply,
//!   runs.
//! - G2: unless writes are allowed, nothing runs that changes data, others, or the server; of ADMIN only what
//!   shows state. A row of ADMIN that is new is refused until it is named here.
//! - G3: a user who may not read all keys is not told the names of others: neither by a list of keys, nor by
//!   words of commands. A search for its own keys runs.

use acl::User;
use command::options::is;
use command::table::{ADMIN, READONLY};
use command::{Command, facts};
use resp::Args;

/// Commands about a connection, or that go on behind their reply.
const OF_CONNECTIONS: &[&str] = &[
    "subscribe",
    "unsubscribe",
    "psubscribe",
    "punsubscribe",
    "ssubscribe",
    "sunsubscribe",
    "monitor",
    "multi",
    "exec",
    "discard",
    "watch",
    "unwatch",
    "select",
    "auth",
    "hello",
    "quit",
    "reset",
    "sync",
    "psync",
    "replconf",
    "asking",
    "readonly",
    "readwrite",
    "client|reply",
    "client|tracking",
    "client|trackinginfo",
    "client|caching",
    "client|getredir",
    "client|setname",
    "client|setinfo",
    "client|no-evict",
    "client|no-touch",
    "client|capa",
    "client|import-source",
];

/// Commands of ADMIN that show state.
const SHOWS: &[&str] = &[
    "acl|dryrun",
    "acl|getuser",
    "acl|list",
    "acl|log",
    "acl|users",
    "client|list",
    "cluster|count-failure-reports",
    "cluster|replicas",
    "cluster|slaves",
    "commandlog|get",
    "commandlog|len",
    "config|get",
    "hotkeys|get",
    "latency|doctor",
    "latency|graph",
    "latency|histogram",
    "latency|history",
    "latency|latest",
    "module|list",
    "slowlog|get",
    "slowlog|len",
    "slowlog|why",
];

/// Commands whose replies name keys that no word of theirs names.
const NAMES_KEYS: &[&str] = &[
    "keys",
    "randomkey",
    "scan",
    "acl|log",
    "cluster|getkeysinslot",
    "commandlog|get",
    "debug",
    "evenkeel|lost",
    "evenkeel|stalls",
    "evenkeel|waits",
    "evenkeel|why",
    "hotkeys|get",
    "slowlog|get",
    "slowlog|why",
];

/// The subcommands of EVENKEEL SOURCE that show state.
const OF_SOURCES: &[&str] = &["list", "stats"];

/// Why a command is not run; None: it may be. `reads_only`: writes are not allowed.
pub fn refusal(user: &User, command: &Command, args: Args<'_>, reads_only: bool) -> Option<&'static str> {
    if OF_CONNECTIONS.contains(&command.name) {
        return Some("ERR this command is about a connection, and a request over HTTP has none of its own");
    }
    if !user.may_list(None) && names_others(user, command, args) {
        return Some(
            "NOPERM over HTTP a user who may not read all keys may list those of its own patterns only",
        );
    }
    if !reads_only || only_shows(command, args) {
        return None;
    }
    Some("READONLY the console may not change anything now: allow writes, if console-writes is yes")
}

/// Whether a reply may name keys that the user may not read (G3).
fn names_others(user: &User, command: &Command, args: Args<'_>) -> bool {
    if command.is(facts::SCRIPT) {
        return true;
    }
    let pattern = match command.name {
        "keys" => args.get(1),
        "scan" => (2..args.len()).rev().find(|at| is(args.at(*at), "match")).and_then(|at| args.get(at + 1)),
        _ => None,
    };
    NAMES_KEYS.contains(&command.name) && !pattern.is_some_and(|pattern| user.may_list(Some(pattern)))
}

/// Whether a call changes neither data, nor others, nor the server (G2).
fn only_shows(command: &Command, args: Args<'_>) -> bool {
    if command.name == "evenkeel|source" {
        // One row for what shows and what changes.
        return args.get(2).is_some_and(|word| OF_SOURCES.iter().any(|known| is(word, known)));
    }
    let of_evenkeel = command.name.starts_with("evenkeel|");
    if command.has(ADMIN) && (of_evenkeel || SHOWS.contains(&command.name)) {
        // Some of these forget what they show, if they are asked to.
        return !args.iter().skip(2).any(|word| is(word, "reset"));
    }
    let script = command.is(facts::SCRIPT | facts::RUNS_QUEUE) && !command.has(READONLY);
    let changes = facts::CHANGES | facts::PUBLISHES | facts::CHANGES_CODE;
    !(script || command.is_write() || command.is(changes) || command.has(ADMIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::places;
    use resp::OwnedArgs;

    fn refused(line: &str, reads_only: bool) -> bool {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let words = OwnedArgs::from_slices(&words);
        let command = command::resolve(words.args()).unwrap_or_else(|_| panic!("{line} is a call"));
        refusal(&User::everybody(), command, words.args(), reads_only).is_some()
    }

    #[test]
    fn all_names_are_those_of_commands() {
        for name in OF_CONNECTIONS.iter().chain(SHOWS).chain(NAMES_KEYS) {
            assert!(places::all().iter().any(|row| row.name == *name), "{name}");
        }
        assert!(SHOWS.iter().all(|name| !OF_CONNECTIONS.contains(name)));
    }

    #[test]
    fn no_write_and_no_change_runs_unless_allowed() {
        let shows = |row: &&&Command| SHOWS.contains(&row.name);
        assert!(places::all().iter().filter(shows).all(|row| !row.is_write() && row.has(ADMIN)));
        let changes = |row: &&&Command| row.is_write() || row.is(facts::CHANGES);
        for row in places::all().iter().filter(changes).filter(|row| !shows(row)) {
            let words = OwnedArgs::from_slices(&[&b"x"[..]; 3]);
            assert!(refusal(&User::everybody(), row, words.args(), true).is_some(), "{}", row.name);
        }
        for line in [
            "SET a b",
            "EVAL return 0",
            "FLUSHALL",
            "CONFIG SET a b",
            "SHUTDOWN",
            "DEBUG SLEEP 1",
            "PUBLISH a b",
            "SAVE",
            "ACL SETUSER a",
            "ACL LOG RESET",
            "SLOWLOG RESET",
            "EVENKEEL WAITS RESET",
            "EVENKEEL SOURCE FLUSH a",
            "CLIENT KILL ID 1",
            "CLIENT UNBLOCK 1",
            "LATENCY RESET",
            "REPLICAOF NO ONE",
            "SCRIPT FLUSH",
        ] {
            assert!(refused(line, true), "{line}");
            assert!(!refused(line, false), "{line}");
        }
        for line in [
            "GET a",
            "SCAN 0",
            "CLIENT LIST",
            "CONFIG GET *",
            "SLOWLOG GET",
            "EVENKEEL WAITS",
            "EVENKEEL SOURCE LIST",
            "EVAL_RO x 0",
            "INFO",
            "ACL LOG",
            "COMMAND DOCS",
            "XREAD STREAMS a 0",
            "MEMORY USAGE a",
            "BLPOP a 0",
        ] {
            let writes = line.starts_with("BLPOP");
            assert_eq!(refused(line, true), writes, "{line}");
        }
    }

    #[test]
    fn a_user_of_some_keys_lists_no_others() {
        let acl = acl::Acl::default();
        let rules = ["on", "~app:*", "%W~log:*", "%R~x?*", "+@all"];
        acl.set_user(b"app", rules.iter().map(|rule| rule.as_bytes()), true).unwrap();
        let user = acl.user(b"app").unwrap();
        let refused = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let words = OwnedArgs::from_slices(&words);
            let command = command::resolve(words.args()).unwrap_or_else(|_| panic!("{line} is a call"));
            refusal(&user, command, words.args(), false).is_some()
        };
        for line in [
            "SCAN 0",
            "SCAN 0 MATCH *",
            "SCAN 0 MATCH a*",
            "SCAN 0 MATCH app?*",
            "SCAN 0 MATCH log:*",
            "SCAN 0 MATCH xa*",
            "SCAN 0 MATCH app:* MATCH *",
            "SCAN 0 TYPE MATCH",
            "KEYS *",
            "RANDOMKEY",
            "SLOWLOG GET",
            "EVENKEEL WAITS",
            "EVAL x 0",
            "EVAL_RO x 0",
            "KEYS [a]pp:*",
        ] {
            assert!(refused(line), "{line}");
        }
        for line in [
            "SCAN 0 MATCH app:*",
            "SCAN 0 match app:1* COUNT 5",
            "KEYS app:x",
            "GET other",
            "INFO",
            "CLIENT LIST",
        ] {
            assert!(!refused(line), "{line}");
        }
    }

    #[test]
    fn nothing_about_a_connection_runs_at_all() {
        for line in
            ["SUBSCRIBE a", "MONITOR", "MULTI", "SELECT 1", "CLIENT REPLY OFF", "HELLO 2", "AUTH a", "RESET"]
        {
            assert!(refused(line, false), "{line}");
        }
    }
}
