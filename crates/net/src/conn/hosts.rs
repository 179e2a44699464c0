//! Names by which HTTP clients may call the server.
//!
//! A page of another site may have its own name point to this machine, and then read what the server answers to
//! a browser (DNS rebinding). The Host header still has that other name.

use exec::Server;
use std::net::IpAddr;
use std::sync::LazyLock;

/// The machine's own name.
static OWN: LazyLock<String> =
    LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().into_owned());

/// Whether a Host header is an address, `localhost`, the machine's name, or one of `http-hosts`. A request
/// without one, as in HTTP/1.0, is none of a browser. O(bytes of `http-hosts`).
pub(super) fn is_ours(server: &Server, host: Option<&[u8]>) -> bool {
    let Some(host) = host else { return true };
    let Ok(host) = std::str::from_utf8(host) else { return false };
    is_local(host) || is_named(name_of(host), &server.config.live.http_hosts.string())
}

/// Whether a Host header is an address, `localhost` or the machine's name.
fn is_local(host: &str) -> bool {
    let name = name_of(host);
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    is("localhost") || is(&OWN) || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Whether a name is among words; `*` is any.
fn is_named(name: &str, words: &str) -> bool {
    words.split(' ').any(|word| word == "*" || !word.is_empty() && word.eq_ignore_ascii_case(name))
}

/// A Host header without its port, and without the dot of the root.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_ours() {
        for host in
            ["127.0.0.1", "10.1.2.3:8379", "[::1]:8379", "[::1]", "localhost", "LocalHost:80", "localhost."]
        {
            assert!(is_local(host), "{host}");
        }
        assert!(is_local(&OWN) && is_local(&format!("{}:8379", *OWN)));
        for host in ["evil.example", "localhost.evil.example:8379", "127.0.0.1.evil.example", "", "a:b"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_name_may_be_given() {
        assert!(is_named("cache.internal", "a cache.internal") && is_named("A", "a") && is_named("x", "*"));
        assert!(!is_named("cache", "cache.internal") && !is_named("", "") && !is_named("x", ""));
    }
}
