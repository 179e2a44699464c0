//! Runs the same scripts here and on a real Redis. The replies must be the same, byte for byte.
//!
//! Needs a `redis-server` in the path; without one nothing is compared. `scripts.txt` holds a script per
//! line, `settings.txt` scripts that change the settings of cjson, `libraries.txt` libraries (`\n` stands for
//! a line feed).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use script::{Engine, Host, Limits, Stop};

/// A host that knows no command.
struct Nothing;

impl Host for Nothing {
    fn call(&mut self, _: &[&[u8]], _: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR Unknown Redis command called from script\r\n");
    }

    fn log(&mut self, _: i32, _: &[u8]) {}

    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Err(String::new())
    }

    fn interrupt(&mut self) -> Option<Stop> {
        None
    }
}

struct Redis {
    child: Child,
    socket: TcpStream,
    dir: std::path::PathBuf,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Redis {
    fn start() -> Option<Redis> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..5 {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let port = 20_000 + (std::process::id().wrapping_mul(7) + n * 101) % 40_000;
            let dir = std::env::temp_dir().join(format!("script-against-redis-{port}"));
            std::fs::create_dir_all(&dir).ok()?;
            let mut child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
                .arg(&dir)
                .stdout(Stdio::null())
                .spawn()
                .ok()?;
            for _ in 0..50 {
                std::thread::sleep(Duration::from_millis(50));
                if let Ok(socket) = TcpStream::connect(("127.0.0.1", port as u16)) {
                    socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
                    return Some(Redis { child, socket, dir });
                }
                if child.try_wait().ok()?.is_some() {
                    break;
                }
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        None
    }

    /// Sends a command, and an ECHO behind it. Returns the bytes before the ECHO's reply.
    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let mut request = Vec::new();
        for args in [args, &[b"ECHO", b"---the-end---"]] {
            request.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
            for arg in args {
                request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
                request.extend_from_slice(arg);
                request.extend_from_slice(b"\r\n");
            }
        }
        self.socket.write_all(&request).expect("redis reads");
        const END: &[u8] = b"$13\r\n---the-end---\r\n";
        let mut reply = Vec::new();
        let mut chunk = [0; 65536];
        while !reply.ends_with(END) {
            let n = self.socket.read(&mut chunk).expect("redis answers");
            assert!(n > 0, "redis closed the connection");
            reply.extend_from_slice(&chunk[..n]);
        }
        reply.truncate(reply.len() - END.len());
        reply
    }
}

fn run_here(engine: &mut Engine, script: &[u8], resp3: bool) -> Vec<u8> {
    let mut out = Vec::new();
    match engine.load(script) {
        Ok(sha) => engine.run(&sha, &[], &[], &mut Nothing, &mut out, resp3).expect("nobody stops it"),
        Err(text) => {
            out.push(b'-');
            out.extend(text.bytes().map(|c| if c == b'\n' || c == b'\r' { b' ' } else { c }));
            out.extend_from_slice(b"\r\n");
        }
    }
    out
}

/// Resets the settings that Redis keeps from one script to the next.
const SETTINGS: &[u8] =
    b"cjson.encode_sparse_array(false,2,10) cjson.encode_max_depth(1000) cjson.decode_max_depth(1000) \
    cjson.encode_number_precision(14) cjson.encode_invalid_numbers(false) cjson.decode_invalid_numbers(true)";

#[test]
fn scripts_reply_as_on_redis() {
    let Some(mut redis) = Redis::start() else {
        eprintln!("no redis-server: nothing compared");
        return;
    };
    let mut engine = Engine::new(Limits::default());
    let mut different = Vec::new();
    let mut compared = 0;
    for resp3 in [false, true] {
        if resp3 {
            redis.ask(&[b"HELLO", b"3"]);
        }
        let scripts = include_str!("scripts.txt").lines().chain(include_str!("settings.txt").lines());
        for script in scripts.filter(|line| !line.is_empty()) {
            redis.ask(&[b"EVAL", SETTINGS, b"0"]);
            let theirs = redis.ask(&[b"EVAL", script.as_bytes(), b"0"]);
            let ours = run_here(&mut engine, script.as_bytes(), resp3);
            compared += 1;
            if ours != theirs {
                different.push(format!(
                    "{script}\n  here:  {} {:?}\n  redis: {} {:?}",
                    ours.len(),
                    String::from_utf8_lossy(&ours[..ours.len().min(300)]),
                    theirs.len(),
                    String::from_utf8_lossy(&theirs[..theirs.len().min(300)])
                ));
            }
        }
    }
    assert!(different.is_empty(), "{} of {compared} differ:\n{}", different.len(), different.join("\n"));
}

#[test]
fn libraries_load_and_run_as_on_redis() {
    let Some(mut redis) = Redis::start() else {
        eprintln!("no redis-server: nothing compared");
        return;
    };
    let mut different = Vec::new();
    let cases = include_str!("libraries.txt").lines().filter(|line| !line.is_empty());
    for case in cases {
        let code = case.replace("\\n", "\n");
        redis.ask(&[b"FUNCTION", b"FLUSH"]);
        let mut engine = Engine::new(Limits::default());
        let theirs = redis.ask(&[b"FUNCTION", b"LOAD", code.as_bytes()]);
        let loaded = engine.load_library(code.as_bytes(), &mut Nothing);
        let ours = match &loaded {
            Ok(library) => format!("${}\r\n{}\r\n", library.name.len(), library.name),
            Err(text) => format!("-{}\r\n", text.replace(['\r', '\n'], " ")),
        };
        if ours.as_bytes() != theirs {
            different
                .push(format!("{case}\n  here:  {ours:?}\n  redis: {:?}", String::from_utf8_lossy(&theirs)));
        }
        for function in loaded.iter().flat_map(|library| &library.functions) {
            let theirs = redis.ask(&[b"FCALL", function.name.as_bytes(), b"1", b"k", b"a", b"b"]);
            let mut ours = Vec::new();
            engine
                .call_function(
                    function.callback,
                    &function.name,
                    &[b"k"],
                    &[b"a", b"b"],
                    &mut Nothing,
                    &mut ours,
                    false,
                )
                .expect("nobody stops it");
            if ours != theirs {
                different.push(format!(
                    "{case}: {}\n  here:  {:?}\n  redis: {:?}",
                    function.name,
                    String::from_utf8_lossy(&ours),
                    String::from_utf8_lossy(&theirs)
                ));
            }
        }
    }
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
}
