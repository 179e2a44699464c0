//! The parts that a command is performed with, and the table of actions: the commands that are no function of
//! the keyspace.
//!
//! The server gets the table when it starts. So the code that runs commands does not depend on the actions.

use crate::{Local, Server, Session};
use command::Flow;
use command::{Command, Error, facts, places};
use keyspace::View;
use resp::{Args, OwnedArgs, Reply};
use std::sync::Arc;
use work::reports::MakeReport;

/// The parts a command is performed with.
pub struct Act<'a, 'k> {
    pub server: &'a Arc<Server>,
    pub local: &'a mut Local,
    pub session: &'a mut Session,
    pub out: &'a mut Reply,
    /// The view that EXEC or a script holds. Its locks are held, so an action must lock nothing else.
    pub view: Option<&'a mut View<'k>>,
    pub in_script: bool,
    pub in_multi: bool,
    /// The transaction is committed: no locks are held, and the answer may come in pieces or by mail.
    pub committed: bool,
    /// The words of the command, if they are many: a caller that keeps them takes a share, not a copy.
    pub(crate) kept: Option<&'a Arc<OwnedArgs>>,
    /// The hash of the first argument, if it is known.
    pub(crate) key_hash: Option<u64>,
    /// The command became a job, or a script on a thread. It is counted when that is done.
    pub(crate) is_job: bool,
    /// The caller collects an answer that would be collected elsewhere: the place for what is to be collected.
    pub(crate) collects: Option<&'a mut Option<Rest>>,
}

/// Collects an answer where it may take long.
pub(crate) type Collect = Box<dyn FnOnce(&mut Reply) + Send>;

/// The rest of an action, which is collected elsewhere.
pub(crate) enum Rest {
    Whole(Collect),
    InSteps(MakeReport),
}

impl<'a> Act<'a, '_> {
    /// For a command that a client sent, outside transactions and scripts.
    #[inline]
    pub(crate) fn of_client(
        server: &'a Arc<Server>,
        local: &'a mut Local,
        session: &'a mut Session,
        out: &'a mut Reply,
    ) -> Self {
        Act {
            server,
            local,
            session,
            out,
            view: None,
            in_script: false,
            in_multi: false,
            committed: false,
            kept: None,
            key_hash: None,
            is_job: false,
            collects: None,
        }
    }

    /// The words of the command, to keep. O(1) if they are many, else O(words).
    pub(crate) fn keep(&self, args: Args<'_>) -> Arc<OwnedArgs> {
        self.kept.cloned().unwrap_or_else(|| Arc::new(args.to_owned()))
    }

    /// Whether the whole answer must be there on return: locks are held, or a script waits for it.
    pub(crate) fn is_pressed(&self) -> bool {
        (self.in_multi || self.in_script) && !self.committed
    }
}

/// Performs a command that is no function of the keyspace.
pub type Action = fn(&mut Act<'_, '_>, Args<'_>) -> Result<Flow, Error>;

/// Name and function. `KEYSPACE` marks actions that look at keys themselves; EXEC locks everything for them.
pub(crate) struct Row(pub &'static str, pub Action, pub bool);

pub(crate) const PLAIN: bool = false;
pub(crate) const KEYSPACE: bool = true;

/// Begins a function of the keyspace in slices, for a client outside transactions and scripts. None: it runs
/// inline.
pub type Begin = fn(&mut Act<'_, '_>, Args<'_>) -> Option<Flow>;

/// All actions, by the number of their command.
pub struct Actions {
    rows: Vec<Option<&'static Row>>,
    begins: Vec<Option<Begin>>,
}

impl Actions {
    /// Builds the table. Cost: O(commands · rows), once.
    pub(crate) fn of(topics: &[&'static [Row]], begins: &[(&str, Begin)]) -> Actions {
        let row = |name: &str| topics.iter().flat_map(|topic| topic.iter()).find(|row| row.0 == name);
        let begin = |name: &str| begins.iter().find(|(of, _)| *of == name).map(|(_, begin)| *begin);
        Actions {
            rows: places::all().iter().map(|command| row(command.name)).collect(),
            begins: places::all().iter().map(|command| begin(command.name)).collect(),
        }
    }

    fn row(&self, command: &'static Command) -> Option<&'static Row> {
        self.rows.get(places::of(command)).copied().flatten().filter(|row| row.0 == command.name)
    }

    /// Performs an action. Errors: the action's own; the command has no action.
    pub(crate) fn perform(
        &self,
        act: &mut Act<'_, '_>,
        command: &'static Command,
        args: Args<'_>,
    ) -> Result<Flow, Error> {
        match self.row(command) {
            Some(row) => {
                if command.is(facts::CHANGES) {
                    stdx::panics::changes();
                }
                row.1(act, args)
            }
            None => Err(Error::from(format!("ERR '{}' does not exist in Evenkeel yet", command.name))),
        }
    }

    /// Begins a function of the keyspace in slices, if it has such a form and is long enough.
    pub(crate) fn begin(
        &self,
        act: &mut Act<'_, '_>,
        command: &'static Command,
        args: Args<'_>,
    ) -> Option<Flow> {
        self.begins.get(places::of(command)).copied().flatten().and_then(|begin| begin(act, args))
    }

    /// Whether an action looks at keys.
    pub(crate) fn needs_keyspace(&self, command: &'static Command) -> bool {
        self.row(command).is_some_and(|row| row.2)
    }
}
