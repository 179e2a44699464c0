//! Sends the figures of /metrics to a collector of OpenTelemetry, on a thread of its own (`otlp-endpoint`).
//!
//! A collector that is slow or away delays this thread alone: what it could not take is not kept, as the next figures
//! hold all of it. The log has a line when sending begins to fail, and another when it works again.

use exec::Server;
use exec::pages::otlp::{self, Origin, PATH, PORT, Target};
use std::io::{Error, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that a collector may take to connect, to read and to answer, each.
const PATIENCE: Duration = Duration::from_secs(5);

/// Begins to send, if an address is set. Errors: a sentence: the address is none, or there is no thread.
pub fn start(server: &Arc<Server>) -> Result<(), String> {
    let endpoint = server.config.live.otlp_endpoint.string();
    if endpoint.is_empty() {
        return Ok(());
    }
    let target =
        Target::parse(&endpoint, PORT, PATH).map_err(|why| format!("otlp-endpoint '{endpoint}': {why}"))?;
    let server = server.clone();
    let origin = Origin { instance: server.run_id.clone(), start_ns: stdx::clock::wall_ns() };
    let run = move || {
        let mut fails = false;
        loop {
            std::thread::sleep(Duration::from_secs(server.config.live.otlp_period_s.get().max(1) as u64));
            let sent = send(&server, &target, &origin);
            match &sent {
                Err(why) if !fails => log::warn!("the figures cannot be sent to {endpoint}: {why}"),
                Ok(()) if fails => log::info!("the figures are sent to {endpoint} again"),
                _ => {}
            }
            fails = sent.is_err();
        }
    };
    let started = std::thread::Builder::new().name("otlp".into()).spawn(run);
    started.map(drop).map_err(|e| e.to_string())
}

/// Sends the figures once. Cost: that of the page, and a connection. Errors: what the collector or the network
/// refused.
fn send(server: &Server, target: &Target, origin: &Origin) -> Result<(), Error> {
    let page = exec::http::metrics_page(server);
    let request = target.post_json(&otlp::of_page(&page, origin, stdx::clock::wall_ns()));
    let mut last = Error::other("its name has no address");
    for address in (target.host.as_str(), target.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return exchange(stream, &request),
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn exchange(mut stream: TcpStream, request: &[u8]) -> Result<(), Error> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    let mut response = [0; 12];
    stream.read_exact(&mut response)?;
    match otlp::status(&response) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(Error::other(format!("it answers with {status}"))),
        None => Err(Error::other("it answers with something else than HTTP")),
    }
}
