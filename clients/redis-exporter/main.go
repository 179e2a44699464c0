// What people watch and are woken by: a real redis_exporter asks the server, and its metrics say what is so.
// The exporter's program is the first argument.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	ctx      = context.Background()
	address  string
	exporter string
	script   string
)

type metrics map[string]float64

// scrape gives every line of the exporter's page: name with labels, value.
func scrape() (metrics, error) {
	reply, err := http.Get("http://" + exporter + "/metrics")
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	page := metrics{}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || space < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %v", line, err)
		}
		page[line[:space]] = value
	}
	if page["redis_up"] != 1 || page[`redis_exporter_last_scrape_error{err=""}`] != 0 {
		return nil, fmt.Errorf("redis_up %v, of %d lines", page["redis_up"], len(page))
	}
	return page, lines.Err()
}

// is complains unless the metric is there and within bounds.
func (page metrics) is(name string, least, most float64) error {
	value, there := page[name]
	if !there {
		return fmt.Errorf("%s is missing", name)
	}
	if value < least || value > most {
		return fmt.Errorf("%s is %v, not within %v and %v", name, value, least, most)
	}
	return nil
}

// are complains of every metric whose value is another.
func (page metrics) are(value float64, names ...string) error {
	var err error
	for _, name := range names {
		err = errors.Join(err, page.is(name, value, value))
	}
	return err
}

// label gives the value of a label in the one line that begins with name.
func (page metrics) label(name, label string) string {
	for line := range page {
		if strings.HasPrefix(line, name+"{") {
			_, rest, _ := strings.Cut(line, label+`="`)
			value, _, _ := strings.Cut(rest, `"`)
			return value
		}
	}
	return ""
}

const much = 1e18

type test struct {
	name string
	run  func(r *redis.Client) error
}

