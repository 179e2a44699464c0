use super::*;
use crate::samples::{bulk, flat, now};

fn info(commands: u64, hits: u64, rest: &str) -> Frame {
    bulk(&format!(
        "# Server\r\nrun_id:a\r\ntotal_commands_processed:{commands}\r\nkeyspace_hits:{hits}\r\nkeyspace_misses:10\r\n\
         total_net_input_bytes:{commands}\r\ntotal_net_output_bytes:{commands}\r\nexpired_keys:0\r\nevicted_keys:0\r\n\
         connected_clients:120\r\nblocked_clients:3\r\nused_memory:1610612736\r\n{rest}"
    ))
}

/// The second of two looks, a second later.
fn second(looks: [&[Frame]; 2]) -> (Second, Vec<String>) {
    let mut asker = Asker::new(Duration::from_secs(1));
    asker.take(looks[0], 0, 0);
    asker.pings = vec![300, 100, 200];
    let second = asker.take(looks[1], 1_795_939_143_000, 1_000_000);
    (second, asker.notes())
}

fn line(second: &Second) -> String {
    row(&second.columns(), &second.worst())
}

#[test]
fn a_line_tells_the_rates_and_who_makes_whom_wait() {
    let more = "evenkeel_version:1.0\r\nrole:master\r\nconnected_slaves:1\r\n";
    let name = b"billing\x1b[2J\xff";
    let (second, notes) = second([&[info(0, 0, more), now(name)], &[info(12_345, 90, more), now(name)]]);
    assert_eq!(notes, [""; 0]);
    // No miss was added, so all reads were hits.
    assert_eq!(
        line(&second),
        "07:59:03 12.3k 100.0  64us  64us 8.2ms   120     3  1.5G     0     0 12.1K 12.1K  12ms  \
         billing\\x1b[2J\\xff > 38 clients of checkout-api (commit, 19.8s)"
    );
    assert!(header(&second).starts_with("times in UTC; latency: the server's own"));
    let json = second.json();
    assert_eq!(json["server"], "evenkeel");
    assert_eq!(json["ops"], 12_345.0);
    assert_eq!(json["latency_us"].to_string(), r#"{"from":"server","p50":64,"p99":64,"p999":8192}"#);
    assert_eq!(json["worst"]["culprit"], "billing\\x1b[2J\\xff");
    assert_eq!(json["replica_lag_ms"], 12);
}

#[test]
fn a_server_that_tells_no_latencies_is_measured() {
    let unknown = || Frame::Error(b"ERR unknown command 'EVENKEEL'".to_vec());
    let entry = |id, us| {
        Frame::Array(vec![
            Frame::Int(id),
            Frame::Int(0),
            Frame::Int(us),
            Frame::Array(vec![bulk("EVAL"), bulk("\x1b]0;x\x07")]),
            bulk("10.0.0.1:4"),
            bulk(""),
        ])
    };
    let rest = "redis_version:7.0.15\r\nrole:slave\r\nmaster_link_status:down\r\n";
    let mut asker = Asker::new(Duration::from_secs(1));
    asker.take(&[info(0, 0, rest), unknown()], 0, 0);
    asker.take(&[info(0, 0, rest), Frame::Array(vec![entry(0, 9_000_000)])], 0, 0);
    asker.pings = vec![300, 100, 200];
    let slow = Frame::Array(vec![entry(2, 48_000), entry(1, 20_000), entry(0, 9_000_000)]);
    let second = asker.take(&[info(10, 0, rest), slow], 0, 1_000_000);
    assert!(asker.notes().is_empty());
    assert_eq!(
        line(&second),
        "00:00:00    10     - 200us 300us 300us   120     3  1.5G     0     0    10    10  down  \
         slow: EVAL of 10.0.0.1:4, 48ms"
    );
    assert!(header(&second).contains("this tool's PINGs"));
    assert_eq!(second.json()["latency_us"]["from"], "ping");
    assert_eq!(second.json()["slow"]["us"], 48_000);
    assert_eq!(second.json()["link_up"], false);
}

#[test]
fn refusals_are_told_once_and_leave_gaps() {
    let refused = || Frame::Error(b"NOPERM this user has no permissions".to_vec());
    let mut asker = Asker::new(Duration::from_secs(1));
    asker.take(&[refused(), refused()], 0, 0);
    asker.take(&[refused(), refused()], 0, 0);
    let second = asker.take(&[refused(), refused()], 0, 1_000_000);
    assert_eq!(
        asker.notes(),
        ["INFO: NOPERM this user has no permissions", "SLOWLOG: NOPERM this user has no permissions"]
    );
    assert_eq!(line(&second).matches(" -").count(), 13);
    assert_eq!(second.json()["server"], Value::Null);
}

#[test]
fn a_server_that_has_started_anew_has_no_rates() {
    let other = bulk("run_id:b\r\ntotal_commands_processed:99999\r\n");
    let (second, _) = second([&[info(5, 5, ""), now(b"a")], &[other, now(b"a")]]);
    assert_eq!(second.rates, Rates::default());
}

#[test]
fn a_longer_interval_takes_its_latencies_from_the_history() {
    let octave = |columns: [Frame; 2]| Frame::Array(columns.to_vec());
    let mut heat = vec![octave([Frame::Null, Frame::Int(0)]); 24];
    heat[3] = octave([Frame::Null, Frame::Int(7)]);
    heat[4] = octave([Frame::Int(1), Frame::Int(1)]);
    let history = flat(&[("n", Frame::Int(2)), ("heat", Frame::Array(heat))]);
    let (second, _) = second([&[info(0, 0, ""), now(b"a")], &[info(0, 0, ""), now(b"a"), history]]);
    assert_eq!(second.latency(), (FROM_SERVER, [Some(8), Some(16), Some(16)]));
}

#[test]
fn names_and_figures_stand_below_each_other() {
    let (second, _) = second([&[info(0, 0, ""), now(b"a")], &[info(0, 0, ""), now(b"a")]]);
    let head = header(&second);
    let names = head.lines().last().unwrap_or_default();
    assert_eq!(names.find("who makes"), line(&second).find("a > 38"));
    assert_eq!(second.columns().len(), NAMES.len());
}
