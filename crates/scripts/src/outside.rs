//! The world outside of the keyspace, as a script sees it.

use super::Letter;
use command::{Command, Error};
use keyspace::View;
use resp::{Args, Reply};

/// Performs for a script what is no function of the keyspace. `exec` implements it for a loop; a thread has
/// its reader, which sends a letter to the loop.
pub trait Outside {
    /// Performs a command; `out` gets the answer. `in_script`: Lua calls it, and no transaction. Errors: the
    /// command's own.
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

    /// The rows that the keys of a call are; None: its keys are in their own database. Errors: it may not be
    /// run.
    fn rows_of(&self, db: usize, command: &Command, args: Args<'_>) -> Result<Option<Box<dyn Rows>>, Error>;

    /// Whether a command that writes may be run now. Errors: what it was made could not be kept.
    fn may_write(&self) -> Result<(), Error>;

    /// Notes that a script's call was denied.
    fn denied(&self, client: u64, user: &acl::User, call: (&Command, Args<'_>), denied: acl::Denied);

    /// The version of the protocol (is it the third?) that a HELLO which is yet to come will change to.
    fn will_speak(&self, args: Args<'_>) -> Option<bool>;
}

/// The rows of one source.
pub trait Rows {
    /// The databases they are in: of rows, and of keys that are known to be none.
    fn dbs(&self) -> [usize; 2];

    fn name(&self) -> &str;

    /// Whether it is known what a row is, in a view of the first of these databases.
    fn is_known(&self, view: &mut View<'_>, key: &[u8]) -> bool;

    /// The error of a command whose row was removed before it was read.
    fn removed_before(&self, key: &[u8]) -> Error;
}
