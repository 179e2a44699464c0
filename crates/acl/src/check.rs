//! Whether a user may make a call: its command, its keys, its channels, its databases.
//!
//! - Selectors are asked one after the other (U3). If none allows the call, the answer names what the one
//!   that came furthest denied: a channel before a key, a key before the command, a later word before an
//!   earlier one. The database is looked at first, and counts least among selectors, as in Valkey 9.1.
//! - SORT with BY or GET reads keys that no word names: it needs a selector that may read all keys.
//! - A call needs the database it runs in if it reads, writes or names keys, and each database that its words
//!   name; FLUSHALL needs all. A number that is none of a database is refused by the command.
//! - A call whose keys cannot be told from its words is malformed: its command refuses it.

use crate::log::Reason;
use crate::selector::{Search, Selector, by_full_name};
use crate::user::User;
use command::table::{Begin, NO_AUTH, PUBSUB, READONLY, Use};
use command::{Command, Error, acl, keys, options, registry};
use resp::{Args, OwnedArgs};
use std::ops::Range;

/// A call: its row and words, and where it is made.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub command: &'static Command,
    pub args: Args<'a>,
    /// The database of its keys, and the number of databases.
    pub db: usize,
    pub databases: usize,
}

/// Words among which a call names its databases, if it is one that can be run.
const NAMED: usize = 64;

/// The part of a call that a user may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// The word that names the database; 0: the call needs the one it is made in, or all.
    Database(usize),
    Command,
    /// The word that is the key.
    Key(usize),
    /// The word that is the channel.
    Channel(usize),
    /// BY and GET of SORT.
    By,
    Get,
}

impl Denied {
    /// The words for the client. They do not tell whether a key exists, nor which one was meant.
    pub fn text(self, user: &User, command: &Command) -> String {
        match self {
            Denied::Command => {
                let name = String::from_utf8_lossy(user.name());
                format!("User {name} has no permissions to run the '{}' command", command.name)
            }
            Denied::Database(_) => "No permissions to access database".into(),
            Denied::Key(_) => "No permissions to access a key".into(),
            Denied::Channel(_) => "No permissions to access a channel".into(),
            Denied::By => "BY option of SORT denied due to insufficient ACL permissions.".into(),
            Denied::Get => "GET option of SORT denied due to insufficient ACL permissions.".into(),
        }
    }

    /// The reason why a queued call is not run, in Redis's words.
    pub fn reason(self) -> &'static str {
        match self {
            Denied::Database(_) => "no permission to access the database",
            Denied::Command => "no permission to execute the command or subcommand",
            Denied::Key(_) | Denied::By | Denied::Get => "no permission to touch the specified keys",
            Denied::Channel(_) => {
                "no permission to access one of the channels used as arguments to the command"
            }
        }
    }

    /// The error of a refused call.
    pub fn error(self, user: &User, command: &Command) -> Error {
        let code = if matches!(self, Denied::By | Denied::Get) { "ERR" } else { "NOPERM" };
        Error::from(format!("{code} {}", self.text(user, command)))
    }

    /// The reason in the log, and the object: the command's name or the word. `None`: it is not logged.
    pub fn logged<'a>(self, command: &'a Command, args: Args<'a>) -> Option<(Reason, &'a [u8])> {
        match self {
            Denied::Command => Some((Reason::Command, command.name.as_bytes())),
            Denied::Database(0) => Some((Reason::Database, command.name.as_bytes())),
            Denied::Database(at) => Some((Reason::Database, args.at(at))),
            Denied::Key(at) => Some((Reason::Key, args.at(at))),
            Denied::Channel(at) => Some((Reason::Channel, args.at(at))),
            Denied::By | Denied::Get => None,
        }
    }
}

/// A check under way (U5).
#[derive(Clone, Debug, Default)]
pub struct Check {
    /// The selector that is asked, and how many words it was asked for.
    selector: usize,
    word: usize,
    worst: Option<Denied>,
    patterns: Patterns,
}

