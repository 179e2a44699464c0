//! The page of figures as Prometheus itself sees it. Debian's package `prometheus` has both programs.

use crate::http::Http;
use crate::support::{Server, foreign, free_port};
use crate::waits::until;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

const ALERTS: &str = include_str!("../../../../deploy/alerts.yml");
const TESTS_OF_ALERTS: &str = include_str!("../../../../deploy/alerts-test.yml");
const DASHBOARD: &str = include_str!("../../../../deploy/grafana.json");

fn promtool(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool: apt-get install prometheus");
    child.stdin.take().expect("its input").write_all(stdin.as_bytes()).expect("it reads");
    child.wait_with_output().expect("its end")
}

/// A server with something of everything, and a replica of it.
fn servers() -> (Server, SocketAddr, Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let args = ["--appendonly", "yes", "--dir", &dir, "--maxmemory", "1gb", "--demo", "yes"];
    let (server, at) = Server::start_http(&args);
    let mut client = server.client();
    until("the item is there", || !client.call("EVENKEEL ITEMS item:42").contains("(nil)"));
    client.expect("SET k v EX 1000", "+OK");
    client.call("GET k");
    assert!(client.call("nonsense").starts_with("-ERR"));
    let port = client.call("CONFIG GET port");
    let port = port.split('"').nth(3).expect("a port").to_owned();
    let replica = Server::start_with(&["--save", "", "--replicaof", &format!("127.0.0.1 {port}")]);
    until("the replica is there", || client.call("INFO replication").contains("state=online"));
    (server, at, replica, folder)
}

#[test]
fn promtool_finds_nothing_to_complain_of_in_our_own_names() {
    if foreign() {
        return;
    }
    let (_server, at, _replica, _folder) = servers();
    let page = Http::to(at).get("/metrics").text().to_owned();
    assert!(page.lines().count() < 1500, "{} lines", page.lines().count());
    let said = promtool(&["check", "metrics"], &page);
    let text = [&said.stdout[..], &said.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    // The names that redis_exporter gives are as they are.
    let own: Vec<&str> = text.lines().filter(|line| !line.starts_with("redis_")).collect();
    assert!(own.is_empty(), "{own:?}");
}

#[test]
fn the_alerts_are_right_and_fire_when_they_should() {
    if foreign() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (what, file, text) in [("check", "alerts.yml", ALERTS), ("test", "alerts-test.yml", TESTS_OF_ALERTS)]
    {
        let path = folder.path().join(file);
        std::fs::write(&path, text).expect("its file");
        let path = path.display().to_string();
        let said = promtool(&[what, "rules", &path], "");
        assert!(said.status.success(), "{said:?}");
    }
}

/// A Prometheus of the test's own, which ends with it.
struct Prometheus(Child, SocketAddr, #[allow(dead_code, reason = "it keeps the folder")] tempfile::TempDir);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Prometheus {
    fn of(server: SocketAddr) -> Prometheus {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, at) = (folder.path().join("prometheus.yml"), format!("127.0.0.1:{}", free_port()));
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\nscrape_configs:\n- job_name: evenkeel\n  \
             static_configs: [{{targets: ['{server}']}}]\n"
        );
        std::fs::write(&file, config).expect("its file");
        let child = Command::new("prometheus")
            .args(["--config.file", &file.display().to_string(), "--web.listen-address", &at])
            .args(["--storage.tsdb.path", &folder.path().join("data").display().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus: apt-get install prometheus");
        Prometheus(child, at.parse().expect("an address"), folder)
    }

    /// The number of series that a query gives; None: it is not answered.
    fn ask(&self, query: &str) -> Option<usize> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        if std::net::TcpStream::connect(self.1).is_err() {
            return None;
        }
        let answer = Http::to(self.1).get(&format!("/api/v1/query?query={escaped}"));
        let answer: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        assert!(answer["status"] == "success" || answer["errorType"] != "bad_data", "{query}: {answer}");
        Some(answer["data"]["result"].as_array()?.len())
    }
}

