package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// storeHandler is a server whose commands answer with their own body, twice.
type storeHandler struct{ *Store }

func (h storeHandler) Command(c Command) ([]byte, error) {
	return append(append([]byte(nil), c.Body...), c.Body...), nil
}

// job runs a whole job in this process.
type job struct {
	servers, workers int
	host             string
	change           func(*van.Config)
	settings         StoreSettings
	work             func(ctx context.Context, w *Worker) error
}

func freePort(t testing.TB, host string) int {
	t.Helper()
	port, err := hosts.FreePort(host)
	if err != nil {
		require.Missing(t, "no address on %s: %v", host, err)
	}
	return port
}

func (j job) run(t testing.TB) []van.Statistics {
	t.Helper()
	if j.host == "" {
		j.host = "127.0.0.1"
	}
	config := van.Config{Servers: j.servers, Workers: j.workers, Root: j.host, RootPort: freePort(t, j.host),
		NodeHost: j.host, Patience: time.Minute, ProgressEvery: 5 * time.Second, Logger: slog.Default()}
	if j.change != nil {
		j.change(&config)
	}
	stats := make([]van.Statistics, 1+j.servers+j.workers)
	group, ctx := errgroup.WithContext(t.Context())
	node := func(role pslite.Role, at int, before func(*van.Van) (func(context.Context) error, error)) {
		group.Go(func() error {
			c := config
			c.Role = role
			v, err := van.Start(ctx, c)
			if err != nil {
				return fmt.Errorf("%v: %w", role, err)
			}
			var work func(context.Context) error
			if before != nil {
				work, err = before(v)
			}
			if err == nil {
				err = v.Barrier(ctx, van.Everyone)
			}
			if err == nil && work != nil {
				err = work(ctx)
			}
			if err != nil {
				_ = v.Stop(ctx)
				return fmt.Errorf("%v %d: %w", role, v.ID(), err)
			}
			err = errors.Join(v.AwaitEnd(ctx), v.Stop(ctx))
			stats[at] = v.Statistics()
			return err
		})
	}
	node(pslite.Scheduler, 0, nil)
	for i := range j.servers {
		node(pslite.Server, 1+i, func(v *van.Van) (func(context.Context) error, error) {
			st, err := NewStore(j.settings)
			if err != nil {
				return nil, err
			}
			_, err = NewServer(v, 0, storeHandler{st})
			return nil, err
		})
	}
	for i := range j.workers {
		node(pslite.Worker, 1+j.servers+i, func(v *van.Van) (func(context.Context) error, error) {
			w, err := NewWorker(v, 0, 0, new(AccessLog))
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return j.work(ctx, w) }, nil
		})
	}
	require.NoError(t, group.Wait())
	return stats
}

// addAndCheck has each worker push whole numbers again and again, to keys that
// all share and keys of its own, and checks the sums.
func addAndCheck(rounds, keys, workers int) func(context.Context, *Worker) error {
	return func(ctx context.Context, w *Worker) error {
		rank := w.van.Rank()
		list, vals := make([]uint64, keys), make([]float32, keys)
		for i := range list {
			list[i] = math.MaxUint64 / uint64(keys) * uint64(i) // even ones shared
			if i%2 == 1 {
				list[i] += uint64(rank)
			}
			vals[i] = float32(i%7 + 1)
		}
		for range rounds {
			ts, err := w.Push(ctx, Request{Keys: list, Vals: vals})
			if err != nil {
				return err
			}
			if err := w.Wait(ctx, ts); err != nil {
				return err
			}
		}
		if err := w.van.Barrier(ctx, van.Workers); err != nil {
			return err
		}
		out := make([]float32, keys)
		ts, err := w.Pull(ctx, Request{Keys: list, Out: out})
		if err != nil {
			return err
		}
		if err := w.Wait(ctx, ts); err != nil {
			return err
		}
		for i, got := range out {
			want := float32(rounds) * vals[i]
			if i%2 == 0 {
				want *= float32(workers)
			}
			if got != want {
				return fmt.Errorf("key %d: sum %v, want %v", list[i], got, want)
			}
		}
		return nil
	}
}

func TestSums(t *testing.T) {
	for name, j := range map[string]job{
		"one server, one worker": {servers: 1, workers: 1, work: addAndCheck(3, 1000, 1)},
		"3 servers, 4 workers":   {servers: 3, workers: 4, work: addAndCheck(5, 1001, 4)},
		"long messages":          {servers: 2, workers: 2, work: addAndCheck(2, 100_000, 2)},
		"IPv6":                   {servers: 2, workers: 2, host: "::1", work: addAndCheck(5, 100, 2)},
		"watermark 1": {servers: 2, workers: 2, work: addAndCheck(20, 10, 2),
			change: func(c *van.Config) { c.Watermark = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			j.settings = StoreSettings{Rule: "add"}
			j.run(t)
		})
	}
}

