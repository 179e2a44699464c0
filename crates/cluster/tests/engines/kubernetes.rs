//! The engine `kubernetes`: promises beside the suite, before a stub of the API.

use crate::stub::Stub;
use crate::suite::{
    Engine, SHARD, TTL, Watch, acquire, acquire_later, acquire_short, eventually, id, node, put, renew,
};
use cluster::coordinator::{Cas, Coordinator, Ended, Held, Renewed, cas_known};
use cluster::kubernetes::{Kubernetes, Place};
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAP: &str = "/api/v1/namespaces/here/configmaps/evenkeel-test";
const POD: &str = "/api/v1/namespaces/here/pods/pod-0";

struct Api {
    stub: Stub,
    dir: tempfile::TempDir,
}

impl Api {
    fn start() -> Api {
        let api = Api { stub: Stub::start("first"), dir: tempfile::tempdir().expect("a folder") };
        api.write_token("first");
        let pod = json!({"metadata": {"name": "pod-0", "labels": {"app": "x"}}});
        api.stub.state().objects.insert(POD.to_owned(), pod);
        api
    }

    fn write_token(&self, token: &str) {
        std::fs::write(self.dir.path().join("token"), format!("{token}\n")).expect("a file");
    }

    fn lease(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/here/leases/evenkeel-test-{SHARD}")
    }
}

impl Engine for Api {
    fn spec(&self) -> String {
        format!("stub:{} {}", self.stub.port, self.dir.path().join("token").display())
    }
}

/// A candidate for what [`Api::spec`] names.
pub fn open(spec: &str) -> Arc<dyn Coordinator> {
    let (port, token) = spec.split_once(' ').expect("a port and a file");
    let place = Place {
        server: format!("127.0.0.1:{port}"),
        tls: None,
        token: token.into(),
        namespace: "here".to_owned(),
        pod: "pod-0".to_owned(),
    };
    Arc::new(Kubernetes::new(place, "test").expect("a coordinator"))
}

crate::conformance!(Api::start());

#[test]
fn a_candidate_counts_by_its_own_clock_from_when_it_looked() {
    let api = Api::start();
    let a = api.open();
    acquire_short(&*a, "a");
    std::thread::sleep(TTL);
    // Times in the object say that it is over, but this one has not seen it stand still.
    let (b, begun) = (api.open(), Instant::now());
    assert_eq!(b.acquire(&id(SHARD), &node("b"), TTL), Err(Held::By(node("a"))));
    acquire_later(&*b, "b");
    assert!(begun.elapsed() >= TTL);
}

#[test]
fn a_token_that_expires_is_read_again() {
    let api = Api::start();
    let at = api.open();
    let lease = acquire(&*at, "a").expect("free");
    api.write_token("second");
    api.stub.state().token = "second".to_owned();
    assert_eq!(renew(&*at, &lease), Renewed::Kept);
    assert_eq!(api.stub.state().refused, 1);
    let first = put(&*at, "map", 0, b"1");
    api.write_token("third");
    api.stub.state().token = "third".to_owned();
    let watch = Watch::start(at.clone(), "map", first);
    let second = put(&*at, "map", first, b"2");
    assert_eq!(watch.next().revision, second);
    watch.end();
    // One that stays refused is no answer, and says so.
    api.stub.state().token = "other".to_owned();
    let Renewed::Unknown(trouble) = at.renew(&lease) else { panic!("refused") };
    assert!(trouble.to_string().contains("401"), "{trouble}");
}

#[test]
fn a_version_that_is_gone_loses_no_change() {
    let api = Api::start();
    let (at, writer) = (api.open(), api.open());
    let mut last = put(&*writer, "map", 0, b"0");
    let watch = Watch::start(at.clone(), "", last);
    for round in 0..20u32 {
        last = put(&*writer, "map", last, round.to_string().as_bytes());
        assert_eq!(watch.next().revision, last);
        // The watch ends, and where it was is gone; nothing has changed since, so it goes on.
        api.stub.compact();
    }
    watch.end();
    // Changes behind a version that is gone cannot be told.
    let (after, _) = at.read("").expect("an answer");
    for n in 0..3u32 {
        last = put(&*writer, "map", last, n.to_string().as_bytes());
    }
    api.stub.compact();
    assert_eq!(Watch::start(at.clone(), "map", after).ended(), Ended::Compacted);
    // A candidate that has not seen that revision, likewise.
    assert_eq!(Watch::start(api.open(), "map", after).ended(), Ended::Compacted);
    let watch = Watch::start(api.open(), "map", last);
    let next = put(&*writer, "map", last, b"on");
    assert_eq!(watch.next().revision, next);
    // The object is removed by hand: read again.
    api.stub.state().delete(MAP);
    assert_eq!(watch.ended(), Ended::Compacted);
}

