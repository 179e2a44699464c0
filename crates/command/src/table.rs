//! A command's row: everything that is known about it without running it.
//!
//! Rows stand in the file of their topic, beside their handlers; `registry` collects the topics. The facts (arity, flags,
//! key specifications, ACL categories, tips) are those of Redis's COMMAND INFO and are compared with it by a test.

use crate::{Cx, Error};
use keyspace::View;
use resp::Args;
use std::ops::Range;

/// What a command does with its arguments and the keys it sees.
pub type Handler = fn(&mut Cx<'_, '_>, Args<'_>) -> Result<(), Error>;

/// How a command runs.
#[derive(Clone, Copy)]
pub enum Run {
    /// A function of its keys that changes nothing.
    Read(Handler),
    /// A function of its keys that may change them.
    Write(Handler),
    /// A function of the keyspace as a whole (SCAN, DBSIZE, FLUSHALL); the view is open or whole.
    Whole(Handler),
    /// Not a function of the keyspace: `exec` performs it, under the row's full name.
    Exec,
    /// Only its subcommands run.
    Container,
}

/// What the log and the replicas receive for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The command as it came; if the handler noted something with `Cx::effect`, that instead (SET with EX).
    Itself,
    /// What the handler noted with `Cx::effect` instead, because the command is not deterministic (SPOP, relative
    /// expiries, INCRBYFLOAT).
    Noted,
}

/// Steps (about 50 ns each) a run will take at most, from sizes known in O(1).
pub type Cost = fn(&View<'_>, Args<'_>) -> usize;

macro_rules! flags {
    ($($name:ident = $bit:expr, $text:expr;)*) => {
        $(pub const $name: u32 = 1 << $bit;)*
        /// Every flag with the name COMMAND INFO gives it.
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

/// What a command does with the keys of a key specification; Redis's flags by name.
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
pub const RW_ACCESS_DELETE: Use = Use(&["RW", "access", "delete"]);
pub const OW_UPDATE: Use = Use(&["OW", "update"]);
pub const OW_INSERT: Use = Use(&["OW", "insert"]);
pub const RM_DELETE: Use = Use(&["RM", "delete"]);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    Index(usize),
    /// Behind an option, the first of its name. Clients are told to look for the word from argument `shown` on (negative: from the
    /// end, backwards), which takes other options' words for it.
    Keyword {
        word: &'static str,
        shown: i32,
        options: OptionWords,
    },
    /// Behind the last option of this name; clients are told that it is not known.
    Last {
        word: &'static str,
        options: OptionWords,
    },
    Unknown,
}

/// The options of a command, as far as they take words. Those words are no options, whatever they say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionWords {
    /// Where options begin.
    pub from: usize,
    /// Names, and how many words follow them.
    pub takes: &'static [(&'static str, usize)],
}

impl OptionWords {
    /// Where options stand, with their numbers of words.
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

    /// Where the option of this name stands, the first or the last, if the words that it takes follow. O(words).
    pub fn find(self, args: Args<'_>, name: &str, last: bool) -> Option<usize> {
        let mut found = self.places(args).filter(|(at, takes)| {
            args.at(*at).eq_ignore_ascii_case(name.as_bytes()) && at + takes < args.len()
        });
        let place = if last { found.last() } else { found.next() };
        place.map(|(at, _)| at)
    }

