//! The `redis` table, also named `server`: calls, replies, log, settings.

use std::ops::Range;

use smallvec::SmallVec;

use crate::lua::{Held, NativeFn, Outcome, Raise, State, Type, native};
use crate::reply::{self, ONE, push_error};
use crate::{library, text};

/// The kind of a `redis` table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Table {
    Eval,
    Function,
    /// The table while a library is loaded.
    Load,
}

/// Pushes a `redis` table.
pub(crate) fn push_table(s: &mut State<'_>, which: Table, version: (&str, u32)) {
    s.push_table(0, 32);
    let mut add = |name: &str, function: NativeFn| {
        s.push_native(function, 0);
        s.set_field(-2, name);
    };
    add("log", native(log));
    if which == Table::Load {
        add("register_function", native(library::register_function));
    } else {
        add("call", native(call));
        add("pcall", native(pcall));
        add("sha1hex", native(sha1hex));
        add("error_reply", native(error_reply));
        add("status_reply", native(status_reply));
        add("setresp", native(set_resp));
        add("set_repl", native(set_repl));
        add("acl_check_cmd", native(acl_check_cmd));
    }
    if which == Table::Eval {
        add(
            "replicate_commands",
            native(|s| {
                s.push_bool(true);
                ONE
            }),
        );
        add(
            "breakpoint",
            native(|s| {
                s.push_bool(false);
                ONE
            }),
        );
        add("debug", native(|_| Ok(0)));
    }
    let levels = [("LOG_DEBUG", 0), ("LOG_VERBOSE", 1), ("LOG_NOTICE", 2), ("LOG_WARNING", 3)];
    let repl = [("REPL_AOF", 1), ("REPL_SLAVE", 2), ("REPL_REPLICA", 2), ("REPL_ALL", 3), ("REPL_NONE", 0)];
    for (name, value) in levels.into_iter().chain(repl.into_iter().filter(|_| which != Table::Load)) {
        s.push_number(f64::from(value));
        s.set_field(-2, name);
    }
    s.push_bytes(version.0.as_bytes());
    s.set_field(-2, "REDIS_VERSION");
    s.push_number(f64::from(version.1));
    s.set_field(-2, "REDIS_VERSION_NUM");
}

/// Raises `{err="ERR text"}`.
fn raise_error<T>(s: &mut State<'_>, text: &str) -> Result<T, Raise> {
    push_error(s, text.as_bytes());
    Err(Raise)
}

fn call(s: &mut State<'_>) -> Outcome {
    run_command(s, true)
}

fn pcall(s: &mut State<'_>) -> Outcome {
    run_command(s, false)
}

/// A call counts as work on this many bytes, and each of its words as this many besides its own.
const CALL_BYTES: usize = 1500;
const WORD_BYTES: usize = 200;

/// `redis.call` and `redis.pcall`. Costs about 100 ns beside the command, plus the conversion of the reply.
/// Allocates nothing once the session's buffers have grown. A reply that the script does not use is not
/// converted.
fn run_command(s: &mut State<'_>, raise: bool) -> Outcome {
    let mut out = s.buffer(|session| &session.reply);
    out.clear();
    let held = hold_arguments(s)?;
    let mut words = 0;
    let refused = match with_arguments(s, |s, args| {
        let resp3 = s.session().resp3.get();
        words = args.iter().map(|word| WORD_BYTES + word.len()).sum();
        s.host_borrowed(|host| host.call(args, resp3, &mut out))
    }) {
        Ok(Some(())) => None,
        Ok(None) => return s.raise("script stopped"),
        Err(text) => Some(text),
    };
    drop(held);
    // The host filled it without asking. Memory for the conversion is asked for here.
    out.count();
    s.room(out.capacity() / 2)?;
    s.tick_bytes(CALL_BYTES + words + out.len())?;
    if let Some(text) = refused {
        push_error(s, text.as_bytes());
        return if raise { Err(Raise) } else { ONE };
    }
    let failed = out.first() == Some(&b'-');
    if !failed && !s.is_heard() {
        return Ok(0);
    }
    reply::push(s, &out)?;
    if failed && raise { Err(Raise) } else { ONE }
}

