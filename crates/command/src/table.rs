//! A command's row: every fact about it that is known without running it.
//!
//! Rows are in the file of their topic, beside their handlers; `registry` collects the topics. The facts
//! (arity, flags, key specifications, ACL categories, tips) are those of Redis's COMMAND INFO; a test
//! compares them.

use crate::{Cx, Error};
use keyspace::View;
use resp::Args;
use std::ops::Range;

/// A command's function. It reads its arguments, and reads or changes the keys it sees.
pub type Handler = fn(&mut Cx<'_, '_>, Args<'_>) -> Result<(), Error>;

/// How a command runs.
#[derive(Clone, Copy)]
pub enum Run {
    /// A function of its keys that changes nothing.
    Read(Handler),
    /// A function of its keys that may change them.
    Write(Handler),
    /// A function of the keyspace as a whole (SCAN, DBSIZE, FLUSHALL). The view is open or whole.
    Whole(Handler),
    /// Not a function of the keyspace: `exec` performs it, found by the row's full name.
    Exec,
    /// Only its subcommands run.
    Container,
}

/// The form of a write that the log and the replicas receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The command as it came: it is deterministic, and every server from [`Command::portable_from`] on knows
    /// its words. Or the commands noted with `Cx::effect` if there are any (SET with EX).
    Itself,
    /// Only the commands noted with `Cx::effect`, as the command is not deterministic (SPOP, relative
    /// expiries, INCRBYFLOAT).
    Noted,
}

/// An upper bound of a run's steps (about 50 ns each), from sizes that are known in O(1).
pub type Cost = fn(&View<'_>, Args<'_>) -> usize;

macro_rules! flags {
    ($($name:ident = $bit:expr, $text:expr;)*) => {
        $(pub const $name: u32 = 1 << $bit;)*
        /// Every flag with its name in COMMAND INFO.
        pub const FLAG_NAMES: &[(u32, &str)] = &[$(($name, $text)),*];
    };
}

flags! {
    WRITE = 0, "write"; READONLY = 1, "readonly"; DENYOOM = 2, "denyoom"; ADMIN = 3, "admin"; PUBSUB = 4, "pubsub";
    NOSCRIPT = 5, "noscript"; BLOCKING = 6, "blocking"; LOADING = 7, "loading"; STALE = 8, "stale";
    SKIP_MONITOR = 9, "skip_monitor"; SKIP_SLOWLOG = 10, "skip_slowlog"; FAST = 11, "fast"; NO_AUTH = 12, "no_auth";
    MAY_REPLICATE = 13, "may_replicate"; NO_ASYNC_LOADING = 14, "no_async_loading"; NO_MULTI = 15, "no_multi";
    MOVABLEKEYS = 16, "movablekeys"; ALLOW_BUSY = 17, "allow_busy"; NO_MANDATORY_KEYS = 18, "no_mandatory_keys";
    SORT_FOR_SCRIPT = 19, "sort_for_script"; ASKING = 20, "asking";
}

macro_rules! acl {
    ($($name:ident = $bit:expr, $text:expr;)*) => {
        /// ACL categories as bits.
        pub mod acl {
            $(pub const $name: u32 = 1 << $bit;)*
            /// Every category with its name, without the `@`.
            pub const NAMES: &[(u32, &str)] = &[$(($name, $text)),*];
        }
    };
}

acl! {
    KEYSPACE = 0, "keyspace"; READ = 1, "read"; WRITE = 2, "write"; SET = 3, "set"; SORTEDSET = 4, "sortedset";
    LIST = 5, "list"; HASH = 6, "hash"; STRING = 7, "string"; BITMAP = 8, "bitmap"; HYPERLOGLOG = 9, "hyperloglog";
    GEO = 10, "geo"; STREAM = 11, "stream"; PUBSUB = 12, "pubsub"; ADMIN = 13, "admin"; FAST = 14, "fast";
    SLOW = 15, "slow"; BLOCKING = 16, "blocking"; DANGEROUS = 17, "dangerous"; CONNECTION = 18, "connection";
    TRANSACTION = 19, "transaction"; SCRIPTING = 20, "scripting";
}

/// How a command uses the keys of a key specification: Redis's flags by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use(pub &'static [&'static str]);

