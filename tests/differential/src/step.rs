//! One step of a stream, and the comparison of its two replies.

/// A step of a stream, which is a list of them. Consecutive steps of one client travel as one pipeline until
/// one says `flush`. A step of another client waits for all replies before it.
#[derive(Clone)]
pub struct Step {
    /// The connection (0 to 3) that carries it.
    pub client: usize,
    pub action: Action,
    pub check: Check,
    /// Ends the pipeline.
    pub flush: bool,
}

#[derive(Clone)]
pub enum Action {
    /// A request with exactly one reply.
    Command(Vec<Vec<u8>>),
    /// A request with any number of replies: all frames up to the answer of a PING sent behind it. An empty
    /// request only collects pushes.
    Collect(Vec<Vec<u8>>),
    /// A request that may block: it is sent, and its block (or reply) awaited.
    Start(Vec<Vec<u8>>),
    /// The reply of this client's `Start`. A client that still blocks at the oracle is unblocked first.
    Finish,
    /// A SCAN-like command without its cursor at `at`, repeated to the end. All elements are one reply.
    Scan { args: Vec<Vec<u8>>, at: usize },
    /// Raw bytes on their own connection, then PING; everything up to its answer or the closing.
    Raw(Vec<u8>),
    /// Wait for small times to live.
    SleepMs(u64),
    /// Closes the connection and opens it anew.
    Reconnect,
    /// DUMP of a key at each server, RESTORE of both payloads at the other. `args` lacks the payload, which
    /// is word 3. Payloads themselves differ; the comparison of all keys shows the restored values.
    Cross { from: Vec<u8>, args: Vec<Vec<u8>> },
    /// Compares all keys of all databases used.
    Dump,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The same frame (maps and RESP3 sets in any order).
    Exact,
    /// An array in any order.
    Unordered,
    /// Field and value, alternating or as a map, in any order.
    Pairs,
    /// Integers may differ by this much (if neither is negative); the rest is exact.
    Near(i64),
    /// The same leaves in any order and nesting, for replies in the order of a hash table.
    Leaves,
    /// The same type of frame; errors exact.
    Kind,
    /// Like `Unordered`, and remembered for the next `Sample` or `Remaining`.
    Probe,
    /// Random elements of the last `Probe`: the same number, plausible, distinct if they must be.
    Sample,
    /// The elements of the last `Probe` without those of the last `Sample`, for each server on its own.
    Remaining,
    /// Not compared.
    Ignore,
}

impl Check {
    /// The name used in the tables.
    pub fn named(name: &str) -> Option<Check> {
        Some(match name {
            "=" => Check::Exact,
            "any" => Check::Unordered,
            "pairs" => Check::Pairs,
            "secs" => Check::Near(3),
            "ms" => Check::Near(3000),
            "leaves" => Check::Leaves,
            "kind" => Check::Kind,
            "ignore" => Check::Ignore,
            _ => return None,
        })
    }
}

impl Step {
    pub fn command(client: usize, args: Vec<Vec<u8>>, check: Check) -> Step {
        Step { client, action: Action::Command(args), check, flush: false }
    }

    /// A step with a reply to compare exactly, ending its pipeline.
    pub fn act(client: usize, action: Action) -> Step {
        Step { client, action, check: Check::Exact, flush: true }
    }

    /// The request in the form of redis-cli, or a description of the step.
    pub fn text(&self) -> String {
        let join =
            |args: &[Vec<u8>]| args.iter().map(|arg| crate::wire::quote(arg)).collect::<Vec<_>>().join(" ");
        match &self.action {
            Action::Command(args) | Action::Collect(args) | Action::Start(args) => join(args),
            Action::Scan { args, at } => {
                let mut args = args.clone();
                args.insert(*at, b"<cursor>".to_vec());
                join(&args)
            }
            Action::Finish => "<reply of the blocked command>".to_owned(),
            Action::Raw(bytes) => format!("<raw> {}", crate::wire::quote(bytes)),
            Action::SleepMs(ms) => format!("<wait {ms} ms>"),
            Action::Reconnect => "<reconnect>".to_owned(),
            Action::Cross { from, args } => {
                let mut args = args.clone();
                args.insert(3, [b"<dump of ", &from[..], b" there>"].concat());
                join(&args)
            }
            Action::Dump => "<compare all keys>".to_owned(),
        }
    }
}

/// A request from text without blanks inside arguments.
pub fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}