/// Counts the copies of the arguments that the host makes.
fn hold_arguments<'a>(s: &mut State<'a>) -> Result<Held<'a>, Raise> {
    let bytes = (1..=s.top()).map(|i| if s.type_of(i) == Type::String { s.len(i) } else { 0 }).sum();
    s.hold(bytes)
}

type Spans = SmallVec<[Option<Range<usize>>; 16]>;

/// Gives all arguments of the running function to `f` as byte strings.
fn with_arguments<R>(s: &State<'_>, f: impl FnOnce(&State<'_>, &[&[u8]]) -> R) -> Result<R, &'static str> {
    if s.top() == 0 {
        return Err("Please specify at least one argument for this redis lib call");
    }
    const BAD: &str = "Lua redis lib command arguments must be strings or integers";
    let mut numbers = s.buffer(|session| &session.numbers);
    let mut spans = Spans::new();
    for i in 1..=s.top() {
        spans.push(match s.type_of(i) {
            Type::String => None,
            Type::Number => {
                let start = numbers.len();
                write_number(s.number(i), &mut numbers);
                Some(start..numbers.len())
            }
            _ => return Err(BAD),
        });
    }
    let args: SmallVec<[&[u8]; 16]> = (1..)
        .zip(&spans)
        .map(|(i, span)| match span {
            Some(span) => &numbers[span.clone()],
            None => s.bytes(i).unwrap_or_default(),
        })
        .collect();
    let result = f(s, &args);
    Ok(result)
}

/// Writes a number as commands get it: an integer plainly, any other in the fewest digits that keep its
/// value. Minus zero is zero.
fn write_number(value: f64, out: &mut Vec<u8>) {
    let value = if value == 0.0 { 0.0 } else { value };
    match text::exact_integer(value) {
        Some(integer) => text::write_int(integer, out),
        None => stdx::num::format_f64(value, out),
    }
}

fn acl_check_cmd(s: &mut State<'_>) -> Outcome {
    let _held = hold_arguments(s)?;
    let words = (1..=s.top()).map(|i| WORD_BYTES + s.len(i)).sum();
    s.tick_bytes(words)?;
    match with_arguments(s, |s, args| s.host_borrowed(|host| host.acl_check(args))) {
        Ok(Some(Ok(allowed))) => {
            s.push_bool(allowed);
            ONE
        }
        Ok(Some(Err(_))) => raise_error(s, "Invalid command passed to redis.acl_check_cmd()"),
        Ok(None) => s.raise("script stopped"),
        Err(text) => raise_error(s, text),
    }
}

fn error_reply(s: &mut State<'_>) -> Outcome {
    let _held = s.hold(4 * s.len(1))?;
    let Some(text) = one_string(s) else {
        push_error(s, b"wrong number or type of arguments");
        return ONE;
    };
    s.tick_bytes(4 * text.len())?;
    let text = if text.starts_with(b"-") { text } else { [b"-", &text[..]].concat() };
    push_error(s, &text);
    ONE
}

fn status_reply(s: &mut State<'_>) -> Outcome {
    let _held = s.hold(2 * s.len(1))?;
    let Some(text) = one_string(s) else {
        push_error(s, b"wrong number or type of arguments");
        return ONE;
    };
    s.tick_bytes(2 * text.len())?;
    s.push_table(0, 1);
    s.push_bytes(&text);
    s.set_field(-2, "ok");
    ONE
}

fn one_string(s: &State<'_>) -> Option<Vec<u8>> {
    if s.top() == 1 { s.bytes(1).map(<[u8]>::to_vec) } else { None }
}

/// Bytes that are hashed between two questions to the host.
const HASHED: usize = 16 << 10;