/// The common cases.
pub const RO: Use = Use(&["RO"]);
pub const RO_ACCESS: Use = Use(&["RO", "access"]);
pub const RW_ACCESS: Use = Use(&["RW", "access"]);
pub const RW_UPDATE: Use = Use(&["RW", "update"]);
pub const RW_ACCESS_UPDATE: Use = Use(&["RW", "access", "update"]);
pub const RW_INSERT: Use = Use(&["RW", "insert"]);
pub const RW_DELETE: Use = Use(&["RW", "delete"]);
pub const RW_UPDATE_DELETE: Use = Use(&["RW", "update", "delete"]);
pub const RW_DELETE_VARIABLE: Use = Use(&["RW", "delete", "variable_flags"]);
pub const RW_ACCESS_DELETE: Use = Use(&["RW", "access", "delete"]);
pub const OW_UPDATE: Use = Use(&["OW", "update"]);
pub const OW_INSERT: Use = Use(&["OW", "insert"]);
pub const RM_DELETE: Use = Use(&["RM", "delete"]);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    Index(usize),
    /// The keys follow the first option of this name. COMMAND INFO tells clients to search for the word from
    /// argument `shown` on (negative: backwards from the end). Such a search may take other options' words
    /// for it.
    Keyword {
        word: &'static str,
        shown: i32,
        options: OptionWords,
    },
    /// The keys follow the last option of this name. COMMAND INFO calls their place unknown.
    Last {
        word: &'static str,
        options: OptionWords,
    },
    /// The keys follow the last option of all that `options` names, if it is this one. COMMAND INFO tells
    /// clients to search for the word from argument `shown` on.
    LastOf {
        word: &'static str,
        shown: i32,
        options: OptionWords,
    },
    Unknown,
}

/// The options of a command that take words. A word taken by an option is never an option itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionWords {
    /// Index of the first option.
    pub from: usize,
    /// Names, and the number of words that follow each.
    pub takes: &'static [(&'static str, usize)],
}