var tests = []test{
	{"it is up, and who it is", func(r *redis.Client) error {
		page, err := scrape()
		if err != nil {
			return err
		}
		if page.label("redis_instance_info", "role") != "master" || page.label("redis_instance_info", "redis_mode") != "standalone" ||
			page.label("redis_instance_info", "redis_version") < "7" || !strings.HasSuffix(address, ":"+page.label("redis_instance_info", "tcp_port")) {
			return fmt.Errorf("%v", page)
		}
		now := float64(time.Now().Unix())
		return errors.Join(page.is("redis_uptime_in_seconds", 0, now), page.is("redis_start_time_seconds", now-1e7, now+5),
			page.are(0, "redis_loading_dump_file", "redis_connected_slaves", "redis_cluster_enabled"), page.is("redis_process_id", 1, much))
	}},
	{"memory", func(r *redis.Client) error {
		before, err := scrape()
		err = errors.Join(err, r.ConfigSet(ctx, "maxmemory", "1gb").Err(), r.Set(ctx, "big", strings.Repeat("x", 20<<20), 0).Err())
		page, err2 := scrape()
		err = errors.Join(err, err2, r.ConfigSet(ctx, "maxmemory", "0").Err())
		used := before["redis_memory_used_bytes"] + 20<<20
		return errors.Join(err, page.are(1<<30, "redis_memory_max_bytes", "redis_config_maxmemory"), page.is("redis_memory_used_bytes", used-1<<20, used+64<<20),
			page.is("redis_memory_used_peak_bytes", used-1<<20, much), page.is("redis_memory_used_rss_bytes", 1<<20, much),
			page.is("redis_mem_fragmentation_ratio", 0.1, 1000), page.is("redis_total_system_memory_bytes", 1<<28, much), page.are(0, "redis_evicted_keys_total"))
	}},
	{"clients: connected, blocked, at most", func(r *redis.Client) error {
		before, err := scrape()
		if err != nil {
			return err
		}
		waiter := redis.NewClient(&redis.Options{Addr: address, ReadTimeout: time.Minute, ClientName: "waiter"})
		defer waiter.Close()
		done := make(chan error)
		go func() { done <- waiter.BLPop(ctx, time.Minute, "queue").Err() }()
		// One more than before, but for the connections of earlier scrapes, which may end a moment later.
		page, connected, awaited := before, before["redis_connected_clients"], errors.New("no look")
		for end := time.Now().Add(time.Minute); awaited != nil; {
			if page, err = scrape(); err != nil || time.Now().After(end) {
				return errors.Join(err, awaited)
			}
			awaited = errors.Join(page.are(1, "redis_blocked_clients"), page.is("redis_connected_clients", connected-5, connected+1))
		}
		err = errors.Join(page.are(10_000, "redis_max_clients"), page.are(10_000, "redis_config_maxclients"), page.are(0, "redis_rejected_connections_total"),
			page.is("redis_connections_received_total", before["redis_connections_received_total"]+1, much))
		for line := range page {
			if strings.HasPrefix(line, "redis_connected_client_info{") && strings.Contains(line, `name="waiter"`) {
				return errors.Join(err, r.RPush(ctx, "queue", "x").Err(), <-done)
			}
		}
		return errors.Join(err, errors.New("the waiter is not in the list of clients"), r.RPush(ctx, "queue", "x").Err(), <-done)
	}},
	{"keys of each database, hits, misses, expiry", func(r *redis.Client) error {
		before, err := scrape()
		for i := range 30 {
			err = errors.Join(err, r.Set(ctx, fmt.Sprint("k:", i), i, time.Duration(i%3)*time.Hour).Err(), r.Get(ctx, fmt.Sprint("k:", i)).Err())
		}
		r.Get(ctx, "nosuch")
		err = errors.Join(err, r.Set(ctx, "short", 1, time.Millisecond).Err(), r.Do(ctx, "MOVE", "k:0", 5).Err())
		time.Sleep(5 * time.Millisecond)
		r.Exists(ctx, "short")
		page, err2 := scrape()
		// A real Redis finds the average a moment later.
		average := `redis_db_avg_ttl_seconds{db="db0"}`
		for end := time.Now().Add(time.Minute); err2 == nil && page.is(average, 3000, 7200) != nil && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
			page, err2 = scrape()
		}
		hits, misses := before["redis_keyspace_hits_total"], before["redis_keyspace_misses_total"]
		return errors.Join(err, err2, page.are(29, `redis_db_keys{db="db0"}`), page.are(20, `redis_db_keys_expiring{db="db0"}`), page.are(1, `redis_db_keys{db="db5"}`),
			page.are(0, `redis_db_keys{db="db1"}`, `redis_db_keys_expiring{db="db5"}`), page.is(average, 3000, 7200),
			page.is("redis_keyspace_hits_total", hits+30, much), page.is("redis_keyspace_misses_total", misses+1, much),
			page.are(before["redis_expired_keys_total"]+1, "redis_expired_keys_total"))
	}},
	{"the average time of keys that are gone is forgotten", func(r *redis.Client) error {
		const average = `redis_db_avg_ttl_seconds{db="db0"}`
		// The average is found in the background, so each look is repeated for a while.
		comes := func(least, most float64) error {
			err := errors.New("no look")
			for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				page, err2 := scrape()
				err = errors.Join(err2, page.is(average, least, most))
			}
			return err
		}
		err := errors.Join(r.Set(ctx, "years", 1, 5*365*24*time.Hour).Err(), comes(1e6, 2e8), r.FlushAll(ctx).Err(), r.Set(ctx, "minutes", 1, 10*time.Minute).Err())
		return errors.Join(err, comes(500, 600))
	}},
	{"persistence: the last file, its changes since, the log", func(r *redis.Client) error {
		before, err := scrape()
		err = errors.Join(err, r.Set(ctx, "a", 1, 0).Err(), r.Set(ctx, "b", 1, 0).Err())
		changed, err2 := scrape()
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		err = errors.Join(changed.are(before["redis_rdb_changes_since_last_save"]+2, "redis_rdb_changes_since_last_save"),
			changed.are(0, "redis_aof_enabled", "redis_aof_rewrite_in_progress", "redis_rdb_bgsave_in_progress"),
			changed.are(1, "redis_rdb_last_bgsave_status", "redis_aof_last_bgrewrite_status", "redis_aof_last_write_status"),
			r.Save(ctx).Err())
		page, err2 := scrape()
		now := float64(time.Now().Unix())
		return errors.Join(err, err2, page.are(0, "redis_rdb_changes_since_last_save"), page.is("redis_rdb_last_save_timestamp_seconds", now-60, now+5),
			page.is("redis_latest_fork_seconds", 0, 100), page.is("redis_rdb_last_bgsave_duration_sec", -1, 100))
	}},
	{"calls, failed and rejected ones, errors", func(r *redis.Client) error {
		err := errors.Join(r.ConfigResetStat(ctx).Err(), r.Set(ctx, "s", "text", 0).Err())
		for range 7 {
			err = errors.Join(err, r.Get(ctx, "s").Err())
		}
		r.Incr(ctx, "s")
		r.LPush(ctx, "s", "x")
		r.Do(ctx, "GET")
		page, err2 := scrape()
		return errors.Join(err, err2, page.are(7, `redis_commands_total{cmd="get"}`), page.are(1, `redis_commands_total{cmd="set"}`, `redis_commands_rejected_calls_total{cmd="get"}`,
			`redis_commands_failed_calls_total{cmd="incr"}`, `redis_commands_failed_calls_total{cmd="lpush"}`, `redis_errors_total{err="WRONGTYPE"}`),
			page.is(`redis_errors_total{err="ERR"}`, 2, 10), page.are(0, `redis_commands_failed_calls_total{cmd="get"}`),
			page.is(`redis_commands_duration_seconds_total{cmd="get"}`, 1e-6, 10), page.is("redis_commands_processed_total", 10, 200),
			page.is("redis_net_input_bytes_total", 100, much), page.is("redis_net_output_bytes_total", 100, much))
	}},
	{"how long commands take: percentiles and histograms", func(r *redis.Client) error {
		err := r.ConfigResetStat(ctx).Err()
		for i := range 50 {
			err = errors.Join(err, r.HSet(ctx, "h", i, i).Err())
		}
		page, err2 := scrape()
		p50, p99 := page[`redis_latency_percentiles_usec{cmd="hset",quantile="50"}`], page[`redis_latency_percentiles_usec{cmd="hset",quantile="99"}`]
		if p50 <= 0 || p99 < p50 {
			err = errors.Join(err, fmt.Errorf("percentiles %v and %v", p50, p99))
		}
		return errors.Join(err, err2, page.are(50, `redis_commands_latencies_usec_count{cmd="hset"}`, `redis_commands_latencies_usec_bucket{cmd="hset",le="+Inf"}`),
			page.is(`redis_commands_latencies_usec_sum{cmd="hset"}`, 1, 1e8), page.is(`redis_latency_percentiles_usec{cmd="hset",quantile="99.9"}`, p99, 1e8))
	}},
	{"slow log and latency events", func(r *redis.Client) error {
		err := errors.Join(r.ConfigSet(ctx, "latency-monitor-threshold", "1").Err(), r.ConfigSet(ctx, "slowlog-log-slower-than", "1000").Err(),
			r.SlowLogReset(ctx).Err(), r.LatencyReset(ctx).Err(), r.Eval(ctx, "for i = 1, 5000000 do end return 1", nil).Err(),
			r.ConfigSet(ctx, "latency-monitor-threshold", "0").Err(), r.ConfigSet(ctx, "slowlog-log-slower-than", "10000000").Err())
		page, err2 := scrape()
		now := float64(time.Now().Unix())
		return errors.Join(err, err2, page.is("redis_slowlog_length", 1, 10), page.is("redis_slowlog_last_id", 0, much), page.is("redis_last_slow_execution_duration_seconds", 0.001, 100),
			page.is(`redis_latency_spike_last{event_name="command"}`, now-60, now+5), page.is(`redis_latency_spike_duration_seconds{event_name="command"}`, 0.001, 100))
	}},
	{"streams: length, groups, lag, pending, consumers", func(r *redis.Client) error {
		var err error
		for i := range 10 {
			err = errors.Join(err, r.XAdd(ctx, &redis.XAddArgs{Stream: "events", ID: fmt.Sprintf("%d-1", i+1), Values: []any{"n", i}}).Err())
		}
		err = errors.Join(err, r.XGroupCreate(ctx, "events", "mail", "0").Err(), r.XGroupCreate(ctx, "events", "late", "$").Err())
		for consumer, count := range map[string]int64{"ann": 3, "bob": 4} {
			err = errors.Join(err, r.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "mail", Consumer: consumer, Count: count, Streams: []string{"events", ">"}}).Err())
		}
		acked, err2 := r.XAck(ctx, "events", "mail", "1-1", "7-1").Result()
		page, err3 := scrape()
		labels := func(name, group string) string {
			return fmt.Sprintf(`redis_stream_group_%s{db="db0",group="%s",stream="events"}`, name, group)
		}
		waiting := func(consumer string) float64 {
			return page[fmt.Sprintf(`redis_stream_group_consumer_messages_pending{consumer="%s",db="db0",group="mail",stream="events"}`, consumer)]
		}
		if waiting("ann")+waiting("bob") != 5 || acked != 2 {
			err = errors.Join(err, fmt.Errorf("%v and %v pending, %d acknowledged", waiting("ann"), waiting("bob"), acked))
		}
		return errors.Join(err, err2, err3, page.are(10, `redis_stream_length{db="db0",stream="events"}`), page.are(2, `redis_stream_groups{db="db0",stream="events"}`),
			page.are(3, labels("lag", "mail")), page.are(0, labels("lag", "late"), labels("messages_pending", "late"), labels("consumers", "late")),
			page.are(5, labels("messages_pending", "mail")), page.are(2, labels("consumers", "mail")), page.are(7, labels("entries_read", "mail")),
			page.are(7, labels("last_delivered_id", "mail")), page.are(1, `redis_stream_first_entry_id{db="db0",stream="events"}`),
			page.are(10, `redis_stream_last_entry_id{db="db0",stream="events"}`, `redis_stream_last_generated_id{db="db0",stream="events"}`),
			page.is(`redis_stream_group_consumer_idle_seconds{consumer="ann",db="db0",group="mail",stream="events"}`, 0, 60))
	}},
	{"keys that are watched: size, value, memory, how many", func(r *redis.Client) error {
		err := errors.Join(r.RPush(ctx, "watched:list", 1, 2, 3).Err(), r.HSet(ctx, "watched:hash", "a", 1, "b", 2).Err(), r.Set(ctx, "watched:number", "42.5", 0).Err(),
			r.ZAdd(ctx, "watched:zset", redis.Z{Score: 1, Member: "x"}).Err(), r.PFAdd(ctx, "watched:hll", 1, 2, 3, 4, 5).Err(), r.SAdd(ctx, "watched:set", 1, 2, 3, 4).Err())
		page, err2 := scrape()
		labels := func(metric, key string) string {
			return fmt.Sprintf(`redis_key_%s{db="db0",key="watched:%s"}`, metric, key)
		}
		return errors.Join(err, err2, page.are(3, labels("size", "list")), page.are(2, labels("size", "hash")), page.are(1, labels("size", "zset")), page.are(4, labels("size", "set")),
			page.are(5, labels("size", "hll")), page.are(42.5, labels("value", "number")), page.is(labels("memory_usage_bytes", "list"), 10, 10_000),
			page.are(6, `redis_keys_count{db="db0",key="watched:*"}`))
	}},
	{"a script's figures", func(r *redis.Client) error {
		err := r.Set(ctx, "orders", 17, 0).Err()
		page, err2 := scrape()
		return errors.Join(err, err2, page.are(17, fmt.Sprintf(`redis_script_values{filename=%q,key="orders"}`, script)), page.are(1, fmt.Sprintf(`redis_script_result{filename=%q}`, script)))
	}},
	{"another server that is not there is down", func(r *redis.Client) error {
		reply, err := http.Get("http://" + exporter + "/scrape?target=redis://127.0.0.1:1")
		if err != nil {
			return err
		}
		defer reply.Body.Close()
		for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
			if lines.Text() == "redis_up 0" {
				return nil
			}
		}
		return errors.New("it is not said to be down")
	}},
}

