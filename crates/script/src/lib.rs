//! Lua scripts: EVAL and functions, run against a [`Host`]. This crate knows nothing of keys.
//!
//! ```text
//!   exec ─► Engine::run(sha, keys, args, host, out) ─► Lua ─► redis.call ─► Host::call ─► exec
//!                     │                                 │                        │
//!                     │                       every few thousand                 RESP bytes
//!                     │                       instructions: Host::interrupt      │
//!                     └◄── reply::encode ◄── the value ◄────┴──── reply::push ◄──┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | `lua` | the C API made safe (all `unsafe` of this crate; invariants L1–L8) |
//! | `engine` | [`Engine`]: compiled scripts, running them |
//! | `library` | functions: loading a library, `redis.register_function` |
//! | `sandbox` | the globals a script finds, and what keeps it from changing them |
//! | `api` | the `redis` table |
//! | `reply` | RESP to Lua values and back |
//! | `pattern` | Lua's string patterns, so that no pattern runs for ever or too deep |
//! | `header` | the first line, `#!lua name=… flags=…` |
//! | `cjson`, `cmsgpack`, `pack`, `bit` | the libraries scripts expect |
//!
//! * **S1** A run leaves nothing behind for the next: globals and library tables are read-only, settings
//!   start afresh, KEYS and ARGV are new tables. Exception: upvalues of a library's functions live as long as
//!   the library. They may hold anything, but engines never share them.
//! * **S2** A stopped script ([`Stop`]) runs nothing further, and its reply is not written.
//! * **S3** The same script with the same keys, arguments and command replies gives the same result on every
//!   engine. Exceptions: `math.random` before `math.randomseed`, traversal order, addresses printed by
//!   `tostring`.
//! * **S4** No input overflows the C stack: every library and conversion bounds its nesting.

mod api;
mod bit;
mod cjson;
mod cmsgpack;
mod engine;
mod header;
mod library;
mod lua;
mod pack;
mod pattern;
mod random;
mod reply;
mod sandbox;
mod session;
#[cfg(test)]
mod tests;
mod text;

pub use engine::{Compiled, Engine, Limits, Sha};
pub use header::ScriptFlags;
pub use library::{Function, FunctionRef, Library};

/// Work announced with [`Host::heavy`] is at least this large.
pub const HEAVY_BYTES: usize = 256 << 10;

/// The services that a script needs from the server.
pub trait Host {
    /// Runs one command for `redis.call` or `redis.pcall` and appends exactly one encoded reply, in RESP3 if
    /// `resp3`. A failure is an error reply, such as `-ERR Unknown Redis command called from script`.
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>);

    /// `redis.log`: level 0 (debug) to 3 (warning).
    fn log(&mut self, level: i32, message: &[u8]);

    /// `redis.acl_check_cmd`: whether the user may run this. `Err`: there is no such command.
    fn acl_check(&mut self, args: &[&[u8]]) -> Result<bool, String>;

    /// Asked every [`Limits::hook_every`] instructions, and within long conversions. `Some` ends the script:
    /// nothing of it runs afterwards, whatever it catches.
    fn interrupt(&mut self) -> Option<Stop>;

    /// Announces work on about `bytes` bytes, at least [`HEAVY_BYTES`], that cannot be interrupted. Lua's
    /// allocator calls this, too.
    fn heavy(&mut self, bytes: usize) -> Option<Stop> {
        let _ = bytes;
        self.interrupt()
    }

    /// `redis.set_repl` was called. Bit 0: the log; bit 1: replicas.
    fn set_repl(&mut self, flags: i32) {
        let _ = flags;
    }
}

/// Why a script was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SCRIPT KILL or FUNCTION KILL.
    Killed,
    /// Its deadline passed.
    Deadline,
    /// It took longer than it may here. Run it again elsewhere.
    Elsewhere,
}
