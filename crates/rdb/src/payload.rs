//! The envelope of a DUMP payload: `body ─► version ─► checksum`.
//!
//! Servers write their newest version into every payload, also for values in an old form. New versions only
//! add types and never change the meaning of a released one. So the type tells whether a value can be read.
//!
//! ```text
//!  8  Redis 4.0   scores as doubles                 12  Redis 7.4    fields that expire
//! 10  Redis 7.0   listpacks, functions              13  Redis 8.6    producers of streams, metadata
//! 11  Redis 7.2   sets as listpacks                 14  Redis 8.8    other streams again, arrays
//! 80  Valkey 9.0  fields that expire, its own way   15  Redis 8.10   hashes of a template
//! 81  Valkey 9.2  path hashes
//! ```
//!
//! Source: observed up to 12 and from 80 on; 13 to 15 and 81 from the release notes and issues of librdb and
//! Valkey.

use crate::{VERSION_VALKEY_9, crc64};
use std::convert::Infallible;

/// The last versions with known types. Valkey left the numbers in between to Redis.
const REDIS_LAST: u16 = 15;
const VALKEY_LAST: u16 = 81;

/// Bytes that are summed without a pause.
const PIECE: usize = 32 * 1024;

/// Completes a payload: appends version and checksum. O(bytes).
pub fn seal(payload: &mut Vec<u8>, version: u16) {
    let Ok(()) = seal_in_pieces::<Infallible>(payload, version, &mut |_| Ok(()));
}

/// As `seal`. `pause` is called before each piece is summed, with its length, and may stop the work.
pub fn seal_in_pieces<E>(
    payload: &mut Vec<u8>,
    version: u16,
    pause: &mut dyn FnMut(usize) -> Result<(), E>,
) -> Result<(), E> {
    payload.extend_from_slice(&version.to_le_bytes());
    let sum = sum_in_pieces(payload, pause)?;
    payload.extend_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// The body of a payload and its version. `None` if the version is unknown or the checksum does not fit.
/// O(bytes).
pub fn open(payload: &[u8]) -> Option<(&[u8], u16)> {
    let Ok(opened) = open_in_pieces::<Infallible>(payload, &mut |_| Ok(()));
    opened
}

/// As `open`. `pause` is called before each piece is summed, with its length, and may stop the work.
pub fn open_in_pieces<'a, E>(
    payload: &'a [u8],
    pause: &mut dyn FnMut(usize) -> Result<(), E>,
) -> Result<Option<(&'a [u8], u16)>, E> {
    let Some((summed, sum)) = payload.split_last_chunk::<8>() else { return Ok(None) };
    let Some((body, version)) = summed.split_last_chunk::<2>() else { return Ok(None) };
    let version = u16::from_le_bytes(*version);
    let known = version <= REDIS_LAST || (VERSION_VALKEY_9..=VALKEY_LAST).contains(&version);
    let sound = known && sum_in_pieces(summed, pause)? == u64::from_le_bytes(*sum);
    Ok(sound.then_some((body, version)))
}

fn sum_in_pieces<E>(bytes: &[u8], pause: &mut dyn FnMut(usize) -> Result<(), E>) -> Result<u64, E> {
    bytes.chunks(PIECE).try_fold(0, |sum, piece| {
        pause(piece.len())?;
        Ok(crc64(sum, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OPCODE_FUNCTION, Reader, put_string};
    use proptest::prelude::*;

    const SMALL: &[u8] = b"#!lua name=mylib\nredis.register_function('f1', function(k,a) return 1 end)";
    const LARGE: &[u8] =
        b"#!lua name=biglib\n-- aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\
        aaaaaaaaaaaaaaaaaaaaaaaaaaaa\nredis.register_function('f2', function(k,a) return 1 end)";

    /// Answers of real servers to FUNCTION DUMP with the two libraries above: the body, and the footers.
    const SMALL_BODY: &[u8] =
        b"\xf5@J#!lua name=mylib\nredis.register_function('f1', function(k,a) return 1 end)";
    const LARGE_BODY: &[u8] =
        b"\xf5\xc3@P@\xb3\x15#!lua name=biglib\n-- a\xe0Z\x00\x1e\nredis.register_function('f2', \
        \xe0\x00\x0e\x11k,a) return 1 end)";
    const REDIS_7_0: &[u8] = b"\n\x00:XF=\xf8n\x0bu";
    const REDIS_8_0: &[u8] = b"\x0c\x00\xf1.r\xfd\x02D\x95<";
    const VALKEY_9_1: &[u8] = b"P\x00\xf5r\x8f\xacf<l\x81";
    /// This server lists the libraries in the other order.
    const REDIS_8_6: &[u8] = b"\r\x00\xdd}\x0e\xb1\xbf\xe8\x8ed";

    #[test]
    fn payloads_of_real_servers_are_read() {
        for (footer, version) in [(REDIS_7_0, 10), (REDIS_8_0, 12), (REDIS_8_6, 13), (VALKEY_9_1, 80)] {
            let mut libraries = [(SMALL, SMALL_BODY), (LARGE, LARGE_BODY)];
            if version == 13 {
                libraries.reverse();
            }
            let written = libraries.map(|(_, body)| body).concat();
            let payload = [&written, footer].concat();
            let (body, found) = open(&payload).expect("a sound payload");
            assert_eq!((body, found), (&written[..], version));
            let mut reader = Reader::new(body);
            for (code, _) in libraries {
                assert_eq!(reader.byte(), Ok(OPCODE_FUNCTION));
                assert_eq!(&*reader.string().unwrap(), code);
            }
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn what_is_sealed_is_what_a_real_server_writes() {
        let mut payload = vec![OPCODE_FUNCTION];
        put_string(&mut payload, SMALL);
        seal(&mut payload, 10);
        let real = b"\xf5@J#!lua name=mylib\nredis.register_function('f1', function(k,a) return 1 end)\
            \n\x00\xd5\xae^\xf4X\xe7$\xa0";
        assert_eq!(payload, real);
    }

    #[test]
    fn versions_to_come_are_refused() {
        let known = [0, 11, 12, 13, 15, 80, 81].map(|version| (version, true));
        for (version, known) in
            known.into_iter().chain([16, 79, 82, u16::MAX].map(|version| (version, false)))
        {
            let mut payload = b"body".to_vec();
            seal(&mut payload, version);
            assert_eq!(open(&payload).is_some(), known, "{version}");
        }
    }

    proptest! {
        #[test]
        fn one_changed_byte_is_noticed(body: Vec<u8>, at: usize, change in 1u8..) {
            let mut payload = body.clone();
            seal(&mut payload, 10);
            prop_assert_eq!(open(&payload), Some((&body[..], 10)));
            let at = at % payload.len();
            payload[at] ^= change;
            prop_assert_eq!(open(&payload), None);
        }

        #[test]
        fn any_bytes_are_opened_or_refused(bytes: Vec<u8>) {
            let _ = open(&bytes);
        }
    }
}
