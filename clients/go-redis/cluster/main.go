// What applications do with go-redis in a cluster, which clients/cluster/nodes.py starts; in RESP2 and in RESP3.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const count = 600

var (
	ctx   = context.Background()
	ports = strings.Fields(os.Getenv("EVENKEEL_CLUSTER_PORTS"))
	kills atomic.Int64
)

type test struct {
	name string
	run  func(c *redis.ClusterClient)
	// It changes who leads, and is run once.
	once bool
}

// What a case throws.
type failure struct{ text string }

func must[T any](value T, err error) T {
	if err != nil {
		panic(failure{err.Error()})
	}
	return value
}

func equal(got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(failure{fmt.Sprintf("got %#v, want %#v", got, want)})
	}
}

func refused(err error, text string) {
	if err == nil || !strings.Contains(err.Error(), text) {
		panic(failure{fmt.Sprintf("got error %v, want one that says %q", err, text)})
	}
}

// soon waits until a condition holds that others bring about.
func soon(what string, condition func() bool) {
	for deadline := time.Now().Add(3 * time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(failure{"it never came: " + what})
		}
	}
}

func connect(protocol int, change func(*redis.ClusterOptions)) *redis.ClusterClient {
	options := &redis.ClusterOptions{Protocol: protocol, ReadTimeout: time.Minute}
	for _, port := range ports {
		options.Addrs = append(options.Addrs, "127.0.0.1:"+port)
	}
	if change != nil {
		change(options)
	}
	return redis.NewClusterClient(options)
}

// at is a client of one node.
func at(port string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, Protocol: 2, PoolSize: 1, MaxRetries: -1, DialerRetries: 1})
}

func names() []string {
	keys := make([]string, count)
	for n := range keys {
		keys[n] = fmt.Sprintf("key:%d", n)
	}
	return keys
}

// shard has the ports of the primary and of the replicas of a slot.
func shard(slot int) []string {
	for _, port := range ports {
		node := at(port)
		slots, err := node.ClusterSlots(ctx).Result()
		node.Close()
		for _, entry := range slots {
			if err == nil && entry.Start <= slot && slot <= entry.End {
				var found []string
				for _, node := range entry.Nodes {
					found = append(found, node.Addr[strings.LastIndex(node.Addr, ":")+1:])
				}
				return found
			}
		}
	}
	return nil
}

// info is a number or a word of INFO of a node; empty: there is none.
func info(port, section, name string) string {
	node := at(port)
	defer node.Close()
	found := regexp.MustCompile(`(?m)^` + name + `([^\r\n]*)`).FindStringSubmatch(node.Info(ctx, section).Val())
	if found == nil {
		return ""
	}
	return found[1]
}

func sizes(of []string) (sum int64) {
	for _, port := range of {
		node := at(port)
		sum += must(node.DBSize(ctx).Result())
		node.Close()
	}
	return sum
}

func primaries() []string {
	return []string{shard(0)[0], shard(5461)[0], shard(10922)[0]}
}

func replicas() []string {
	return []string{shard(0)[1], shard(5461)[1], shard(10922)[1]}
}

func set(c *redis.ClusterClient) {
	must(c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for n, key := range names() {
			p.Set(ctx, key, n, 0)
		}
		return nil
	}))
}

// load counts up in a key, for which it has a client of its own. answered: what was; acknowledged: what a replica had as well,
// by WAIT of the same primary; failed: what the library showed.
type load struct {
	key                    string
	answered, acknowledged atomic.Int64
	failed                 []error
	stop                   chan struct{}
	ended                  sync.WaitGroup
}

func (l *load) run(withWait bool) {
	defer l.ended.Done()
	// One connection a node, so that WAIT comes behind the write.
	c := connect(3, func(o *redis.ClusterOptions) { o.PoolSize = 1; o.MaxRedirects = 16 })
	defer c.Close()
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		before := kills.Load()
		value, err := c.Incr(ctx, l.key).Result()
		if err != nil {
			l.failed = append(l.failed, err)
			time.Sleep(50 * time.Millisecond)
			continue
		}
		l.answered.Add(1)
		if !withWait {
			continue
		}
		if node, err := c.MasterForKey(ctx, l.key); err == nil {
			if n, err := node.Wait(ctx, 1, 5*time.Second).Result(); err == nil && n >= 1 && before == kills.Load() {
				l.acknowledged.Store(value)
			}
		}
	}
}