impl OptionWords {
    /// The positions of the options, with their numbers of words.
    fn places<'a>(self, args: Args<'a>) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let mut at = self.from;
        std::iter::from_fn(move || {
            let word = args.get(at)?;
            let known = self.takes.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
            let (place, takes) = (at, known.map_or(0, |(_, words)| *words));
            at += 1 + takes;
            Some((place, takes))
        })
    }

    /// The position of the first or last option of this name whose words are all present. O(words).
    pub fn find(self, args: Args<'_>, name: &str, last: bool) -> Option<usize> {
        let mut found = self.places(args).filter(|(at, takes)| {
            args.at(*at).eq_ignore_ascii_case(name.as_bytes()) && at + takes < args.len()
        });
        let place = if last { found.last() } else { found.next() };
        place.map(|(at, _)| at)
    }

    /// The position of the last option that takes words, all of which are present. O(words).
    fn last(self, args: Args<'_>) -> Option<usize> {
        self.places(args).filter(|(at, takes)| *takes > 0 && at + takes < args.len()).last().map(|(at, _)| at)
    }

    /// Whether the arguments are only these options, each with all its words. O(words).
    pub fn are_only(self, args: Args<'_>, names: &[&str]) -> bool {
        self.places(args).all(|(at, takes)| {
            at + takes < args.len()
                && names.iter().any(|name| args.at(at).eq_ignore_ascii_case(name.as_bytes()))
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Find {
    /// Keys up to `last` arguments after the first, each `step`-th (negative: counted from the end; -1 = the
    /// last). `limit`: only the first 1/limit of the rest.
    Range {
        last: i32,
        step: i32,
        limit: i32,
    },
    /// The number of keys is `num` arguments after the begin, and the first key is `first` after it.
    KeyNum {
        num: usize,
        first: usize,
        step: usize,
    },
    Unknown,
}

/// The positions of keys, as Redis describes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeySpec {
    pub uses: Use,
    pub begin: Begin,
    pub find: Find,
    pub notes: &'static str,
}

impl KeySpec {
    /// One key at argument `at`.
    pub const fn one(at: usize, uses: Use) -> KeySpec {
        KeySpec::range(at, 0, 1, uses)
    }

    /// Keys from argument `at` on. See [`Find::Range`].
    pub const fn range(at: usize, last: i32, step: i32, uses: Use) -> KeySpec {
        KeySpec { uses, begin: Begin::Index(at), find: Find::Range { last, step, limit: 0 }, notes: "" }
    }

    /// A number of keys at argument `at`, followed by the keys.
    pub const fn numkeys(at: usize, uses: Use) -> KeySpec {
        KeySpec { uses, begin: Begin::Index(at), find: Find::KeyNum { num: 0, first: 1, step: 1 }, notes: "" }
    }
}

/// A command's words are known since the command is.
const BY_SINCE: u16 = u16::MAX;

/// A row of the command table. See the module.
pub struct Command {
    /// Lower case. A subcommand has its full name, `config|get`.
    pub name: &'static str,
    /// Number of arguments, with the name. Negative: at least so many.
    pub arity: i32,
    pub run: Run,
    pub flags: u32,
    /// Facts that only a server asks for: bits of [`crate::facts`].
    pub facts: u32,
    /// ACL categories, without those implied by the flags (read, write, fast/slow, admin, dangerous, blocking
    /// …).
    pub acl: u32,
    pub keys: &'static [KeySpec],
    pub tips: &'static [&'static str],
    pub group: &'static str,
    pub since: &'static str,
    pub complexity: &'static str,
    pub summary: &'static str,
    /// The estimate that [`Command::steps`] asks for.
    cost: Option<Cost>,
    /// Reads only its keys' values, so it may run without their locks.
    pub apart: bool,
    /// The extra cost of a reply that cannot be streamed (EXEC). See [`Command::reply_steps`].
    reply: Option<Cost>,
    pub effect: Effect,
    /// See [`Command::portable`]. `BY_SINCE`: as `since` says.
    portable: u16,
    pub subs: &'static [Command],
}

impl Command {
    /// A row with the facts every command has. The methods below add the rest.
    pub const fn new(name: &'static str, arity: i32, run: Run, flags: u32, acl: u32) -> Command {
        Command {
            name,
            arity,
            run,
            flags,
            facts: 0,
            acl,
            keys: &[],
            tips: &[],
            group: "generic",
            since: "1.0.0",
            complexity: "O(1)",
            summary: "",
            cost: None,
            apart: false,
            reply: None,
            effect: Effect::Itself,
            portable: BY_SINCE,
            subs: &[],
        }
    }

    pub const fn keys(mut self, keys: &'static [KeySpec]) -> Command {
        self.keys = keys;
        self
    }

    /// Bits of [`crate::facts`].
    pub const fn facts(mut self, facts: u32) -> Command {
        self.facts = facts;
        self
    }

    pub const fn tips(mut self, tips: &'static [&'static str]) -> Command {
        self.tips = tips;
        self
    }

    /// Sets the facts for COMMAND DOCS: group, first version, complexity, and a summary in our own words.
    pub const fn doc(
        mut self,
        group: &'static str,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Command {
        self.group = group;
        self.since = since;
        self.complexity = complexity;
        self.summary = summary;
        self
    }

    pub const fn cost(mut self, cost: Cost) -> Command {
        self.cost = Some(cost);
        self
    }

    pub const fn apart(mut self) -> Command {
        self.apart = true;
        self
    }

    pub const fn reply(mut self, reply: Cost) -> Command {
        self.reply = Some(reply);
        self
    }

    pub const fn effect(mut self, effect: Effect) -> Command {
        self.effect = effect;
        self
    }

    /// The Redis version from which on all servers know the log's commands for this one (602 for 6.2), if it
    /// is not the version the command came with. 0: only Evenkeel, or a server with a module.
    pub const fn portable(mut self, version: u16) -> Command {
        self.portable = version;
        self
    }

    /// The Redis version from which on all servers know every command that the log receives for this one. It
    /// is 100 times the major number, plus the minor one. 0: only Evenkeel, or a server with a module.
    pub fn portable_from(&self) -> u16 {
        match self.portable {
            BY_SINCE if self.group == "roaring" => 0,
            BY_SINCE => {
                let mut parts = self.since.split('.').map(|part| part.parse::<u16>().unwrap_or(0));
                parts.next().unwrap_or(0) * 100 + parts.next().unwrap_or(0)
            }
            version => version,
        }
    }

    pub const fn subs(mut self, subs: &'static [Command]) -> Command {
        self.subs = subs;
        self
    }

    /// An upper bound of the run's steps, or 0 without an estimate. The keys are locked, or in an overlay.
    #[inline]
    pub fn steps(&self, view: &View<'_>, args: Args<'_>) -> usize {
        self.cost.map_or(0, |cost| view.estimate(|view| cost(view, args)))
    }

    /// The extra steps of the reply where it is not streamed, or 0 without an estimate.
    pub fn reply_steps(&self, view: &View<'_>, args: Args<'_>) -> usize {
        self.reply.map_or(0, |reply| view.estimate(|view| reply(view, args)))
    }

    #[inline]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    pub fn is_write(&self) -> bool {
        self.has(WRITE)
    }

    /// Whether the command may have to reach replicas without being a write. CLIENT PAUSE WRITE holds it, and
    /// read-only scripts may not call it. (Redis marks these too, without showing it.)
    pub fn may_replicate(&self) -> bool {
        self.has(MAY_REPLICATE) || self.is(crate::facts::REPLICATES)
    }

    #[inline]
    pub fn arity_fits(&self, args: usize) -> bool {
        if self.arity >= 0 { args == self.arity as usize } else { args >= self.arity.unsigned_abs() as usize }
    }

    /// The error for too many or too few arguments. Commands of a Redis module keep the module's spelling, in
    /// capitals.
    pub fn arity_error(&self) -> Error {
        let module = self.group == "roaring";
        Error::Arity(if module { self.name.to_ascii_uppercase() } else { self.name.to_owned() })
    }

    /// The part of the name after the container's.
    pub fn sub_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, sub)| sub)
    }

    /// All ACL categories, with the implied ones, as bits of [`acl`].
    pub fn acl_categories(&self) -> u32 {
        let mut bits = self.acl;
        let implied = [
            (WRITE, acl::WRITE),
            (READONLY, acl::READ),
            (ADMIN, acl::ADMIN | acl::DANGEROUS),
            (PUBSUB, acl::PUBSUB),
            (FAST, acl::FAST),
            (BLOCKING, acl::BLOCKING),
        ];
        for (flag, categories) in implied {
            if self.has(flag) && !(flag == READONLY && self.acl & acl::SCRIPTING != 0) {
                bits |= categories;
            }
        }
        if !self.has(FAST) {
            bits |= acl::SLOW;
        }
        bits
    }

    /// The argument that is the only key, if the row says so.
    #[inline]
    pub fn single_key(&self) -> Option<usize> {
        match self.keys {
            [KeySpec { begin: Begin::Index(at), find: Find::Range { last: 0, .. }, .. }] => Some(*at),
            _ => None,
        }
    }

    /// The position of the first key, if it does not depend on the words. O(1).
    pub fn first_key(&self) -> Option<usize> {
        match self.keys.first().map(|spec| (spec.begin, spec.find))? {
            (Begin::Index(at), Find::KeyNum { first, .. }) => Some(at + first),
            (Begin::Index(at), _) => Some(at),
            _ => None,
        }
    }

    /// Calls `f` with the index of every key argument. False if the keys are unknown (malformed numbers).
    /// O(keys).
    #[inline]
    pub fn each_key(&self, args: Args<'_>, f: &mut dyn FnMut(usize, Use)) -> bool {
        match self.keys {
            [] => true,
            // The most frequent case by far: one key right behind the name.
            [KeySpec { begin: Begin::Index(1), find: Find::Range { last: 0, .. }, uses, .. }] => {
                if args.len() > 1 {
                    f(1, *uses);
                }
                true
            }
            _ => self.each_key_within(args, 0..usize::MAX, f),
        }
    }

    /// As [`Command::each_key`], for keys within a range of words. Cost: O(keys in the range), plus finding a
    /// keyword.
    pub fn each_key_within(
        &self,
        args: Args<'_>,
        words: Range<usize>,
        f: &mut dyn FnMut(usize, Use),
    ) -> bool {
        self.keys.iter().all(|spec| spec.each(args, &words, f))
    }
}