/// How far the words of a slice were compared with patterns.
#[derive(Clone, Debug, Default)]
struct Patterns {
    /// Uses of keys, or channels, that are allowed.
    passed: usize,
    search: Search,
}

/// Bytes of patterns that are compared in one step, some 25 µs.
const LOOKS: usize = 16 * 1024;

impl Check {
    /// Asks for so many more words, or for all if a selector has to be asked for the command only. None: there
    /// is more to ask. O(words), and at most [`LOOKS`] bytes of patterns.
    pub fn advance(&mut self, user: &User, call: Call<'_>, words: usize) -> Option<Result<(), Denied>> {
        let mut looks = LOOKS;
        while let Some(selector) = user.selectors().nth(self.selector) {
            let end = self.word.saturating_add(words);
            let asked = self.word..end;
            let denied = part(selector, call, asked, (&mut self.patterns, &mut looks))?;
            self.patterns = Patterns::default();
            let denied = denied.or_else(|| {
                // The call is asked for to its end before what no word names counts.
                (end >= call.args.len()).then(|| unnamed(selector, call.command, call.args)).flatten()
            });
            match denied {
                Some(denied) => self.worst = self.worst.max(Some(denied)),
                None if end < call.args.len() => {
                    self.word = end;
                    return None;
                }
                None => return Some(Ok(())),
            }
            (self.selector, self.word) = (self.selector + 1, 0);
        }
        Some(Err(self.worst.unwrap_or(Denied::Command)))
    }
}

impl User {
    /// Whether it may call a command by its name alone; one that needs no database. O(commands).
    pub fn may_call(&self, name: &'static str) -> bool {
        let words = OwnedArgs::from_slices(&[name.as_bytes()]);
        let call = |command| Call { command, args: words.args(), db: 0, databases: 1 };
        registry::row(name).is_some_and(|row| self.may(call(row)).is_ok())
    }

    /// Whether it may see the words of others' commands, in which keys and values stand: it may read every key,
    /// and the slow log. O(commands + patterns)
    pub fn may_see_words(&self) -> bool {
        let words = OwnedArgs::from_slices(&[b"slowlog", b"get"]);
        let call = |command| Call { command, args: words.args(), db: 0, databases: 1 };
        let row = || by_full_name(b"slowlog|get");
        self.is_powerful() || self.reads_all_keys() && row().is_some_and(|row| self.may(call(row)).is_ok())
    }

    /// Whether it may make a call. O(words · patterns).
    pub fn may(&self, call: Call<'_>) -> Result<(), Denied> {
        if self.is_powerful() {
            return Ok(());
        }
        let mut check = Check::default();
        loop {
            if let Some(result) = check.advance(self, call, usize::MAX) {
                return result;
            }
        }
    }
}

/// The part that a selector denies among some words of a call. None: the looks are used up.
fn part(
    selector: &Selector,
    call: Call<'_>,
    words: Range<usize>,
    (patterns, looks): (&mut Patterns, &mut usize),
) -> Option<Option<Denied>> {
    let Call { command, args, .. } = call;
    if let Some(denied) = denied_database(selector, call, words.clone()) {
        return Some(Some(denied));
    }
    if words.start == 0 && !command.has(NO_AUTH) && !selector.allows(command, args.get(1)) {
        return Some(Some(Denied::Command));
    }
    let Some((channels, is_pattern)) = channels(command, args) else {
        return denied_key(selector, command, args, words, (patterns, looks));
    };
    let asked = channels.start.max(words.start)..channels.end.min(words.end);
    for at in asked.skip(patterns.passed) {
        if !selector.allows_channel(args.at(at), is_pattern, &mut patterns.search, looks)? {
            return Some(Some(Denied::Channel(at)));
        }
        patterns.passed += 1;
        patterns.search = Search::default();
    }
    Some(None)
}

