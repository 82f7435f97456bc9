package bpf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// speedJob is a job of the C++ peer on one host: one server, one worker that
// pushes and pulls keys as fast as it can, rounds times.
type speedJob struct {
	program string
	host    *hosts.Host
	keys    int
	rounds  int
}

func newSpeedJob(t testing.TB, keys, rounds int) speedJob {
	require.BPF(t)
	return speedJob{hoststest.BuildPeer(t), hoststest.New(t, hosts.Config{Hosts: 1}).Host(0), keys, rounds}
}

// run returns what the worker said.
func (j speedJob) run(t testing.TB) hoststest.PeerWorker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	worker := hosts.Program{j.program, "--mode", "bench", "--keys", strconv.Itoa(j.keys), "--rounds", strconv.Itoa(j.rounds)}
	r, err := hosts.Job{
		Scheduler: hosts.Program{j.program},
		Servers:   []hosts.Program{{j.program, "--discard"}},
		Workers:   []hosts.Program{worker},
		Hosts:     []*hosts.Host{j.host},
	}.Run(ctx)
	if err != nil {
		t.Fatalf("%v: %s", err, &r.Workers[0].Stderr)
	}
	var said hoststest.PeerWorker
	if err := json.Unmarshal(r.Workers[0].Stdout.Bytes(), &said); err != nil {
		t.Fatalf("%v: %s", err, &r.Workers[0].Stdout)
	}
	return said
}

// keyCounter reads a capture and adds up the keys of requests.
type keyCounter struct {
	bytes  uint64
	cancel context.CancelFunc
	group  errgroup.Group
}

func countKeys(c *Capture) *keyCounter {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keyCounter{cancel: cancel}
	k.group.Go(func() error {
		for {
			err := c.Read(ctx, func(r *Record) {
				switch r.Kind {
				case KindKeys:
					k.bytes += uint64(len(r.Data)) // a chunk may end inside a key
				case KindKeyRun:
					_, _, n := r.KeyRun()
					k.bytes += 8 * n
				}
			})
			if err != nil {
				return err
			}
		}
	})
	return k
}

func (k *keyCounter) stop(t testing.TB) uint64 {
	t.Helper()
	k.cancel()
	if err := k.group.Wait(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return k.bytes / 8
}

// TestBothDirections: where ingress is watched too, the receiver's side sees
// the same keys once more. Segments of one stream can arrive on two cores at
// once, or out of order; what is missed then is counted, and the job runs again.
func TestBothDirections(t *testing.T) {
	const tries = 20
	for i := range tries {
		complete := false
		t.Run(fmt.Sprint(i), func(t *testing.T) { complete = watchBothDirections(t) })
		if complete || t.Failed() {
			return
		}
	}
	t.Fatalf("in none of %d runs did all segments arrive in order and one by one", tries)
}

// watchBothDirections reports whether every segment was seen; then nothing may differ.
func watchBothDirections(t *testing.T) bool {
	j := newSpeedJob(t, 50_000, 2)
	c := openTest(t, Options{Ingress: IngressAll, IngressLoopback: true})
	require.NoError(t, c.Attach(j.host.Cgroup()))
	counter := countKeys(c)
	said := j.run(t)
	seen, want := counter.stop(t), uint64(2*said.Keys*(said.Pushes+said.Pulls))
	counts := require.Value(c.Counts())(t)
	if counts.Lost().Events+counts[ReasonSteppedGap].Events > 0 {
		t.Logf("%d keys seen of %d: %v", seen, want, counts)
		return false
	}
	if seen != want {
		t.Errorf("%d keys seen, want %d: %v", seen, want, counts)
	}
	streams := require.Value(c.Streams())(t)
	var bytes, messages [2]uint64
	for _, s := range streams {
		bytes[s.ID.Direction()] += s.Bytes
		messages[s.ID.Direction()] += s.Messages
	}
	if bytes[Egress] != bytes[Ingress] || messages[Egress] != messages[Ingress] || bytes[Egress] == 0 {
		t.Errorf("bytes and messages sent and received: %v, %v", bytes, messages)
	}
	return true
}
