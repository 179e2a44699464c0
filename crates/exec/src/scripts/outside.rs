//! The world outside of the keyspace, as a script sees it.

use command::{Command, Error};
use resp::{Args, Reply};

/// Performs for a script what is no function of the keyspace. `exec` implements it for a loop; a thread has its reader, which sends
/// a letter to the loop.
pub(crate) trait Outside {
    /// Performs a command; `out` gets the answer. `in_script`: Lua calls it, and no transaction. Errors: the command's own.
    fn perform(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
        in_script: bool,
        out: &mut Reply,
    ) -> Result<(), Error>;
}
