//! The way over an object: how many lengths, strings and bytes stand in it.

use super::Problem;
use super::window::{Input, Window};
use crate::{Dialect, module, types};

type Skip<E> = Result<(), Problem<E>>;

/// Bytes of an entry's id in a stream.
const ID: u64 = 16;
/// Bytes of a time.
const TIME: u64 = 8;

/// Whether a byte is the type of an object that can be passed over in files of a dialect.
pub(super) fn is_known(kind: u8, dialect: Dialect) -> bool {
    match kind {
        0..=7 | 9..=21 | types::STREAM_4 => true,
        types::VALKEY_HASH_2 => true,
        23..=25 => dialect == Dialect::Redis,
        _ => false,
    }
}

/// Passes an object, its type read. Memory: the window.
pub(super) fn object<I: Input>(window: &mut Window<I>, kind: u8, dialect: Dialect) -> Skip<I::Error> {
    match kind {
        types::STRING
        | types::HASH_ZIPMAP
        | types::LIST_ZIPLIST
        | types::SET_INTSET
        | types::ZSET_ZIPLIST
        | types::HASH_ZIPLIST
        | types::HASH_LISTPACK
        | types::ZSET_LISTPACK
        | types::SET_LISTPACK => window.skip_string(),
        types::LIST | types::SET | types::LIST_QUICKLIST => each(window, Window::skip_string),
        types::HASH => each(window, pair),
        types::ZSET => each(window, |window| {
            window.skip_string()?;
            match window.byte()? {
                253..=255 => Ok(()),
                len => window.skip(len.into()),
            }
        }),
        types::ZSET_2 => each(window, |window| {
            window.skip_string()?;
            window.skip(TIME)
        }),
        types::LIST_QUICKLIST_2 => each(window, |window| {
            window.length()?;
            window.skip_string()
        }),
        types::VALKEY_HASH_2 if dialect == Dialect::Valkey => each(window, |window| {
            pair(window)?;
            window.skip(TIME)
        }),
        types::HASH_METADATA_CANDIDATE => each(window, timed_pair),
        types::HASH_METADATA => {
            window.skip(TIME)?;
            each(window, timed_pair)
        }
        types::HASH_LISTPACK_EX_CANDIDATE => window.skip_string(),
        types::HASH_LISTPACK_EX => {
            window.skip(TIME)?;
            window.skip_string()
        }
        types::MODULE_2 => {
            window.length()?;
            pieces(window)
        }
        types::MODULE => Err(Problem::Old("values of modules from release candidates of Redis 4.0")),
        15 => stream(window, 1),
        19 => stream(window, 2),
        21 => stream(window, 3),
        types::STREAM_4 => {
            stream(window, 3)?;
            producers(window)
        }
        _ => Err(Problem::Opcode(kind)),
    }
}

/// As many of something as announced. Each takes at least a byte, so the end of the file ends it.
fn each<I: Input>(
    window: &mut Window<I>,
    mut one: impl FnMut(&mut Window<I>) -> Skip<I::Error>,
) -> Skip<I::Error> {
    for _ in 0..window.length()? {
        one(window)?;
    }
    Ok(())
}

fn pair<I: Input>(window: &mut Window<I>) -> Skip<I::Error> {
    window.skip_string()?;
    window.skip_string()
}

fn timed_pair<I: Input>(window: &mut Window<I>) -> Skip<I::Error> {
    window.length()?;
    pair(window)
}

/// Passes what modules know of a key, the code read.
pub(super) fn metadata<I: Input>(window: &mut Window<I>) -> Skip<I::Error> {
    each(window, |window| {
        window.skip(module::CLASS_BYTES as u64)?;
        pieces(window)
    })
}

/// Passes what a module wrote, up to its end.
pub(super) fn pieces<I: Input>(window: &mut Window<I>) -> Skip<I::Error> {
    loop {
        match window.length()? {
            module::PIECES_END => return Ok(()),
            module::PIECE_SIGNED | module::PIECE_UNSIGNED => _ = window.length()?,
            module::PIECE_FLOAT => window.skip(4)?,
            module::PIECE_DOUBLE => window.skip(8)?,
            module::PIECE_STRING => window.skip_string()?,
            _ => return Err(Problem::Malformed),
        }
    }
}

/// Passes a stream in its first, second or third form.
///
/// ```text
/// packs: (id, listpack) … │ length, last id │ first id, last deleted id, entries added (from 2 on) │ groups
/// group: name, last id, entries read (from 2 on) │ pending: (id, time, count) … │ consumers
/// consumer: name, time, active time (from 3 on) │ pending: id …
/// ```
fn stream<I: Input>(window: &mut Window<I>, form: u8) -> Skip<I::Error> {
    each(window, pair)?;
    lengths(window, if form >= 2 { 8 } else { 3 })?;
    each(window, |window| {
        window.skip_string()?;
        lengths(window, if form >= 2 { 3 } else { 2 })?;
        each(window, |window| {
            window.skip(ID + TIME)?;
            lengths(window, 1)
        })?;
        each(window, |window| {
            window.skip_string()?;
            window.skip(if form >= 3 { 2 * TIME } else { TIME })?;
            each(window, |window| window.skip(ID))
        })
    })
}

/// Passes what stands behind the groups of a stream in its fourth form.
///
/// ```text
/// seconds, most IDs │ producers: (name, (ID of a message, ID) …) … │ added, repeated
/// ```
fn producers<I: Input>(window: &mut Window<I>) -> Skip<I::Error> {
    lengths(window, 2)?;
    each(window, |window| {
        window.skip_string()?;
        each(window, |window| {
            window.skip_string()?;
            lengths(window, 2)
        })
    })?;
    lengths(window, 2)
}

fn lengths<I: Input>(window: &mut Window<I>, count: usize) -> Skip<I::Error> {
    (0..count).try_for_each(|_| window.length().map(drop))
}
