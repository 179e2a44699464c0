//! Replies of ACL: users, entries of the log, verdicts.

use crate::check::Denied;
use crate::log::Entry;
use crate::user::User;
use command::Command;
use resp::{Args, Reply};

/// The lines of ACL HELP.
pub const HELP: &[&str] = &[
    "CAT [<category>]",
    "    Categories of commands, or the commands of one.",
    "DELUSER <name> [<name> ...]",
    "    Remove users, and close their connections.",
    "DRYRUN <name> <command> [<arg> ...]",
    "    Whether the user may run the command, without running it.",
    "GENPASS [<bits>]",
    "    A password that nobody can guess, of 256 bits or as many as asked for.",
    "GETUSER <name>",
    "    The rules of a user.",
    "LIST",
    "    A line for every user, as a configuration file has it.",
    "LOAD",
    "    Take the users of the ACL file instead of all others.",
    "LOG [<count> | RESET]",
    "    What was denied lately; or forget that.",
    "SAVE",
    "    Write all users into the ACL file.",
    "SETUSER <name> [<rule> ...]",
    "    Make a user or change one.",
    "USERS",
    "    The names of all users.",
    "WHOAMI",
    "    The user of this connection.",
];

/// The error of ACL LOAD and ACL SAVE without a file.
pub const NO_FILE: &str = "ERR This Redis instance is not configured to use an ACL file. You may want to specify users \
                           via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis \
                           configuration file set) in order to store users in the Redis configuration.";

impl User {
    /// Writes the reply of ACL GETUSER. O(rules).
    pub fn describe(&self, out: &mut Reply) {
        let (root, more) = self.parts();
        out.map(6);
        out.bulk(b"flags");
        let flags = self.flags();
        out.set(flags.len());
        flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
        out.bulk(b"passwords");
        let passwords = self.passwords();
        out.array(passwords.len());
        passwords.iter().for_each(|hash| out.bulk(hash.as_bytes()));
        let parts = |out: &mut Reply, values: &[Vec<u8>; 3]| {
            for (name, value) in ["commands", "keys", "channels"].iter().zip(values) {
                out.bulk(name.as_bytes());
                out.bulk(value);
            }
        };
        parts(out, &root);
        out.bulk(b"selectors");
        out.array(more.len());
        for one in &more {
            out.map(3);
            parts(out, one);
        }
    }

    /// The words of ACL DRYRUN for a denied call. They name the key or the channel.
    pub fn verdict(&self, denied: Denied, command: &Command, call: Args<'_>) -> Vec<u8> {
        let (at, kind): (_, &[u8]) = match denied {
            Denied::Key(at) => (at, b"' key"),
            Denied::Channel(at) => (at, b"' channel"),
            denied => return denied.text(self, command).into_bytes(),
        };
        [b"User ", self.name(), b" has no permissions to access the '", call.at(at), kind].concat()
    }
}

/// Writes the reply of ACL LOG. O(entries).
pub fn show_log(entries: &[Entry], now_ms: u64, out: &mut Reply) {
    out.array(entries.len());
    for entry in entries {
        out.map(10);
        out.bulk(b"count");
        out.int(entry.count as i64);
        let words: [(&str, &[u8]); 4] = [
            ("reason", entry.reason.name().as_bytes()),
            ("context", entry.context.name().as_bytes()),
            ("object", &entry.object),
            ("username", &entry.user),
        ];
        for (name, value) in words {
            out.bulk(name.as_bytes());
            out.bulk(value);
        }
        out.bulk(b"age-seconds");
        out.double(now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0);
        out.bulk(b"client-info");
        out.bulk(entry.client.as_bytes());
        let numbers = [
            ("entry-id", entry.id),
            ("timestamp-created", entry.created_ms),
            ("timestamp-last-updated", entry.updated_ms),
        ];
        for (name, value) in numbers {
            out.bulk(name.as_bytes());
            out.int(value as i64);
        }
    }
}
