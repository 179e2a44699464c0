// What applications do with go-redis, in RESP2 and in RESP3.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

type test struct {
	name string
	run  func(r *redis.Client) error
}

func open(protocol int) *redis.Client {
	host, port := os.Getenv("EVENKEEL_HOST"), os.Getenv("EVENKEEL_PORT")
	if host == "" {
		host = "127.0.0.1"
	}
	if port == "" {
		port = "6379"
	}
	return redis.NewClient(&redis.Options{Addr: host + ":" + port, Protocol: protocol, ReadTimeout: time.Minute})
}

// want complains when err is set or got differs from the expected value.
func want(got any, err error, expected any) error {
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(got, expected) {
		return fmt.Errorf("got %#v, want %#v", got, expected)
	}
	return nil
}

// refused complains unless err says text.
func refused(err error, text string) error {
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("got error %v, want one that says %q", err, text)
	}
	return nil
}

// named is a further client of one connection, which has a name.
func named(r *redis.Client, name string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: r.Options().Addr, Protocol: r.Options().Protocol, ClientName: name, PoolSize: 1, ReadTimeout: time.Minute})
}

// secure is a client over TLS, with what clients/run.sh makes. It shows the certificate of that name, if any, and believes that authority.
func secure(r *redis.Client, name, authority string, change func(*redis.Options)) *redis.Client {
	folder := os.Getenv("EVENKEEL_TLS_DIR")
	known, err := os.ReadFile(folder + "/" + authority + ".crt")
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(known) {
		panic(err)
	}
	if name != "" {
		shown, err := tls.LoadX509KeyPair(folder+"/"+name+".crt", folder+"/"+name+".key")
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{shown}
	}
	host, _, _ := strings.Cut(r.Options().Addr, ":")
	options := &redis.Options{Addr: host + ":" + os.Getenv("EVENKEEL_TLS_PORT"), Protocol: r.Options().Protocol, PoolSize: 1,
		MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Minute, ReadTimeout: time.Minute, TLSConfig: config}
	if change != nil {
		change(options)
	}
	return redis.NewClient(options)
}

// table is a map, also of what RESP2 sends as names and values one after the other.
func table(reply any) map[string]any {
	pairs := map[string]any{}
	switch reply := reply.(type) {
	case map[any]any:
		for name, value := range reply {
			pairs[fmt.Sprint(name)] = value
		}
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			pairs[fmt.Sprint(reply[i])] = reply[i+1]
		}
	}
	return pairs
}

// caching is a further client that keeps what it reads.
func caching(r *redis.Client) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: r.Options().Addr, Protocol: 3, PoolSize: 1, ReadTimeout: time.Minute,
		ClientSideCacheConfig: &redis.ClientSideCacheConfig{MaxEntries: 1000, DrainInterval: time.Millisecond}})
}

// gets is the number of GETs that have reached the server.
func gets(r *redis.Client) int {
	calls := 0
	if _, counted, found := strings.Cut(r.Info(ctx, "commandstats").Val(), "cmdstat_get:calls="); found {
		fmt.Sscanf(counted, "%d", &calls)
	}
	return calls
}

// comesTo waits until a cached key has a value; "" is no key.
func comesTo(cached *redis.Client, key, value string) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		got, err := cached.Get(ctx, key).Result()
		if err != nil && err != redis.Nil {
			return err
		}
		if got == value && (err == redis.Nil) == (value == "") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s stayed %q, want %q", key, got, value)
		}
	}
}

func sorted(words []string) []string {
	sort.Strings(words)
	return words
}