func begin(withWait bool) (all []*load) {
	for n := range 6 {
		l := &load{key: fmt.Sprintf("load:%d", n), stop: make(chan struct{})}
		l.ended.Add(1)
		go l.run(withWait)
		all = append(all, l)
	}
	more(all, func(l *load) int64 { return l.answered.Load() })
	return all
}

// more waits until each has twenty more of something.
func more(all []*load, of func(*load) int64) {
	before := make([]int64, len(all))
	for i, l := range all {
		before[i] = of(l)
	}
	soon("every load goes on", func() bool {
		for i, l := range all {
			if of(l) <= before[i]+20 {
				return false
			}
		}
		return true
	})
}

func end(all []*load) {
	for _, l := range all {
		close(l.stop)
	}
	for _, l := range all {
		l.ended.Wait()
	}
}

var tests = []test{
	{"the map", func(c *redis.ClusterClient) {
		var found []string
		var mutex sync.Mutex
		note := func(_ context.Context, node *redis.Client) error {
			mutex.Lock()
			defer mutex.Unlock()
			found = append(found, strings.TrimPrefix(node.Options().Addr, "127.0.0.1:"))
			return nil
		}
		must(0, c.ForEachMaster(ctx, note))
		equal(len(found), 3)
		must(0, c.ForEachSlave(ctx, note))
		sort.Strings(found)
		equal(found, ports)
		if text := must(c.ClusterInfo(ctx).Result()); !strings.HasPrefix(text, "cluster_state:ok\r\ncluster_slots_assigned:16384\r\n") {
			panic(failure{text})
		}
		equal(must(c.ClusterKeySlot(ctx, "foo").Result()), int64(12182))
		equal(len(must(c.ClusterSlots(ctx).Result())), 3)
		shards := must(c.ClusterShards(ctx).Result())
		equal(len(shards), 3)
		for _, shard := range shards {
			equal([]any{len(shard.Slots), len(shard.Nodes), shard.Nodes[0].Role, shard.Nodes[1].Role, shard.Nodes[1].Health},
				[]any{1, 2, "master", "replica", "online"})
		}
		equal(len(must(c.ClusterLinks(ctx).Result())), 0)
	}, false},

	{"keys of all slots", func(c *redis.ClusterClient) {
		for n, key := range names() {
			equal(must(c.Set(ctx, key, n, 0).Result()), "OK")
		}
		for n, key := range names() {
			equal(must(c.Get(ctx, key).Int()), n)
		}
		equal(must(c.DBSize(ctx).Result()), int64(count))
		for _, port := range primaries() {
			if sizes([]string{port}) == 0 {
				panic(failure{"a primary has no keys"})
			}
		}
	}, false},

	{"pipelines", func(c *redis.ClusterClient) {
		replies := must(c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for n, key := range names() {
				p.Set(ctx, key, n, 0)
				p.Incr(ctx, key)
			}
			return nil
		}))
		for n := range count {
			equal(replies[2*n].(*redis.StatusCmd).Val(), "OK")
			equal(replies[2*n+1].(*redis.IntCmd).Val(), int64(n+1))
		}
		_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "text", "x", 0)
			p.Incr(ctx, "text")
			return nil
		})
		refused(err, "ERR value is not an integer or out of range")
	}, false},

	{"keys of one hash tag", func(c *redis.ClusterClient) {
		equal(must(c.MSet(ctx, "{u}:a", 1, "{u}:b", 2).Result()), "OK")
		equal(must(c.MGet(ctx, "{u}:a", "{u}:b", "{u}:c").Result()), []any{"1", "2", nil})
		must(c.SAdd(ctx, "{u}:s", 1, 2, 3).Result())
		must(c.SAdd(ctx, "{u}:t", 3, 4).Result())
		equal(must(c.SInterStore(ctx, "{u}:both", "{u}:s", "{u}:t").Result()), int64(1))
		equal(must(c.Rename(ctx, "{u}:a", "{u}:z").Result()), "OK")
		equal(must(c.Del(ctx, "{u}:z", "{u}:b", "{u}:nosuch").Result()), int64(2))
	}, false},

	{"keys of two slots are refused", func(c *redis.ClusterClient) {
		node := must(c.MasterForKey(ctx, "a"))
		refused(node.MSet(ctx, "a", 1, "b", 2).Err(), "CROSSSLOT Keys in request don't hash to the same slot")
		refused(c.SInter(ctx, "a", "b").Err(), "CROSSSLOT")
	}, false},

	{"transactions", func(c *redis.ClusterClient) {
		replies := must(c.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "{t}:a", 1, 0)
			p.Incr(ctx, "{t}:a")
			return nil
		}))
		equal(replies[1].(*redis.IntCmd).Val(), int64(2))
		err := c.Watch(ctx, func(tx *redis.Tx) error {
			must(c.Set(ctx, "{t}:a", 10, 0).Result())
			_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "{t}:a", 3, 0)
				return nil
			})
			return err
		}, "{t}:a")
		if !errors.Is(err, redis.TxFailedErr) {
			panic(failure{fmt.Sprint("no TxFailedErr: ", err)})
		}
		equal(must(c.Get(ctx, "{t}:a").Result()), "10")
	}, false},

	{"scripts", func(c *redis.ClusterClient) {
		add := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1]) + redis.call('INCRBY', KEYS[2], ARGV[1])")
		for n := range 20 {
			tag := fmt.Sprintf("{%d}", n)
			equal(must(add.Run(ctx, c, []string{tag + ":a", tag + ":b"}, n).Int()), 2*n)
		}
		equal(must(c.Eval(ctx, "return {KEYS[1], ARGV[1]}", []string{"k"}, "v").Result()), []any{"k", "v"})
		refused(c.EvalSha(ctx, strings.Repeat("f", 40), []string{"k"}).Err(), "NOSCRIPT")
		var err error
		for _, key := range names() {
			if err == nil {
				err = c.Eval(ctx, "return redis.call('GET', ARGV[1]) or 0", []string{"a"}, key).Err()
			}
		}
		refused(err, "Script attempted to access a non local key in a cluster node")
	}, false},

	{"publish and subscribe", func(c *redis.ClusterClient) {
		node := must(c.MasterForKey(ctx, "news"))
		listener := node.Subscribe(ctx, "news")
		defer listener.Close()
		must(listener.Receive(ctx))
		must(0, listener.PSubscribe(ctx, "n*"))
		must(listener.Receive(ctx))
		equal(must(node.Publish(ctx, "news", "hello").Result()), int64(2))
		first, second := must(listener.ReceiveMessage(ctx)), must(listener.ReceiveMessage(ctx))
		equal([]string{first.Channel, first.Payload, second.Pattern, second.Payload}, []string{"news", "hello", "n*", "hello"})
	}, false},

	{"sharded publish and subscribe", func(c *redis.ClusterClient) {
		var listeners []*redis.PubSub
		for n := range 12 {
			listener := c.SSubscribe(ctx, fmt.Sprintf("shard:%d", n))
			defer listener.Close()
			must(listener.Receive(ctx))
			listeners = append(listeners, listener)
		}
		for n := range listeners {
			equal(must(c.SPublish(ctx, fmt.Sprintf("shard:%d", n), n).Result()), int64(1))
		}
		for n, listener := range listeners {
			message := must(listener.ReceiveMessage(ctx))
			equal([]string{message.Channel, message.Payload}, []string{fmt.Sprintf("shard:%d", n), strconv.Itoa(n)})
		}
	}, false},

	{"blocking pops", func(c *redis.ClusterClient) {
		popped := make([][]string, 6)
		var all sync.WaitGroup
		for n := range popped {
			all.Add(1)
			go func() {
				defer all.Done()
				popped[n], _ = c.BLPop(ctx, 2*time.Minute, fmt.Sprintf("queue:%d", n)).Result()
			}()
		}
		soon("six wait", func() bool {
			blocked := 0
			for _, port := range primaries() {
				n, _ := strconv.Atoi(info(port, "clients", "blocked_clients:"))
				blocked += n
			}
			return blocked == 6
		})
		for n := range popped {
			must(c.RPush(ctx, fmt.Sprintf("queue:%d", n), n).Result())
		}
		all.Wait()
		for n, pair := range popped {
			equal(pair, []string{fmt.Sprintf("queue:%d", n), strconv.Itoa(n)})
		}
	}, false},

	{"scans of all nodes", func(c *redis.ClusterClient) {
		set(c)
		var found []string
		var mutex sync.Mutex
		must(0, c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			keys := node.Scan(ctx, 0, "*", 50).Iterator()
			for keys.Next(ctx) {
				mutex.Lock()
				found = append(found, keys.Val())
				mutex.Unlock()
			}
			return keys.Err()
		}))
		expected := names()
		sort.Strings(expected)
		sort.Strings(found)
		equal(found, expected)
	}, false},

	{"reads of replicas", func(c *redis.ClusterClient) {
		set(c)
		soon("replicas have all", func() bool { return sizes(replicas()) == count })
		reader := connect(c.Options().Protocol, func(o *redis.ClusterOptions) { o.ReadOnly = true })
		defer reader.Close()
		served := func() (sum int) {
			for _, port := range replicas() {
				calls, _, _ := strings.Cut(info(port, "commandstats", "cmdstat_get:calls="), ",")
				n, _ := strconv.Atoi(calls)
				sum += n
			}
			return sum
		}
		before := served()
		for n, key := range names() {
			equal(must(reader.Get(ctx, key).Int()), n)
		}
		if served() == before {
			panic(failure{"no replica was read"})
		}
		equal(must(reader.Set(ctx, "key:0", "new", 0).Result()), "OK")
	}, false},

	{"flush of all nodes", func(c *redis.ClusterClient) {
		set(c)
		must(0, c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.FlushAll(ctx).Err() }))
		soon("nothing is left", func() bool { return sizes(ports) == 0 })
	}, false},

	{"hand-overs under load", func(c *redis.ClusterClient) {
		loads := begin(false)
		for _, slot := range []int{0, 0, 5461} {
			soon("a replica is in sync", func() bool { return len(shard(slot)) == 2 })
			nodes := shard(slot)
			node := at(nodes[1])
			equal(must(node.ClusterFailover(ctx).Result()), "OK")
			node.Close()
			soon("they have changed places", func() bool { return reflect.DeepEqual(shard(slot), []string{nodes[1], nodes[0]}) })
			more(loads, func(l *load) int64 { return l.answered.Load() })
		}
		end(loads)
		for _, l := range loads {
			if l.failed != nil {
				panic(failure{fmt.Sprint(l.key, ": ", l.failed)})
			}
			equal(must(c.Get(ctx, l.key).Int64()), l.answered.Load())
		}
	}, true},

	{"a killed primary", func(c *redis.ClusterClient) {
		loads := begin(true)
		acknowledged := func(l *load) int64 { return l.acknowledged.Load() }
		more(loads, acknowledged)
		nodes := shard(5461)
		pid := must(strconv.Atoi(info(nodes[0], "server", "process_id:")))
		kills.Add(1)
		must(0, syscall.Kill(pid, syscall.SIGKILL))
		soon("the replica leads", func() bool { now := shard(5461); return len(now) > 0 && now[0] == nodes[1] })
		more(loads, func(l *load) int64 { return l.answered.Load() })
		// It is back, and WAIT sees it again.
		soon("it is back", func() bool { return reflect.DeepEqual(shard(5461), []string{nodes[1], nodes[0]}) })
		more(loads, acknowledged)
		end(loads)
		for _, l := range loads {
			if there := must(c.Get(ctx, l.key).Int64()); there < acknowledged(l) {
				panic(failure{fmt.Sprintf("%s: %d acknowledged, %d there", l.key, acknowledged(l), there)})
			}
		}
		soon("it follows", func() bool { return info(nodes[0], "replication", "master_link_status:") == "up" })
	}, true},
}

func attempt(t test, c *redis.ClusterClient) (err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("%v", thrown)
		}
	}()
	// FLUSHALL has no keys, so a node that ceased to lead a moment ago says READONLY; the client learns of that later.
	soon("all nodes are empty", func() bool {
		err := c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return node.FlushAll(ctx).Err() })
		if err != nil && strings.HasPrefix(err.Error(), "READONLY") {
			c.ReloadState(ctx)
			return false
		}
		must(0, err)
		return true
	})
	t.run(c)
	return nil
}

func main() {
	failed := 0
	for _, protocol := range []int{2, 3} {
		c := connect(protocol, nil)
		for _, t := range tests {
			if t.once && protocol < 3 {
				continue
			}
			if err := attempt(t, c); err != nil {
				failed++
				fmt.Printf("not ok %s (RESP%d): %v\n", t.name, protocol, err)
			} else {
				fmt.Printf("ok %s (RESP%d)\n", t.name, protocol)
			}
		}
		c.Close()
	}
	if failed > 0 {
		os.Exit(1)
	}
}
