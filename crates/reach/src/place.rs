//! The server that a command line names: by host and port, by a socket's path, or by a URI as in redis-cli.

use percent_encoding::percent_decode_str;
use std::net::Ipv6Addr;

const PORT: u16 = 6379;

/// A server, and what else a URI says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// `host:port`, or the path of a unix socket.
    pub place: String,
    pub user: Option<String>,
    pub password: Option<String>,
    pub db: Option<u32>,
    pub tls: bool,
}

impl Named {
    fn of_place(place: String) -> Named {
        Named { place, ..Named::default() }
    }

    /// Reads the value of --to or --from: host and port, a socket's path, or a URI. The port may be missing.
    /// O(word).
    pub fn of_word(word: &str) -> Result<Named, String> {
        if word.contains("://") {
            return Named::of_uri(word);
        }
        if word.contains('/') {
            return Ok(Named::of_place(word.to_owned()));
        }
        Ok(Named::of_place(with_port(word)?))
    }

    /// The unix socket at a path. Without a slash the path would be taken for a host.
    pub fn of_socket(path: &str) -> Named {
        Named::of_place(if path.contains('/') { path.to_owned() } else { format!("./{path}") })
    }

    /// Reads the values of -h and -p, each of which may be missing. Errors: the host belongs to another
    /// option.
    pub fn of_host(host: Option<&str>, port: Option<u16>) -> Result<Named, String> {
        let (host, port) = (host.unwrap_or("127.0.0.1"), port.unwrap_or(PORT));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if bare.parse::<Ipv6Addr>().is_ok() {
            return Ok(Named::of_place(format!("[{bare}]:{port}")));
        }
        if host.contains("://") {
            return Err("-h takes a host: say -u URI".to_owned());
        }
        if host.contains('/') {
            return Err(format!("-h takes a host: say -s {host}"));
        }
        match host.split_once(':') {
            Some((host, port)) => Err(format!("-h takes a host alone: say -h {host} -p {port}")),
            None if host.is_empty() => Err("-h takes a host".to_owned()),
            None => Ok(Named::of_place(format!("{host}:{port}"))),
        }
    }

    /// Reads `redis://[user:password@]host[:port][/database]`; a single word before the @ is the password.
    /// Errors do not show passwords.
    pub fn of_uri(uri: &str) -> Result<Named, String> {
        const FORM: &str = "redis://[user:password@]host[:port][/database]";
        let (tls, rest) = match uri.split_once("://") {
            Some(("redis" | "valkey", rest)) => (false, rest),
            Some(("rediss" | "valkeys", rest)) => (true, rest),
            _ => return Err(format!("a URI begins with redis://, or rediss:// for TLS: {FORM}")),
        };
        // As in redis-cli the first @ ends the password; an @ within it is written %40.
        let (login, rest) = rest.split_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or(("", login))) {
            Some((user, password)) => (Some(decoded(user)?), Some(decoded(password)?)),
            None => (None, None),
        };
        let (server, db) = rest.split_once('/').unwrap_or((rest, ""));
        if server.contains(['?', '#']) || db.contains(['?', '#', '/']) {
            return Err(format!("a URI ends with the database: {FORM}"));
        }
        let db = match db {
            "" => None,
            db => Some(db.parse().map_err(|_| format!("'{db}' is not a database number: {FORM}"))?),
        };
        let place = match server.strip_prefix(':') {
            Some(port) => with_port(&format!("127.0.0.1:{port}"))?,
            None if server.is_empty() => format!("127.0.0.1:{PORT}"),
            None => with_port(server)?,
        };
        let named = |word: &String| !word.is_empty();
        let user = user.filter(named);
        // An empty password counts only with a user.
        let password = password.filter(|password| named(password) || user.is_some());
        Ok(Named { place, user, password, db, tls })
    }
}

/// Adds the default port to a host without one.
fn with_port(word: &str) -> Result<String, String> {
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    if bare.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("[{bare}]:{PORT}"));
    }
    match word.rsplit_once(':') {
        None => Ok(format!("{word}:{PORT}")),
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(word.to_owned()),
        Some((_, port)) => Err(format!("'{port}' is not a port: say host:port")),
    }
}

fn decoded(word: &str) -> Result<String, String> {
    let text = percent_decode_str(word).decode_utf8();
    text.map(String::from).map_err(|_| "user and password of a URI must be UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> String {
        match Named::of_uri(text) {
            Ok(Named { place, user, password, db, tls }) => {
                format!("{place} {user:?} {password:?} {db:?} {tls}")
            }
            Err(why) => why,
        }
    }

    #[test]
    fn uris_are_read_as_redis_cli_reads_them() {
        assert_eq!(uri("redis://h"), "h:6379 None None None false");
        assert_eq!(uri("redis://"), "127.0.0.1:6379 None None None false");
        assert_eq!(uri("redis://:7000/3"), "127.0.0.1:7000 None None Some(3) false");
        assert_eq!(uri("rediss://h:7000/"), "h:7000 None None None true");
        assert_eq!(uri("redis://secret@h/3"), "h:6379 None Some(\"secret\") Some(3) false");
        assert_eq!(uri("valkey://:secret@[::1]:7000"), "[::1]:7000 None Some(\"secret\") None false");
        assert_eq!(uri("redis://ann:a%40b%3Ac@h"), "h:6379 Some(\"ann\") Some(\"a@b:c\") None false");
        assert_eq!(uri("redis://ann:@h"), "h:6379 Some(\"ann\") Some(\"\") None false");
        assert_eq!(uri("redis://@h"), "h:6379 None None None false");
        for wrong in [
            "http://h",
            "redis://s3cret@h/x",
            "redis://s3cret@h:x",
            "redis://s3cret@h?db=1",
            "redis://s3cret@h/1/2",
        ] {
            let why = Named::of_uri(wrong).expect_err(wrong);
            assert!(!why.contains("s3cret"), "{why}");
        }
    }

    #[test]
    fn hosts_stand_alone_or_with_their_port() {
        let word = |word| Named::of_word(word).map(|named| named.place);
        assert_eq!(word("h"), Ok("h:6379".into()));
        assert_eq!(word("h:7000"), Ok("h:7000".into()));
        assert_eq!(word("::1"), Ok("[::1]:6379".into()));
        assert_eq!(word("[::1]:7000"), Ok("[::1]:7000".into()));
        assert_eq!(word("/run/redis.sock"), Ok("/run/redis.sock".into()));
        assert_eq!(word("rediss://h:1"), Ok("h:1".into()));
        assert_eq!(word("h:x"), Err("'x' is not a port: say host:port".into()));
        let host = |host, port| Named::of_host(host, port).map(|named| named.place);
        assert_eq!(host(None, Some(7000)), Ok("127.0.0.1:7000".into()));
        assert_eq!(host(Some("::1"), None), Ok("[::1]:6379".into()));
        assert_eq!(host(Some("h:7000"), None), Err("-h takes a host alone: say -h h -p 7000".into()));
        assert_eq!(host(Some("/run/s"), None), Err("-h takes a host: say -s /run/s".into()));
        assert_eq!(host(Some("redis://x@h"), None), Err("-h takes a host: say -u URI".into()));
    }
}
