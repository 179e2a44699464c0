//! Classifies MongoDB's errors.

use crate::Failure;
use ::mongodb::error::{Error, ErrorKind};

/// Codes after which the feed's place in the history is gone. 280 is ChangeStreamFatalError, 286
/// ChangeStreamHistoryLost, 136 CappedPositionLost. 40585 and 260: the resume token is not found, or is none.
/// 10334 is BSONObjectTooLarge, an event that can never be sent.
const GONE: &[i32] = &[280, 286, 40585, 260, 136, 10334];

/// Codes of passing troubles: an election, a shutdown, a move of data between shards, a load limit.
const PASSING: &[i32] = &[
    6, 7, 43, 63, 89, 91, 133, 134, 136, 150, 189, 202, 211, 234, 237, 246, 391, 462, 9001, 10058, 10107,
    11600, 11601, 11602, 13388, 13435, 13436,
];

/// Codes for slowness: 50 MaxTimeMSExpired, 262 ExceededTimeLimit, 24 LockTimeout.
const SLOW: &[i32] = &[50, 262, 24];

/// Code Unauthorized.
const NO_RIGHT: i32 = 13;

/// Code of `$changeStream` on a server that is no member of a replica set.
const NO_REPLICA_SET: i32 = 40573;

/// Classifies an error of a load. `namespace` is `database.collection`.
pub(super) fn of_load(error: &Error, namespace: &str) -> Failure {
    match &*error.kind {
        ErrorKind::Command(command) if SLOW.contains(&command.code) => Failure::Slow,
        ErrorKind::Command(command) if PASSING.contains(&command.code) => Failure::Down(command.to_string()),
        ErrorKind::Command(command) if command.code == NO_RIGHT => Failure::Refused(format!(
            "the user may not read {namespace}: grant the action 'find' on it, as the role 'read' does ({})",
            command.message
        )),
        ErrorKind::Command(command) => Failure::Refused(command.to_string()),
        _ => of_connection(error),
    }
}

/// Classifies an error of the change stream. `resumed`: the stream was to go on where it broke off.
pub(super) fn of_feed(error: &Error, namespace: &str, resumed: bool) -> Failure {
    let ErrorKind::Command(command) = &*error.kind else { return of_connection(error) };
    match command.code {
        code if GONE.contains(&code) => Failure::Lost(command.to_string()),
        _ if error.contains_label("NonResumableChangeStreamError") => Failure::Lost(command.to_string()),
        code if PASSING.contains(&code) || SLOW.contains(&code) => Failure::Down(command.to_string()),
        _ if error.contains_label("ResumableChangeStreamError") => Failure::Down(command.to_string()),
        NO_REPLICA_SET => Failure::Refused(
            "its changes cannot be followed: change streams need a replica set or a sharded cluster. A single server becomes a \
             replica set of one by 'replication.replSetName' in its configuration and rs.initiate()"
                .into(),
        ),
        NO_RIGHT => Failure::Refused(format!(
            "the user may not follow the changes of {namespace}: grant the actions 'find' and 'changeStream' on it, as the role \
             'read' does ({})",
            command.message
        )),
        // An unknown error: with the place kept, it might repeat for ever.
        _ if resumed => Failure::Lost(command.to_string()),
        _ => Failure::Refused(command.to_string()),
    }
}

fn of_connection(error: &Error) -> Failure {
    match &*error.kind {
        ErrorKind::Authentication { message, .. } => Failure::Refused(format!("login failed: {message}")),
        ErrorKind::InvalidArgument { message, .. }
        | ErrorKind::IncompatibleServer { message, .. }
        | ErrorKind::InvalidTlsConfig { message, .. } => Failure::Refused(message.clone()),
        ErrorKind::ServerSelection { message, .. } => of_selection(message),
        kind => Failure::Down(kind.to_string()),
    }
}

/// Classifies the error that the driver found no server to ask. Its text lists every server; the trouble of
/// the first is what a reader needs. Only the first load gets a failed login as such; all others find no
/// server.
fn of_selection(message: &str) -> Failure {
    let trouble = message.split_once("Error: Kind: ").and_then(|(_, rest)| rest.split_once(", labels:"));
    match trouble {
        Some((trouble, _)) if trouble.contains("Authentication failed") => {
            Failure::Refused(format!("login failed: {trouble}"))
        }
        Some((trouble, _)) => Failure::Down(format!("no server can be reached: {trouble}")),
        None => Failure::Down(message.to_owned()),
    }
}