#[test]
fn answers_that_are_not_heard_are_asked_for() {
    let api = Api::start();
    let at = api.open();
    let later = || Instant::now() + Duration::from_secs(60);
    let first = put(&*at, "map", 0, b"1");
    api.stub.state().silent = 1;
    assert_eq!(cas_known(&*at, "map", first, Some(b"2"), later()), Cas::Done(first + 1));
    // Done, not heard, and overwritten since: that is known, too.
    api.stub.state().silent = 1;
    assert!(matches!(at.cas("map", first + 1, Some(b"3")), Cas::Unknown(_)));
    assert_eq!(at.cas("map", first + 1, Some(b"3")), Cas::Conflict(first + 2));
    // A lease that was taken and not heard of is found by the next call.
    api.stub.state().silent = 1;
    let long = Duration::from_secs(90);
    assert!(matches!(at.acquire(&id(SHARD), &node("a"), long), Err(Held::Unknown(_))));
    let lease = at.acquire(&id(SHARD), &node("a"), long).expect("its own");
    api.stub.state().silent = 1;
    assert!(matches!(at.renew(&lease), Renewed::Unknown(_)));
    assert_eq!(at.renew(&lease), Renewed::Kept);
    assert_eq!(api.open().acquire(&id(SHARD), &node("a"), long), Err(Held::By(node("a"))));
}

#[test]
fn objects_that_people_touch_stay_leases() {
    let api = Api::start();
    let at = api.open();
    put(&*at, "map", 0, b"1");
    let lease = acquire(&*at, "a").expect("free");
    // Somebody adds an annotation: another version, the same lease.
    {
        let mut state = api.stub.state();
        let object = state.objects.get_mut(&api.lease()).expect("the Lease");
        object["metadata"]["resourceVersion"] = json!("5");
        object["metadata"]["annotations"]["note"] = json!("hello");
    }
    assert_eq!(renew(&*at, &lease), Renewed::Kept);
    // Somebody removes it: lost, and epochs do not fall behind what the map has counted.
    api.stub.state().delete(&api.lease());
    assert_eq!(renew(&*at, &lease), Renewed::Lost);
    assert!(acquire(&*api.open(), "b").expect("free").epoch > 1);
}

#[test]
fn the_pod_shows_its_role() {
    let api = Api::start();
    let at = api.open();
    for role in ["primary", "replica"] {
        at.show_role(role).expect("an answer");
        assert_eq!(api.stub.state().objects[POD]["metadata"]["labels"], json!({"app": "x", "role": role}));
    }
    api.stub.state().delete(POD);
    let error = at.show_role("primary").expect_err("no pod").to_string();
    assert!(error.contains("pod-0") && error.contains("404"), "{error}");
}

#[test]
fn writers_of_one_object_get_conflicts_and_try_again() {
    let api = Api::start();
    let all: Vec<_> = (0..8).map(|n| (api.open(), format!("node/{n}"))).collect();
    std::thread::scope(|scope| {
        for (at, key) in &all {
            scope.spawn(move || {
                let mut revision = 0;
                for n in 0..20u32 {
                    revision = put(&**at, key, revision, n.to_string().as_bytes());
                }
            });
        }
    });
    let (revision, entries) = all[0].0.read("node/").expect("an answer");
    assert_eq!((revision, entries.len()), (160, 8));
    assert!(entries.iter().all(|entry| entry.value == b"19"));
    eventually("conflicts", || api.stub.state().conflicts > 0);
}

#[test]
fn outside_of_a_pod_it_says_so() {
    let error = cluster::open("kubernetes:here", "test", &cluster::Access::default()).err().expect("no pod");
    assert!(error.contains("KUBERNETES_SERVICE_HOST") && error.contains("etcd://"), "{error}");
}
