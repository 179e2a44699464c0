//! The text for a person who starts the server at a terminal. It says what the server is, where it listens,
//! what it does not do, and what to type next.

use crate::sockets::{Sockets, shell_quoted};
use config::Config;
use std::fmt::Write as _;

/// The banner for a terminal. `is_open`: clients need not log in.
pub fn banner(config: &Config, is_open: bool, sockets: &Sockets, backend: net::Backend) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "\n  Evenkeel {}: a Redis-compatible server in which", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(out, "  no client ever waits for another client's work\n");
    let _ = writeln!(out, "  listens on   {}", places(sockets).join(", "));
    let loops = config.event_loops();
    let _ = writeln!(
        out,
        "  serves with  {loops} event loop{} on {}",
        if loops == 1 { "" } else { "s" },
        backend.name()
    );
    if let Some(file) = config.file() {
        let _ = writeln!(out, "  configured   {}", file.display());
    }
    let _ = writeln!(out, "  data         {}\n", keeping(config));
    let redis_cli = client_command(is_open, sockets);
    let _ = writeln!(out, "  try          {redis_cli} set greeting hello");
    if let Some(address) = sockets.http.iter().find_map(|s| s.local_addr().ok()) {
        let _ = writeln!(out, "               http://{address}/              (the console, in a browser)");
    }
    if config.live.demo.get() {
        let _ = writeln!(
            out,
            "               {redis_cli} get item:42         (read through to a demonstration table)"
        );
        if let Some(address) = sockets.http.iter().find_map(|s| s.local_addr().ok()) {
            let _ = writeln!(out, "               curl http://{address}/items/42");
        }
        let _ = writeln!(out, "               {redis_cli} evenkeel source stats items");
    }
    let _ = writeln!(out, "  stop         Ctrl-C\n");
    out
}

/// Where the data is kept.
pub fn keeping(config: &Config) -> String {
    let live = &config.live;
    if live.appendonly.get() {
        let fsync = ["everysec", "always", "no"].get(live.appendfsync.size()).unwrap_or(&"everysec");
        let (dir, name) = (live.dir.string(), live.appenddirname.string());
        return format!("append-only log in {dir}/{name} (appendfsync {fsync})");
    }
    if live.save_points.is_empty() {
        return "memory only: nothing is written to disk, the data ends with the server".to_owned();
    }
    format!("snapshots in {}/{}", live.dir.string(), live.dbfilename.string())
}

/// The addresses and paths that the server listens on.
pub fn places(sockets: &Sockets) -> Vec<String> {
    let tcp = sockets.tcp.iter().map(|socket| (socket, "", ""));
    let tls = sockets.tls.iter().map(|socket| (socket, "", " (TLS)"));
    let http = sockets.http.iter().map(|socket| (socket, "http://", ""));
    let https = sockets.https.iter().map(|socket| (socket, "https://", ""));
    let shown = |(socket, before, behind): (&std::net::TcpListener, &str, &str)| {
        Some(format!("{before}{}{behind}", socket.local_addr().ok()?))
    };
    let unix = sockets.unix.iter().map(|s| s.path.display().to_string());
    tcp.chain(tls).filter_map(shown).chain(unix).chain(http.chain(https).filter_map(shown)).collect()
}

/// The command by which to talk to this server from this machine.
fn client_command(is_open: bool, sockets: &Sockets) -> String {
    let mut command = String::from("redis-cli");
    if sockets.tcp.is_empty() && sockets.unix.is_none() && !sockets.tls.is_empty() {
        command.push_str(" --tls --cacert FILE");
    }
    let tcp = sockets.tcp.iter().find_map(|s| s.local_addr().ok());
    let tls = || sockets.tls.iter().find_map(|s| s.local_addr().ok()).filter(|_| sockets.unix.is_none());
    match (tcp.or_else(tls), &sockets.unix) {
        (Some(address), _) => {
            let ip = address.ip();
            if !ip.is_unspecified() && ip != std::net::Ipv4Addr::LOCALHOST {
                let _ = write!(command, " -h {ip}");
            }
            let _ = write!(command, " -p {}", address.port());
        }
        (None, Some(unix)) => {
            let _ = write!(command, " -s {}", shell_quoted(&unix.path.display().to_string()));
        }
        (None, None) => {}
    }
    if !is_open {
        command.push_str(" --askpass");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::listen;
    use config::Sources;

    #[test]
    fn it_says_what_where_and_what_next() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = format!("port {port}\nbind 127.0.0.1\nrequirepass x");
        let sources = Sources { stdin: true, ..Sources::default() };
        let config = Config::load(&sources, &mut text.as_bytes()).unwrap();
        let sockets = listen(&config, &[]).unwrap();
        let text = banner(&config, false, &sockets, net::Backend::Epoll);
        for words in [
            concat!("Evenkeel ", env!("CARGO_PKG_VERSION")),
            &format!("127.0.0.1:{port}"),
            "/dump.rdb",
            &format!("redis-cli -p {port} --askpass set greeting hello"),
        ] {
            assert!(text.contains(words), "{words} missing in {text}");
        }
    }
}
