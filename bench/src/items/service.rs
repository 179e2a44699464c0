//! The Go service (`bench/peers/items-go`), which does a source's work by hand.

use super::traffic::{Protocol, Reader};
use crate::server;
use crate::sys;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub struct Service {
    pub port: u16,
    process: Child,
}

/// The path of the program. Errors: it is not built.
pub fn program(peers: Option<&str>) -> Result<PathBuf, String> {
    let path = server::peers_folder(peers).join("items-go");
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("The Go service is missing ({}); `make bench-items` builds it", path.display())),
    }
}

impl Service {
    /// Starts it in front of a table, with a cache for so many items. Errors: in words.
    pub fn start(
        program: &Path,
        url: &str,
        table: &str,
        items: u64,
        cpus: &[usize],
    ) -> Result<Service, String> {
        let port = server::free_port().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command
            .args(["-port", &port.to_string(), "-url", url, "-table", table, "-items", &items.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        sys::bind_child(&mut command, cpus);
        let process = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
        let service = Service { port, process };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let asked = Reader::connect(port, Protocol::Http, "/items/");
            match asked.and_then(|mut reader| reader.read(1).map(|_| ())) {
                Ok(()) => return Ok(service),
                Err(error) if Instant::now() > deadline => return Err(format!("the Go service: {error}")),
                Err(_) => sleep(Duration::from_millis(20)),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The body of a page of the service.
pub fn page(port: u16, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok(body.to_string())
}
