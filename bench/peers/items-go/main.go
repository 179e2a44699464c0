// Command items is the peer of `evenkeel-bench items`: "get item by id" as a service in Go, the usual way.
// gin answers over HTTP, Ristretto holds the rows as the JSON bytes that are sent, and pgx loads missing
// rows. A trigger's NOTIFY drops a changed row from the cache; the time to live is a day.
//
// It is made fast on purpose: bytes are cached, not objects, no middleware runs, and a hit copies nothing. It
// lacks the features that such a service lacks at first. Two misses of one id load it twice, and a row read
// before a change can be cached after the notification.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/ristretto/v2"
	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const timeToLive = 24 * time.Hour

type service struct {
	pool  *pgxpool.Pool
	cache *ristretto.Cache[int64, []byte]
	query string
	loads atomic.Int64
}

func main() {
	port := flag.Int("port", 8080, "TCP port on 127.0.0.1")
	url := flag.String("url", "", "the database")
	table := flag.String("table", "items", "its table")
	items := flag.Int64("items", 30000, "items to cache at most")
	connections := flag.Int("pool", 4, "connections that load")
	flag.Parse()
	config, err := pgxpool.ParseConfig(*url)
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = int32(*connections)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	cache, err := ristretto.NewCache(&ristretto.Config[int64, []byte]{
		NumCounters:        10 * *items,
		MaxCost:            *items,
		BufferItems:        64,
		IgnoreInternalCost: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	s := &service{
		pool:  pool,
		cache: cache,
		query: "SELECT row_to_json(r)::text FROM " + pgx.Identifier{*table}.Sanitize() + " r WHERE id = $1",
	}
	listening := make(chan struct{})
	go s.follow(*url, *table, listening)
	<-listening

	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.GET("/items/:id", s.item)
	engine.GET("/loads", func(c *gin.Context) { c.String(http.StatusOK, "%d", s.loads.Load()) })
	engine.GET("/flush", func(c *gin.Context) { s.cache.Clear() })
	log.Fatal(engine.Run(fmt.Sprintf("127.0.0.1:%d", *port)))
}

func (s *service) item(c *gin.Context) {
	id, err := strconv.ParseInt(c.Param("id"), 10, 64)
	if err != nil {
		c.Status(http.StatusBadRequest)
		return
	}
	if body, found := s.cache.Get(id); found {
		answer(c, body)
		return
	}
	var body []byte
	s.loads.Add(1)
	switch err := s.pool.QueryRow(c.Request.Context(), s.query, id).Scan(&body); err {
	case nil:
		s.cache.SetWithTTL(id, body, 1, timeToLive)
		answer(c, body)
	case pgx.ErrNoRows:
		c.Status(http.StatusNotFound)
	default:
		c.String(http.StatusServiceUnavailable, err.Error())
	}
}

// answer sets the length, as longer bodies would be sent in chunks otherwise.
func answer(c *gin.Context, body []byte) {
	c.Header("Content-Length", strconv.Itoa(len(body)))
	c.Data(http.StatusOK, "application/json", body)
}

// follow drops changed rows from the cache. A broken connection may lose notifications, so everything is
// dropped.
func (s *service) follow(url, table string, listening chan<- struct{}) {
	background := context.Background()
	for {
		connection, err := pgx.Connect(background, url)
		if err == nil {
			_, err = connection.Exec(background, "LISTEN "+pgx.Identifier{table + "_changed"}.Sanitize())
		}
		if err == nil && listening != nil {
			close(listening)
			listening = nil
		}
		for err == nil {
			var news *pgconn.Notification
			if news, err = connection.WaitForNotification(background); err == nil {
				if id, bad := strconv.ParseInt(news.Payload, 10, 64); bad == nil {
					s.cache.Del(id)
				}
			}
		}
		log.Print(err)
		if connection != nil {
			connection.Close(background)
		}
		s.cache.Clear()
		time.Sleep(100 * time.Millisecond)
	}
}