    /// Whether there is nothing but these options, with all the words that they take. O(words).
    pub fn are_only(self, args: Args<'_>, names: &[&str]) -> bool {
        self.places(args).all(|(at, takes)| {
            at + takes < args.len()
                && names.iter().any(|name| args.at(at).eq_ignore_ascii_case(name.as_bytes()))
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Find {
    /// Up to `last` arguments after the first (negative: counted from the end of all; -1 = the last), each `step`-th;
    /// `limit`: only the first 1/limit of the rest.
    Range {
        last: i32,
        step: i32,
        limit: i32,
    },
    /// The number of keys stands `num` after the begin, the first key `first` after it.
    KeyNum {
        num: usize,
        first: usize,
        step: usize,
    },
    Unknown,
}

/// Where keys stand, as Redis describes it.
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

    /// Keys from argument `at` on: see [`Find::Range`].
    pub const fn range(at: usize, last: i32, step: i32, uses: Use) -> KeySpec {
        KeySpec { uses, begin: Begin::Index(at), find: Find::Range { last, step, limit: 0 }, notes: "" }
    }

    /// A number of keys at argument `at`, the keys behind it.
    pub const fn numkeys(at: usize, uses: Use) -> KeySpec {
        KeySpec { uses, begin: Begin::Index(at), find: Find::KeyNum { num: 0, first: 1, step: 1 }, notes: "" }
    }
}

/// See the module.
pub struct Command {
    /// Lower case; of a subcommand the full name, `config|get`.
    pub name: &'static str,
    /// Number of arguments, the name included; negative: at least so many.
    pub arity: i32,
    pub run: Run,
    pub flags: u32,
    /// Bits of [`crate::facts`], which only a server asks for.
    pub facts: u32,
    /// ACL categories besides those that follow from the flags (read, write, fast/slow, admin, dangerous, blocking …).
    pub acl: u32,
    pub keys: &'static [KeySpec],
    pub tips: &'static [&'static str],
    pub group: &'static str,
    pub since: &'static str,
    pub complexity: &'static str,
    pub summary: &'static str,
    /// Asked for by [`Command::steps`].
    cost: Option<Cost>,
    /// It reads nothing but its keys' values, so it may do that without their locks.
    pub apart: bool,
    /// What its reply costs besides where it is not streamed (EXEC); asked for by [`Command::reply_steps`].
    reply: Option<Cost>,
    pub effect: Effect,
    pub subs: &'static [Command],
}

impl Command {
    /// A row with the facts every command has; the rest by the methods below.
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

    /// For COMMAND DOCS: group, first version, complexity, one sentence in our own words.
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

    pub const fn subs(mut self, subs: &'static [Command]) -> Command {
        self.subs = subs;
        self
    }

    /// Steps a run will take at most, as its row estimates; 0 if it has no estimate. The keys are locked, or of an overlay.
    #[inline]
    pub fn steps(&self, view: &View<'_>, args: Args<'_>) -> usize {
        self.cost.map_or(0, |cost| view.estimate(|view| cost(view, args)))
    }

    /// Steps its reply will take besides where it is not streamed; 0 if it has no estimate.
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

    /// Whether it may have to reach replicas though it is no write itself: CLIENT PAUSE WRITE holds it, scripts that only
    /// read may not call it. (Redis marks these too, without showing it.)
    pub fn may_replicate(&self) -> bool {
        self.has(MAY_REPLICATE) || self.is(crate::facts::REPLICATES)
    }

    #[inline]
    pub fn arity_fits(&self, args: usize) -> bool {
        if self.arity >= 0 { args == self.arity as usize } else { args >= self.arity.unsigned_abs() as usize }
    }

    /// The error of a call with too many or too few arguments. Commands that Redis has from a module are named as that writes
    /// them.
    pub fn arity_error(&self) -> Error {
        let module = self.group == "roaring";
        Error::Arity(if module { self.name.to_ascii_uppercase() } else { self.name.to_owned() })
    }

    /// The part of the name after the container's.
    pub fn sub_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, sub)| sub)
    }

    /// All ACL categories, as bits of [`acl`], the implied ones included.
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

    /// Where the first key stands, if that does not depend on the words. O(1).
    pub fn first_key(&self) -> Option<usize> {
        match self.keys.first().map(|spec| (spec.begin, spec.find))? {
            (Begin::Index(at), Find::KeyNum { first, .. }) => Some(at + first),
            (Begin::Index(at), _) => Some(at),
            _ => None,
        }
    }

    /// Calls `f` with the index of every key argument. False if they cannot be told (malformed numbers). O(keys).
    #[inline]
    pub fn each_key(&self, args: Args<'_>, f: &mut dyn FnMut(usize, Use)) -> bool {
        match self.keys {
            [] => true,
            // By far the most frequent: one key right behind the name.
            [KeySpec { begin: Begin::Index(1), find: Find::Range { last: 0, .. }, uses, .. }] => {
                if args.len() > 1 {
                    f(1, *uses);
                }
                true
            }
            _ => self.each_key_within(args, 0..usize::MAX, f),
        }
    }

    /// The same for those keys that stand within these words. Cost: O(keys within them), beyond finding a keyword.
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
