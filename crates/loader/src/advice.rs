//! Errors about the server, not about the command sent. They end the run whatever `--on-error` says, and the
//! command counts as not sent.

/// The error of the server `place` with advice; None if it is about the command. `error`: its text, without
/// the `-`.
pub fn about_server(place: &str, error: &[u8]) -> Option<String> {
    let code = error.split(|byte| *byte == b' ').next()?;
    let (_, advice) = TABLE.iter().find(|(known, _)| known.as_bytes() == code)?;
    Some(format!("{place} answers '{}': {advice}", dial::shown(error)))
}

/// Whether the server will accept the command if it is repeated later.
pub fn passes(error: &[u8]) -> bool {
    error.starts_with(b"LOADING") || error.starts_with(b"BUSY ")
}

const NODE: &str =
    "it is a node of a cluster, and redirections are not followed; name a server that has all slots";

/// Advice by the first word of the error.
const TABLE: &[(&str, &str)] = &[
    ("MOVED", NODE),
    ("ASK", NODE),
    ("TRYAGAIN", NODE),
    ("CROSSSLOT", NODE),
    ("CLUSTERDOWN", "its cluster does not serve all slots; look at CLUSTER INFO there"),
    ("READONLY", "it is a replica; name its primary"),
    ("MASTERDOWN", "it is a replica that has lost its primary; name the primary"),
    ("NOREPLICAS", "it has fewer replicas than its min-replicas-to-write asks for"),
    ("NOAUTH", "it wants a password; see --password, and for the source of a copy --from-password"),
    ("WRONGPASS", "the password or the user is wrong"),
    ("NOPERM", "the user has no right to do that; see ACL GETUSER there"),
    ("LOADING", "it is loading its data; try again when it has done so"),
    ("BUSY", "a script has been running there for long; try again, or see SCRIPT KILL there"),
    ("OOM", "its memory is used up; see maxmemory and maxmemory-policy there"),
    ("MISCONF", "it cannot save its data; look into its log"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_server_are_told_with_an_advice() {
        let text = about_server("here:1", b"MOVED 866 10.0.0.1:7001").unwrap_or_default();
        assert_eq!(text, format!("here:1 answers 'MOVED 866 10.0.0.1:7001': {NODE}"));
        assert!(about_server("", b"BUSY Redis is busy").is_some_and(|text| text.contains("SCRIPT KILL")));
        for about_a_row in
            [&b"BUSYKEY Target key name already exists."[..], b"WRONGTYPE Operation", b"ERR x", b""]
        {
            assert_eq!(about_server("here:1", about_a_row), None);
        }
        assert!(passes(b"LOADING Redis is loading") && passes(b"BUSY Redis") && !passes(b"BUSYKEY Target"));
    }
}
