//! Whether a user may make a call: its command, its keys, its channels.
//!
//! - Selectors are asked one after the other (U3). If none allows the call, the answer names what the one
//!   that came furthest denied: a channel before a key, a key before the command, a later word before an
//!   earlier one.
//! - SORT with BY or GET reads keys that no word names: it needs a selector that may read all keys.
//! - A call whose keys cannot be told from its words is malformed: its command refuses it.

use crate::log::Reason;
use crate::selector::Selector;
use crate::user::User;
use command::table::{Begin, NO_AUTH, PUBSUB, Use};
use command::{Command, Error, keys, options, registry};
use resp::{Args, OwnedArgs};
use std::ops::Range;

/// The part of a call that a user may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
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
            Denied::Key(_) => "No permissions to access a key".into(),
            Denied::Channel(_) => "No permissions to access a channel".into(),
            Denied::By => "BY option of SORT denied due to insufficient ACL permissions.".into(),
            Denied::Get => "GET option of SORT denied due to insufficient ACL permissions.".into(),
        }
    }

    /// The reason why a queued call is not run, in Redis's words.
    pub fn reason(self) -> &'static str {
        match self {
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
}

impl Check {
    /// Asks for so many more words, or for all if a selector has to be asked for the command only. None: there
    /// is more to ask. O(words · patterns).
    pub fn advance(
        &mut self,
        user: &User,
        command: &'static Command,
        args: Args<'_>,
        words: usize,
    ) -> Option<Result<(), Denied>> {
        while let Some(selector) = user.selectors().nth(self.selector) {
            let end = self.word.saturating_add(words);
            let asked = self.word..end;
            let denied = part(selector, command, args, asked).or_else(|| {
                // The call is asked for to its end before what no word names counts.
                (end >= args.len()).then(|| unnamed(selector, command, args)).flatten()
            });
            match denied {
                Some(denied) => self.worst = self.worst.max(Some(denied)),
                None if end < args.len() => {
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
    /// Whether it may call a command by its name alone. O(commands).
    pub fn may_call(&self, name: &'static str) -> bool {
        let words = OwnedArgs::from_slices(&[name.as_bytes()]);
        registry::row(name).is_some_and(|row| self.may(row, words.args()).is_ok())
    }

    /// Whether it may make a call. O(words · patterns).
    pub fn may(&self, command: &'static Command, args: Args<'_>) -> Result<(), Denied> {
        if self.is_powerful() {
            return Ok(());
        }
        let mut check = Check::default();
        loop {
            if let Some(result) = check.advance(self, command, args, usize::MAX) {
                return result;
            }
        }
    }
}

/// The part that a selector denies among some words of a call.
fn part(
    selector: &Selector,
    command: &'static Command,
    args: Args<'_>,
    words: Range<usize>,
) -> Option<Denied> {
    if words.start == 0 && !command.has(NO_AUTH) && !selector.allows(command, args.get(1)) {
        return Some(Denied::Command);
    }
    denied_key(selector, command, args, words.clone()).or_else(|| {
        let (channels, is_pattern) = channels(command, args)?;
        let mut asked = channels.start.max(words.start)..channels.end.min(words.end);
        asked.find(|at| !selector.allows_channel(args.at(*at), is_pattern)).map(Denied::Channel)
    })
}

fn denied_key(selector: &Selector, command: &Command, args: Args<'_>, words: Range<usize>) -> Option<Denied> {
    if selector.all_keys || command.keys.is_empty() {
        return None;
    }
    let mut denied = None;
    keys::each_use(command, args, words, &mut |at, uses| {
        if denied.is_none()
            && let Some((read, write)) = needs(uses)
            && !selector.allows_key(args.at(at), read, write)
        {
            denied = Some(Denied::Key(at));
        }
    });
    denied
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
            if let Some(result) = check.advance(user, command, args.args(), slice) {
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
            let denied = matches!(user.may(command, args.args()), Err(Denied::Key(_)));
            assert_eq!(denied, keys > 0, "{}", command.name);
        }
    }
}
