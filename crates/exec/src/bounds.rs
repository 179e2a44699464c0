//! How large the words of a command may be, and how many, where a loop does all the work.
//!
//! Values may have as many bytes as `proto-max-bulk-len` says, and commands that are functions of keys as many words as there
//! is memory: those go elsewhere when they are large. A key is hashed and compared on the loop, and a command that acts on the
//! server or its connection goes through its words there: 100 MB take some 200 ms, a million words 20 to 100.
//!
//! Cost: nothing for commands below 128 KB (`Local::incoming`), O(words) for up to [`WORDS_MAX`] of them, else O(1).

use command::facts::{KEY_WORDS, LONG_WORDS, MANY_WORDS, SCRIPT};
use command::table::BLOCKING;
use command::{Command, Error, Run};
use resp::OwnedArgs;

/// Bytes of a key.
const KEY_MAX: usize = 256 * 1024;
/// Bytes of a word of a command that is no function of keys.
const WORD_MAX: usize = 64 * 1024;
/// Words of such a command.
const WORDS_MAX: usize = 10_000;

const TOO_MANY: Error = Error::new("ERR too many words: this command may have 10000");
const TOO_LONG: Error = Error::new("ERR too long a word: those of this command may have 65536 bytes");
const KEY_TOO_LONG: Error = Error::new("ERR too long a key: it may have 262144 bytes");

/// Why a large command is not run.
pub(crate) fn refusal(command: &'static Command, words: &OwnedArgs) -> Option<Error> {
    if command.has(BLOCKING) {
        // A client that waits names few keys, and short ones (`park.rs`).
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
    let is_long = !command.is(LONG_WORDS) && args.iter().any(|word| word.len() > WORD_MAX);
    is_long.then_some(TOO_LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(words: &[&[u8]]) -> Option<Error> {
        let owned = OwnedArgs::from_slices(words);
        refusal(command::resolve(owned.args()).unwrap(), &owned)
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
        assert_eq!(words(&[b"CONFIG", b"GET"]), Some(TOO_MANY));
        assert_eq!(words(&[b"PUBSUB", b"NUMSUB"]), Some(TOO_MANY));
        assert_eq!(words(&[b"SUBSCRIBE"]), None);
        assert_eq!(words(&[b"DEL"]), None);
        assert_eq!(words(&[b"EVAL", b"return 1", b"0"]), None);
    }
}
