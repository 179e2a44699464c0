//! Directives of cluster mode.

use super::*;

const NO_BUS: &str = "nodes do not talk to each other: what a cluster knows stands in its coordinator";
const NOT_IN_CLUSTERS: &str = "cluster mode does not have this yet";

pub(super) const CLUSTER: &[Directive] = &[
    flag("cluster-enabled", "no")
        .startup()
        .live(|l, v| l.cluster_enabled.set(v.is_yes()))
        .doc("Be a node of a cluster, which shares the keyspace by hash slots (docs/cluster.md)."),
    text("cluster-coordinator", "")
        .startup()
        .live(|l, v| l.cluster_coordinator.set(&Kind::Text.shown(v)))
        .doc("Where the cluster's map and leases are: etcd://host:port,host:port, etcds://host:port (TLS by tls-ca-cert-file), \
              kubernetes:namespace, or file:/directory for one machine."),
    text("cluster-coordinator-user", "")
        .startup()
        .live(|l, v| l.cluster_coordinator_user.set(&Kind::Text.shown(v)))
        .doc("The coordinator's user, where it asks for one."),
    text("cluster-coordinator-password", "")
        .startup()
        .secret()
        .live(|l, v| l.cluster_coordinator_password.set(&Kind::Text.shown(v)))
        .doc("That user's password."),
    text("cluster-name", "default")
        .startup()
        .live(|l, v| l.cluster_name.set(&Kind::Text.shown(v)))
        .doc("The cluster among those of a coordinator."),
    int("cluster-lease-ttl", 2000, 60_000, "3000")
        .unit("ms")
        .startup()
        .live(|l, v| l.cluster_lease_ttl_ms.set(v.int()))
        .doc("How long a primary leads without a word from the coordinator."),
    text("cluster-config-file", "nodes.conf")
        .startup()
        .accepted("the map stands in the coordinator, and this node's id in node.id in dir")
        .doc("File for the state of the cluster."),
    int("cluster-port", 0, 65535, "0").startup().accepted(NO_BUS).doc("Port for other nodes."),
    int("cluster-node-timeout", 0, LONG, "15000")
        .unit("ms")
        .accepted("cluster-lease-ttl says when a primary is lost")
        .doc("Silence after which a node counts as lost."),
    int("cluster-ping-interval", 1, LONG, "1000")
        .unit("ms")
        .accepted(NO_BUS)
        .doc("How often nodes are pinged."),
    int("cluster-databases", 1, INT, "1")
        .startup()
        .live(|l, v| l.cluster_databases.set(v.int()))
        .doc("Databases in cluster mode, in place of `databases`."),
    int("cluster-blacklist-ttl", 0, LONG, "60")
        .unit("seconds")
        .accepted("a node that was forgotten comes back only if it is told to (MEET)")
        .doc("How long a forgotten node stays out."),
    int("cluster-manual-failover-timeout", 1, INT, "5000")
        .unit("ms")
        .accepted("a hand-over may take 5 s")
        .doc("How long a manual failover may take."),
    int("cluster-replica-validity-factor", 0, INT, "10")
        .aka(&["cluster-slave-validity-factor"])
        .accepted("a replica that is in sync may lead, and no other")
        .doc("How stale a replica may be to become a primary."),
    int("cluster-migration-barrier", 0, INT, "1")
        .accepted("replicas stay with their shard")
        .doc("Replicas a primary keeps when others need some."),
    flag("cluster-allow-replica-migration", "yes")
        .accepted("replicas stay with their shard")
        .doc("Let replicas move to primaries without any."),
    flag("cluster-require-full-coverage", "yes")
        .live(|l, v| l.cluster_needs_all_slots.set(v.is_yes()))
        .doc("Refuse commands while a slot has no server."),
    flag("cluster-replica-no-failover", "no")
        .aka(&["cluster-slave-no-failover"])
        .accepted(NOT_IN_CLUSTERS)
        .doc("Never become a primary by itself."),
    flag("cluster-allow-reads-when-down", "no")
        .live(|l, v| l.cluster_reads_when_down.set(v.is_yes()))
        .doc("Answer reads while the cluster is down."),
    flag("cluster-allow-pubsubshard-when-down", "yes")
        .accepted(NOT_IN_CLUSTERS)
        .doc("Deliver sharded messages while the cluster is down."),
    memory("cluster-link-sendbuf-limit", 0, "0").accepted(NO_BUS).doc("Bytes that may wait for a node."),
    text("cluster-announce-ip", "")
        .startup()
        .live(|l, v| l.cluster_announce_ip.set(&Kind::Text.shown(v)))
        .doc("Address to tell others; empty: the first of `bind`."),
    text("cluster-announce-client-ipv4", "").accepted(NOT_IN_CLUSTERS).doc("IPv4 address to tell clients."),
    text("cluster-announce-client-ipv6", "").accepted(NOT_IN_CLUSTERS).doc("IPv6 address to tell clients."),
    text("cluster-announce-hostname", "")
        .startup()
        .live(|l, v| l.cluster_announce_hostname.set(&Kind::Text.shown(v)))
        .doc("Host name to tell others."),
    text("cluster-announce-human-nodename", "").accepted(NOT_IN_CLUSTERS).doc("Name of this node in logs."),
    int("cluster-announce-port", 0, 65535, "0")
        .startup()
        .live(|l, v| l.cluster_announce_port.set(v.int()))
        .doc("Port to tell others."),
    int("cluster-announce-tls-port", 0, 65535, "0")
        .startup()
        .live(|l, v| l.cluster_announce_tls_port.set(v.int()))
        .doc("TLS port to tell others."),
    int("cluster-announce-bus-port", 0, 65535, "0").accepted(NO_BUS).doc("Port for nodes to tell others."),
    choice("cluster-preferred-endpoint-type", &["ip", "hostname", "unknown-endpoint"], "ip")
        .live(|l, v| l.cluster_endpoint.set(v.int()))
        .doc("How nodes are named to clients."),
    flag("cluster-slot-stats-enabled", "no").accepted(NOT_IN_CLUSTERS).doc("Keep figures by slot."),
    int("cluster-announce-client-port", 0, 65535, "0").accepted(NOT_IN_CLUSTERS).doc("Port to tell clients."),
    int("cluster-announce-client-tls-port", 0, 65535, "0")
        .accepted(NOT_IN_CLUSTERS)
        .doc("TLS port to tell clients."),
    choice("cluster-config-save-behavior", &["sync", "best-effort"], "sync")
        .accepted("the map stands in the coordinator")
        .doc("What a node does that cannot save its file."),
    int("cluster-slot-migration-log-max-len", 0, LONG, "1000")
        .accepted(NOT_IN_CLUSTERS)
        .doc("Migrations of slots to remember."),
    int("cluster-compatibility-sample-ratio", 0, 100, "0")
        .accepted(NOT_IN_CLUSTERS)
        .doc("Share of commands looked at for use in a cluster."),
    memory("slot-migration-max-failover-repl-bytes", -1, "0")
        .accepted(NOT_IN_CLUSTERS)
        .doc("Bytes that may be missing when a slot changes its node."),
];
