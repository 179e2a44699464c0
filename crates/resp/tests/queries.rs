//! Client queries: which are parsed, which are refused, and that the cuts between reads do not matter.

mod checks;

use checks::{Said, batches, said};
use proptest::prelude::*;
use resp::{INLINE_BYTES_MAX, Limits, Parsed, Parser, ProtocolError, Reply, Stop};

fn whole(stream: &[u8]) -> Said {
    said(Parser::default(), stream, [])
}

fn words(stream: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let said = whole(stream);
    assert_eq!((said.error, said.used), (None, stream.len()), "{}", stream.escape_ascii());
    said.commands.iter().map(|command| command.args().iter().map(<[u8]>::to_vec).collect()).collect()
}

fn error_line(stream: &[u8]) -> String {
    let mut reply = Reply::new(false);
    whole(stream).error.expect("the stream is broken").write(&mut reply);
    String::from_utf8_lossy(reply.as_bytes()).into_owned()
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut reply = Reply::new(false);
    reply.array(words.len());
    words.iter().for_each(|word| reply.bulk(word));
    reply.take()
}

#[test]
fn commands_come_as_arrays_or_lines() {
    assert_eq!(words(b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n"), [[b"GET".to_vec(), b"".to_vec()]]);
    assert_eq!(words(b"GET  a\r\nPING\n"), [vec![b"GET".to_vec(), b"a".to_vec()], vec![b"PING".to_vec()]]);
    assert_eq!(words(b"SET k \"a\\x00b\"\r\n"), [[b"SET".to_vec(), b"k".to_vec(), b"a\0b".to_vec()]]);
    let long = vec![b"SET".to_vec(), vec![b'k'; 100], vec![b'v'; 12345]];
    assert_eq!(words(&encode(&long)), [long]);
}

#[test]
fn empty_commands_are_passed_over() {
    for empty in ["*0\r\n", "*-1\r\n", "*-99999\r\n", "\r\n", "\n", "  \r\n", "\r\r\n"] {
        let stream = format!("{empty}PING\r\n{empty}*1\r\n$4\r\nPING\r\n{empty}");
        assert_eq!(words(stream.as_bytes()), [[b"PING"], [b"PING"]], "{empty:?}");
    }
}

#[test]
fn the_ends_of_headers_are_taken_on_trust_as_redis_does() {
    assert_eq!(words(b"*1\rX$4\rYPING\r\n*1\r\n$4\rZPING\r\nPING\r\n"), [[b"PING"], [b"PING"], [b"PING"]]);
}

#[test]
fn broken_requests_get_the_error_redis_gives() {
    let cases: &[(&[u8], &str)] = &[
        (b"*x\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*-0\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*9999999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n\r\n", "expected '$', got ' '"),
        (b"*1\r\n\nx\r\n", "expected '$', got ' '"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        // A length that is wrong (Valkey 9).
        (b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n", "invalid CRLF in request"),
        (b"*2\r\n$4\r\nECHO\r\n$2\r\nabcd\r\n", "invalid CRLF in request"),
        (b"*1\r\n$4\r\nPING\rx", "invalid CRLF in request"),
        (b"*1\r\n$4\r\nPINGx\n", "invalid CRLF in request"),
        (b"PING \"\r\n", "unbalanced quotes in request"),
        (b"PING \"a\"b\r\n", "unbalanced quotes in request"),
    ];
    for (stream, text) in cases {
        assert_eq!(
            error_line(stream),
            format!("-ERR Protocol error: {text}\r\n"),
            "{}",
            stream.escape_ascii()
        );
    }
    let digits = |prefix: &str| format!("{prefix}{}", "1".repeat(INLINE_BYTES_MAX)).into_bytes();
    assert_eq!(error_line(&digits("*")), "-ERR Protocol error: too big mbulk count string\r\n");
    assert_eq!(error_line(&digits("*1\r\n$")), "-ERR Protocol error: too big bulk count string\r\n");
    assert_eq!(error_line(&digits("1")), "-ERR Protocol error: too big inline request\r\n");
    assert_eq!(whole(&digits("")).error, None, "64 KB exactly may still become a line");
}

#[test]
fn limits_can_be_changed() {
    let tight = Parser::new(Limits { words_max: 2, bulk_bytes_max: 4 });
    assert_eq!(said(tight, b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\n", []).commands.len(), 1);
    let tight = Parser::new(Limits { words_max: 2, bulk_bytes_max: 4 });
    assert_eq!(said(tight, b"*3\r\n", []).error, Some(ProtocolError::InvalidMultibulkLength));
    let tight = Parser::new(Limits { words_max: 2, bulk_bytes_max: 4 });
    assert_eq!(said(tight, b"*2\r\n$5\r\n", []).error, Some(ProtocolError::InvalidBulkLength));
}

#[test]
fn strangers_may_only_send_small_commands() {
    let answer = |stream: &[u8]| {
        let mut parser = Parser::default();
        parser.set_authenticated(false);
        said(parser, stream, []).error
    };
    assert_eq!(answer(b"*10\r\n"), None);
    assert_eq!(answer(b"*11\r\n"), Some(ProtocolError::UnauthenticatedMultibulkLength));
    assert_eq!(answer(b"*1\r\n$16384\r\n"), None);
    assert_eq!(answer(b"*1\r\n$16385\r\n"), Some(ProtocolError::UnauthenticatedBulkLength));
}

#[test]
fn a_command_of_4_gb_is_refused_before_it_is_buffered() {
    let parser = Parser::new(Limits { words_max: 10, bulk_bytes_max: usize::MAX });
    assert_eq!(said(parser, b"*1\r\n$4294967290\r\n", []).error, Some(ProtocolError::TooBigRequest));
}

#[test]
fn the_reader_learns_how_much_of_a_bulk_is_missing() {
    let mut parser = Parser::default();
    let head = b"*2\r\n$3\r\nGET\r\n$1000000\r\nabc";
    assert_eq!(parser.parse(head), Ok(Parsed::More { need: 1_000_000 - 3 + 2 }));
    assert!(parser.is_mid_command());
    let mut stream = head.to_vec();
    stream.resize(stream.len() + 1_000_000 - 3, b'x');
    stream.extend_from_slice(b"\r\n");
    assert_eq!(parser.parse(&stream), Ok(Parsed::Command { used: stream.len() }));
    assert!(!parser.is_mid_command());
    assert_eq!(parser.args(&stream).at(1).len(), 1_000_000);
}

#[test]
fn a_slow_stream_of_many_words_is_parsed_once() {
    // 300,000 words, one byte at a time: quadratic work would take hours.
    let words = vec![b"x".to_vec(); 300_000];
    let stream = encode(&words);
    assert_eq!(said(Parser::default(), &stream, 1..stream.len()).commands[0].len(), words.len());
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..12),
        1 => prop::collection::vec(any::<u8>(), 90..130),
        1 => Just(b"\r\n$1\r\n*".to_vec()),
    ]
}

/// One command, or a broken one.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(word(), 1..14).prop_map(|words| encode(&words)),
        3 => "[a-z \"'\\\\]{0,20}\r?\n".prop_map(String::into_bytes),
        1 => Just(b"*0\r\n".to_vec()),
        1 => Just(b"*-1\r\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => "[*$][-0-9]{0,5}\r\n".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn commands_are_read_back(commands in prop::collection::vec(prop::collection::vec(word(), 1..5), 0..5)) {
        let stream: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        prop_assert_eq!(words(&stream), commands);
    }

    #[test]
    fn cutting_a_stream_in_two_changes_nothing(pieces in prop::collection::vec(piece(), 1..4)) {
        let stream = pieces.concat();
        let expect = whole(&stream);
        for cut in 0..stream.len() {
            prop_assert_eq!(&said(Parser::default(), &stream, [cut]), &expect, "cut at {}", cut);
        }
    }

    #[test]
    fn cutting_a_stream_anywhere_changes_nothing(
        pieces in prop::collection::vec(piece(), 1..10),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        every_byte: bool,
    ) {
        let stream = pieces.concat();
        let mut ends: Vec<usize> = cuts.drain(..).map(|cut| cut.index(stream.len() + 1)).collect();
        if every_byte {
            ends.extend(0..=stream.len());
        }
        ends.sort_unstable();
        prop_assert_eq!(said(Parser::default(), &stream, ends), whole(&stream));
    }

    #[test]
    fn batches_hold_the_same_commands(pieces in prop::collection::vec(piece(), 1..12), max in 1usize..5) {
        let stream = pieces.concat();
        let expect = whole(&stream);
        let (commands, stop) = batches(Parser::default(), &stream, max);
        prop_assert_eq!(&commands, &expect.commands);
        match stop {
            Stop::Error(error) => prop_assert_eq!(Some(error), expect.error),
            _ => prop_assert_eq!(None, expect.error),
        }
    }
}

#[test]
fn a_large_command_ends_a_batch_and_has_the_words_of_the_read_buffer_it_took() {
    let input = b"+junk*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$3\r\nabc\r\n*1\r\n$4\r\nPING\r\n".to_vec();
    let mut batch = resp::Batch::with_large(20);
    let mut parser = resp::Parser::new(resp::Limits::default());
    let filled = batch.fill(&mut parser, &input[5..], 8);
    assert_eq!((batch.len(), filled.used, filled.stop), (2, 14 + 23, resp::Stop::Full));
    assert!(batch.take_large(0).is_none());
    assert_eq!(batch.args(1, &input[5..]).at(1), b"abc");
    let (base, spans) = batch.take_large(1).unwrap();
    let mut kept = resp::OwnedArgs::from_parts(input.clone(), 5 + base, spans);
    assert_eq!(kept.args().iter().collect::<Vec<_>>(), [&b"ECHO"[..], b"abc"]);
    kept.push(b"more");
    assert_eq!(kept.args().at(2), b"more");
    let filled = batch.fill(&mut parser, &input[5 + filled.used..], 8);
    assert_eq!((batch.len(), filled.used), (1, 14));
}

/// The expected size of a long command is about right, and the list of many words is made once.
#[test]
fn the_size_of_a_long_command_is_foreseen() {
    let mut input = b"*100001\r\n$4\r\nMSET\r\n".to_vec();
    let mut parser = resp::Parser::new(resp::Limits::default());
    assert_eq!(parser.expected_bytes(), 0);
    let mut expected = Vec::new();
    for i in 0..100_000 {
        let word = format!("word:{i}");
        input.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        if i % 10_000 == 1_000 {
            assert!(matches!(parser.parse(&input), Ok(resp::Parsed::More { .. })));
            expected.push(parser.expected_bytes());
        }
    }
    assert!(matches!(parser.parse(&input), Ok(resp::Parsed::Command { used }) if used == input.len()));
    assert_eq!((parser.args(&input).len(), parser.expected_bytes()), (100_001, 0));
    assert!(
        expected.iter().all(|e| e.abs_diff(input.len()) < input.len() / 5),
        "{expected:?} of {}",
        input.len()
    );
}