fn denied_database(selector: &Selector, call: Call<'_>, words: Range<usize>) -> Option<Denied> {
    selector.databases.as_ref()?;
    let Call { command, args, db, databases } = call;
    let named = match command.name {
        "select" => 1..2,
        "swapdb" => 1..3,
        "move" => 2..3,
        "copy" => 4..args.len(),
        _ => 0..0,
    };
    let is_option = |at: usize| command.name != "copy" || options::is(args.at(at - 1), "db");
    let is_denied = |at: &usize| {
        let number = keys::database(databases, args.at(*at)).ok().filter(|_| is_option(*at));
        number.is_some_and(|number| !selector.allows_database(number))
    };
    // The first words are asked for at once, so that slices are judged as the whole is.
    let end = if words.start == 0 { words.end.max(NAMED) } else { words.end };
    let mut asked = named.start.max(words.start)..named.end.min(end).min(args.len());
    if let Some(at) = asked.find(is_denied) {
        return Some(Denied::Database(at));
    }
    let needs_all = command.name == "flushall" && !selector.allows_databases(databases);
    let denied = needs_all || (needs_database(command) && !selector.allows_database(db));
    (words.start == 0 && denied).then_some(Denied::Database(0))
}

/// Whether a command looks at the database it is called in, or changes it.
fn needs_database(command: &Command) -> bool {
    let looks = command.is_write() || command.has(READONLY) || !command.keys.is_empty();
    command.name != "swapdb" && (looks || command.acl_categories() & acl::KEYSPACE != 0)
}

/// As [`part`].
fn denied_key(
    selector: &Selector,
    command: &Command,
    args: Args<'_>,
    words: Range<usize>,
    (patterns, looks): (&mut Patterns, &mut usize),
) -> Option<Option<Denied>> {
    if selector.all_keys || command.keys.is_empty() {
        return Some(None);
    }
    let (mut verdict, mut seen) = (Some(None), 0);
    keys::each_use(command, args, words, &mut |at, uses| {
        let Some(needed) = needs(uses).filter(|_| verdict == Some(None)) else { return };
        seen += 1;
        if seen <= patterns.passed {
            return;
        }
        match selector.allows_key(args.at(at), needed, &mut patterns.search, looks) {
            None => verdict = None,
            Some(false) => verdict = Some(Some(Denied::Key(at))),
            Some(true) => *patterns = Patterns { passed: seen, search: Search::default() },
        }
    });
    verdict
}

/// The rights that the use of a key needs: to read, and to write. None: the word is no key.
fn needs(uses: Use) -> Option<(bool, bool)> {
    let has = |names: &[&str]| uses.0.iter().any(|name| names.contains(name));
    (!has(&["not_key"])).then(|| (has(&["access"]), has(&["insert", "update", "delete"])))
}

/// The words of a call that are channels, and whether they are patterns. Ending a subscription is always
/// allowed.
fn channels(command: &Command, args: Args<'_>) -> Option<(Range<usize>, bool)> {
    if !command.has(PUBSUB) {
        return None;
    }
    match command.name {
        "publish" | "spublish" => Some((1..2.min(args.len()), false)),
        "subscribe" | "ssubscribe" => Some((1..args.len(), false)),
        "psubscribe" => Some((1..args.len(), true)),
        _ => None,
    }
}

