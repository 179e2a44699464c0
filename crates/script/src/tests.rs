//! Scripts against a small map of strings in place of a server.

use std::collections::BTreeMap;

use crate::{Engine, Host, Limits, Stop};

/// A host with GET, SET, DEL, ECHO and a few commands that give odd replies.
#[derive(Default)]
pub(crate) struct Map {
    pub(crate) strings: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) logged: Vec<(i32, Vec<u8>)>,
    /// Interrupts allowed before the stop.
    pub(crate) patience: Option<u32>,
    pub(crate) calls: u64,
}

impl Host for Map {
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>) {
        self.calls += 1;
        let bulk = |value: Option<&[u8]>, out: &mut Vec<u8>| match value {
            Some(v) => {
                out.extend_from_slice(format!("${}\r\n", v.len()).as_bytes());
                out.extend_from_slice(v);
                out.extend_from_slice(b"\r\n");
            }
            None if resp3 => out.extend_from_slice(b"_\r\n"),
            None => out.extend_from_slice(b"$-1\r\n"),
        };
        match (args[0].to_ascii_lowercase().as_slice(), &args[1..]) {
            (b"get", [key]) => bulk(self.strings.get(*key).map(Vec::as_slice), out),
            (b"set", [key, value]) => {
                self.strings.insert(key.to_vec(), value.to_vec());
                out.extend_from_slice(b"+OK\r\n");
            }
            (b"del", [key]) => {
                let n = u8::from(self.strings.remove(*key).is_some());
                out.extend_from_slice(format!(":{n}\r\n").as_bytes());
            }
            (b"echo", [text]) => bulk(Some(text), out),
            (b"raw", [reply]) => out.extend_from_slice(reply),
            (b"panic", _) => panic!("a handler's mistake"),
            _ => out.extend_from_slice(b"-ERR Unknown Redis command called from script\r\n"),
        }
    }

    fn log(&mut self, level: i32, message: &[u8]) {
        self.logged.push((level, message.to_vec()));
    }

    fn acl_check(&mut self, args: &[&[u8]]) -> Result<bool, String> {
        match args[0] {
            b"get" | b"set" => Ok(true),
            b"flushall" => Ok(false),
            _ => Err("no such command".into()),
        }
    }

    fn interrupt(&mut self) -> Option<Stop> {
        match &mut self.patience {
            None => None,
            Some(0) => Some(Stop::Killed),
            Some(left) => {
                *left -= 1;
                None
            }
        }
    }
}

pub(crate) fn eval(
    engine: &mut Engine,
    host: &mut Map,
    script: &str,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> String {
    let mut out = Vec::new();
    match engine.load(script.as_bytes()) {
        Ok(sha) => match engine.run(&sha, keys, args, host, &mut out, false) {
            Ok(()) => String::from_utf8_lossy(&out).into_owned(),
            Err(stop) => format!("stopped: {stop:?}"),
        },
        Err(text) => format!("-{text}\r\n"),
    }
}

pub(crate) fn once(script: &str) -> String {
    eval(&mut Engine::new(Limits::default()), &mut Map::default(), script, &[], &[])
}

#[test]
fn a_script_computes_and_returns() {
    assert_eq!(once("return 1 + 1"), ":2\r\n");
    assert_eq!(once("return 'a'"), "$1\r\na\r\n");
    assert_eq!(
        once("return {1, 'b', {true, false}, 3.99, nil, 5}"),
        "*4\r\n:1\r\n$1\r\nb\r\n*2\r\n:1\r\n$-1\r\n:3\r\n"
    );
}

#[test]
fn keys_and_arguments_arrive_and_commands_run() {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map::default();
    let script = "redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])";
    assert_eq!(eval(&mut engine, &mut host, script, &[b"k"], &[b"v"]), "$1\r\nv\r\n");
    assert_eq!(eval(&mut engine, &mut host, script, &[b"k"], &[b"w"]), "$1\r\nw\r\n");
    assert_eq!(host.calls, 4);
}
