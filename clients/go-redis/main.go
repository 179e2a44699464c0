// What applications do with go-redis, in RESP2 and in RESP3.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
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
	return redis.NewClient(&redis.Options{Addr: host + ":" + port, Protocol: protocol})
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

func sorted(words []string) []string {
	sort.Strings(words)
	return words
}

var tests = []test{
	{"strings", func(r *redis.Client) error {
		set, err := r.Set(ctx, "s", "v", 100*time.Second).Result()
		got, err2 := r.Get(ctx, "s").Result()
		_, missing := r.Get(ctx, "nosuch").Result()
		n, err3 := r.IncrBy(ctx, "n", 41).Result()
		values, err4 := r.MGet(ctx, "s", "nosuch").Result()
		nx, err5 := r.SetNX(ctx, "s", "w", 0).Result()
		ttl, err6 := r.TTL(ctx, "s").Result()
		if missing != redis.Nil || ttl < 90*time.Second {
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
			case <-time.After(3 * time.Second):
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
		popped, err := r.BLPop(ctx, 5*time.Second, "nosuch", "queue").Result()
		go func() {
			time.Sleep(30 * time.Millisecond)
			r.ZAdd(ctx, "zqueue", redis.Z{Score: 1, Member: "m"})
		}()
		z, err2 := r.BZPopMin(ctx, 5*time.Second, "zqueue").Result()
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
		for _, t := range tests {
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