impl KeySpec {
    fn each(&self, args: Args<'_>, words: &Range<usize>, f: &mut dyn FnMut(usize, Use)) -> bool {
        let mut every = |first: usize, end: usize, step: usize| {
            let passed = words.start.saturating_sub(first).div_ceil(step);
            (first + passed * step..end.min(words.end)).step_by(step).for_each(|i| f(i, self.uses));
        };
        let first = match self.begin {
            Begin::Index(at) => at,
            Begin::Keyword { word, options, .. } => match options.find(args, word, false) {
                Some(at) => at + 1,
                None => return true,
            },
            Begin::Last { word, options } => match options.find(args, word, true) {
                Some(at) => at + 1,
                None => return true,
            },
            Begin::LastOf { word, options, .. } => match options.last(args) {
                Some(at) if args.at(at).eq_ignore_ascii_case(word.as_bytes()) => at + 1,
                _ => return true,
            },
            Begin::Unknown => return true,
        };
        match self.find {
            Find::Unknown => true,
            Find::Range { last, step, limit } => {
                let end = match (last, limit) {
                    (last, _) if last >= 0 => (first + last as usize + 1).min(args.len()),
                    (-1, limit) if limit > 1 => {
                        (first + args.len().saturating_sub(first) / limit as usize).min(args.len())
                    }
                    (last, _) => (args.len() as i64 + last as i64 + 1).max(0) as usize,
                };
                every(first, end, step.max(1) as usize);
                true
            }
            Find::KeyNum { num, first: offset, step } => {
                let Some(count) = args.get(first + num).and_then(stdx::num::parse_i64) else { return false };
                let start = first + offset;
                // With a step of 2 a value follows each key.
                let taken = count.checked_mul(step as i64).unwrap_or(i64::MAX);
                if count < 1 || taken as usize > args.len().saturating_sub(start) {
                    return false;
                }
                every(start, start + taken as usize, step);
                true
            }
        }
    }
}