/// The figures of the alerts, without their bounds.
fn of_alerts() -> Vec<String> {
    let lines = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    lines
        .map(|expression| {
            expression.rsplit_once([' ']).expect("a bound").0.trim_end_matches([' ', '<', '>']).to_owned()
        })
        .collect()
}

/// The queries of the dashboard, with its variables filled in.
fn of_dashboard() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("queries"));
    let queries = targets.map(|target| target["expr"].as_str().expect("a query"));
    queries.map(|query| query.replace("$__rate_interval", "5m").replace("$instance", ".*")).collect()
}

#[test]
fn each_query_of_dashboard_and_alerts_returns_data() {
    if foreign() {
        return;
    }
    let (_server, at, _replica, _folder) = servers();
    let prometheus = Prometheus::of(at);
    let queries: Vec<String> = of_alerts().into_iter().chain(of_dashboard()).collect();
    assert!(queries.len() > 30, "{queries:?}");
    until("it scrapes", || prometheus.ask("count_over_time(redis_up[5m]) > 2") == Some(1));
    for query in queries {
        // A figure that is known later, as a replica's, comes with the next look.
        until(&query, || prometheus.ask(&query).is_some_and(|series| series > 0));
    }
}

/// Takes one request of a collector's clients: its body. Answers with the status.
fn collect(collector: &TcpListener, status: &str) -> (String, serde_json::Value) {
    let (mut stream, _) = collector.accept().expect("a sender");
    let mut bytes = Vec::new();
    let (head, length) = loop {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).expect("a request");
        assert!(n > 0, "{}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
        break (head.to_owned(), length.parse::<usize>().expect("a number"));
    };
    let mut body = bytes.split_off(head.len() + 4);
    let have = body.len();
    body.resize(length, 0);
    stream.read_exact(&mut body[have..]).expect("the body");
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
    stream.write_all(answer.as_bytes()).expect("it reads");
    (head, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn a_collector_of_opentelemetry_gets_the_same_figures() {
    if foreign() {
        return;
    }
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", collector.local_addr().expect("an address"));
    let (server, at) = Server::start_http(&["--otlp-endpoint", &endpoint, "--otlp-period", "1"]);
    let mut client = server.client();
    client.expect("SET k v", "+OK");
    // A refusal delays nothing but the next try.
    let _ = collect(&collector, "503 Busy");
    client.expect("GET k", "\"v\"");
    let (head, sent) = collect(&collector, "200 OK");
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/json"), "{head}");
    let of = &sent["resourceMetrics"][0];
    assert_eq!(of["resource"]["attributes"][0]["value"]["stringValue"], "evenkeel");
    let metrics = of["scopeMetrics"][0]["metrics"].as_array().expect("a list");
    let find =
        |name: &str| metrics.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name}"));
    let commands = &find("redis_commands_total")["sum"];
    assert!(commands["isMonotonic"] == true && commands["aggregationTemporality"] == 2);
    let points = commands["dataPoints"].as_array().expect("points");
    let set = points.iter().find(|point| point["attributes"][0]["value"]["stringValue"] == "set");
    assert_eq!(set.expect("a point of SET")["asDouble"], 1);
    let requests = &find("evenkeel_request_seconds")["histogram"]["dataPoints"][0];
    let counts = requests["bucketCounts"].as_array().expect("counts");
    let n = |value: &serde_json::Value| value.as_str().and_then(|n| n.parse::<u64>().ok()).expect("a number");
    assert_eq!(counts.iter().map(n).sum::<u64>(), n(&requests["count"]));
    assert_eq!(counts.len(), requests["explicitBounds"].as_array().expect("bounds").len() + 1);
    // Each family of the page is there.
    let page = Http::to(at).get("/metrics").text().to_owned();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for family in families.filter(|family| page.contains(&format!("\n{family}"))) {
        assert!(metrics.iter().any(|one| one["name"] == family), "{family}");
    }
    // A collector that is gone disturbs nobody.
    drop(collector);
    std::thread::sleep(std::time::Duration::from_millis(1200));
    client.expect("GET k", "\"v\"");
}
