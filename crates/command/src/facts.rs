//! Facts a server needs of a command before it runs it: flags of its row that COMMAND INFO does not show.
//!
//! A row sets them with [`Command::facts`]; a server asks [`Command::is`]. So a new command brings its facts
//! along, and no list of names stands anywhere else.

use crate::table::{Begin, Command};
use resp::Args;

macro_rules! facts {
    ($($(#[$text:meta])* $name:ident = $bit:expr;)*) => {
        $($(#[$text])* pub const $name: u32 = 1 << $bit;)*
        /// Every fact with its name.
        #[cfg(test)]
        const ALL: &[(u32, &str)] = &[$(($name, stringify!($name))),*];
    };
}

facts! {
    /// Runs a script or a function.
    SCRIPT = 0;
    /// Runs a function of a library.
    FUNCTION = 1;
    /// A script's engine performs it at its place in a transaction.
    ENGINE = 2;
    /// Sends a message to subscribers.
    PUBLISHES = 3;
    /// May have to reach replicas though it is no write, which COMMAND INFO does not show.
    REPLICATES = 4;
    /// An action that may take longer than a loop has.
    SLOW_ACTION = 5;
    /// An action that takes effect at its place in a transaction over an overlay, and may be repeated. All
    /// others wait for the commit.
    AT_PLACE = 6;
    /// An action that changes the data or the listeners of others. A panic in it ends the process
    /// (`stdx::panics` X3). A change by a view is noted by the view itself.
    CHANGES = 7;
    /// Changes which scripts and functions there are.
    CHANGES_CODE = 8;
    /// An action that takes long words elsewhere, or only passes them on.
    LONG_WORDS = 9;
    /// An action that goes through its words in slices or elsewhere.
    MANY_WORDS = 10;
    /// An action whose words are bounded as those of a function of keys are.
    KEY_WORDS = 11;
    /// May be sent by a RESP2 client that has subscribed.
    WHILE_SUBSCRIBED = 12;
    /// Runs inside MULTI instead of being queued.
    INSIDE_MULTI = 13;
    /// Runs what was queued.
    RUNS_QUEUE = 14;
    /// Chooses the database of what is behind it.
    SELECTS = 15;
    /// Exchanges or empties databases: some microseconds each.
    FLUSHES = 16;
    /// Exchanges databases.
    SWAPS = 17;
    /// Takes as long as the keyspace is large.
    TOUR = 18;
    /// Counts as a use of its keys whatever the client asked for.
    TOUCHES = 19;
    /// Begins or ends a pause, so none holds it.
    PAUSES = 20;
    /// Watches its keys, each in its own place.
    WATCHES = 21;
    /// SET, whose third word is a value whatever it says.
    SETS = 22;
    /// Does not look at what it replaces.
    REPLACES = 23;
    /// Removes its keys whole.
    REMOVES = 24;
    /// Reads a value and writes nothing but when it expires.
    READS_VALUE = 25;
    /// Reads keys one by one, so some of them may be rows that come later.
    FETCHES = 26;
    /// Changes the protocol of what is behind it.
    SPEAKS = 27;
    /// Sends a message to the subscribers of a pattern.
    PASSES_PATTERNS = 28;
    /// Takes its keys behind the word KEYS, if its key word is empty (MIGRATE).
    KEYS_BEHIND = 29;
    /// Answers the text of a script.
    SHOWS_SCRIPT = 30;
    /// An action whose reply depends on libraries of functions.
    TELLS_LIBRARIES = 31;
}

impl Command {
    /// Whether its row has one of these facts.
    #[inline]
    pub const fn is(&self, facts: u32) -> bool {
        self.facts & facts != 0
    }

    /// Whether it is `SET key value`, which does not look at what it replaces.
    #[inline]
    pub fn is_plain_set(&self, args: Args<'_>) -> bool {
        self.is(SETS) && args.len() == 3
    }

    /// Whether it may change something: a write, a script, or what was queued.
    #[inline]
    pub fn may_write(&self) -> bool {
        self.is_write() || self.is(SCRIPT | RUNS_QUEUE)
    }
}

/// Whether a command may ask for keys its row cannot name (SORT with BY, GET or STORE).
pub fn has_unknown_keys(command: &Command, args: Args<'_>) -> bool {
    let words = ["by", "get", "store"];
    command.keys.iter().any(|spec| spec.begin == Begin::Unknown)
        && args.iter().skip(2).any(|arg| words.iter().any(|word| crate::options::is(arg, word)))
}

/// Whether a command changes libraries of functions.
#[inline]
pub fn changes_libraries(command: &Command) -> bool {
    command.is(CHANGES_CODE) && command.is_write()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;
    use crate::places;
    use crate::table::{PUBSUB, WRITE};

    fn with(facts: u32) -> impl Iterator<Item = &'static Command> {
        places::all().iter().copied().filter(move |command| command.is(facts))
    }

    #[test]
    fn every_fact_is_one_of_some_row() {
        for (fact, name) in ALL {
            assert!(with(*fact).next().is_some(), "{name}");
        }
        let bits = ALL.iter().fold(0, |bits, (fact, _)| bits | fact);
        assert_eq!(bits.count_ones() as usize, ALL.len());
    }

    #[test]
    fn facts_of_actions_stand_at_actions() {
        let of_actions = SCRIPT
            | ENGINE
            | PUBLISHES
            | SLOW_ACTION
            | AT_PLACE
            | CHANGES
            | CHANGES_CODE
            | LONG_WORDS
            | MANY_WORDS;
        assert!(with(of_actions).all(|command| matches!(command.run, Run::Exec)));
    }

    #[test]
    fn every_write_says_who_knows_what_it_tells() {
        for command in places::all().iter().filter(|command| command.is_write()) {
            let version = command.portable_from();
            let known =
                if command.group == "roaring" { version == 0 } else { (100..=704).contains(&version) };
            assert!(known, "{}: {version}", command.name);
        }
        let row = |name: &str| crate::registry::row(name).map(Command::portable_from);
        assert_eq!(["set", "hsetex", "append", "r.setbit"].map(row), [602, 704, 200, 0].map(Some));
    }

    #[test]
    fn facts_that_follow_from_each_other_stand_together() {
        assert!(with(FUNCTION).all(|command| command.is(SCRIPT)));
        assert!(with(SWAPS).all(|command| command.is(FLUSHES)));
        assert!(with(FLUSHES | SETS | REPLACES | REMOVES | READS_VALUE).all(|command| command.has(WRITE)));
        assert!(with(PUBLISHES).all(|command| command.has(PUBSUB) && command.is(REPLICATES | CHANGES)));
        assert!(with(PASSES_PATTERNS).all(|command| command.is(PUBLISHES)));
        assert!(with(CHANGES_CODE).all(|command| command.is(CHANGES)));
        assert!(with(WATCHES).all(|command| command.is(KEY_WORDS) && command.is(INSIDE_MULTI)));
        assert!(with(RUNS_QUEUE).all(|command| command.is(INSIDE_MULTI)));
        // Whatever subscribes or ends a subscription may come while its client has one.
        let listens = |command: &&&Command| command.name.ends_with("subscribe");
        assert!(places::all().iter().filter(listens).all(|command| command.is(WHILE_SUBSCRIBED)));
        assert!(with(SCRIPT).all(|command| command.group == "scripting"));
    }
}