fn sha1hex(s: &mut State<'_>) -> Outcome {
    if s.top() != 1 {
        return raise_error(s, "wrong number of arguments");
    }
    // Anything but a string or a number counts as an empty one, as in Redis.
    let bytes = s.text(1).map_or(0, <[u8]>::len);
    s.heavy(bytes)?;
    let mut sha = sha1_smol::Sha1::new();
    for start in (0..bytes).step_by(HASHED) {
        // Hashing takes some nanoseconds a byte.
        s.tick_bytes(4 * HASHED.min(bytes - start))?;
        let text = s.bytes(1).unwrap_or_default();
        sha.update(&text[start..bytes.min(start + HASHED)]);
    }
    s.push_bytes(&crate::Sha(sha.digest().bytes()).hex());
    ONE
}

/// No host logs more of a line than this.
const LOGGED_MAX: usize = 32 << 10;

fn log(s: &mut State<'_>) -> Outcome {
    if s.top() < 2 {
        return raise_error(s, "redis.log() requires two arguments or more.");
    }
    if !s.is_number(1) {
        return raise_error(s, "First argument must be a number (log level).");
    }
    let level = s.number(1) as i64;
    if !(0..=3).contains(&level) {
        return raise_error(s, "Invalid debug level.");
    }
    let mut message = Vec::new();
    for i in 2..=s.top() {
        if let Some(text) = s.text(i) {
            if i > 2 {
                message.push(b' ');
            }
            let left = LOGGED_MAX.saturating_sub(message.len());
            message.extend_from_slice(&text[..text.len().min(left)]);
        }
    }
    let bytes = message.len();
    s.host(|host| host.log(level as i32, &message))?;
    drop(message);
    s.tick_bytes(CALL_BYTES + 2 * bytes)?;
    Ok(0)
}

fn set_resp(s: &mut State<'_>) -> Outcome {
    if s.top() != 1 {
        return raise_error(s, "redis.setresp() requires one argument.");
    }
    match s.number(1) {
        version if version == 2.0 || version == 3.0 => {
            s.session().resp3.set(version == 3.0);
            Ok(0)
        }
        _ => raise_error(s, "RESP version must be 2 or 3."),
    }
}

fn set_repl(s: &mut State<'_>) -> Outcome {
    if s.top() != 1 {
        return raise_error(s, "redis.set_repl() requires two arguments.");
    }
    let flags = s.number(1) as i64;
    if flags & !3 != 0 {
        return raise_error(
            s,
            "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
        );
    }
    s.host(|host| host.set_repl(flags as i32))?;
    Ok(0)
}

/// Bytes of a long error that are kept if there is no memory for all of it.
const CUT: usize = 1024;

/// The error handler of a run: turns an error into a table and adds where it happened.
pub(crate) fn error_handler(s: &mut State<'_>) -> Outcome {
    let mut frame = s.frame(1);
    if frame.as_ref().is_some_and(|f| f.is_c) {
        frame = s.frame(2);
    }
    s.set_top(1);
    if s.type_of(1) != Type::Table {
        let mut message = b"ERR ".to_vec();
        if s.has_room(2 * s.len(1)) {
            describe(s, 1, &mut message);
        } else {
            let text = s.bytes(1).unwrap_or_default();
            message.extend_from_slice(&text[..text.len().min(CUT)]);
        }
        s.push_table(0, 3);
        s.push_bytes(&message);
        s.set_field(-2, "err");
    }
    if let Some(frame) = frame {
        s.push_bytes(&frame.source);
        s.set_field(-2, "source");
        s.push_number(f64::from(frame.line));
        s.set_field(-2, "line");
    }
    ONE
}

/// Describes a value as `tostring` does, without metamethods.
fn describe(s: &mut State<'_>, index: i32, out: &mut Vec<u8>) {
    match s.type_of(index) {
        Type::String | Type::Number => out.extend_from_slice(s.text(index).unwrap_or_default()),
        Type::Bool => out.extend_from_slice(if s.bool(index) { b"true" } else { b"false" }),
        Type::None | Type::Nil => out.extend_from_slice(b"nil"),
        other => out.extend_from_slice(format!("{}: {:#x}", other.name(), s.identity(index)).as_bytes()),
    }
}
