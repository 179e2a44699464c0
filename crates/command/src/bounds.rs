//! Limits of the size and the number of a command's words, where a loop does all the work.
//!
//! Values may be as long as `proto-max-bulk-len` says, and functions of keys may have as many words as memory
//! holds: large ones run elsewhere. A key is hashed and compared on the loop. An action goes through its
//! words on the loop.
//!
//! Cost: nothing for commands below 128 KB, which have no words to share; above, O(words) up to
//! [`WORDS_MAX`], else O(1).

use crate::facts::{KEY_WORDS, LONG_WORDS, MANY_WORDS, SCRIPT};
use crate::table::BLOCKING;
use crate::{Command, Error, Run};
use resp::OwnedArgs;

/// Longest key, in bytes.
const KEY_MAX: usize = 256 * 1024;
/// Longest word of an action, in bytes.
const WORD_MAX: usize = 64 * 1024;
/// Most words of an action.
const WORDS_MAX: usize = 10_000;
/// Most bytes of an action's words together: some are copied on the loop.
const BYTES_MAX: usize = 4 << 20;

const TOO_MANY: Error = Error::new("ERR this command may have at most 10000 words");
const TOO_LONG: Error = Error::new("ERR a word of this command may have at most 65536 bytes");
const TOO_MUCH: Error = Error::new("ERR the words of this command may have at most 4194304 bytes together");
const KEY_TOO_LONG: Error = Error::new("ERR a key may have at most 262144 bytes");

/// Why a large command is refused. None: it may run.
pub fn refusal(command: &'static Command, words: &OwnedArgs) -> Option<Error> {
    if command.has(BLOCKING) {
        // A blocking command names few keys, and short ones (`park`).
        return None;
    }
    let args = words.args();
    if !matches!(command.run, Run::Exec) || command.is(SCRIPT | KEY_WORDS) {
        let mut longest = 0;
        if args.len() <= WORDS_MAX {
            command.each_key(args, &mut |i, _| longest = longest.max(args.at(i).len()));
        }
        return (longest > KEY_MAX).then_some(KEY_TOO_LONG);
    }
    if args.len() > WORDS_MAX {
        return (!command.is(MANY_WORDS)).then_some(TOO_MANY);
    }
    if command.is(LONG_WORDS) {
        return None;
    }
    if args.iter().any(|word| word.len() > WORD_MAX) {
        return Some(TOO_LONG);
    }
    let bytes: usize = args.iter().map(<[u8]>::len).sum();
    (bytes > BYTES_MAX && !command.is(MANY_WORDS)).then_some(TOO_MUCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &[&[u8]]) -> Option<Error> {
        let owned = OwnedArgs::from_slices(words);
        refusal(crate::resolve(owned.args()).unwrap(), &owned)
    }

    #[test]
    fn long_keys_and_words_are_refused_and_long_values_are_not() {
        let (long, key) = (vec![b'x'; WORD_MAX + 1], vec![b'k'; KEY_MAX + 1]);
        for words in [
            &[b"SET".as_slice(), b"k", &key] as &[&[u8]],
            &[b"SET", &long, b"v"],
            &[b"PING", &key],
            &[b"EVAL", &key, b"1", b"k"],
            &[b"EVAL", b"return 1", b"1", b"k", &key],
            &[b"PUBLISH", b"c", &key],
            &[b"FUNCTION", b"LOAD", &key],
        ] {
            assert_eq!(refused(words), None);
        }
        for words in
            [&[b"GET".as_slice(), &key] as &[&[u8]], &[b"MGET", b"a", &key], &[b"EVAL", b"x", b"1", &key]]
        {
            assert_eq!(refused(words), Some(KEY_TOO_LONG));
        }
        for words in [
            &[b"CLIENT".as_slice(), b"SETNAME", &long] as &[&[u8]],
            &[b"SUBSCRIBE", b"a", &long],
            &[b"CONFIG", b"SET", b"a", &long],
        ] {
            assert_eq!(refused(words), Some(TOO_LONG));
        }
    }

    #[test]
    fn very_many_words_are_refused_where_they_are_gone_through_at_once() {
        let words = |start: &[&'static [u8]]| {
            let mut words = start.to_vec();
            words.resize(WORDS_MAX + 5, b"w");
            refused(&words)
        };
        let long = vec![b'w'; WORD_MAX];
        let mut much: Vec<&[u8]> = vec![b"LATENCY".as_slice(), b"HISTOGRAM"];
        much.resize(BYTES_MAX / WORD_MAX + 1, &long);
        assert_eq!(refused(&much), None);
        much.extend([&long[..], &long]);
        assert_eq!(refused(&much), Some(TOO_MUCH));
        much[..2].copy_from_slice(&[b"SUBSCRIBE".as_slice(), b"b"]);
        assert_eq!(refused(&much), None);
        assert_eq!(words(&[b"CONFIG", b"GET"]), Some(TOO_MANY));
        assert_eq!(words(&[b"PUBSUB", b"NUMSUB"]), Some(TOO_MANY));
        assert_eq!(words(&[b"SUBSCRIBE"]), None);
        assert_eq!(words(&[b"DEL"]), None);
        assert_eq!(words(&[b"EVAL", b"return 1", b"0"]), None);
    }
}
