//! Measures the costs of scripts: `cargo run --release -p script --example speed`.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use script::{Engine, Host, Limits, Stop};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Answers every command with the same bytes.
struct Canned(Vec<u8>);

impl Host for Canned {
    fn call(&mut self, args: &[&[u8]], _: bool, out: &mut Vec<u8>) {
        black_box(args);
        out.extend_from_slice(&self.0);
    }

    fn log(&mut self, _: i32, _: &[u8]) {}

    fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
        Ok(true)
    }

    fn interrupt(&mut self) -> Option<Stop> {
        None
    }
}

/// Nanoseconds of CPU time of this thread, unaffected by others on the machine.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// The best of ten rounds.
fn measure(name: &str, rounds: u32, script: &str, reply: Vec<u8>) {
    if !std::env::args().nth(1).is_none_or(|only| name.contains(&only)) {
        return;
    }
    let mut engine = Engine::new(Limits::default());
    let mut host = Canned(reply);
    let mut out = Vec::new();
    let mut best = f64::MAX;
    for _ in 0..10 {
        let start = cpu_ns();
        for _ in 0..rounds {
            out.clear();
            let sha = engine.load(script.as_bytes()).expect("compiles");
            engine
                .run(&sha, &[b"key:1"], &[b"argument"], &mut host, &mut out, false)
                .expect("nobody stops it");
        }
        best = best.min((cpu_ns() - start) / f64::from(rounds));
    }
    assert!(!out.starts_with(b"-"), "{}", String::from_utf8_lossy(&out));
    println!("{name:50} {best:12.0} ns   reply {} bytes", out.len());
}

fn main() {
    let mut members = b"*25000\r\n".to_vec();
    for i in 0..25_000 {
        let member = format!("member:{i:07}");
        members.extend_from_slice(format!("${}\r\n{member}\r\n", member.len()).as_bytes());
    }
    let ok = || b"+OK\r\n".to_vec();
    let bulk = || b"$5\r\nvalue\r\n".to_vec();
    measure("return 1", 200_000, "return 1", ok());
    measure("one call: get", 200_000, "return redis.call('get', KEYS[1])", bulk());
    measure("one call: set", 200_000, "return redis.call('set', KEYS[1], ARGV[1])", ok());
    measure("100 calls", 3_000, "for i = 1, 100 do redis.call('get', KEYS[1]) end", bulk());
    measure("100 calls with a number", 3_000, "for i = 1, 100 do redis.call('set', KEYS[1], i) end", ok());
    measure("25k members to Lua", 50, "redis.call('smembers', KEYS[1])", members.clone());
    measure("25k members to Lua and back", 50, "return redis.call('smembers', KEYS[1])", members.clone());
    measure(
        "25k members as JSON",
        50,
        "return cjson.encode(redis.call('smembers', KEYS[1]))",
        members.clone(),
    );
    measure(
        "25k members as JSON, twenty times",
        3,
        "local t = redis.call('smembers', KEYS[1]) for i = 1, 20 do cjson.encode(t) end",
        members.clone(),
    );
    measure(
        "25k members as JSON and decoded",
        20,
        "return #cjson.decode(cjson.encode(redis.call('smembers', KEYS[1])))",
        members.clone(),
    );
    measure(
        "25k members as MessagePack",
        50,
        "return cmsgpack.pack(redis.call('smembers', KEYS[1]))",
        members.clone(),
    );
    measure("loop of a million", 5, "local x = 0 for i = 1, 1000000 do x = x + i end return x", ok());
}
