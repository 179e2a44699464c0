//! COMMAND DOCS, from which tools know how commands are typed.

use crate::support::{Server, foreign};

#[test]
fn arguments_are_described_with_what_is_inside_them() {
    let server = Server::start();
    let mut client = server.client3();
    if foreign() {
        return;
    }
    let docs = client.call("COMMAND DOCS sintercard");
    let arguments = r#""arguments": [{"name": "numkeys", "type": "integer", "display_text": "numkeys"}, {"name": "key", "type": "key", "display_text": "key", "key_spec_index": :0, "flags": ~[+multiple]}, {"name": "limit", "type": "integer", "display_text": "limit", "token": "LIMIT", "flags": ~[+optional]}]"#;
    assert!(docs.contains(arguments), "{docs}");
    let docs = client.call("COMMAND DOCS getset");
    assert!(docs.contains(r#""doc_flags": ~[+deprecated], "deprecated_since": "6.2.0""#), "{docs}");
    let docs = client.call("COMMAND DOCS multi");
    assert!(!docs.contains("arguments"), "{docs}");
}

#[test]
fn all_commands_are_described_at_once_and_in_a_transaction() {
    let server = Server::start();
    let mut client = server.client();
    let all = client.call("COMMAND DOCS");
    assert!(all.contains("\"zunionstore\"") && all.contains("\"config|get\""));
    client.expect("MULTI", "+OK");
    client.expect("COMMAND DOCS", "+QUEUED");
    assert_eq!(client.call("EXEC"), format!("[{all}]"));
}