// Messages are thrown away, repeated and recognised; no sum may change.
func TestSumsWithLoss(t *testing.T) {
	for _, drop := range []int{0, 10, 30} {
		t.Run(fmt.Sprintf("%d percent", drop), func(t *testing.T) {
			stats := job{servers: 2, workers: 3, settings: StoreSettings{Rule: "add"}, work: addAndCheck(30, 50, 3),
				change: func(c *van.Config) {
					c.Resend, c.ResendTimeout, c.Drop = true, 20*time.Millisecond, drop
				}}.run(t)
			var dropped, repeated, duplicates int64
			for _, s := range stats {
				dropped += s.Dropped
				repeated += s.Repeated
				duplicates += s.Duplicates
			}
			if drop > 0 && (dropped == 0 || repeated == 0 || duplicates == 0) {
				t.Errorf("%d dropped, %d repeated, %d duplicates: the test lost nothing", dropped, repeated, duplicates)
			}
		})
	}
}

func TestRequestForms(t *testing.T) {
	pairs := []uint64{5, 1 << 63, math.MaxUint64 - 2} // over three servers: the last two are far up
	j := job{servers: 3, workers: 1, settings: StoreSettings{Rule: "add", ValueLength: 2}}
	j.work = func(ctx context.Context, w *Worker) error {
		do := func(ts int32, err error) error {
			if err != nil {
				return err
			}
			return w.Wait(ctx, ts)
		}
		// Long values.
		out := make([]float32, 6)
		if err := do(w.PushPull(ctx, Request{Keys: pairs, Vals: []float32{1, 2, 3, 4, 5, 6}, Out: out, Head: 9, Priority: 3})); err != nil {
			return err
		}
		if fmt.Sprint(out) != "[1 2 3 4 5 6]" {
			return fmt.Errorf("pushed and pulled %v", out)
		}
		// Lengths of 3, 0 and 1.
		variable := []uint64{6, 7, 1<<63 + 1}
		lens := []int32{3, 0, 1}
		if err := do(w.Push(ctx, Request{Keys: variable, Lens: lens, Vals: []float32{1, 2, 3, 4}})); err != nil {
			return err
		}
		out = make([]float32, 4)
		if err := do(w.Pull(ctx, Request{Keys: variable, Lens: lens, Out: out})); err != nil {
			return err
		}
		if fmt.Sprint(out) != "[1 2 3 4]" {
			return fmt.Errorf("pulled %v with lengths", out)
		}
		// No key at all.
		if err := do(w.Push(ctx, Request{})); err != nil {
			return err
		}
		// Commands.
		answers, err := w.Command(ctx, 42, []byte("ab"), van.Servers)
		if err != nil || len(answers) != 3 || string(answers[0].Body) != "abab" || answers[2].Head != 42 {
			return fmt.Errorf("command answered by %v: %w", answers, err)
		}
		// What cannot be sent.
		if _, err := w.Push(ctx, Request{Keys: []uint64{1, 2}, Vals: []float32{1}}); err == nil {
			return fmt.Errorf("1 value for 2 keys was sent")
		}
		if _, err := w.Push(ctx, Request{Keys: []uint64{math.MaxUint64}, Vals: []float32{1}}); err == nil {
			return fmt.Errorf("the last key was sent")
		}
		for key, c := range w.log.All() {
			if key == 6 && (c.Pushes != 1 || c.Pulls != 1 || c.PushBytes != 12 || c.PullBytes != 12) {
				return fmt.Errorf("key 6 was logged as %+v", c)
			}
		}
		if w.log.Len() != 6 {
			return fmt.Errorf("%d keys logged, want 6", w.log.Len())
		}
		return nil
	}
	j.run(t)
}

// A server whose handler fails must end, and say why: as long as it went on
// acknowledging requests, all workers would wait for it.
func TestHandlerErrorEndsTheServer(t *testing.T) {
	config := van.Config{Servers: 1, Workers: 1, Root: "127.0.0.1", RootPort: freePort(t, "127.0.0.1"), Resend: true, ResendTimeout: 50 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var group errgroup.Group
	start := func(role pslite.Role, then func(v *van.Van) error) {
		group.Go(func() error {
			c := config
			c.Role = role
			v, err := van.Start(ctx, c)
			if err != nil {
				return err
			}
			err = then(v)
			_ = v.Stop(ctx) // what ended it, then has seen
			return err
		})
	}
	start(pslite.Scheduler, func(v *van.Van) error { <-ctx.Done(); return nil })
	start(pslite.Server, func(v *van.Van) error {
		defer cancel() // of the others
		st, _ := NewStore(StoreSettings{Rule: "add", ValueLength: 2})
		if _, err := NewServer(v, 0, storeHandler{st}); err != nil {
			return err
		}
		<-v.Context().Done()
		if err := context.Cause(v.Context()); !strings.Contains(err.Error(), "key 1 has 2 values, the request says 1") {
			return fmt.Errorf("the server did not end by its handler's error: %w", err)
		}
		return nil
	})
	start(pslite.Worker, func(v *van.Van) error {
		w, err := NewWorker(v, 0, 0, nil)
		if err != nil {
			return err
		}
		ts, err := w.Push(ctx, Request{Keys: []uint64{1}, Vals: []float32{1, 1}})
		if err == nil {
			err = w.Wait(ctx, ts)
		}
		if err == nil {
			_, err = w.Push(ctx, Request{Keys: []uint64{1}, Vals: []float32{1}})
		}
		<-ctx.Done()
		return err
	})
	require.NoError(t, group.Wait())
}