var tests = []test{
	{"strings", func(r *redis.Client) error {
		set, err := r.Set(ctx, "s", "v", 1000*time.Second).Result()
		got, err2 := r.Get(ctx, "s").Result()
		_, missing := r.Get(ctx, "nosuch").Result()
		n, err3 := r.IncrBy(ctx, "n", 41).Result()
		values, err4 := r.MGet(ctx, "s", "nosuch").Result()
		nx, err5 := r.SetNX(ctx, "s", "w", 0).Result()
		ttl, err6 := r.TTL(ctx, "s").Result()
		if missing != redis.Nil || ttl < 900*time.Second {
			return fmt.Errorf("missing: %v, ttl: %v", missing, ttl)
		}
		return errors.Join(want(set, err, "OK"), want(got, err2, "v"), want(n, err3, int64(41)),
			want(values, err4, []any{"v", nil}), want(nx, err5, false), err6)
	}},
	{"hashes", func(r *redis.Client) error {
		type item struct {
			Name  string `redis:"name"`
			Count int    `redis:"count"`
		}
		err := r.HSet(ctx, "h", item{"x", 3}).Err()
		var back item
		err2 := r.HGetAll(ctx, "h").Scan(&back)
		n, err3 := r.HIncrBy(ctx, "h", "count", 4).Result()
		return errors.Join(err, want(back, err2, item{"x", 3}), want(n, err3, int64(7)))
	}},
	{"lists", func(r *redis.Client) error {
		err := r.RPush(ctx, "l", "a", "b", "c").Err()
		all, err2 := r.LRange(ctx, "l", 0, -1).Result()
		moved, err3 := r.LMove(ctx, "l", "l2", "left", "right").Result()
		key, popped, err4 := r.LMPop(ctx, "right", 2, "nosuch", "l").Result()
		return errors.Join(err, want(all, err2, []string{"a", "b", "c"}), want(moved, err3, "a"),
			want(popped, err4, []string{"c", "b"}), want(key, nil, "l"))
	}},
	{"sets and sorted sets", func(r *redis.Client) error {
		err := errors.Join(r.SAdd(ctx, "a", 1, 2, 3).Err(), r.SAdd(ctx, "b", 3, 4).Err())
		diff, err2 := r.SDiff(ctx, "a", "b").Result()
		card, err3 := r.SInterCard(ctx, 0, "a", "b").Result()
		err4 := r.ZAdd(ctx, "z", redis.Z{Score: 1.5, Member: "x"}, redis.Z{Score: 2, Member: "y"}).Err()
		scored, err5 := r.ZRangeWithScores(ctx, "z", 0, -1).Result()
		above, err6 := r.ZRangeArgs(ctx, redis.ZRangeArgs{Key: "z", Start: "(1.5", Stop: "+inf", ByScore: true}).Result()
		score, err7 := r.ZScore(ctx, "z", "x").Result()
		union, err8 := r.ZUnion(ctx, redis.ZStore{Keys: []string{"z", "a"}, Aggregate: "MAX"}).Result()
		return errors.Join(err, want(sorted(diff), err2, []string{"1", "2"}), want(card, err3, int64(1)), err4,
			want(scored, err5, []redis.Z{{Score: 1.5, Member: "x"}, {Score: 2, Member: "y"}}),
			want(above, err6, []string{"y"}), want(score, err7, 1.5), want(len(union), err8, 5))
	}},
	{"pipelines", func(r *redis.Client) error {
		var last *redis.StringCmd
		_, err := r.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 2000 {
				p.Set(ctx, fmt.Sprint("p:", i), i, 0)
			}
			last = p.Get(ctx, "p:1999")
			return nil
		})
		return errors.Join(err, want(last.Val(), last.Err(), "1999"))
	}},
	{"MULTI and WATCH", func(r *redis.Client) error {
		var n *redis.IntCmd
		_, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "m", 1, 0)
			n = p.Incr(ctx, "m")
			return nil
		})
		conflict := r.Watch(ctx, func(tx *redis.Tx) error {
			if err := r.Set(ctx, "m", 10, 0).Err(); err != nil {
				return err
			}
			_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Incr(ctx, "m")
				return nil
			})
			return err
		}, "m")
		if conflict != redis.TxFailedErr {
			return fmt.Errorf("a changed key was not noticed: %v", conflict)
		}
		return errors.Join(err, want(n.Val(), n.Err(), int64(2)))
	}},
	{"Lua with EVALSHA fallback", func(r *redis.Client) error {
		script := redis.NewScript("return {redis.call('INCRBY', KEYS[1], ARGV[1]), ARGV[2]}")
		err := r.ScriptFlush(ctx).Err()
		first, err2 := script.Run(ctx, r, []string{"lua"}, 5, "x").Slice()
		second, err3 := script.Run(ctx, r, []string{"lua"}, 5, "y").Slice()
		thrown := r.Eval(ctx, "return redis.error_reply('MY error')", nil).Err()
		return errors.Join(err, want(first, err2, []any{int64(5), "x"}), want(second, err3, []any{int64(10), "y"}),
			refused(thrown, "MY error"))
	}},
	{"functions", func(r *redis.Client) error {
		code := "#!lua name=lib\nredis.register_function('twice', function(keys, args) return args[1] * 2 end)"
		err := r.FunctionLoadReplace(ctx, code).Err()
		n, err2 := r.FCall(ctx, "twice", nil, 21).Int()
		libraries, err3 := r.FunctionList(ctx, redis.FunctionListQuery{}).Result()
		return errors.Join(err, want(n, err2, 42), want(len(libraries), err3, 1))
	}},
	{"pub/sub", func(r *redis.Client) error {
		listener := r.Subscribe(ctx, "news")
		defer listener.Close()
		if _, err := listener.Receive(ctx); err != nil {
			return err
		}
		if err := listener.PSubscribe(ctx, "n*"); err != nil {
			return err
		}
		if _, err := listener.Receive(ctx); err != nil {
			return err
		}
		heard, err := r.Publish(ctx, "news", "hello").Result()
		patterns := []string{}
		for range 2 {
			select {
			case message := <-listener.Channel():
				patterns = append(patterns, message.Pattern+"|"+message.Payload)
			case <-time.After(time.Minute):
				return errors.New("a message did not come")
			}
		}
		return errors.Join(want(heard, err, int64(2)), want(sorted(patterns), nil, []string{"n*|hello", "|hello"}))
	}},
	{"blocking pop", func(r *redis.Client) error {
		go func() {
			time.Sleep(30 * time.Millisecond)
			r.RPush(ctx, "queue", "job")
		}()
		popped, err := r.BLPop(ctx, 30*time.Second, "nosuch", "queue").Result()
		go func() {
			time.Sleep(30 * time.Millisecond)
			r.ZAdd(ctx, "zqueue", redis.Z{Score: 1, Member: "m"})
		}()
		z, err2 := r.BZPopMin(ctx, 30*time.Second, "zqueue").Result()
		if err2 != nil {
			return errors.Join(err, err2)
		}
		return errors.Join(want(popped, err, []string{"queue", "job"}), want(z.Member, nil, any("m")))
	}},
	{"SCAN iterators", func(r *redis.Client) error {
		_, err := r.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 1500 {
				p.Set(ctx, fmt.Sprint("scan:", i), i, 0)
			}
			return nil
		})
		found := map[string]bool{}
		keys := r.Scan(ctx, 0, "scan:*", 100).Iterator()
		for keys.Next(ctx) {
			found[keys.Val()] = true
		}
		return errors.Join(err, keys.Err(), want(len(found), nil, 1500))
	}},
	{"reconnects after the server cut it off", func(r *redis.Client) error {
		victim := redis.NewClient(&redis.Options{Addr: r.Options().Addr, PoolSize: 1})
		defer victim.Close()
		id, err := victim.ClientID(ctx).Result()
		killed, err2 := r.ClientKillByFilter(ctx, "ID", fmt.Sprint(id)).Result()
		set, err3 := victim.Set(ctx, "again", "yes", 0).Result()
		return errors.Join(err, want(killed, err2, int64(1)), want(set, err3, "OK"))
	}},
	{"functions restored from a dump", func(r *redis.Client) error {
		code := "#!lua name=lib\nredis.register_function{function_name='twice', flags={'no-writes'}, callback=function(keys, args) return args[1] * 2 end}"
		err := r.FunctionLoadReplace(ctx, code).Err()
		library, err2 := r.FunctionList(ctx, redis.FunctionListQuery{WithCode: true, LibraryNamePattern: "l*"}).First()
		dump, err3 := r.FunctionDump(ctx).Result()
		err4 := r.FunctionDelete(ctx, "lib").Err()
		gone := r.FCall(ctx, "twice", nil, 1).Err()
		err5 := r.FunctionRestore(ctx, dump).Err()
		n, err6 := r.FCallRO(ctx, "twice", nil, 5).Int()
		stats, err7 := r.FunctionStats(ctx).Result()
		return errors.Join(err, err3, err4, err5, want(library.Code, err2, code), refused(gone, "Function not found"),
			want(n, err6, 10), want(stats.Engines, err7, []redis.Engine{{Language: "LUA", LibrariesCount: 1, FunctionsCount: 1}}),
			r.FunctionFlush(ctx).Err())
	}},
	{"sharded pub/sub", func(r *redis.Client) error {
		listener := r.SSubscribe(ctx, "orders")
		defer listener.Close()
		if _, err := listener.Receive(ctx); err != nil {
			return err
		}
		channels, err := r.PubSubShardChannels(ctx, "*").Result()
		subscribers, err2 := r.PubSubShardNumSub(ctx, "orders").Result()
		others, err3 := r.Publish(ctx, "orders", "not for them").Result()
		heard, err4 := r.SPublish(ctx, "orders", "one").Result()
		within, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		message, err5 := listener.ReceiveMessage(within)
		if err5 != nil {
			return err5
		}
		return errors.Join(want(channels, err, []string{"orders"}), want(subscribers, err2, map[string]int64{"orders": 1}),
			want(others, err3, int64(0)), want(heard, err4, int64(1)), want(message.Payload, nil, "one"))
	}},
	{"WATCH, repeated until nobody comes between", func(r *redis.Client) error {
		done := make(chan error)
		for range 4 {
			go func() {
				var err error
				for left := 25; left > 0 && err == nil; {
					err = r.Watch(ctx, func(tx *redis.Tx) error {
						n, err := tx.Get(ctx, "counter").Int()
						if err != nil && err != redis.Nil {
							return err
						}
						_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
							return p.Set(ctx, "counter", n+1, 0).Err()
						})
						return err
					}, "counter")
					switch err {
					case nil:
						left--
					case redis.TxFailedErr:
						err = nil
					}
				}
				done <- err
			}()
		}
		err := errors.Join(<-done, <-done, <-done, <-done)
		n, err2 := r.Get(ctx, "counter").Int()
		return errors.Join(err, want(n, err2, 100))
	}},
	{"SCAN with TYPE and a large COUNT", func(r *redis.Client) error {
		_, err := r.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 2000 {
				p.Set(ctx, fmt.Sprint("text:", i), i, 0)
				p.RPush(ctx, fmt.Sprint("list:", i), i)
			}
			return nil
		})
		count := func(match string, count int64, kind string) int {
			found := map[string]bool{}
			keys := r.ScanType(ctx, 0, match, count, kind).Iterator()
			for keys.Next(ctx) {
				found[keys.Val()] = true
			}
			err = errors.Join(err, keys.Err())
			return len(found)
		}
		return errors.Join(want(count("", 1_000_000, "list"), err, 2000), want(count("text:1?", 10, "string"), err, 10),
			want(count("text:*", 10, "hash"), err, 0), err)
	}},
	{"binary keys, and a value of 50 MB", func(r *redis.Client) error {
		key, value := make([]byte, 256), make([]byte, 50<<20)
		for i := range key {
			key[i] = byte(i)
		}
		for i := range value {
			value[i] = byte(i >> 12 * 31)
		}
		err := r.Set(ctx, string(key), value, 0).Err()
		got, err2 := r.Get(ctx, string(key)).Bytes()
		keys, err3 := r.Keys(ctx, "*").Result()
		gone, err4 := r.Del(ctx, string(key)).Result()
		return errors.Join(err, want(bytes.Equal(got, value), err2, true), want(keys, err3, []string{string(key)}), want(gone, err4, int64(1)))
	}},
	{"blocking pops that end without an element", func(r *redis.Client) error {
		pop := r.BLPop(ctx, time.Second, "nothing", "nor here").Err()
		lowest := r.BZPopMin(ctx, time.Second, "nothing").Err()
		if pop != redis.Nil || lowest != redis.Nil {
			return fmt.Errorf("%v %v", pop, lowest)
		}
		return nil
	}},
	{"slow log", func(r *redis.Client) error {
		shop := named(r, "shop")
		defer shop.Close()
		info, err := shop.ClientInfo(ctx).Result()
		if err != nil {
			return err
		}
		// A threshold of a minute, the last one here, logs no command, however late it is.
		err = errors.Join(r.ConfigSet(ctx, "slowlog-log-slower-than", "0").Err(), r.SlowLogReset(ctx).Err(),
			shop.RPush(ctx, "cart", "an apple", strings.Repeat("x", 200)).Err(), shop.LRange(ctx, "cart", 0, -1).Err(),
			r.ConfigSet(ctx, "slowlog-log-slower-than", "60000000").Err())
		length, err2 := r.SlowLogLen(ctx).Result()
		entries, err3 := r.SlowLogGet(ctx, 20).Result()
		if err = errors.Join(err, err2, err3); err != nil {
			return err
		}
		ours := []redis.SlowLog{}
		for _, entry := range entries {
			if entry.ClientName == "shop" {
				ours = append(ours, entry)
			}
		}
		if len(ours) != 2 || length < 3 {
			return fmt.Errorf("%d entries: %v", length, entries)
		}
		read, write := ours[0], ours[1]
		for _, entry := range ours {
			if entry.ClientAddr != info.Addr || entry.Duration < 0 || time.Since(entry.Time).Abs() > 10*time.Minute {
				return fmt.Errorf("%v, of %s", entry, info.Addr)
			}
		}
		err = errors.Join(want(write.Args, nil, []string{"rpush", "cart", "an apple", strings.Repeat("x", 128) + "... (72 more bytes)"}),
			want(read.Args, nil, []string{"lrange", "cart", "0", "-1"}), want(read.ID, nil, write.ID+1), r.SlowLogReset(ctx).Err())
		left, err2 := r.SlowLogGet(ctx, -1).Result()
		return errors.Join(err, want(left, err2, []redis.SlowLog{}), r.ConfigSet(ctx, "slowlog-log-slower-than", "10000").Err())
	}},
	{"latency", func(r *redis.Client) error {
		err := errors.Join(r.ConfigSet(ctx, "latency-monitor-threshold", "0").Err(), r.LatencyReset(ctx).Err())
		none, err2 := r.Latency(ctx).Result()
		err = errors.Join(err, want(none, err2, []redis.Latency{}), r.ConfigSet(ctx, "latency-monitor-threshold", "2").Err(),
			r.Eval(ctx, "for i = 1, 5000000 do end return 1", nil).Err(), r.ConfigSet(ctx, "latency-monitor-threshold", "0").Err())
		if err != nil {
			return err
		}
		events, err := r.Latency(ctx).Result()
		if err != nil {
			return err
		}
		var event redis.Latency
		for _, one := range events {
			if one.Name == "command" {
				event = one
			}
		}
		if event.Latest < 2*time.Millisecond || event.Max < event.Latest || time.Since(event.Time).Abs() > 10*time.Minute {
			return fmt.Errorf("%v", events)
		}
		history, err := r.Do(ctx, "LATENCY", "HISTORY", "command").Slice()
		found := false
		for _, pair := range history {
			found = found || pair.([]any)[0] == event.Time.Unix()
		}
		err = errors.Join(want(found, err, true), r.LatencyReset(ctx, "command").Err(), r.ConfigResetStat(ctx).Err(), r.Set(ctx, "a", 1, 0).Err())
		histogram, err2 := r.Do(ctx, "LATENCY", "HISTOGRAM", "set").Result()
		return errors.Join(err, want(table(table(histogram)["set"])["calls"], err2, any(int64(1))))
	}},
	{"who made whom wait (Evenkeel)", func(r *redis.Client) error {
		shop := named(r, "shop-frontend")
		defer shop.Close()
		id, err := shop.ClientID(ctx).Result()
		err = errors.Join(err, r.Do(ctx, "EVENKEEL", "WAITS", "RESET").Err(), r.SlowLogReset(ctx).Err(),
			r.Do(ctx, "CLIENT", "PAUSE", 600_000, "WRITE").Err())
		paid := make(chan error)
		go func() { paid <- shop.Set(ctx, "paid", "yes", 0).Err() }()
		for line := ""; err == nil && !strings.Contains(line, " flags=b "); {
			line, err = r.Do(ctx, "CLIENT", "LIST", "ID", id).Text()
		}
		time.Sleep(20 * time.Millisecond)
		err = errors.Join(err, r.ClientUnpause(ctx).Err(), <-paid)
		answer, err2 := r.Do(ctx, "EVENKEEL", "WAITS").Result()
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		waits := table(answer)
		total := table(table(waits["causes"])["pause"])
		if us, _ := total["us"].(int64); us < 10_000 {
			return fmt.Errorf("%v", answer)
		}
		var wait map[string]any
		for _, one := range waits["latest"].([]any) {
			if one := table(one); one["client"] == id && one["for"] == "pause" {
				wait = one
			}
		}
		behind, there := wait["behind"]
		answer, err = r.Do(ctx, "EVENKEEL", "WHY", id).Result()
		if err != nil {
			return err
		}
		why := table(answer)
		var phases map[string]any
		for _, one := range why["slow-requests"].([]any) {
			if one := table(one); one["command"] == "set" {
				phases = table(one["phases-us"])
			}
		}
		if us, _ := phases["waited-for-pause"].(int64); us < 10_000 {
			return fmt.Errorf("%v", answer)
		}
		entries, err := r.Do(ctx, "SLOWLOG", "WHY", 10).Slice()
		var entry []any
		for _, one := range entries {
			if one := one.([]any); one[5] == "shop-frontend" {
				entry = one
			}
		}
		if err != nil || len(entry) != 10 || !strings.Contains(entry[6].(string), "for the end of CLIENT PAUSE") {
			return fmt.Errorf("%v %v", entries, err)
		}
		// SLOWLOG WHY has four fields more than the typed method knows of GET.
		typed, err := r.SlowLogGet(ctx, 10).Result()
		return errors.Join(want(wait["name"], nil, any("shop-frontend")), want(wait["command"], nil, any("set")), want(behind, nil, nil),
			want(there, nil, true), want(why["client"], nil, any(id)), want(why["last-command"], nil, any("set")),
			want(entry[7:], nil, []any{"", "", ""}), want(len(typed) > 0, err, true),
			refused(r.Do(ctx, "EVENKEEL", "WHY", "x").Err(), "Invalid client ID"))
	}},
	{"clients", func(r *redis.Client) error {
		other := named(r, "other")
		defer other.Close()
		info, err := other.ClientInfo(ctx).Result()
		if err != nil {
			return err
		}
		list, err := r.ClientList(ctx).Result()
		if !strings.Contains(list, fmt.Sprintf("id=%d addr=%s ", info.ID, info.Addr)) {
			return fmt.Errorf("not listed: %s", list)
		}
		err = errors.Join(err, want(info.Name, nil, "other"), want(info.LastCmd, nil, "client|info"), want(info.Resp, nil, r.Options().Protocol))
		popped := make(chan error)
		go func() { popped <- other.BLPop(ctx, time.Minute, "nothing").Err() }()
		for unblocked := int64(0); unblocked == 0; {
			if unblocked, err = r.ClientUnblockWithError(ctx, info.ID).Result(); err != nil {
				return err
			}
		}
		err = errors.Join(err, refused(<-popped, "UNBLOCKED"))
		_, err2 := r.ClientKill(ctx, "1.2.3.4:5").Result()
		evict, err3 := r.Do(ctx, "CLIENT", "NO-EVICT", "ON").Text()
		return errors.Join(err, refused(err2, "No such client"), want(evict, err3, "OK"), r.Do(ctx, "CLIENT", "NO-EVICT", "OFF").Err())
	}},
	{"what is told of keys, commands and the server", func(r *redis.Client) error {
		err := r.MSet(ctx, "n", 12, "long", strings.Repeat("x", 100)).Err()
		encoding, err2 := r.ObjectEncoding(ctx, "n").Result()
		references, err3 := r.ObjectRefCount(ctx, "long").Result()
		frequency := r.ObjectFreq(ctx, "n").Err()
		memory, err4 := r.MemoryUsage(ctx, "long").Result()
		missing := r.MemoryUsage(ctx, "nosuch").Err()
		keys, err5 := r.CommandGetKeys(ctx, "MSET", "a", 1, "b", 2).Result()
		flags, err6 := r.CommandGetKeysAndFlags(ctx, "GETDEL", "a").Result()
		commands, err7 := r.Command(ctx).Result()
		matching, err8 := r.CommandList(ctx, &redis.FilterBy{Pattern: "getde?"}).Result()
		config, err9 := r.ConfigGet(ctx, "maxmemory").Result()
		err = errors.Join(err, err2, err3, err4, err5, err6, err7, err8, err9)
		if err != nil {
			return err
		}
		info, err := r.InfoMap(ctx, "keyspace").Result()
		if get := commands["get"]; missing != redis.Nil || memory < 100 || get == nil || !get.ReadOnly || get.Arity != 2 || get.FirstKeyPos != 1 {
			return fmt.Errorf("%v %v %v", missing, memory, get)
		}
		return errors.Join(want(encoding, nil, "int"), refused(frequency, "LFU maxmemory policy is not selected"),
			want(references, nil, int64(1)), want(keys, nil, []string{"a", "b"}),
			want(flags, nil, []redis.KeyFlags{{Key: "a", Flags: []string{"RW", "access", "delete"}}}),
			want(matching, nil, []string{"getdel"}), want(config, nil, map[string]string{"maxmemory": "0"}),
			want(info["Keyspace"]["db0"], err, "keys=2,expires=0,avg_ttl=0"),
			refused(r.ConfigSet(ctx, "nosuch", "1").Err(), "nosuch"))
	}},
	{"a cached value needs no request (RESP3 only)", func(r *redis.Client) error {
		cached := caching(r)
		defer cached.Close()
		if err := errors.Join(r.Set(ctx, "k", "v", 0).Err(), comesTo(cached, "k", "v")); err != nil {
			return err
		}
		before := gets(r)
		for range 10 {
			if got, err := cached.Get(ctx, "k").Result(); got != "v" || err != nil {
				return fmt.Errorf("%q, %v", got, err)
			}
		}
		err := r.Set(ctx, "unread", 1, 0).Err()
		got, err2 := cached.Get(ctx, "k").Result()
		return errors.Join(err, want(got, err2, "v"), want(gets(r), nil, before), want(cached.CSCStats().Hits >= 11, nil, true))
	}},
	{"every way to change a key invalidates (RESP3 only)", func(r *redis.Client) error {
		cached := caching(r)
		defer cached.Close()
		changes := []struct {
			how   string
			do    func() error
			after string
		}{
			{"SET", func() error { return r.Set(ctx, "k", "from set", 0).Err() }, "from set"},
			{"DEL", func() error { return r.Del(ctx, "k").Err() }, ""},
			{"the passing of PX", func() error { return r.Set(ctx, "k", "short", 20*time.Millisecond).Err() }, ""},
			{"the passing of PEXPIRE", func() error { return r.PExpire(ctx, "k", 20*time.Millisecond).Err() }, ""},
			{"FLUSHALL", func() error { return r.FlushAll(ctx).Err() }, ""},
			{"EVAL", func() error {
				return r.Eval(ctx, "return redis.call('SET', KEYS[1], 'from eval')", []string{"k"}).Err()
			}, "from eval"},
			{"MULTI", func() error {
				_, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
					return errors.Join(pipe.Set(ctx, "k", "from exec", 0).Err(), pipe.Get(ctx, "k").Err())
				})
				return err
			}, "from exec"},
			{"RENAME", func() error {
				return errors.Join(r.Set(ctx, "l", "from rename", 0).Err(), r.Rename(ctx, "l", "k").Err())
			}, "from rename"},
			{"APPEND", func() error { return r.Append(ctx, "k", "er").Err() }, "older"},
		}
		for _, change := range changes {
			err := errors.Join(r.Set(ctx, "k", "old", 0).Err(), comesTo(cached, "k", "old"), change.do(), comesTo(cached, "k", change.after))
			if err != nil {
				return fmt.Errorf("%s: %w", change.how, err)
			}
		}
		return nil
	}},
	{"a new connection begins with an empty cache (RESP3 only)", func(r *redis.Client) error {
		cached := caching(r)
		defer cached.Close()
		err := errors.Join(r.Set(ctx, "k", "old", 0).Err(), comesTo(cached, "k", "old"))
		id, err2 := cached.ClientID(ctx).Result()
		before := gets(r)
		killed, err3 := r.ClientKillByFilter(ctx, "ID", fmt.Sprint(id)).Result()
		if err = errors.Join(err, err2, want(killed, err3, int64(1))); err != nil {
			return err
		}
		// The library notices at its next look at the connection.
		for deadline := time.Now().Add(30 * time.Second); cached.CSCStats().Entries > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				return fmt.Errorf("the cache of a closed connection was kept")
			}
		}
		err = comesTo(cached, "k", "old")
		other, err2 := cached.ClientID(ctx).Result()
		return errors.Join(err, err2, want(gets(r), nil, before+1), want(other != id, nil, true),
			r.Set(ctx, "k", "new", 0).Err(), comesTo(cached, "k", "new"))
	}},
	{"commands and a pipeline (TLS)", func(r *redis.Client) error {
		c := secure(r, "alice", "ca", nil)
		defer c.Close()
		set, err := c.Set(ctx, "k", "över TLS", 0).Result()
		got, err2 := c.Get(ctx, "k").Result()
		plain, err3 := r.Get(ctx, "k").Result()
		who, err4 := c.Do(ctx, "ACL", "WHOAMI").Text()
		replies, err5 := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range 500 {
				pipe.Set(ctx, fmt.Sprint("k:", i), i, 0)
				pipe.Get(ctx, fmt.Sprint("k:", i))
			}
			return nil
		})
		for i := range replies {
			if get, is := replies[i].(*redis.StringCmd); is != (i%2 == 1) || is && get.Val() != fmt.Sprint(i/2) {
				return fmt.Errorf("reply %d is %v", i, replies[i])
			}
		}
		keys, err6 := r.DBSize(ctx).Result()
		return errors.Join(want(set, err, "OK"), want(got, err2, "över TLS"), want(plain, err3, "över TLS"), want(who, err4, "default"),
			want(len(replies), err5, 1000), want(keys, err6, int64(501)))
	}},
	{"a value of 5 MB (TLS)", func(r *redis.Client) error {
		c := secure(r, "alice", "ca", nil)
		defer c.Close()
		var value []byte
		for i := range 655_360 {
			value = fmt.Appendf(value, "%07d\n", i)
		}
		err := c.Set(ctx, "big", value, 0).Err()
		length, err2 := r.StrLen(ctx, "big").Result()
		got, err3 := c.Get(ctx, "big").Bytes()
		end, err4 := c.GetRange(ctx, "big", 4_000_000, -1).Result()
		return errors.Join(err, want(length, err2, int64(len(value))), want(bytes.Equal(got, value), err3, true),
			want(end == string(value[4_000_000:]), err4, true))
	}},
	{"pub/sub (TLS)", func(r *redis.Client) error {
		c := secure(r, "alice", "ca", nil)
		defer c.Close()
		within, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		listener := c.Subscribe(ctx, "news")
		defer listener.Close()
		_, err := listener.Receive(within)
		err2 := listener.PSubscribe(ctx, "n*")
		_, err3 := listener.Receive(within)
		if err = errors.Join(err, err2, err3); err != nil {
			return err
		}
		for _, sender := range []*redis.Client{r, c} {
			heard, err := sender.Publish(ctx, "news", "hello").Result()
			one, err2 := listener.ReceiveMessage(within)
			two, err3 := listener.ReceiveMessage(within)
			if err = errors.Join(want(heard, err, int64(2)), err2, err3); err != nil {
				return err
			}
			err = errors.Join(want(one.Pattern+"|"+one.Channel+"|"+one.Payload, nil, "|news|hello"),
				want(two.Pattern+"|"+two.Channel+"|"+two.Payload, nil, "n*|news|hello"))
			if err != nil {
				return err
			}
		}
		return nil
	}},
	{"a user with a password (TLS)", func(r *redis.Client) error {
		err := r.ACLSetUser(ctx, "app", "reset", "on", ">s3cret", "~app:*", "+get", "+set", "+acl|whoami").Err()
		defer r.ACLDelUser(ctx, "app")
		login := func(password string) *redis.Client {
			return secure(r, "alice", "ca", func(o *redis.Options) { o.Username, o.Password = "app", password })
		}
		c, wrong := login("s3cret"), login("wrong")
		defer c.Close()
		defer wrong.Close()
		who, err2 := c.Do(ctx, "ACL", "WHOAMI").Text()
		err3 := c.Set(ctx, "app:k", "v", 0).Err()
		got, err4 := c.Get(ctx, "app:k").Result()
		return errors.Join(err, want(who, err2, "app"), err3, want(got, err4, "v"),
			refused(c.Set(ctx, "other", "v", 0).Err(), "NOPERM"), refused(c.Del(ctx, "app:k").Err(), "NOPERM"),
			refused(wrong.Get(ctx, "app:k").Err(), "WRONGPASS"))
	}},
	{"the user that a certificate names (TLS)", func(r *redis.Client) error {
		err := r.ACLSetUser(ctx, "alice", "reset", "on", "~a:*", "+get", "+set", "+acl|whoami").Err()
		c := secure(r, "alice", "ca", nil)
		defer c.Close()
		who, err2 := c.Do(ctx, "ACL", "WHOAMI").Text()
		err3 := c.Set(ctx, "a:k", "v", 0).Err()
		got, err4 := c.Get(ctx, "a:k").Result()
		err5 := refused(c.Set(ctx, "b:k", "v", 0).Err(), "NOPERM")
		gone, err6 := r.ACLDelUser(ctx, "alice").Result()
		later := secure(r, "alice", "ca", nil)
		defer later.Close()
		other, err7 := later.Do(ctx, "ACL", "WHOAMI").Text()
		return errors.Join(err, want(who, err2, "alice"), err3, want(got, err4, "v"), err5, want(gone, err6, int64(1)),
			want(other, err7, "default"))
	}},
	{"who shows no good certificate is refused (TLS)", func(r *redis.Client) error {
		attempt := func(name, authority string, change func(*redis.Options)) error {
			c := secure(r, name, authority, change)
			defer c.Close()
			return c.Incr(ctx, "k").Err()
		}
		var reply redis.Error
		for _, err := range []error{attempt("", "ca", nil), attempt("stranger", "ca", nil),
			attempt("", "ca", func(o *redis.Options) { o.TLSConfig = nil })} {
			if err == nil || errors.As(err, &reply) {
				return fmt.Errorf("got %v, want a connection that fails", err)
			}
		}
		var unknown x509.UnknownAuthorityError
		if err := attempt("alice", "other", nil); !errors.As(err, &unknown) {
			return fmt.Errorf("got %v, want an unknown authority", err)
		}
		count, err := r.Exists(ctx, "k").Result()
		return want(count, err, int64(0))
	}},
	{"fifty connections at once (TLS)", func(r *redis.Client) error {
		failures := make([]error, 50)
		var ready, done sync.WaitGroup
		ready.Add(len(failures))
		for i := range failures {
			done.Go(func() {
				c := secure(r, "alice", "ca", func(o *redis.Options) { o.ClientName = fmt.Sprint("tls-", i) })
				defer c.Close()
				err := c.Ping(ctx).Err()
				ready.Done()
				ready.Wait()
				key := fmt.Sprint("k:", i)
				for turn := 0; turn < 20 && err == nil; turn++ {
					err2 := c.Set(ctx, key, turn, 0).Err()
					got, err3 := c.Get(ctx, key).Int()
					err = errors.Join(err2, want(got, err3, turn), c.Incr(ctx, "all").Err())
				}
				name, err2 := c.ClientGetName(ctx).Result()
				failures[i] = errors.Join(err, want(name, err2, fmt.Sprint("tls-", i)))
			})
		}
		done.Wait()
		all, err := r.Get(ctx, "all").Int()
		return errors.Join(errors.Join(failures...), want(all, err, 1000))
	}},
	{"errors", func(r *redis.Client) error {
		err := r.Set(ctx, "e", "text", 0).Err()
		return errors.Join(err,
			refused(r.Incr(ctx, "e").Err(), "ERR value is not an integer or out of range"),
			refused(r.LPush(ctx, "e", "x").Err(), "WRONGTYPE"),
			refused(r.Do(ctx, "NOSUCH").Err(), "unknown command"))
	}},
}

func main() {
	failed := 0
	for _, protocol := range []int{2, 3} {
		r := open(protocol)
		commands, _ := r.Command(ctx).Result()
		for _, t := range tests {
			if strings.Contains(t.name, "(Evenkeel)") && commands["evenkeel"] == nil {
				continue
			}
			if strings.Contains(t.name, "(TLS)") && os.Getenv("EVENKEEL_TLS_PORT") == "" {
				continue
			}
			if strings.Contains(t.name, "(RESP3 only)") && protocol < 3 {
				continue
			}
			err := r.FlushAll(ctx).Err()
			if err == nil {
				err = t.run(r)
			}
			if err != nil {
				failed++
				fmt.Printf("not ok %s (RESP%d): %v\n", t.name, protocol, err)
				continue
			}
			fmt.Printf("ok %s (RESP%d)\n", t.name, protocol)
		}
		r.Close()
	}
	if failed > 0 {
		os.Exit(1)
	}
}