// start runs the exporter on a free port until it answers.
func start(program, folder string) (*exec.Cmd, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	exporter = free.Addr().String()
	free.Close()
	script = folder + "/orders.lua"
	if err := os.WriteFile(script, []byte("return {'orders', redis.call('GET', 'orders') or '0'}"), 0o600); err != nil {
		return nil, err
	}
	run := exec.Command(program, "--redis.addr", "redis://"+address, "--web.listen-address", exporter, "--log-level", "ERROR", "--include-config-metrics",
		"--include-system-metrics", "--export-client-list", "--check-single-streams", "db0=events", "--check-keys", "db0=watched:*", "--count-keys", "db0=watched:*", "--script", script)
	// It also tells what a case does not have, such as a stream; its words matter when it does not start.
	words, err := os.Create(folder + "/exporter.log")
	if err != nil {
		return nil, err
	}
	defer words.Close()
	run.Stdout, run.Stderr = words, words
	if err := run.Start(); err != nil {
		return nil, err
	}
	for range 300 {
		if reply, err := http.Get("http://" + exporter + "/health"); err == nil {
			reply.Body.Close()
			return run, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	run.Process.Kill()
	said, _ := os.ReadFile(words.Name())
	return nil, fmt.Errorf("the exporter does not answer: %s", said)
}

func run(program string) (failed int) {
	folder, err := os.MkdirTemp("", "exporter")
	if err != nil {
		fmt.Println("not ok a folder:", err)
		return 1
	}
	defer os.RemoveAll(folder)
	process, err := start(program, folder)
	if err != nil {
		fmt.Println("not ok the exporter's start:", err)
		return 1
	}
	defer process.Wait()
	defer process.Process.Kill()
	r := redis.NewClient(&redis.Options{Addr: address, ReadTimeout: time.Minute})
	for _, test := range tests {
		if len(os.Args) > 2 && !strings.Contains(test.name, os.Args[2]) {
			continue
		}
		err := r.FlushAll(ctx).Err()
		if err == nil {
			err = test.run(r)
		}
		if err == nil {
			fmt.Println("ok", test.name)
		} else {
			failed++
			fmt.Printf("not ok %s: %v\n", test.name, err)
		}
	}
	return failed
}

func main() {
	host, port := os.Getenv("EVENKEEL_HOST"), os.Getenv("EVENKEEL_PORT")
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "6379"
	}
	address = host + ":" + port
	if len(os.Args) < 2 {
		fmt.Println("not ok the exporter's program is to be named")
		os.Exit(1)
	}
	if run(os.Args[1]) > 0 {
		os.Exit(1)
	}
}