/// The part that a selector denies of a call beside its words: BY and GET of SORT.
fn unnamed(selector: &Selector, command: &Command, args: Args<'_>) -> Option<Denied> {
    let may_ask = command.keys.iter().any(|spec| spec.begin == Begin::Unknown);
    if !may_ask || selector.reads_all_keys() {
        return None;
    }
    let mut at = 2;
    while let Some(word) = args.get(at) {
        let is = |name: &str| options::is(word, name);
        at += match args.get(at + 1) {
            Some(pattern) if is("by") && pattern.contains(&b'*') => return Some(Denied::By),
            Some(_) if is("get") => return Some(Denied::Get),
            Some(_) if is("by") || is("store") => 2,
            Some(_) if is("limit") => 3,
            _ => 1,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(rules: &str) -> User {
        let mut user = User::new(b"u", false);
        for rule in crate::merged(rules.split(' ').map(str::as_bytes)).unwrap() {
            user.apply(&rule, false).unwrap();
        }
        user
    }

    fn ask(user: &User, call: &str, slice: usize) -> Result<(), Denied> {
        let words: Vec<&[u8]> = call.split(' ').map(str::as_bytes).collect();
        let args = OwnedArgs::from_slices(&words);
        let command = command::resolve(args.args()).unwrap_or_else(|e| panic!("{call}: {}", e.text()));
        let mut check = Check::default();
        for _ in 0..10_000 {
            let call = Call { command, args: args.args(), db: 1, databases: 4 };
            if let Some(result) = check.advance(user, call, slice) {
                return result;
            }
        }
        panic!("the check of {call} does not end");
    }

    /// A call is judged the same in one go and in slices.
    fn judge(rules: &str, call: &str) -> Result<(), Denied> {
        let user = user(rules);
        let whole = ask(&user, call, usize::MAX);
        for slice in [1, 2, 3, 7] {
            assert_eq!(ask(&user, call, slice), whole, "{call} in slices of {slice}");
        }
        whole
    }

    #[test]
    fn words_of_others_are_for_those_who_read_all_keys_and_the_slow_log() {
        for (rules, sees) in [
            ("~* +@all", true),
            ("~* +slowlog", true),
            ("%R~* +slowlog|get", true),
            ("~app:* +slowlog (~* +get)", true),
            ("~* +@all -slowlog", false),
            ("%W~* +slowlog", false),
            ("~app:* +@all", false),
            ("+slowlog", false),
        ] {
            assert_eq!(user(rules).may_see_words(), sees, "{rules}");
        }
    }

    #[test]
    fn calls_are_judged_as_by_redis() {
        let rules = "~a* %R~r* %W~w* &ch* +@all -@admin -flushall";
        let [key, channel] = [Denied::Key as fn(usize) -> Denied, Denied::Channel];
        for (call, expect) in [
            ("GET a", Ok(())),
            ("GET b", Err(key(1))),
            ("GET r", Ok(())),
            ("SET r 1", Err(key(1))),
            ("GET w", Err(key(1))),
            ("SET w 1", Ok(())),
            ("SET w 1 GET", Err(key(1))),
            ("SET w GET", Ok(())),
            ("EXISTS w r", Ok(())),
            ("EXISTS b", Err(key(1))),
            ("FLUSHALL", Err(Denied::Command)),
            ("CONFIG GET x", Err(Denied::Command)),
            ("COPY r w", Ok(())),
            ("COPY r r", Err(key(2))),
            ("MSET a 1 b 2", Err(key(3))),
            ("MGET a1 r b", Err(key(3))),
            ("BITFIELD r GET u8 0", Ok(())),
            ("BITFIELD r SET u8 0 1", Err(key(1))),
            ("SORT a BY x* GET y*", Err(Denied::By)),
            ("SORT a GET #", Err(Denied::Get)),
            ("SORT a BY nosort", Ok(())),
            ("SORT a LIMIT 0 by STORE w", Ok(())),
            ("SORT a STORE r", Err(key(3))),
            ("SORT_RO a BY x*", Err(Denied::By)),
            ("EVAL x 1 b", Err(key(3))),
            ("EVAL x 1 r", Err(key(3))),
            ("EVAL x 2 a aa", Ok(())),
            ("EVAL x 0", Ok(())),
            ("EVAL_RO x 1 r", Ok(())),
            ("OBJECT ENCODING w", Ok(())),
            ("OBJECT ENCODING b", Err(key(2))),
            ("MIGRATE h 1 b 0 10", Err(key(3))),
            ("MIGRATE h 1  0 10", Err(key(3))),
            ("MIGRATE h 1  0 10 KEYS a b", Err(key(8))),
            ("MIGRATE h 1  0 10 KEYS a a1", Ok(())),
            ("LCS r b", Err(key(2))),
            ("ZUNIONSTORE w 2 r a", Ok(())),
            ("ZUNIONSTORE w 2 r b", Err(key(4))),
            ("ZUNIONSTORE b 1 r", Err(key(1))),
            ("WATCH b", Err(key(1))),
            ("BLPOP a b 0", Err(key(2))),
            ("XREAD STREAMS r b 0 0", Err(key(3))),
            ("SUBSCRIBE ch1 x", Err(channel(2))),
            ("PUBLISH ch1 y", Ok(())),
            ("SPUBLISH x y", Err(channel(1))),
            ("PSUBSCRIBE ch1", Err(channel(1))),
            ("PSUBSCRIBE ch*", Ok(())),
            ("SSUBSCRIBE x", Err(channel(1))),
            ("UNSUBSCRIBE x", Ok(())),
            ("SUNSUBSCRIBE x", Ok(())),
            ("AUTH x y", Ok(())),
            ("KEYS *", Ok(())),
        ] {
            assert_eq!(judge(rules, call), expect, "{call}");
        }
    }

    /// The calls are made in database 1 of four, and the verdicts were watched in Valkey 9.1.
    #[test]
    fn databases_are_judged_as_by_valkey() {
        let database = Denied::Database;
        for (rules, call, expect) in [
            ("db=1", "GET a", Ok(())),
            ("db=0", "GET a", Err(database(0))),
            ("resetdbs", "GET a", Err(database(0))),
            ("resetdbs alldbs", "GET a", Ok(())),
            ("db=0", "PING", Ok(())),
            ("db=0", "PUBLISH a b", Ok(())),
            ("db=0", "EVAL x 0", Err(database(0))),
            ("db=0", "FCALL x 0", Err(database(0))),
            ("db=0", "FUNCTION FLUSH", Err(database(0))),
            ("db=0", "FUNCTION LIST", Ok(())),
            ("db=0", "SCRIPT FLUSH", Ok(())),
            ("db=0", "WATCH a", Err(database(0))),
            ("db=0", "SCAN 0", Err(database(0))),
            ("db=0", "DBSIZE", Err(database(0))),
            ("db=0", "FLUSHDB", Err(database(0))),
            ("db=1", "FLUSHDB", Ok(())),
            ("db=1", "FLUSHALL", Err(database(0))),
            ("db=0,1,2", "FLUSHALL", Err(database(0))),
            ("db=3,2,1,0", "FLUSHALL", Ok(())),
            ("db=1", "SELECT 1", Ok(())),
            ("db=1", "SELECT 0", Err(database(1))),
            ("db=0", "SELECT 0", Ok(())),
            ("db=1", "SELECT 9", Ok(())),
            ("db=1", "SELECT x", Ok(())),
            ("db=1", "MOVE a 2", Err(database(2))),
            ("db=0", "MOVE a 2", Err(database(2))),
            ("db=2", "MOVE a 2", Err(database(0))),
            ("db=1,2", "MOVE a 2", Ok(())),
            ("db=1", "COPY a b", Ok(())),
            ("db=1", "COPY a b DB 2", Err(database(4))),
            ("db=1", "COPY a b REPLACE DB 2", Err(database(5))),
            ("db=1", "COPY a b DB 1 DB 2", Err(database(6))),
            ("db=1", "COPY a b DB 2 DB 1", Err(database(4))),
            ("db=1", "COPY db 2", Ok(())),
            ("db=1", "COPY a db db 2", Err(database(4))),
            ("db=1", "COPY a b DB", Ok(())),
            ("db=1", "SWAPDB 1 2", Err(database(2))),
            ("db=2", "SWAPDB 1 2", Err(database(1))),
            ("db=2", "SWAPDB 2 2", Ok(())),
            ("db=2,3", "SWAPDB 2 3", Ok(())),
            // Within a selector the database comes first; among selectors all else does.
            ("resetkeys db=0", "GET a", Err(database(0))),
            ("-get db=0", "GET a", Err(database(0))),
            ("db=0 (db=1)", "GET a", Err(Denied::Command)),
            ("db=0 (db=1 +get)", "GET a", Err(Denied::Key(1))),
            ("-get (~* +@all db=0)", "GET a", Err(Denied::Command)),
            ("db=0 (~* +@all db=2)", "MOVE a 2", Err(database(2))),
        ] {
            assert_eq!(judge(&format!("~* &* +@all {rules}"), call), expect, "{rules}: {call}");
        }
    }

    /// A long key and a pattern that nearly matches it again and again are compared in steps.
    #[test]
    fn long_keys_are_compared_in_steps() {
        let key = b"ab".repeat(20_000);
        let rules = format!("+get +mget +publish ~*{0}c ~%R~x ~*{0}d &*{0}e (~*b +get)", "ab".repeat(10));
        let user = user(&rules);
        for (words, expect, steps_min) in [
            (&[b"GET".as_slice(), &key] as &[&[u8]], Ok(()), 20),
            (&[b"MGET", b"xababababababababababc", &key], Err(Denied::Key(2)), 20),
            (&[b"PUBLISH", &key, b"x"], Err(Denied::Channel(1)), 10),
        ] {
            let args = OwnedArgs::from_slices(words);
            let command = command::resolve(args.args()).unwrap();
            let call = Call { command, args: args.args(), db: 0, databases: 1 };
            assert_eq!(user.may(call), expect);
            let (mut check, mut steps) = (Check::default(), 1);
            let verdict = loop {
                if let Some(verdict) = check.advance(&user, call, usize::MAX) {
                    break verdict;
                }
                steps += 1;
            };
            assert_eq!(verdict, expect);
            assert!(steps > steps_min, "{steps}");
        }
    }

    #[test]
    fn one_selector_must_allow_the_whole_call() {
        let rules = "~a +get (~b +set) (%R~* ~c +sort)";
        assert_eq!(judge(rules, "GET a"), Ok(()));
        assert_eq!(judge(rules, "SET b 1"), Ok(()));
        assert_eq!(judge(rules, "SET a 1"), Err(Denied::Key(1)));
        assert_eq!(judge(rules, "GET b"), Err(Denied::Key(1)));
        assert_eq!(judge(rules, "DEL a"), Err(Denied::Command));
        assert_eq!(judge(rules, "SORT x BY y*"), Ok(()));
        assert_eq!(judge(rules, "SORT x STORE x"), Err(Denied::Key(3)));
    }

    #[test]
    fn first_arguments_and_subcommands_are_told_apart() {
        let rules = "+select|0 +config|get +debug|jmap";
        assert_eq!(judge(rules, "SELECT 0"), Ok(()));
        assert_eq!(judge(rules, "SELECT 1"), Err(Denied::Command));
        assert_eq!(judge(rules, "CONFIG GET x"), Ok(()));
        assert_eq!(judge(rules, "CONFIG SET x y"), Err(Denied::Command));
        assert_eq!(judge(rules, "DEBUG JMAP"), Ok(()));
        assert_eq!(judge(rules, "DEBUG SLEEP 0"), Err(Denied::Command));
        assert_eq!(judge("+select|0 -select", "SELECT 0"), Err(Denied::Command));
        assert_eq!(judge("+config -config|set", "CONFIG SET x y"), Err(Denied::Command));
        assert_eq!(judge("+config -config|set", "CONFIG GET x"), Ok(()));
    }

    #[test]
    fn no_row_lets_a_user_without_keys_name_one() {
        let user = user("+@all &*");
        for command in command::places::all() {
            let words: Vec<&[u8]> = command.name.split('|').map(str::as_bytes).collect();
            let mut args = OwnedArgs::from_slices(&words);
            for _ in 0..8 {
                args.push(b"1");
            }
            let mut keys = 0;
            command.each_key(args.args(), &mut |_, uses| keys += usize::from(needs(uses).is_some()));
            let call = Call { command, args: args.args(), db: 0, databases: 1 };
            let denied = matches!(user.may(call), Err(Denied::Key(_)));
            assert_eq!(denied, keys > 0, "{}", command.name);
        }
    }
}
