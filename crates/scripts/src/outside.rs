//! The world outside of the keyspace, as a script sees it.

use super::Letter;
use command::{Command, Error};
use keyspace::View;
use resp::{Args, Reply};

/// Performs commands that are no function of the keyspace for a script. `exec` implements it for a loop; a
/// thread has its reader, which sends a letter to the loop.
pub trait Outside {
    /// Performs a command; `out` gets the answer. `in_script` tells a call by Lua from one by a transaction.
    /// Errors: those of the command.
    fn perform(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
        in_script: bool,
        out: &mut Reply,
    ) -> Result<(), Error>;
}

/// The server around scripts. `exec` implements it.
pub trait House: Send + Sync {
    /// Sends a letter to a loop.
    fn post(&self, loop_id: usize, letter: Letter);

    /// Whether the process is ending: no loop answers any more.
    fn is_ending(&self) -> bool;

    /// The rows that the keys of a call are. `None`: its keys are in their own database. Errors: the call may
    /// not run.
    fn rows_of(&self, db: usize, command: &Command, args: Args<'_>) -> Result<Option<Box<dyn Rows>>, Error>;

    /// Whether a command of this client that writes may run now. Errors: its changes could not be kept, or come
    /// from a primary alone.
    fn may_write(&self, client: u64) -> Result<(), Error>;

    /// Whether the keys of a script's call are this node's, in a cluster. Errors: they are not.
    fn may_touch(&self, client: u64, command: &Command, args: Args<'_>) -> Result<(), Error>;

    /// Whether only commands run that need no data: those here are old, and `replica-serve-stale-data` is no.
    fn is_stale(&self) -> bool;

    /// Notes that a script's call was denied.
    fn denied(&self, client: u64, user: &acl::User, call: (&Command, Args<'_>), denied: acl::Denied);

    /// Whether a later HELLO of the transaction will change the protocol to version 3.
    fn will_speak(&self, args: Args<'_>) -> Option<bool>;
}

/// The rows of one source.
pub trait Rows {
    /// Their databases: that of the rows, and that of the keys known to be no row.
    fn dbs(&self) -> [usize; 2];

    fn name(&self) -> &str;

    /// Whether the row of a key is known, in a view of the first of these databases.
    fn is_known(&self, view: &mut View<'_>, key: &[u8]) -> bool;

    /// The error of a command whose row was removed before it was read.
    fn removed_before(&self, key: &[u8]) -> Error;
}
