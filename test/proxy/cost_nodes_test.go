package proxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/cmd/psjob/kv"
	"github.com/psidecar/psidecar/cmd/psjob/van"
	"github.com/psidecar/psidecar/internal/sock"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// costJob is the part of a job that runs on one host, in one process.
type costJob struct {
	Nodes []costNode
	Host  string // this host's address
	Root  string // the scheduler's
	Port  int    // of the scheduler
	// Via says where to connect in place of an address of the job.
	Via map[string]string
}

type costNode struct {
	Role pslite.Role
	Port int
}

// costOrder has the worker push for a while.
type costOrder struct {
	Bytes    int // of keys and values of a push
	InFlight int // pushes that wait for their answers
	For      time.Duration
}

// costRun is what came of it.
type costRun struct {
	Pushes         int
	Took           time.Duration
	P50, P99, P999 time.Duration // from push to answer
}

// costNodes is a process of a job: it starts the nodes of its first line and then
// pushes by orders, one a line, until its input ends.
func costNodes([]string) error {
	in := bufio.NewReader(os.Stdin)
	var j costJob
	if err := readLine(in, &j); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var g errgroup.Group
	workers := make(chan *kv.Worker, len(j.Nodes))
	for _, n := range j.Nodes {
		g.Go(func() error {
			w, err := j.start(ctx, n)
			if w != nil {
				workers <- w
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		var o costOrder
		switch err := readLine(in, &o); {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		w := <-workers
		r, err := o.run(ctx, w)
		if err != nil {
			return err
		}
		workers <- w
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
	}
}

func readLine(in *bufio.Reader, v any) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

func (j *costJob) start(ctx context.Context, n costNode) (*kv.Worker, error) {
	c := van.Config{Role: n.Role, Servers: costServers, Workers: 1, Root: j.Root, RootPort: j.Port, NodeHost: j.Host, Port: n.Port, Dialer: j}
	v, err := van.Start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Role, err)
	}
	switch n.Role {
	case pslite.Server:
		_, err = kv.NewServer(v, 0, discarding{})
	case pslite.Worker:
		return kv.NewWorker(v, 0, 0, nil)
	}
	return nil, err
}

// DialContext implements [van.Dialer].
func (j *costJob) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if via, ok := j.Via[address]; ok {
		address = via
	}
	return new(net.Dialer).DialContext(ctx, network, address)
}

// costServers are the job's servers; pushes are for keys of the first, but for
// those that are displaced.
const costServers = 2

// discarding is a server's handler that keeps nothing.
type discarding struct{}

func (discarding) Push(int32, []uint64, []float32, []int32) error { return nil }

func (discarding) Pull(_ int32, keys []uint64, _ []int32, dst []float32) ([]float32, error) {
	return append(dst, make([]float32, len(keys))...), nil
}

func (discarding) Command(kv.Command) ([]byte, error) { return nil, nil }

// A push has one of costLists lists of keys, by turns: of so many keys for each of
// the list those that a mini-batch happens to have.
const (
	costLists  = 16
	costSpread = 4
)

// costKeys returns the lists of keys of pushes of so many bytes.
func costKeys(size int) (lists [costLists][]uint64) {
	n := max(1, size/12)
	random := rand.New(rand.NewPCG(uint64(size), 1))
	for i := range lists {
		seen := map[uint64]bool{}
		for len(seen) < n {
			seen[random.Uint64N(uint64(costSpread*n))] = true
		}
		for k := range seen {
			lists[i] = append(lists[i], k)
		}
		slices.Sort(lists[i])
	}
	return lists
}

// isDisplaced says which keys are, where some are: one in ten.
func isDisplaced(key uint64) bool { return key%10 == 7 }

func (o *costOrder) run(ctx context.Context, w *kv.Worker) (r costRun, err error) {
	lists := costKeys(o.Bytes)
	vals := make([]float32, len(lists[0]))
	for i := range vals {
		vals[i] = float32(rand.NormFloat64())
	}
	var next atomic.Int64
	var mu sync.Mutex
	var times []time.Duration
	var g errgroup.Group
	began := time.Now()
	for range o.InFlight {
		g.Go(func() error {
			var own []time.Duration
			for time.Since(began) < o.For {
				start := time.Now()
				ts, err := w.Push(ctx, kv.Request{Keys: lists[next.Add(1)%costLists], Vals: vals})
				if err == nil {
					err = w.Wait(ctx, ts)
				}
				if err != nil {
					return err
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, own...)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return r, err
	}
	r.Took, r.Pushes = time.Since(began), len(times)
	slices.Sort(times)
	at := func(q float64) time.Duration { return times[int(q*float64(len(times)-1))] }
	r.P50, r.P99, r.P999 = at(0.5), at(0.99), at(0.999)
	return r, nil
}

// splicing is a process that relays TCP connections and looks at nothing, from
// LISTEN to DEST of each argument LISTEN=DEST, until its input ends.
func splicing(pairs []string) error {
	for _, pair := range pairs {
		at, to, _ := strings.Cut(pair, "=")
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		go func() {
			for {
				near, err := l.Accept()
				if err != nil {
					return
				}
				go spliceTo(near, to)
			}
		}()
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func spliceTo(near net.Conn, to string) {
	far, err := net.Dial("tcp", to)
	if err != nil {
		sock.Reset(near)
		return
	}
	pass := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			sock.Reset(near)
			sock.Reset(far)
			return
		}
		dst.(*net.TCPConn).CloseWrite()
	}
	go pass(far, near)
	pass(near, far)
}
