//! Hostile heads: none may cause a panic, and none may be read as two different requests.

mod checks;

use checks::requests;
use proptest::prelude::*;

fn head() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("Host: h\r\n".to_owned()),
        Just("Connection: close\r\n".to_owned()),
        Just("Content-Length: 3\r\n".to_owned()),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
        Just("Expect: 100-continue\r\n".to_owned()),
        "Cookie: [a-z=;, \\t]{0,30}\r\n",
        "Origin: (http://|https://|null|)[a-z:/]{0,12}\r\n",
        "Accept(-Encoding)?: [a-z/*,;=0-9. ]{0,30}\r\n",
        "[A-Za-z-]{1,12}: [ -~]{0,20}\r\n",
        "[ -~\r\n\t]{0,20}",
    ];
    let begin = prop_oneof![
        Just("GET /items/1 HTTP/1.1\r\n".to_owned()),
        Just("POST /api/v1/commands HTTP/1.1\r\n".to_owned()),
        "[A-Z]{0,8} [ -~]{0,20} HTTP/1.[0-2]\r\n"
    ];
    (begin, prop::collection::vec(line, 0..6))
        .prop_map(|(begin, lines)| format!("{begin}{}\r\n", lines.concat()))
}

proptest! {
    #[test]
    fn the_same_bytes_are_the_same_requests_in_any_pieces(heads in prop::collection::vec(head(), 1..4), step in 1usize..50) {
        let bytes = heads.concat().into_bytes();
        prop_assert_eq!(requests(&bytes, bytes.len().max(1)), requests(&bytes, step));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        checks::stream(&bytes);
    }
}
